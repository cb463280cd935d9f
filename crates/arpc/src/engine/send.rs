//! What goes out next.

use mafs_proto::{Class, Instant};

use super::frame::CONTENT_OVERHEAD_BYTES;
use super::{CallId, Engine, Frame, FrameKind, Outgoing};

impl Engine {
    /// The next frame to send. Call it only when the carrier can take one, and again until it returns `None`; worth
    /// asking again after any other verb.
    #[must_use]
    pub(crate) fn poll_frame(&mut self, now: Instant) -> Option<Outgoing> {
        let next = self.next_signal(now).map(|kind| (kind, None)).or_else(|| self.next_content(now));
        let outgoing = next.map(|(kind, payload)| {
            let acknowledgement = self.receipts.take(self.window.queue_time(), now);
            Outgoing { frame: Frame { acknowledgement, kind }, payload }
        });
        self.set_timers(now);
        outgoing
    }

    /// Frames without content: tiny, and what they say is wanted at once.
    fn next_signal(&mut self, now: Instant) -> Option<FrameKind> {
        let signal = self.signals.pop_front();
        if signal.is_some() || self.closed.is_some() {
            return signal;
        }
        if let Some((class, limit)) = self.grants.poll(self.window.estimator().rtt_min(), now) {
            return Some(FrameKind::Credit { class, limit });
        }
        // Not on the back of a chunk, which takes its time.
        self.receipts.due().is_some_and(|at| at <= now).then_some(FrameKind::Acknowledge)
    }

    /// The highest class that has something to send and credit for it; if the window has no room for that, nothing
    /// lower passes.
    fn next_content(&mut self, now: Instant) -> Option<(FrameKind, Option<(CallId, usize)>)> {
        for class in Class::ALL {
            let Some(id) = self.scheduler.peek(class) else { continue };
            let Some(next) = self.calls.get(&id).and_then(|entry| entry.next(self.window.chunk_bytes(now))) else {
                continue;
            };
            let charge = next.charge(class);
            if !self.allowance.allows(charge) {
                continue;
            }
            if next.content {
                let cost = next.body_bytes + next.payload_bytes + CONTENT_OVERHEAD_BYTES;
                let admission = self.window.admit(cost, class == Class::Control, now)?;
                self.window.send(cost, admission, id, next.payload_bytes, now);
                self.allowance.spend(charge);
                self.traffic[class.index()].sent_bytes += next.body_bytes + next.payload_bytes;
            }
            self.scheduler.pop(class);
            let mut frame = None;
            self.update(id, |entry| {
                entry.lane = None;
                entry.queued.get_or_insert(now.since(entry.since));
                frame = entry.take_frame(id, class, next);
            });
            let payload_bytes = usize::try_from(next.payload_bytes).unwrap_or(usize::MAX);
            return Some((frame?, (payload_bytes > 0).then_some((id, payload_bytes))));
        }
        self.window.starved();
        None
    }
}
