//! A UDP socket on an emulated link: datagrams arrive at the times of the link model, or not at all.
//!
//! The socket is the client's and has both directions: sent datagrams wait here for their arrival, and incoming ones
//! wait before they are read. The link is a [`Shaper`]'s, as packets see it ([`Link`]).
//!
//! Timers have a granularity of a millisecond, so datagrams arrive up to a millisecond later.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use mafs_proto::{Clock, Instant};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::carrier::shaped::{Shaper, sleep_until};
use crate::link::Link;

/// The heads of IPv4 and UDP.
const HEADER_BYTES: u64 = 20 + 8;
/// The largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A datagram on its way, and the address that it comes from or goes to.
type Datagram = (SocketAddr, Bytes);

/// One end of the emulated link.
#[derive(Debug)]
pub(super) struct Lossy {
    address: SocketAddr,
    up: Mutex<OneWay>,
    arrived: Mutex<mpsc::UnboundedReceiver<Datagram>>,
    /// The tasks that receive for as long as this is there.
    _receiving: JoinSet<()>,
}

/// One direction: decides when each datagram arrives, and hands it to the task that waits for this time. Datagrams on
/// their way are bounded by the link's queue.
struct OneWay {
    link: Link,
    clock: Arc<dyn Clock>,
    held: mpsc::UnboundedSender<(Instant, Datagram)>,
}

impl std::fmt::Debug for OneWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneWay").field("link", &self.link).finish_non_exhaustive()
    }
}

impl OneWay {
    fn carry(&mut self, datagram: Datagram) {
        if let Ok(at) = self.link.offer(datagram.1.len() as u64 + HEADER_BYTES, self.clock.now()) {
            // Sending fails if nobody is there any more to see the datagram arrive.
            let _ = self.held.send((at, datagram));
        }
    }
}

impl Lossy {
    /// Puts a socket on the link. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The system's error about the socket.
    pub(super) fn wrap(shaper: &Shaper, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let (address, [up, down]) = (socket.local_addr()?, shaper.links());
        let one_way = |link| {
            let (held, holding) = mpsc::unbounded_channel();
            (OneWay { link, clock: shaper.clock(), held }, holding)
        };
        let ((up, departing), (mut down, arriving)) = (one_way(up), one_way(down));
        tokio::spawn(depart(shaper.clock(), departing, Arc::clone(&socket)));
        let (delivered, arrived) = mpsc::unbounded_channel();
        let mut receiving = JoinSet::new();
        receiving.spawn(arrive(shaper.clock(), arriving, delivered));
        receiving.spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
            loop {
                // An error is about a datagram that was sent.
                if let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
                    down.carry((from, Bytes::copy_from_slice(&buffer[..bytes])));
                }
            }
        });
        Ok(Arc::new(Self { address, up: Mutex::new(up), arrived: Mutex::new(arrived), _receiving: receiving }))
    }
}

async fn depart(clock: Arc<dyn Clock>, mut held: mpsc::UnboundedReceiver<(Instant, Datagram)>, socket: Arc<UdpSocket>) {
    while let Some((at, (to, bytes))) = held.recv().await {
        sleep_until(&*clock, at).await;
        // A datagram that the real network does not take is lost.
        let _ = socket.send_to(&bytes, to).await;
    }
}

async fn arrive(
    clock: Arc<dyn Clock>,
    mut held: mpsc::UnboundedReceiver<(Instant, Datagram)>,
    delivered: mpsc::UnboundedSender<Datagram>,
) {
    while let Some((at, datagram)) = held.recv().await {
        sleep_until(&*clock, at).await;
        let _ = delivered.send(datagram);
    }
}

impl AsyncUdpSocket for Lossy {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let datagram = (transmit.destination, Bytes::copy_from_slice(transmit.contents));
        self.up.lock().unwrap_or_else(PoisonError::into_inner).carry(datagram);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let (Some(buffer), Some(meta)) = (buffers.first_mut(), metas.first_mut()) else { return Poll::Ready(Ok(0)) };
        let arrived = ready!(self.arrived.lock().unwrap_or_else(PoisonError::into_inner).poll_recv(cx));
        let (from, bytes) = arrived.ok_or(io::ErrorKind::BrokenPipe)?;
        let length = bytes.len().min(buffer.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
        *meta = RecvMeta::default();
        (meta.addr, meta.len, meta.stride) = (from, length, length);
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// A poller that is always ready: a link takes everything, and drops datagrams that its queue does not hold.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
