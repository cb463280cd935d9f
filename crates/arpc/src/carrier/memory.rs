//! Frames through memory, for tests and the simulator.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::harm::{Harm, Harms};
use super::{Carrier, FrameStream, LossMeter, SEGMENT_BYTES, SINK_FRAMES, Transport};
use crate::engine::{FRAMING_BYTES, Side};
use crate::link;
use crate::watch::{Receiver, Sender};
use crate::wire;

/// Makes two connected ends. Frames arrive in order, `one_way_delay` after they were sent (tokio's clock, so also a
/// paused one). Must be called in a tokio runtime. The first end counts as the one that connected.
#[must_use]
pub fn pair(one_way_delay: Duration) -> (Carrier, Carrier) {
    let (left, right, _) = pair_with_fault(one_way_delay);
    (left, right)
}

/// Makes two ends like [`pair`], and returns the cable between them too, which can be damaged.
#[must_use]
pub fn pair_with_fault(one_way_delay: Duration) -> (Carrier, Carrier, Cable) {
    connect([Path::Delay(one_way_delay), Path::Delay(one_way_delay)])
}

/// Makes two ends over an emulated link, which carries a reliable transport from `now` on, by the clock that the
/// streams of the [`Profile`](crate::link::Profile) began on. A reset cuts the cable.
#[must_use]
pub fn pair_over(streams: [link::Stream; 2], now: mafs_proto::Instant) -> (Carrier, Carrier, Cable) {
    let start = (Instant::now(), now);
    connect(streams.map(|stream| Path::Link { stream: Box::new(stream.with_send_buffer(SEND_BUFFER_BYTES)), start }))
}

fn connect([up, down]: [Path; 2]) -> (Carrier, Carrier, Cable) {
    let cable = Cable { cut: [flag(), flag()], held: [flag(), flag()], harms: Default::default() };
    let (to_right, from_left) = direction(up, &cable, Direction::ToAcceptor);
    let (to_left, from_right) = direction(down, &cable, Direction::ToConnector);
    let end = |side, sink, stream| Carrier {
        side,
        sink,
        stream,
        loss: LossMeter::Nobody,
        transport: Transport::Stream { segment_bytes: SEGMENT_BYTES },
    };
    (end(Side::Connector, to_right, from_right), end(Side::Acceptor, to_left, from_left), cable)
}

/// Bytes that HTTP/2 and a TCP socket take before a sender without a window of its own waits: an upload through tonic
/// by 64 KB/s had 721 to 852 KB on their way, with the two frames of the sink and 64 KB in the link's queue.
const SEND_BUFFER_BYTES: u64 = 576 << 10;

/// The way from one end to the other.
enum Path {
    Delay(Duration),
    Link {
        stream: Box<link::Stream>,
        /// One moment by both clocks.
        start: (Instant, mafs_proto::Instant),
    },
}

impl Path {
    /// Sends a frame now. Returns when it arrives, or when the sender learns that it does not.
    fn send(&mut self, frame: &wire::Frame) -> Result<Instant, Instant> {
        let now = Instant::now();
        match self {
            Self::Delay(delay) => Ok(now + *delay),
            Self::Link { stream, start } => {
                let bytes = frame.encoded_len() as u64 + FRAMING_BYTES;
                let arrival = stream.send(bytes, to_link(*start, now));
                arrival.map(|at| from_link(*start, at)).map_err(|reset| from_link(*start, reset.at))
            }
        }
    }

    /// Returns when the next frame may be sent.
    fn writable_at(&mut self) -> Instant {
        let now = Instant::now();
        match self {
            Self::Delay(_) => now,
            Self::Link { stream, start } => from_link(*start, stream.writable_at(to_link(*start, now))),
        }
    }
}

fn to_link((base, time): (Instant, mafs_proto::Instant), at: Instant) -> mafs_proto::Instant {
    time + at.duration_since(base)
}

fn from_link((base, time): (Instant, mafs_proto::Instant), at: mafs_proto::Instant) -> Instant {
    // A link that is down for ever answers with the end of time.
    let after = at.since(time).min(FOR_EVER);
    base + after
}

