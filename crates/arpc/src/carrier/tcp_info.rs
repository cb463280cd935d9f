//! The kernel's knowledge of a TCP connection (TCP_INFO), asked for by its addresses.
//!
//! The question goes to NETLINK_SOCK_DIAG, like ss(8)'s, and needs no privilege. getsockopt() would need the socket,
//! which its user has, and code that the compiler cannot check. The structures are those of the kernel's
//! `linux/netlink.h`, `linux/inet_diag.h` and `linux/tcp.h`; later kernels only append to them.

use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use crate::loss::Loss;

/// `nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `nlmsghdr` and `inet_diag_req_v2`.
const REQUEST_BYTES: u32 = 16 + 56;
/// `nlmsghdr` and `inet_diag_msg`, which attributes follow.
const REPLY_BYTES: usize = HEADER_BYTES + 72;
/// More bytes by far than a reply has with all its attributes.
const REPLY_BYTES_MAX: usize = 2048;
/// The bytes of an attribute's head, which attributes are aligned to as well.
const ATTRIBUTE_HEAD_BYTES: usize = 4;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// The attribute that is `tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// Any state, and any cookie.
const ANY: u32 = u32::MAX;
/// The places of `tcpi_snd_mss`, `tcpi_bytes_sent`, `tcpi_bytes_retrans` and `tcpi_dsack_dups`; the last three since
/// Linux 4.19, before that the structure is shorter.
const SEGMENT_AT: usize = 16;
const SENT_AT: usize = 200;
const RESENT_AT: usize = 208;
const TWICE_AT: usize = 216;

/// Returns how much the connection between two addresses has sent since it began, and lost; `None` if there is none, or
/// the kernel does not tell.
pub(super) fn loss(local: SocketAddr, peer: SocketAddr) -> Option<Loss> {
    ask(local, peer, loss_in)
}

/// Returns how much one packet carries of the stream of the connection between two addresses, as far as is known now.
pub(super) fn segment_bytes(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
    ask(local, peer, |info| u32_at(info, SEGMENT_AT).map(u64::from))
}

fn ask<T>(local: SocketAddr, peer: SocketAddr, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG)).ok()?;
    sendto(&socket, &request(local, peer), SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut reply = [0; REPLY_BYTES_MAX];
    // The kernel has answered before it returns from the question.
    let (bytes, _) = recv(&socket, &mut reply, RecvFlags::DONTWAIT).ok()?;
    read(parse(reply.get(..bytes)?)?)
}

