//! The choice of the next frame to send.

use mafs_proto::{Class, Instant};

use super::call::Next;
use super::frame::more_head_bytes;
use super::reserve::{LOG, Order};
use super::window::Admission;
use super::{CallId, Demand, Engine, Frame, FrameKind, Outgoing};

/// A frame with content, or an Abort, that could go.
#[derive(Clone, Copy)]
struct Candidate {
    class: Class,
    id: CallId,
    next: Next,
}

/// A candidate that goes.
struct Choice {
    candidate: Candidate,
    /// `None` for Abort, which needs no admission.
    admission: Option<Admission>,
    order: Order,
}

impl Engine {
    /// Returns the next frame to send. Call this only when the carrier can take one, and again until it returns `None`;
    /// worth asking again after any other verb.
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

    /// Returns the content that waits for nothing but the gate. Worth asking when [`Self::poll_frame`] has returned
    /// `None`.
    pub(crate) fn demand(&self) -> Option<Demand> {
        self.demand
    }

    /// Notes that the gate lets the content of [`Self::demand`] pass: [`Self::poll_frame`] returns it.
    pub(crate) fn admit(&mut self) {
        self.admitted = true;
    }

    /// Returns the next frame without content: such frames are tiny, and the peer needs them at once.
    fn next_signal(&mut self, now: Instant) -> Option<FrameKind> {
        let signal = self.signals.pop_front();
        if signal.is_some() || self.closed.is_some() {
            return signal;
        }
        if let Some((class, limit)) = self.grants.poll(self.window.estimator().rtt_min(), now) {
            return Some(FrameKind::Credit { class, limit });
        }
        // The acknowledgement does not wait for a chunk to carry it, which takes its time.
        self.receipts.due().is_some_and(|at| at <= now).then_some(FrameKind::Acknowledge)
    }

    /// Returns the next frame with content, and how much of which payload goes into it.
    fn next_content(&mut self, now: Instant) -> Option<(FrameKind, Option<(CallId, usize)>)> {
        let Choice { candidate: Candidate { class, id, next }, admission, order } = self.choose(now)?;
        if let Some(admission) = admission {
            let cost = next.cost();
            self.window.send(cost, admission, id, next.payload_bytes, now);
            self.allowance.spend(next.charge(class));
            self.log_share.sent(class, cost, order);
            let bytes = next.body_bytes + next.payload_bytes;
            self.buckets.sent(class, bytes, now);
            self.traffic[class.index()].sent_bytes += bytes;
        }
        self.scheduler.pop(class);
        let mut frame = None;
        self.update(id, |entry| {
            entry.lane = None;
            entry.queued.get_or_insert(now.since(entry.since));
            frame = entry.take_frame(id, class, next);
        });
        let payload_bytes = usize::try_from(next.payload_bytes).unwrap_or(usize::MAX);
        Some((frame?, (payload_bytes > 0).then_some((id, payload_bytes))))
    }

    /// Chooses the most urgent frame, or the log's if it is its turn. If the window has no room for the chosen one,
    /// nothing less urgent passes: it would take the room for ever.
    fn choose(&mut self, now: Instant) -> Option<Choice> {
        self.demand = None;
        if self.log_share.is_its_turn(self.log_messages > 0, now)
            && let Some(log) = self.first_of(&LOG, now)
        {
            return match self.leave_for(log, now) {
                Some(admission) => Some(Choice { candidate: log, admission, order: Order::Reserved }),
                None => self.beyond_the_window(now),
            };
        }
        let Some(candidate) = self.first_of(&Class::ALL, now) else {
            self.window.starved();
            return None;
        };
        let admission = self.leave_for(candidate, now)?;
        Some(Choice { candidate, admission, order: Order::Strict })
    }

    /// Asks the window and the gate for leave to send a candidate; `Some(None)`: it needs none.
    fn leave_for(&mut self, candidate: Candidate, now: Instant) -> Option<Option<Admission>> {
        let Candidate { class, next, .. } = candidate;
        if !next.content {
            return Some(None);
        }
        let admission = self.window.admit(next.cost(), class == Class::Control, now)?;
        if self.settings.gated && class != Class::Control && !std::mem::take(&mut self.admitted) {
            // To the estimator the gate is part of the link: if this counted as having nothing to send, the estimator
            // would not see that the rest of the link has become slower.
            self.demand = Some(Demand { class, bytes: next.body_bytes + next.payload_bytes });
            return None;
        }
        Some(Some(admission))
    }

    /// Chooses a frame that goes while the log waits for room in the window: Control, which needs none.
    fn beyond_the_window(&self, now: Instant) -> Option<Choice> {
        let candidate = self.first_of(&[Class::Control], now)?;
        let admission = Some(self.window.exempt(candidate.next.cost())?);
        Some(Choice { candidate, admission, order: Order::Strict })
    }

    /// Returns the frame of the first of these classes that has something to send, and credit and no limit for it.
    fn first_of(&self, classes: &[Class], now: Instant) -> Option<Candidate> {
        let chunk_bytes = self.window.chunk_bytes(now);
        classes.iter().find_map(|&class| {
            let id = self.scheduler.peek(class)?;
            let fitting = self.window.less(chunk_bytes, more_head_bytes(id, self.receipts.due().is_some()));
            let next = self.calls.get(&id)?.next(fitting.min(self.buckets.chunk_bytes(class)))?;
            let limited = next.content && self.buckets.waits_until(class, now).is_some();
            (!limited && self.allowance.allows(next.charge(class))).then_some(Candidate { class, id, next })
        })
    }
}
