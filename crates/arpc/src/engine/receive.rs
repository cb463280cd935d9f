//! Handling of incoming frames.

use bytes::Bytes;
use mafs_proto::{Class, Instant};

use super::call::{End, Entry, Header, Receiving, Sending, Unsent};
use super::frame::CONTENT_OVERHEAD_BYTES;
use super::{CallId, Charge, Engine, Event, Frame, FrameKind, STATUS_BUSY, Violation};
use crate::error::{CallError, PayloadError};

/// The content of a Call or a Reply.
struct Content {
    body: Bytes,
    data: Bytes,
    last: bool,
}

impl Engine {
    /// Takes a frame from the carrier. A violation ends the connection, and tells the peer why.
    pub(crate) fn handle_frame(&mut self, frame: Result<Frame, Violation>, now: Instant) {
        if self.closed.is_some() {
            return;
        }
        if let Err(violation) = frame.and_then(|frame| self.receive(frame, now)) {
            self.close(&format!("protocol violation: {violation}"));
        }
        self.set_timers(now);
    }

    fn receive(&mut self, frame: Frame, now: Instant) -> Result<(), Violation> {
        self.liveness.heard(now);
        if let Some(ack) = frame.acknowledgement {
            let (side, events) = (self.side, &mut self.events);
            let rtt = self.window.acknowledge(ack, now, |id, bytes| {
                if side.owns(id) {
                    events.push_back(Event::Acknowledged { id, bytes });
                }
            })?;
            if rtt.is_some() {
                self.nudges.progress();
            }
            self.liveness.observe_rtt(rtt);
        }
        if let Some((class, bytes)) = frame.kind.content() {
            self.traffic[class.index()].received_bytes += bytes;
            self.receipts.receive(bytes + CONTENT_OVERHEAD_BYTES, now);
        }
        match frame.kind {
            FrameKind::Call { id, class, method, body, data, last } => {
                self.on_call(id, class, method, Content { body, data, last }, now)
            }
            FrameKind::Reply { id, class, status, body, data, last } => {
                self.grants.receive(Charge::of(class, data.len() as u64))?;
                self.on_reply(id, class, status, Content { body, data, last }, now)
            }
            FrameKind::Data { id, class, data, last } => {
                self.grants.receive(Charge::of(class, data.len() as u64))?;
                self.on_data(id, class, data, last)
            }
            FrameKind::Abort { id, why } => self.on_abort(id, why),
            FrameKind::Cancel { id } => self.on_cancel(id),
            FrameKind::Stop { id } => self.on_stop(id),
            FrameKind::Reprioritise { id, class } => self.on_reprioritise(id, class),
            FrameKind::Credit { class, limit } => {
                self.allowance.raise(class, limit);
                Ok(())
            }
            FrameKind::Limit { class, rate } => {
                self.buckets.limit_for_peer(class, rate, now);
                Ok(())
            }
            FrameKind::Probe { token } => {
                // One answer is as good as several, and bounds what a flood of probes can queue.
                self.signals.retain(|kind| !matches!(kind, FrameKind::ProbeReply { .. }));
                self.signals.push_back(FrameKind::ProbeReply { token });
                Ok(())
            }
            FrameKind::Close { why } => {
                self.end_all(&format!("closed by the peer: {why}"));
                Ok(())
            }
            // These frames are only a sign of life, which was noted above.
            FrameKind::ProbeReply { .. } | FrameKind::Acknowledge => Ok(()),
        }
    }

    fn on_call(
        &mut self,
        id: CallId,
        class: Class,
        method: u32,
        content: Content,
        now: Instant,
    ) -> Result<(), Violation> {
        let Content { body, data, last } = content;
        if id.0 == 0 || self.side.owns(id) || self.calls.contains_key(&id) {
            return Err(Violation::InvalidId(id.0));
        }
        let charges = [body.len(), data.len()].map(|len| Charge::of(class, len as u64));
        for charge in charges {
            self.grants.receive(charge)?;
        }
        let theirs = self.calls.len() - self.own;
        // A peer that waits for its refusals never has more than these.
        if theirs >= 2 * self.settings.calls_max {
            return Err(Violation::TooManyCalls);
        }
        let refused = theirs >= self.settings.calls_max;
        let (sending, receiving) = if refused {
            charges.into_iter().for_each(|charge| self.grants.consume(charge));
            let header = Header::Reply { status: STATUS_BUSY, body: Bytes::new() };
            (Sending::First(header, Unsent { ready: 0, end: End::Finished }), Receiving::Unwanted)
        } else {
            self.events.push_back(Event::Call { id, class, method, body, data, last });
            (Sending::Unanswered, Receiving::Payload)
        };
        let receiving = if last { Receiving::Done } else { receiving };
        self.insert(id, Entry { class, sending, receiving, deadline: None, since: now, queued: None, lane: None });
        Ok(())
    }

