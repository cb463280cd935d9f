//! Handling of the engine's events: their effects on the handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use mafs_proto::Class;
use tokio::sync::mpsc::error::TrySendError;

use super::Driver;
use crate::engine::{CallId, Charge, Event};
use crate::payload::PayloadReader;
use crate::peer::{BodyCredit, IncomingCall, Over, Reply, Responder};
use crate::pipe::Piece;

impl Driver {
    pub(super) fn handle_event(&mut self, event: Event) {
        match event {
            Event::Call { id, class, method, body, data, last } => {
                let payload = self.open_inbound(id, class, data, last);
                self.deliver_call(id, class, method, body, payload);
            }
            Event::Reply { id, class, timing, status, body, data, last } => {
                let payload = self.open_inbound(id, class, data, last);
                if let Some(own) = self.own.remove(&id) {
                    // Fails if the handle is gone: then the reader's end tells the peer.
                    let _ = own.answer.send(Ok(Reply { status, body, payload, timing }));
                }
            }
            Event::Ended { id, error } => {
                self.outbound.remove(&id);
                if let Some(own) = self.own.remove(&id) {
                    let _ = own.answer.send(Err(error));
                }
            }
            Event::Data { id, class, data, last } => self.deliver_data(id, class, data, last),
            Event::PayloadEnded { id, error } => {
                if let Some(pipe) = self.inbound.remove(&id) {
                    pipe.end(Err(error));
                }
            }
            Event::PayloadUnwanted { id } => drop(self.outbound.remove(&id)),
            Event::Cancelled { id } => {
                self.outbound.remove(&id);
                if let Some(over) = self.theirs.remove(&id) {
                    over.set();
                }
            }
            Event::Acknowledged { id, bytes } => {
                if let Some(own) = self.own.get(&id) {
                    own.progress.acknowledged.fetch_add(bytes, Ordering::Relaxed);
                }
            }
            Event::Closed { why } => self.end(&why),
        }
    }

    fn open_inbound(&mut self, id: CallId, class: Class, data: Bytes, last: bool) -> PayloadReader {
        let (reader, pipe) = PayloadReader::incoming(id, &self.link, class, data, last);
        if let Some(pipe) = pipe {
            self.inbound.insert(id, pipe);
        }
        reader
    }

    fn deliver_call(&mut self, id: CallId, class: Class, method: u32, body: Bytes, payload: PayloadReader) {
        let over = Arc::new(Over::default());
        self.theirs.insert(id, over.clone());
        let credit = BodyCredit { link: self.link.clone(), charge: Charge::of(class, body.len() as u64) };
        let responder = Responder { id, link: self.link.clone(), over, answered: false };
        let call = IncomingCall { class, method, body, payload, responder };
        match self.incoming.try_send((call, credit)) {
            // Nobody takes calls: dropping this one answers it.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full((call, _))) => call.refuse(),
        }
    }

    fn deliver_data(&mut self, id: CallId, class: Class, data: Bytes, last: bool) {
        let charge = Charge::of(class, data.len() as u64);
        let Some(pipe) = self.inbound.get(&id) else {
            self.engine.consumed(charge);
            return;
        };
        if !data.is_empty() && pipe.push(Piece { bytes: data, charge: Some(charge) }).is_err() {
            self.engine.consumed(charge);
        }
        if last {
            pipe.end(Ok(()));
            self.inbound.remove(&id);
        }
    }
}