/// A time longer than any wait.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The direction in which frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the end that connected to the other.
    ToAcceptor,
    /// From the other end back.
    ToConnector,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::ToAcceptor, Self::ToConnector];

    fn back(self) -> Self {
        match self {
            Self::ToAcceptor => Self::ToConnector,
            Self::ToConnector => Self::ToAcceptor,
        }
    }
}

/// The cable between the ends of a connection, which is whole at first.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Whether the end that a direction leads to is cut off.
    cut: [Arc<Sender<bool>>; 2],
    /// Whether nothing arrives by a direction.
    held: [Arc<Sender<bool>>; 2],
    /// The harm that is to be done to frames of a direction.
    harms: [Arc<Harms>; 2],
}

impl Cable {
    /// Cuts the cable, once and for ever: both ends see the connection end, and frames on their way are lost.
    pub fn cut(&self) {
        Direction::ALL.into_iter().for_each(|direction| self.cut_end(direction));
    }

    /// Cuts off the end that a direction leads to, as when its machine stops: it sends and sees nothing any more. The
    /// other end sees the connection end after the frames on their way to it.
    pub fn cut_end(&self, direction: Direction) {
        self.cut[direction as usize].send_replace(true);
    }

    /// Changes the byte `at` of the next frame that has one, on its way, where its sender's check covers it.
    pub fn flip(&self, direction: Direction, at: u64) {
        self.harms[direction as usize].add(Harm::OnItsWay, at);
    }

    /// Changes the byte `at` of the next payload in a frame that has one, where no check covers it, as in the memory of
    /// a machine.
    pub fn spoil(&self, direction: Direction, at: u64) {
        self.harms[direction as usize].add(Harm::InMemory, at);
    }

    /// Holds up a direction: from now on nothing arrives by it, not even the end of the connection. Sent frames wait.
    pub fn hold(&self, direction: Direction) {
        self.held[direction as usize].send_replace(true);
    }

    /// Ends [`Self::hold`]: waiting frames arrive.
    pub fn release(&self, direction: Direction) {
        self.held[direction as usize].send_replace(false);
    }
}

fn flag() -> Arc<Sender<bool>> {
    Arc::new(Sender::new(false))
}

/// Waits until a flag is as wanted; for ever if nothing is left that could change it.
async fn wait(flag: &mut Receiver<bool>, wanted: bool) {
    if flag.wait_for(|flag| *flag == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Makes one direction. Frames in flight are bounded by the window of the engine that sends.
fn direction(mut path: Path, cable: &Cable, direction: Direction) -> (mpsc::Sender<wire::Frame>, FrameStream) {
    let (sink, mut sent) = mpsc::channel(SINK_FRAMES);
    let (wire_in, wire_out) = mpsc::unbounded_channel();
    let mut sender_cut = cable.cut[direction.back() as usize].subscribe();
    let whole = cable.clone();
    tokio::spawn(async move {
        let carry = async {
            while let Some(frame) = sent.recv().await {
                match path.send(&frame) {
                    Ok(at) if wire_in.send((at, frame)).is_err() => return,
                    Ok(_) => {}
                    Err(at) => {
                        sleep_until(at).await;
                        return whole.cut();
                    }
                }
                let writable_at = path.writable_at();
                if writable_at > Instant::now() {
                    sleep_until(writable_at).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = wait(&mut sender_cut, true) => {}
            () = carry => {}
        }
    });
    let (cut, held) = (&cable.cut[direction as usize], &cable.held[direction as usize]);
    let harms = Arc::clone(&cable.harms[direction as usize]);
    let end = (wire_out, cut.subscribe(), held.subscribe());
    let stream = stream::unfold(end, move |(mut wire_out, mut cut, mut held)| {
        let harms = Arc::clone(&harms);
        async move {
            let arrival = async {
                let next: Option<(Instant, wire::Frame)> = wire_out.recv().await;
                if let Some((at, _)) = &next
                    && *at > Instant::now()
                {
                    sleep_until(*at).await;
                }
                wait(&mut held, false).await;
                next.map(|(_, frame)| harms.suffer(frame))
            };
            let frame = tokio::select! {
                biased;
                () = wait(&mut cut, true) => None,
                frame = arrival => frame,
            };
            frame.map(|frame| (frame, (wire_out, cut, held)))
        }
    });
    (sink, Box::pin(stream))
}
