//! Routes, as the kernel has them at this moment (NETLINK_ROUTE).
//!
//! The question is that of `ip route get` and needs no privilege; the structures are those of the kernel's
//! `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_link.h`, to which later kernels only append. Only few fields
//! of the answers are read, so no library is needed that knows all of them.

use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// The way that a packet would take now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// There is no route.
    None,
    /// The packet goes out by this link.
    Over {
        /// The link's name, or its number if it has no name.
        link: String,
        /// Whether packets go out.
        is_running: bool,
    },
    /// The kernel does not say.
    Unknown,
}

/// `nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `rtmsg`.
const ROUTE_BYTES: usize = 12;
/// `ifinfomsg`.
const LINK_BYTES: usize = 16;
/// The head of an attribute, and what attributes are aligned to.
const ATTRIBUTE_HEAD_BYTES: usize = 4;
/// The most bytes of a reply: a longer one, of a link, is cut behind the fields that are read.
const REPLY_BYTES_MAX: usize = 4096;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const IFLA_IFNAME: u16 = 3;
/// Flags of a link: taken up by the configuration, and able to send.
const IFF_UP: u32 = 1 << 0;
const IFF_RUNNING: u32 = 1 << 6;
/// The kernel's errors for an address to which there is no route: ENETUNREACH, EHOSTUNREACH.
const NO_ROUTE: [i32; 2] = [-101, -113];

/// Asks the kernel for the route to an address.
pub(super) fn to(address: SocketAddr) -> Route {
    let Some(reply) = ask(&route_request(address)) else { return Route::Unknown };
    match output_of(&reply) {
        Output::None => Route::None,
        Output::Unknown => Route::Unknown,
        Output::Link(index) => match ask(&link_request(index)).as_deref().and_then(link_of) {
            Some((name, is_running)) => {
                Route::Over { link: name.unwrap_or_else(|| format!("number {index}")), is_running }
            }
            None => Route::Unknown,
        },
    }
}

fn ask(request: &[u8]) -> Option<Vec<u8>> {
    // The first protocol of the family is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut reply = vec![0; REPLY_BYTES_MAX];
    // The kernel answers before it returns from the question.
    let (bytes, _) = recv(&socket, &mut reply[..], RecvFlags::DONTWAIT).ok()?;
    reply.truncate(bytes);
    Some(reply)
}

fn route_request(to: SocketAddr) -> Vec<u8> {
    let (family, bits, address) = match to.ip() {
        IpAddr::V4(address) => (AF_INET, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, 128, address.octets().to_vec()),
    };
    let mut body = vec![0; ROUTE_BYTES];
    body[0] = family;
    body[1] = bits;
    push_attribute(&mut body, RTA_DST, &address);
    if let SocketAddr::V6(to) = to
        && to.scope_id() != 0
    {
        push_attribute(&mut body, RTA_OIF, &to.scope_id().to_ne_bytes());
    }
    message(RTM_GETROUTE, &body)
}

fn link_request(index: u32) -> Vec<u8> {
    let mut body = vec![0; LINK_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    message(RTM_GETLINK, &body)
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    // A message has some tens of bytes; the kernel refuses a wrong length.
    let bytes = u32::try_from(HEADER_BYTES + body.len()).unwrap_or_default();
    let mut message = bytes.to_ne_bytes().to_vec();
    message.extend([kind, NLM_F_REQUEST].into_iter().flat_map(u16::to_ne_bytes));
    message.resize(HEADER_BYTES, 0);
    message.extend(body);
    message
}

/// Appends an attribute. The content's length is a multiple of four, and at most 16.
fn push_attribute(body: &mut Vec<u8>, kind: u16, content: &[u8]) {
    let bytes = u16::try_from(ATTRIBUTE_HEAD_BYTES + content.len()).unwrap_or_default();
    body.extend([bytes, kind].into_iter().flat_map(u16::to_ne_bytes));
    body.extend(content);
}

/// The link by which a packet goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Output {
    None,
    Link(u32),
    Unknown,
}

