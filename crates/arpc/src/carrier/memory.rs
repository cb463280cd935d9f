//! Frames through memory, for tests and the simulator.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Carrier, SINK_FRAMES};
use crate::engine::Side;
use crate::wire;

/// Two connected ends. Frames arrive in order, `one_way_delay` after they were sent (tokio's clock, so also a paused
/// one). Must be called in a tokio runtime. The first end counts as the one that connected.
#[must_use]
pub fn pair(one_way_delay: Duration) -> (Carrier, Carrier) {
    let (left, right, _) = pair_with_fault(one_way_delay);
    (left, right)
}

/// The same, with a handle that cuts the connection.
#[must_use]
pub fn pair_with_fault(one_way_delay: Duration) -> (Carrier, Carrier, Cut) {
    let cut = Cut { cut: Arc::new(watch::Sender::new(false)) };
    let (to_right, from_left) = direction(one_way_delay, &cut);
    let (to_left, from_right) = direction(one_way_delay, &cut);
    let left = Carrier { side: Side::Connector, sink: to_right, stream: from_right };
    let right = Carrier { side: Side::Acceptor, sink: to_left, stream: from_left };
    (left, right, cut)
}

/// Cuts a connection: both ends see it end, and what is on its way is lost.
#[derive(Clone, Debug)]
pub struct Cut {
    cut: Arc<watch::Sender<bool>>,
}

impl Cut {
    /// Cuts it, once and for ever.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }
}

/// One direction. What is in flight is bounded by the window of the engine that sends.
fn direction(delay: Duration, cut: &Cut) -> (mpsc::Sender<wire::Frame>, super::FrameStream) {
    let (sink, mut sent) = mpsc::channel(SINK_FRAMES);
    let (wire_in, wire_out) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(frame) = sent.recv().await {
            if wire_in.send((Instant::now() + delay, frame)).is_err() {
                return;
            }
        }
    });
    let stream = stream::unfold((wire_out, cut.cut.subscribe()), |(mut wire_out, mut cut)| async move {
        let arrival = async {
            let (at, frame) = wire_out.recv().await?;
            if at > Instant::now() {
                sleep_until(at).await;
            }
            Some(frame)
        };
        let cut_off = async {
            if cut.wait_for(|cut| *cut).await.is_err() {
                // Nobody is left who could.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = cut_off => None,
            frame = arrival => frame.map(|frame| (Ok(frame), (wire_out, cut))),
        }
    });
    (sink, Box::pin(stream))
}
