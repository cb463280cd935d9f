//! Real connections over an emulated link: each byte arrives at the time of the link model.
//!
//! A [`Shaper`] is what a client has instead of its network; the connections made through it, one after the other, are
//! on the same link, so an outage outlasts those that it breaks. The shaper stands at the client's end and holds up
//! both directions: written bytes wait here until they may reach the real connection, and bytes from there wait before
//! they are read. The link is [`crate::link::Stream`]: loss is delay, a long silence a stall, and in the end a reset.
//!
//! A connection begins with a round trip (a SYN, and its answer), and ends with a segment like any other: over a link
//! that is down no connection begins, and the other end does not hear of an end either.
//!
//! Timers have a granularity of a millisecond, so bytes arrive up to a millisecond later.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use mafs_proto::{Clock, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex, split};

use super::LossMeter;
use crate::link::{Link, Profile, Reset, SEGMENT_BYTES, Stream};
use crate::loss::Loss;

/// Bytes that are taken from a sender at a time: a few segments, so that little waits where the scheduler cannot reach
/// it.
const PIECE_BYTES: usize = 4 * SEGMENT;
#[allow(clippy::cast_possible_truncation, reason = "less than a packet")]
const SEGMENT: usize = SEGMENT_BYTES as usize;
/// Segments without content (SYN, FIN) count as one byte.
const EMPTY_SEGMENT_BYTES: u64 = 1;

/// The link of a client. Clones are the same link.
#[derive(Clone)]
pub struct Shaper {
    shared: Arc<Shared>,
}

struct Shared {
    profile: Profile,
    clock: Arc<dyn Clock>,
    start: Instant,
    /// Connections tried so far.
    connections: AtomicU64,
}

impl fmt::Debug for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper").field("profile", &self.shared.profile).finish_non_exhaustive()
    }
}

impl Shaper {
    /// Makes a link whose time begins now.
    #[must_use]
    pub fn new(profile: Profile, clock: Arc<dyn Clock>) -> Self {
        let start = clock.now();
        Self { shared: Arc::new(Shared { profile, clock, start, connections: AtomicU64::new(0) }) }
    }

    /// Begins a connection: waits for as long as a round trip takes.
    ///
    /// # Errors
    /// Nothing gets through for a quarter of an hour. Callers wait less.
    pub async fn begin(&self) -> io::Result<Beginning> {
        let Shared { profile, clock, start, connections } = &*self.shared;
        let [mut up, mut down] = profile.streams_of(connections.fetch_add(1, Ordering::Relaxed), *start);
        let answer = up.send(EMPTY_SEGMENT_BYTES, clock.now()).and_then(|asked| down.send(EMPTY_SEGMENT_BYTES, asked));
        let (until, begun) = match answer {
            Ok(at) => (at, Ok(Beginning { up: self.one_way(up), down: self.one_way(down) })),
            Err(Reset { at }) => (at, Err(ErrorKind::TimedOut.into())),
        };
        sleep_until(&**clock, until).await;
        begun
    }

    /// Returns both directions as packets see them, `up` first.
    pub(super) fn links(&self) -> [Link; 2] {
        self.shared.profile.links(self.shared.start)
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    fn one_way(&self, stream: Stream) -> OneWay {
        OneWay { stream, loss: Arc::default(), clock: Arc::clone(&self.shared.clock), held: VecDeque::new() }
    }
}

/// A connection that has begun on the emulated link, and wants a real one.
#[derive(Debug)]
pub struct Beginning {
    up: OneWay,
    down: OneWay,
}

impl Beginning {
    /// Returns the meter of written bytes that the link loses; the connection below is not asked.
    pub(super) fn loss(&self) -> LossMeter {
        LossMeter::Emulated(Arc::clone(&self.up.loss))
    }

    /// Lets `real` carry the connection. Must be called in a tokio runtime; the real connection is held by a task,
    /// until both directions have ended on the link.
    pub fn over<T>(self, real: T) -> Shaped
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (pipe, inner) = duplex(PIECE_BYTES);
        let broken = Arc::new(OnceLock::new());
        let breaking = Arc::clone(&broken);
        tokio::spawn(async move {
            let (from_real, to_real) = split(real);
            let (from_pipe, to_pipe) = split(inner);
            let up = self.up.carry(from_pipe, to_real);
            let down = async {
                match self.down.carry(from_real, to_pipe).await {
                    // Nobody reads any more: the end that was sent up says so to the peer.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                    other => other,
                }
            };
            if let Err(error) = tokio::try_join!(up, down) {
                // The kind is set before the pipe is dropped, which wakes the user of the connection.
                let _ = breaking.set(error.kind());
            }
        });
        Shaped { pipe, broken }
    }
}