fn output_of(reply: &[u8]) -> Output {
    let kind = u16_at(reply, 4);
    if kind == Some(NLMSG_ERROR) {
        let error = reply.get(HEADER_BYTES..).and_then(|rest| rest.first_chunk().copied()).map(i32::from_ne_bytes);
        return if error.is_some_and(|error| NO_ROUTE.contains(&error)) { Output::None } else { Output::Unknown };
    }
    let attributes = reply.get(HEADER_BYTES + ROUTE_BYTES..).filter(|_| kind == Some(RTM_NEWROUTE));
    let index = attributes.and_then(|attributes| attribute(attributes, RTA_OIF)).and_then(|link| u32_at(link, 0));
    index.map_or(Output::Unknown, Output::Link)
}

/// Returns the name of a link, and whether packets go out by it.
fn link_of(reply: &[u8]) -> Option<(Option<String>, bool)> {
    (u16_at(reply, 4)? == RTM_NEWLINK).then_some(())?;
    let flags = u32_at(reply, HEADER_BYTES + 8)?;
    let name = attribute(reply.get(HEADER_BYTES + LINK_BYTES..)?, IFLA_IFNAME);
    let name = name.map(|name| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned());
    Some((name, flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING))
}

/// Finds the first attribute of a kind.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (bytes, found) = (usize::from(u16_at(attributes, 0)?), u16_at(attributes, 2)?);
        let content = attributes.get(ATTRIBUTE_HEAD_BYTES..bytes)?;
        if found == kind {
            return Some(content);
        }
        attributes = attributes.get(bytes.next_multiple_of(ATTRIBUTE_HEAD_BYTES)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn route_reply() -> Vec<u8> {
        let mut body = vec![0; ROUTE_BYTES];
        push_attribute(&mut body, RTA_DST, &[10, 0, 0, 1]);
        push_attribute(&mut body, RTA_OIF, &7_u32.to_ne_bytes());
        message(RTM_NEWROUTE, &body)
    }

    fn link_reply(flags: u32) -> Vec<u8> {
        let mut body = vec![0; LINK_BYTES];
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        push_attribute(&mut body, IFLA_IFNAME, b"wlan0\0\0\0");
        message(RTM_NEWLINK, &body)
    }

    #[test]
    fn a_route_goes_over_a_link_or_there_is_none() {
        let whole = route_reply();
        assert_eq!(output_of(&whole), Output::Link(7));
        for end in 0..whole.len() {
            assert_eq!(output_of(&whole[..end]), Output::Unknown, "{end} bytes of {}", whole.len());
        }
        for (error, output) in [(-101, Output::None), (-113, Output::None), (-1, Output::Unknown)] {
            assert_eq!(output_of(&message(NLMSG_ERROR, &i32::to_ne_bytes(error))), output, "{error}");
        }
    }

    #[test]
    fn a_link_runs_if_it_is_up_and_has_its_carrier() {
        let name = || Some("wlan0".to_owned());
        assert_eq!(link_of(&link_reply(IFF_UP | IFF_RUNNING | 2)), Some((name(), true)));
        assert_eq!(link_of(&link_reply(IFF_UP)), Some((name(), false)), "no carrier");
        assert_eq!(link_of(&link_reply(IFF_RUNNING)), Some((name(), false)));
        assert_eq!(link_of(&link_reply(0)[..HEADER_BYTES + LINK_BYTES]), Some((None, false)), "cut");
        assert_eq!(link_of(&route_reply()), None);
    }

    #[test]
    #[ignore = "needs: netlink"]
    fn the_kernel_tells_of_loopback() {
        let over = Route::Over { link: "lo".to_owned(), is_running: true };
        assert_eq!(to(([127, 0, 0, 1], 1).into()), over);
    }
}
