//! State that the operations share, each part behind its lock. A lock that a panic has poisoned is taken all the same:
//! its state is changed in steps that each leave it whole.

use std::sync::{MutexGuard, PoisonError};

use super::Inner;
use super::files::Files;
use super::listing::Listings;
use super::room::Room;
use crate::core::drain::Drain;
use crate::core::hearing::HearingTime;
use crate::core::replacement::Replacement;
use crate::core::upload::UploadRate;

impl Inner {
    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn replacement(&self) -> MutexGuard<'_, Replacement> {
        self.replacement.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn listings(&self) -> MutexGuard<'_, Listings> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn upload_rate(&self) -> MutexGuard<'_, UploadRate> {
        self.upload_rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hearing_time(&self) -> MutexGuard<'_, HearingTime> {
        self.hearing_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn drain(&self) -> MutexGuard<'_, Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
