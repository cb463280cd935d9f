//! The table of calls: how an entry changes, and how calls end.

use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::call::{Entry, Receiving, Sending};
use super::timers::Timer;
use super::{CallId, Engine, Event, FrameKind};
use crate::error::{CallError, PayloadError};

impl Engine {
    /// Adds a call that is not under way.
    pub(super) fn insert(&mut self, id: CallId, entry: Entry) {
        self.queued_bytes[entry.class.index()] += entry.queued_bytes();
        self.calls.insert(id, entry);
        self.update(id, |_| ());
    }

    /// Changes a call and all that depends on it: its place in the queues, the byte counts, its deadline, its
    /// existence. Does nothing if there is no such call.
    pub(super) fn update(&mut self, id: CallId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.calls.get_mut(&id) else { return };
        self.queued_bytes[entry.class.index()] -= entry.queued_bytes();
        self.log_messages -= usize::from(entry.is_waiting_log());
        change(entry);
        self.queued_bytes[entry.class.index()] += entry.queued_bytes();
        let wanted = entry.wanted_lane(self.settings.classes);
        if entry.lane != wanted.map(|(lane, _)| lane) {
            if let Some(lane) = entry.lane {
                self.scheduler.remove(id, lane);
            }
            if let Some((lane, turn)) = wanted {
                self.scheduler.push(id, lane, turn);
            }
            entry.lane = wanted.map(|(lane, _)| lane);
        }
        self.log_messages += usize::from(entry.is_waiting_log());
        if entry.receiving != Receiving::Reply
            && let Some((_, at)) = entry.deadline.take()
        {
            self.deadlines.remove(&(at, id));
        }
        if entry.is_over() {
            self.calls.remove(&id);
            self.own -= usize::from(self.side.owns(id));
        }
    }

    /// Ends an own call that has no answer yet, at both ends.
    pub(super) fn give_up(&mut self, id: CallId, error: CallError) {
        let Some(entry) = self.calls.get(&id).filter(|entry| entry.receiving == Receiving::Reply) else { return };
        self.events.push_back(Event::Ended { id, error });
        // A call that never went out leaves no trace; for any other the peer has to say that its message has ended.
        let begun = !matches!(entry.sending, Sending::First(..));
        if begun {
            self.signals.push_back(FrameKind::Cancel { id });
        }
        self.update(id, |entry| {
            entry.sending = Sending::Done;
            entry.receiving = if begun { Receiving::Unwanted } else { Receiving::Done };
        });
    }

    pub(super) fn expire_calls(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let timeout = self.calls.get(&id).and_then(|entry| entry.deadline).map(|(timeout, _)| timeout);
            self.give_up(id, CallError::DeadlineExceeded(timeout.unwrap_or(Duration::ZERO)));
            self.deadlines.remove(&(at, id));
        }
    }

    /// Ends everything, here only.
    pub(super) fn end_all(&mut self, why: &str) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(why.to_owned());
        for (id, entry) in std::mem::take(&mut self.calls) {
            if entry.receiving == Receiving::Reply {
                self.events.push_back(Event::Ended { id, error: CallError::Disconnected(why.to_owned()) });
            }
            if entry.receiving == Receiving::Payload {
                self.events.push_back(Event::PayloadEnded { id, error: PayloadError::CallEnded(why.to_owned()) });
            }
            if !self.side.owns(id) {
                self.events.push_back(Event::Cancelled { id });
            }
        }
        self.own = 0;
        self.deadlines.clear();
        self.scheduler.clear();
        self.queued_bytes = [0; 5];
        self.log_messages = 0;
        self.signals.clear();
        self.events.push_back(Event::Closed { why: why.to_owned() });
    }

    pub(super) fn probe(&mut self, now: Instant) {
        self.liveness.probed(now);
        self.ask(now);
    }

    /// Asks the peer for a sign of life because this end's network has changed.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.closed.is_none() {
            self.liveness.probed_after_change(self.settings.hurries, now);
            self.ask(now);
            self.set_timers(now);
        }
    }

    pub(super) fn nudge(&mut self, now: Instant) {
        self.nudges.sent(now);
        self.ask(now);
    }

    fn nudge_at(&self) -> Option<Instant> {
        let (expected, packet_time) = self.window.expected_at()?;
        self.nudges.next_at(expected, packet_time)
    }

    fn ask(&mut self, now: Instant) {
        self.signals.retain(|kind| !matches!(kind, FrameKind::Probe { .. }));
        self.signals.push_back(FrameKind::Probe { token: now.0 });
    }

    pub(super) fn set_timers(&mut self, now: Instant) {
        let owed = self.is_owed();
        self.liveness.set_owed(owed, now);
        let open = |at: Option<Instant>| at.filter(|_| self.closed.is_none());
        // An acknowledgement that is due already waits for the carrier, not for time.
        self.timers.set(Timer::Acknowledge, open(self.receipts.due().filter(|at| *at > now)));
        self.timers.set(Timer::Deadline, open(self.deadlines.first().map(|(at, _)| *at)));
        self.timers.set(Timer::Probe, open(Some(self.liveness.probe_at())));
        self.timers.set(Timer::Nudge, open(self.nudge_at()));
        self.timers.set(Timer::Dead, open(self.liveness.dead_at()));
        let freed = |class| self.buckets.waits_until(class, now).filter(|_| self.scheduler.peek(class).is_some());
        self.timers.set(Timer::Limit, open(Class::ALL.into_iter().filter_map(freed).min()));
        self.timers.set(Timer::Notice, open(self.notice.due_at().filter(|at| *at > now)));
        self.timers.set(Timer::Pace, open(self.window.paced_until().filter(|at| *at > now)));
    }
}