fn request(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let (family, interface) = match local {
        SocketAddr::V4(_) => (AF_INET, 0),
        SocketAddr::V6(local) => (AF_INET6, local.scope_id()),
    };
    let mut request = REQUEST_BYTES.to_ne_bytes().to_vec();
    request.extend([SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST].into_iter().flat_map(u16::to_ne_bytes));
    request.resize(HEADER_BYTES, 0);
    request.extend([family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    request.extend(ANY.to_ne_bytes());
    request.extend(local.port().to_be_bytes());
    request.extend(peer.port().to_be_bytes());
    for address in [local, peer] {
        let end = request.len() + 16;
        match address.ip() {
            IpAddr::V4(address) => request.extend(address.octets()),
            IpAddr::V6(address) => request.extend(address.octets()),
        }
        request.resize(end, 0);
    }
    request.extend([interface, ANY, ANY].into_iter().flat_map(u32::to_ne_bytes));
    request
}

/// Finds the `tcp_info` in a reply.
fn parse(reply: &[u8]) -> Option<&[u8]> {
    // Any other reply is an error.
    (u16_at(reply, 4)? == SOCK_DIAG_BY_FAMILY).then_some(())?;
    let mut attributes = reply.get(REPLY_BYTES..)?;
    loop {
        let (bytes, kind) = (usize::from(u16_at(attributes, 0)?), u16_at(attributes, 2)?);
        let info = attributes.get(ATTRIBUTE_HEAD_BYTES..bytes)?;
        if kind == INET_DIAG_INFO {
            return Some(info);
        }
        attributes = attributes.get(bytes.next_multiple_of(ATTRIBUTE_HEAD_BYTES)..)?;
    }
}

fn loss_in(info: &[u8]) -> Option<Loss> {
    // Segments that the peer has got twice were late, or overtaken by later ones, as on a loopback of many threads.
    let needless = u64::from(u32_at(info, TWICE_AT)?) * u64::from(u32_at(info, SEGMENT_AT)?);
    let lost_bytes = u64_at(info, RESENT_AT)?.saturating_sub(needless);
    Some(Loss { sent_bytes: u64_at(info, SENT_AT)?, lost_bytes })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// The least bytes of a `tcp_info`.
    const INFO_BYTES: usize = TWICE_AT + 4;

    /// Makes a reply with one attribute of another kind and odd size, and a `tcp_info` of so many bytes.
    fn reply(info_bytes: usize) -> Vec<u8> {
        let mut reply = vec![0; REPLY_BYTES];
        reply[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        let mut info = vec![0; INFO_BYTES + 60];
        info[SEGMENT_AT..][..4].copy_from_slice(&20_u32.to_ne_bytes());
        info[TWICE_AT..][..4].copy_from_slice(&2_u32.to_ne_bytes());
        info[SENT_AT..][..8].copy_from_slice(&5000_u64.to_ne_bytes());
        info[RESENT_AT..][..8].copy_from_slice(&70_u64.to_ne_bytes());
        for (kind, content) in [(8, &[0; 1][..]), (INET_DIAG_INFO, &info[..info_bytes])] {
            let bytes = u16::try_from(ATTRIBUTE_HEAD_BYTES + content.len()).unwrap();
            reply.extend([bytes, kind].into_iter().flat_map(u16::to_ne_bytes));
            reply.extend(content);
            reply.resize(reply.len().next_multiple_of(ATTRIBUTE_HEAD_BYTES), 0);
        }
        reply
    }

    #[test]
    fn kernels_that_do_not_count_are_no_loss() {
        let loss = |reply: &[u8]| parse(reply).and_then(loss_in);
        assert_eq!(loss(&reply(INFO_BYTES)), Some(Loss { sent_bytes: 5000, lost_bytes: 30 }));
        assert_eq!(loss(&reply(INFO_BYTES - 1)), None, "Linux 4.18 ends before it");
        let whole = reply(INFO_BYTES + 60);
        assert!(parse(&whole).is_some(), "and later ones go on behind it");
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "{end} bytes of {}", whole.len());
        }
        let mut refused = whole;
        refused[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(parse(&refused), None, "an error");
    }

    #[test]
    fn a_question_is_as_long_as_it_says() {
        for (local, peer) in [("10.0.0.1:6237", "10.0.0.2:1"), ("[fe80::1%3]:6237", "[fe80::2%3]:1")] {
            let request = request(local.parse().unwrap(), peer.parse().unwrap());
            assert_eq!(request.len(), usize::try_from(REQUEST_BYTES).unwrap());
        }
    }

    #[test]
    #[ignore = "needs: a kernel with inet_diag"]
    fn what_a_connection_has_sent_is_asked_of_the_kernel() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            near.write_all(&[0; 1000]).unwrap();
            far.read_exact(&mut [0; 1000]).unwrap();
            let (local, peer) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
            assert_eq!(loss(local, peer), Some(Loss { sent_bytes: 1000, lost_bytes: 0 }));
            assert!(segment_bytes(local, peer).is_some_and(|bytes| bytes > 1448), "loopback has large packets");
            assert_eq!(loss(peer, local), Some(Loss::default()), "the other end has sent nothing");
            drop((near, far));
            assert_eq!(loss(local, peer), None);
        }
    }
}