/// One direction of a connection, with the bytes on their way.
struct OneWay {
    stream: Stream,
    /// The loss as the stream counts it.
    loss: Arc<Mutex<Loss>>,
    clock: Arc<dyn Clock>,
    /// Bytes on their way, in order. The sender waits while the link's queue is full, so these are the queue's and
    /// those in the air.
    held: VecDeque<(Instant, Held)>,
}

impl fmt::Debug for OneWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneWay").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// Something that arrives.
enum Held {
    Bytes(Bytes),
    /// The sender has ended.
    End,
    /// The connection is broken.
    Broken(ErrorKind),
}

impl OneWay {
    /// Carries bytes until the end has arrived.
    async fn carry(mut self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        let clock = Arc::clone(&self.clock);
        let mut piece = [0; PIECE_BYTES];
        let mut more = true;
        loop {
            let now = clock.now();
            while let Some(arrived) = self.take_arrived(now) {
                match arrived {
                    Held::Bytes(bytes) => to.write_all(&bytes).await?,
                    Held::End => return to.shutdown().await,
                    Held::Broken(kind) => return Err(kind.into()),
                }
            }
            let next = self.held.front().map(|(at, _)| *at);
            let writable = self.stream.writable_at(now);
            let arrival = async {
                match next {
                    Some(at) => sleep_until(&*clock, at).await,
                    None => std::future::pending().await,
                }
            };
            let reading = async {
                sleep_until(&*clock, writable).await;
                from.read(&mut piece).await
            };
            tokio::select! {
                biased;
                () = arrival => {}
                read = reading, if more => more = self.send(read.map(|bytes| &piece[..bytes])),
            }
        }
    }

    /// Puts the result of a read on its way. Returns whether there may be more.
    fn send(&mut self, read: io::Result<&[u8]>) -> bool {
        match read {
            Ok([]) => {
                self.hold(EMPTY_SEGMENT_BYTES, Held::End);
                false
            }
            Err(error) => {
                self.hold(EMPTY_SEGMENT_BYTES, Held::Broken(error.kind()));
                false
            }
            // Segments are held one by one, as they arrive.
            Ok(bytes) => bytes
                .chunks(SEGMENT)
                .all(|segment| self.hold(segment.len() as u64, Held::Bytes(Bytes::copy_from_slice(segment)))),
        }
    }

    /// Puts a segment on its way. False if it does not arrive, nor anything after it.
    fn hold(&mut self, bytes: u64, what: Held) -> bool {
        let sent = self.stream.send(bytes, self.clock.now());
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = self.stream.loss();
        let arrives = sent.is_ok();
        self.held.push_back(match sent {
            Ok(at) => (at, what),
            Err(Reset { at }) => (at, Held::Broken(ErrorKind::ConnectionReset)),
        });
        arrives
    }

    fn take_arrived(&mut self, now: Instant) -> Option<Held> {
        self.held.front().filter(|(at, _)| *at <= now)?;
        self.held.pop_front().map(|(_, arrived)| arrived)
    }
}

/// Sleeps until a time on `clock`, which may run while timers do not, as in suspend.
pub(super) async fn sleep_until(clock: &dyn Clock, at: Instant) {
    loop {
        let left = at.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// The user's end of a shaped connection. Dropping it ends the connection.
#[derive(Debug)]
pub struct Shaped {
    pipe: DuplexStream,
    /// How the connection has failed: set before the pipe ends.
    broken: Arc<OnceLock<ErrorKind>>,
}

impl Shaped {
    fn failure(&self) -> Option<io::Error> {
        self.broken.get().map(|kind| (*kind).into())
    }
}

impl AsyncRead for Shaped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.remaining();
        ready!(Pin::new(&mut self.pipe).poll_read(cx, buf))?;
        let ended = before > 0 && buf.remaining() == before;
        Poll::Ready(self.failure().filter(|_| ended).map_or(Ok(()), Err))
    }
}

impl AsyncWrite for Shaped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write(cx, buf));
        Poll::Ready(written.map_err(|error| self.failure().unwrap_or(error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}
