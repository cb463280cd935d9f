//! Frames through memory, for tests and the simulator.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{Carrier, FrameStream, SINK_FRAMES};
use crate::engine::Side;
use crate::watch::{Receiver, Sender};
use crate::wire;

/// Two connected ends. Frames arrive in order, `one_way_delay` after they were sent (tokio's clock, so also a paused
/// one). Must be called in a tokio runtime. The first end counts as the one that connected.
#[must_use]
pub fn pair(one_way_delay: Duration) -> (Carrier, Carrier) {
    let (left, right, _) = pair_with_fault(one_way_delay);
    (left, right)
}

/// The same, with the cable between them, which can be damaged.
#[must_use]
pub fn pair_with_fault(one_way_delay: Duration) -> (Carrier, Carrier, Cable) {
    let cable = Cable { cut: [flag(), flag()], held: [flag(), flag()] };
    let (to_right, from_left) = direction(one_way_delay, &cable, Direction::ToAcceptor);
    let (to_left, from_right) = direction(one_way_delay, &cable, Direction::ToConnector);
    let left = Carrier { side: Side::Connector, sink: to_right, stream: from_right };
    let right = Carrier { side: Side::Acceptor, sink: to_left, stream: from_left };
    (left, right, cable)
}

/// Where frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the end that connected to the other.
    ToAcceptor,
    /// Back.
    ToConnector,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ToAcceptor, Self::ToConnector];

    fn back(self) -> Self {
        match self {
            Self::ToAcceptor => Self::ToConnector,
            Self::ToConnector => Self::ToAcceptor,
        }
    }
}

/// What is between the ends of a connection. By itself it is whole.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Whether the end that a direction leads to is cut off.
    cut: [Arc<Sender<bool>>; 2],
    /// Whether nothing arrives by a direction.
    held: [Arc<Sender<bool>>; 2],
}

impl Cable {
    /// Cuts it, once and for ever: both ends see the connection end, and what is on its way is lost.
    pub fn cut(&self) {
        Direction::ALL.into_iter().for_each(|direction| self.cut_end(direction));
    }

    /// Cuts off the end that a direction leads to, as when its machine stops: it sends and sees nothing any more. The
    /// other end sees the connection end after what is on its way to it.
    pub fn cut_end(&self, direction: Direction) {
        self.cut[direction as usize].send_replace(true);
    }

    /// From now on nothing arrives by this direction, not even the end of the connection. What is sent waits.
    pub fn hold(&self, direction: Direction) {
        self.held[direction as usize].send_replace(true);
    }

    /// Ends [`Self::hold`]: what has waited arrives.
    pub fn release(&self, direction: Direction) {
        self.held[direction as usize].send_replace(false);
    }
}

fn flag() -> Arc<Sender<bool>> {
    Arc::new(Sender::new(false))
}

/// Waits until a flag is as wanted; for ever if nobody is left who could change it.
async fn wait(flag: &mut Receiver<bool>, wanted: bool) {
    if flag.wait_for(|flag| *flag == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// One direction. What is in flight is bounded by the window of the engine that sends.
fn direction(delay: Duration, cable: &Cable, direction: Direction) -> (mpsc::Sender<wire::Frame>, FrameStream) {
    let (sink, mut sent) = mpsc::channel(SINK_FRAMES);
    let (wire_in, wire_out) = mpsc::unbounded_channel();
    let mut sender_cut = cable.cut[direction.back() as usize].subscribe();
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                biased;
                () = wait(&mut sender_cut, true) => return,
                frame = sent.recv() => frame,
            };
            let Some(frame) = frame else { return };
            if wire_in.send((Instant::now() + delay, frame)).is_err() {
                return;
            }
        }
    });
    let (cut, held) = (&cable.cut[direction as usize], &cable.held[direction as usize]);
    let end = (wire_out, cut.subscribe(), held.subscribe());
    let stream = stream::unfold(end, |(mut wire_out, mut cut, mut held)| async move {
        let arrival = async {
            let next: Option<(Instant, wire::Frame)> = wire_out.recv().await;
            if let Some((at, _)) = &next
                && *at > Instant::now()
            {
                sleep_until(*at).await;
            }
            wait(&mut held, false).await;
            next.map(|(_, frame)| frame)
        };
        let frame = tokio::select! {
            biased;
            () = wait(&mut cut, true) => None,
            frame = arrival => frame,
        };
        frame.map(|frame| (Ok(frame), (wire_out, cut, held)))
    });
    (sink, Box::pin(stream))
}
