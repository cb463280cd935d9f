//! The congestion controller that quinn asks: a shell around [`Congestion`].

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

use super::congestion::{Acked, Congestion};

/// The maker of the controllers of one connection: one for each path that it takes.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    /// The size of packets on the newest path.
    pub(super) mtu: Arc<AtomicU64>,
}

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        self.mtu.store(mtu.into(), Ordering::Relaxed);
        let congestion = Congestion::new(mtu.into(), mafs_proto::Instant::default());
        Box::new(Shell { base: now, congestion, mtu: Arc::clone(&self.mtu) })
    }
}

#[derive(Clone)]
struct Shell {
    /// When the congestion's time began.
    base: Instant,
    congestion: Congestion,
    mtu: Arc<AtomicU64>,
}

impl Shell {
    fn time(&self, at: Instant) -> mafs_proto::Instant {
        mafs_proto::Instant::default() + at.saturating_duration_since(self.base)
    }
}

impl Controller for Shell {
    fn on_sent(&mut self, _now: Instant, bytes: u64, _last_packet_number: u64) {
        self.congestion.sent(bytes);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _app_limited: bool, rtt: &RttEstimator) {
        let acked = Acked { bytes, sent_at: self.time(sent), rtt: rtt.get(), rtt_min: rtt.min() };
        self.congestion.acked(acked, self.time(now));
    }

    fn on_end_acks(&mut self, _now: Instant, in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        self.congestion.set_in_flight(in_flight);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, _is_persistent: bool, lost_bytes: u64) {
        self.congestion.lost(lost_bytes, self.time(sent), self.time(now));
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu.store(mtu.into(), Ordering::Relaxed);
        self.congestion.set_mtu(mtu.into());
    }

    fn window(&self) -> u64 {
        self.congestion.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.congestion.window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
