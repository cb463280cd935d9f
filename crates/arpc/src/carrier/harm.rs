//! Harm that a carrier in memory does to frames, for tests: a byte changes on its way.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

use super::Broken;
use super::check::{FrameOpener, seal};
use crate::wire::{Frame, frame::Kind};

/// The place where the byte changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Harm {
    /// The byte changes after the check was made.
    OnItsWay,
    /// The byte changes before, in a payload.
    InMemory,
}

/// The harm that is to be done to one direction's frames.
#[derive(Debug, Default)]
pub(super) struct Harms(Mutex<Vec<(Harm, usize)>>);

impl Harms {
    /// Adds harm to the byte `at` of the next frame, or payload, that has one.
    pub(super) fn add(&self, harm: Harm, at: u64) {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((harm, at));
    }

    /// Returns the frame as it arrives.
    pub(super) fn suffer(&self, mut frame: Frame) -> Result<Frame, Broken> {
        let mut harms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if harms.is_empty() {
            return Ok(frame);
        }
        let mut sealed = BytesMut::new();
        seal(&frame, 0, &mut sealed);
        let mut flipped = false;
        harms.retain(|(harm, at)| {
            let done = match harm {
                Harm::OnItsWay => sealed.get_mut(*at).map(|byte| *byte ^= 1).is_some(),
                Harm::InMemory => return !spoil(&mut frame, *at),
            };
            flipped |= done;
            !done
        });
        if flipped { FrameOpener::strict().open(sealed.freeze()) } else { Ok(frame) }
    }
}

/// Changes a byte of the payload. Returns whether there was one.
fn spoil(frame: &mut Frame, at: usize) -> bool {
    let data = match &mut frame.kind {
        Some(Kind::Call(call)) => &mut call.data,
        Some(Kind::Reply(reply)) => &mut reply.data,
        Some(Kind::Data(data)) => &mut data.data,
        _ => return false,
    };
    let mut changed = data.to_vec();
    let Some(byte) = changed.get_mut(at) else { return false };
    *byte ^= 1;
    *data = Bytes::from(changed);
    true
}