    fn on_reply(
        &mut self,
        id: CallId,
        class: Class,
        status: u32,
        content: Content,
        now: Instant,
    ) -> Result<(), Violation> {
        let Content { body, data, last } = content;
        let unexpected = Violation::Unexpected { frame: "Reply", id: id.0 };
        let entry = self.calls.get(&id).filter(|_| self.side.owns(id)).ok_or(unexpected.clone())?;
        let refused = status == STATUS_BUSY;
        let receiving = match entry.receiving {
            // The call has not even gone out.
            Receiving::Reply if matches!(entry.sending, Sending::First(..)) => return Err(unexpected),
            Receiving::Reply if refused => {
                self.grants.consume(Charge::of(class, data.len() as u64));
                self.events.push_back(Event::Ended { id, error: CallError::Busy });
                Receiving::Unwanted
            }
            Receiving::Reply => {
                let timing = entry.timing(now);
                self.events.push_back(Event::Reply { id, class, timing, status, body, data, last });
                Receiving::Payload
            }
            Receiving::Unwanted => {
                self.grants.consume(Charge::of(class, data.len() as u64));
                Receiving::Unwanted
            }
            Receiving::Payload | Receiving::Done => return Err(unexpected),
        };
        self.update(id, |entry| {
            entry.receiving = if last { Receiving::Done } else { receiving };
            if refused {
                entry.cut_sending("the call was refused");
            }
        });
        Ok(())
    }

    fn on_data(&mut self, id: CallId, class: Class, data: Bytes, last: bool) -> Result<(), Violation> {
        match self.calls.get(&id).map(|entry| entry.receiving) {
            Some(Receiving::Payload) => self.events.push_back(Event::Data { id, class, data, last }),
            Some(Receiving::Unwanted) => self.grants.consume(Charge::of(class, data.len() as u64)),
            Some(Receiving::Reply | Receiving::Done) | None => {
                return Err(Violation::Unexpected { frame: "Data", id: id.0 });
            }
        }
        if last {
            self.update(id, |entry| entry.receiving = Receiving::Done);
        }
        Ok(())
    }

    fn on_abort(&mut self, id: CallId, why: String) -> Result<(), Violation> {
        match self.calls.get(&id).map(|entry| entry.receiving) {
            Some(Receiving::Payload) => {
                self.events.push_back(Event::PayloadEnded { id, error: PayloadError::Aborted(why) });
            }
            Some(Receiving::Unwanted) => {}
            Some(Receiving::Reply | Receiving::Done) | None => {
                return Err(Violation::Unexpected { frame: "Abort", id: id.0 });
            }
        }
        self.update(id, |entry| entry.receiving = Receiving::Done);
        Ok(())
    }

    /// Ends an incoming call. The call may be over already: its end and the Cancel can cross.
    fn on_cancel(&mut self, id: CallId) -> Result<(), Violation> {
        if self.side.owns(id) {
            return Err(Violation::Unexpected { frame: "Cancel", id: id.0 });
        }
        let Some(entry) = self.calls.get(&id) else { return Ok(()) };
        if entry.receiving == Receiving::Payload {
            let error = PayloadError::CallEnded("the caller gave it up".into());
            self.events.push_back(Event::PayloadEnded { id, error });
        }
        self.events.push_back(Event::Cancelled { id });
        self.update(id, |entry| {
            entry.receiving = Receiving::Done;
            entry.cut_sending("the caller gave it up");
        });
        Ok(())
    }

    /// Cuts an outgoing payload short. The payload may have ended already: its end and the Stop can cross.
    fn on_stop(&mut self, id: CallId) -> Result<(), Violation> {
        let begun = |entry: &&Entry| matches!(entry.sending, Sending::Rest(_));
        if self.calls.get(&id).filter(begun).is_some() {
            self.events.push_back(Event::PayloadUnwanted { id });
            self.update(id, |entry| entry.cut_sending("not wanted"));
        }
        Ok(())
    }

    /// Moves a call of the peer to another class. The call may be over already.
    fn on_reprioritise(&mut self, id: CallId, class: Class) -> Result<(), Violation> {
        if self.side.owns(id) {
            return Err(Violation::Unexpected { frame: "Reprioritise", id: id.0 });
        }
        self.update(id, |entry| entry.class = class);
        Ok(())
    }
}
