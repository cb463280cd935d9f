//! Room at the server: the numbers that `df` shows, and whether contents closed in the background will fit.
//!
//! A close that returns before the server has the content cannot be told that there was no room for it. So as soon as
//! the waiting contents may be more than the server has room for, a close waits for the server's answer, as with
//! `writeback=sync` (consistency.md, "Refusals": writers are told once unsent bytes exceed the room).

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::call::StatFsRequest;
use mafs_proto::{Instant, Purpose};
use tokio::time::timeout;

use super::error::is_busy;
use super::file::{File, Version};
use super::{Error, Inner};

/// Largest age of an answer about space that is given again: `df` and programs ask often.
const AGE_MAX: Duration = Duration::from_secs(2);

/// Time after which a caller gets an older answer: `df` is not to hang on a server that does not answer.
const SPACE_WAIT: Duration = Duration::from_millis(500);

/// An answer this old is renewed in the background when a file is closed: other clients fill the server too.
const RENEWED_AFTER: Duration = Duration::from_secs(10);

/// How full the file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceReport {
    /// Size in bytes.
    pub bytes_total: u64,
    /// Bytes that may still be stored.
    pub bytes_free: u64,
    /// Bytes that are not in use, including those that the server's disk keeps for others.
    pub bytes_unused: u64,
    /// Objects there may be.
    pub files_total: u64,
    /// Objects that may still be made.
    pub files_free: u64,
}

/// The server's last answer about its room, and the bytes that it has got from here since it was asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    said: Option<(Instant, SpaceReport)>,
    stored_bytes: u64,
}

impl Room {
    /// Takes in the answer to a question asked at `asked`, when `stored_bytes` had been counted. Bytes stored since
    /// may be in the answer, and count twice rather than not at all. Returns whether there is more room than before.
    fn answered(&mut self, asked: Instant, stored_bytes: u64, report: SpaceReport) -> bool {
        let before = self.said.replace((asked, report));
        self.stored_bytes = self.stored_bytes.saturating_sub(stored_bytes);
        before.is_some_and(|(_, before)| report.bytes_free > before.bytes_free)
    }

    /// Notes that the server has got a content of this size.
    pub(super) fn stored(&mut self, bytes: u64) {
        self.stored_bytes = self.stored_bytes.saturating_add(bytes);
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        self.said.map(|(asked, _)| now.since(asked))
    }

    /// Whether there is room for so many bytes, as far as is known: yes before the first answer.
    fn fits(&self, bytes: u64) -> bool {
        self.said.is_none_or(|(_, report)| bytes.saturating_add(self.stored_bytes) <= report.bytes_free)
    }
}

impl Inner {
    /// Returns how full the server is, as it said not long ago; its last answer if it cannot be asked.
    pub(super) async fn space(&self) -> Result<SpaceReport, Error> {
        let Room { said, .. } = *self.room();
        match said {
            Some((asked, report)) if self.clock.now().since(asked) < AGE_MAX => Ok(report),
            Some((_, report)) => match timeout(SPACE_WAIT, self.ask_space()).await {
                Ok(Ok(now)) => Ok(now),
                Ok(Err(_)) | Err(_) => Ok(report),
            },
            None => self.ask_space().await,
        }
    }

    async fn ask_space(&self) -> Result<SpaceReport, Error> {
        let (asked, stored_bytes) = (self.clock.now(), self.room().stored_bytes);
        let reply = self.remote.call(&StatFsRequest, Purpose::Ask).await?.reply;
        let report = SpaceReport {
            bytes_total: reply.bytes_total,
            bytes_free: reply.bytes_free,
            bytes_unused: reply.bytes_unused,
            files_total: reply.files_total,
            files_free: reply.files_free,
        };
        let has_grown = self.room().answered(asked, stored_bytes, report);
        if has_grown {
            self.replay.try_again();
        }
        Ok(report)
    }

    /// Asks how full the server is, in the background, if closes do not wait for it.
    pub(super) fn renew_room(self: &Arc<Self>) {
        if self.settings.writeback.waits() {
            return;
        }
        self.ask_space_later(|_, _| ());
    }

    /// Tries refused records again if the server has room by now for bytes that a caller waits for. Without room they
    /// would be sent in vain, and the caller would take that for progress.
    pub(super) fn try_if_there_is_room(self: &Arc<Self>, bytes: u64) {
        self.ask_space_later(move |inner, report| {
            if bytes < report.bytes_free {
                inner.replay.try_again();
            }
        });
    }

    fn ask_space_later(self: &Arc<Self>, then: impl FnOnce(&Self, SpaceReport) + Send + 'static) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            match inner.ask_space().await {
                Ok(report) => then(&inner, report),
                Err(error) => tracing::debug!(%error, "how full the server is is not known"),
            }
        });
    }

    /// Waits for the server's answer about a closed file, if that may not fit with all waiting contents. A
    /// disconnected client does not wait: contents that do not fit are listed when they have been refused.
    pub(super) async fn until_it_fits(self: &Arc<Self>, file: &File) -> Result<(), Error> {
        if !self.remote.is_up() {
            return Ok(());
        }
        let waiting_bytes = self.replay.queue().waiting_bytes();
        let (fits, age) = {
            let room = self.room();
            (room.fits(waiting_bytes), room.age(self.clock.now()))
        };
        let newest = file.state().versions().newest().map(Version::id);
        if fits {
            if age.is_some_and(|age| age > RENEWED_AFTER) {
                self.renew_room();
            }
            return Ok(());
        }
        let Some(id) = newest else { return Ok(()) };
        tracing::debug!(waiting_bytes, "what waits may be more than the server has room for");
        let answered = self.until_answered(id).await;
        if answered.is_err() {
            tokio::task::yield_now().await;
            blocking(|| self.keep_unsent(file));
        }
        self.renew_room();
        match answered {
            // The connection broke, or the server has no time for the content now: it is in the log.
            Err(error) if error.is_unanswered() => return Ok(()),
            Err(Error::Refused(reason)) if is_busy(reason) => return Ok(()),
            other => other?,
        }
        file.check_refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(bytes_free: u64) -> SpaceReport {
        SpaceReport { bytes_total: 1000, bytes_free, bytes_unused: bytes_free, files_total: 9, files_free: 9 }
    }

    #[test]
    fn what_was_stored_since_the_server_was_asked_takes_room() {
        let mut room = Room::default();
        assert!(room.fits(u64::MAX), "nothing is known yet");
        room.stored(50);
        room.answered(Instant(1), room.stored_bytes, free(100));
        assert!(room.fits(100) && !room.fits(101));
        room.stored(30);
        assert!(room.fits(70) && !room.fits(71));
        assert!(!room.answered(Instant(2), 0, free(100)) && room.answered(Instant(3), 0, free(101)));
    }

    #[test]
    fn what_was_stored_while_the_server_was_asked_counts() {
        let mut room = Room::default();
        room.stored(50);
        let asked_with = room.stored_bytes;
        room.stored(30);
        room.answered(Instant(1), asked_with, free(100));
        assert!(room.fits(70) && !room.fits(71));
        assert_eq!(room.age(Instant(1) + AGE_MAX), Some(AGE_MAX));
    }
}
