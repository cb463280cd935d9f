//! Payloads on their way out: reports to the engine of the bytes that are ready, and the bytes of a frame that goes.

use bytes::Bytes;
use mafs_proto::Class;

use super::Driver;
use super::outbound::{Outbound, Progress, Read};
use crate::engine::{CallId, Engine, Outgoing, Ready};
use crate::payload::Payload;

impl Driver {
    /// Returns the next frame that may go.
    pub(super) fn next_frame(&mut self) -> Option<Outgoing> {
        let frame = self.engine.poll_frame(self.now);
        let Some(place) = self.place.as_mut().filter(|_| frame.is_none()) else { return frame };
        if !place.admit(self.engine.demand(), self.now) {
            return None;
        }
        self.engine.admit();
        self.engine.poll_frame(self.now)
    }

    /// Puts the payload into a frame and hands it to the carrier, which has room.
    pub(super) fn send(&mut self, outgoing: Outgoing) {
        let Outgoing { mut frame, payload } = outgoing;
        if let Some((id, count)) = payload {
            frame.kind.set_data(self.take_payload(id, count));
        }
        if let Some(place) = &self.place {
            let (class, bytes) = frame.kind.content().unwrap_or((Class::Control, 0));
            if class == Class::Control {
                place.pass(bytes, self.now);
            }
        }
        // The sink cannot be full: only this task fills it. A closed one shows in the next turn.
        let _ = self.carrier.sink.try_send(frame.into_wire());
    }

    fn take_payload(&mut self, id: CallId, count: usize) -> Bytes {
        let Some(outbound) = self.outbound.get_mut(&id) else { return Bytes::new() };
        let bytes = outbound.take(count);
        self.fill(id);
        bytes
    }

    /// Returns how much of a payload is kept at hand: enough for the frame after the next.
    fn at_hand_bytes(&self) -> usize {
        usize::try_from(2 * self.engine.chunk_bytes(self.now)).unwrap_or(usize::MAX)
    }

    /// Keeps an outgoing payload at hand.
    fn fill(&mut self, id: CallId) {
        let limit = self.at_hand_bytes();
        let Some(outbound) = self.outbound.get_mut(&id) else { return };
        let (progress, reading) = outbound.fill(id, limit);
        self.reads.extend(reading);
        if outbound.is_over() {
            self.outbound.remove(&id);
        }
        if let Some(progress) = progress {
            self.report(id, progress);
        }
    }

    fn report(&mut self, id: CallId, progress: Progress) {
        match progress {
            Progress::Ready(Ready { bytes, finished }) => {
                self.engine.payload_ready(id, bytes);
                if finished {
                    self.engine.payload_finished(id);
                }
            }
            Progress::Failed(why) => {
                self.outbound.remove(&id);
                self.engine.payload_aborted(id, why);
            }
        }
    }

    /// Takes the result of a read, and goes on.
    pub(super) fn handle_read(&mut self, read: Read) {
        let id = read.id;
        let Some(outbound) = self.outbound.get_mut(&id) else { return };
        let progress = outbound.finish_read(read);
        self.report(id, progress);
        self.fill(id);
    }

    /// Takes a payload to send; the bytes at hand go with the first frame.
    pub(super) fn open_outbound(&mut self, id: CallId, payload: Payload, announce: impl FnOnce(&mut Engine, Ready)) {
        let mut outbound = Outbound::new(payload);
        let (progress, reading) = outbound.fill(id, self.at_hand_bytes());
        self.reads.extend(reading);
        if let Some(Progress::Failed(why)) = progress {
            announce(&mut self.engine, Ready::default());
            self.engine.payload_aborted(id, why);
            return;
        }
        announce(&mut self.engine, Ready { bytes: outbound.bytes() as u64, finished: !outbound.is_open() });
        if !outbound.is_over() {
            self.outbound.insert(id, outbound);
        }
    }
}
