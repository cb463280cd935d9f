//! Crowding: a program that makes a file longer waits while what the server lacks takes more of this disk than it may.
//!
//! `cachesize` says what the cache may take, and `minfree` what stays free on its disk. Clean contents make way.
//! Contents that the server lacks cannot, so a write that comes by this daemon waits for some of them to be sent. If
//! nothing can be sent, or nothing is for a while, `minfree` holds and the write fails with ENOSPC; `cachesize` gives
//! way, for a file that is larger could never be written otherwise, and changes that wait for a connection have no
//! other place.
//!
//! Writes that the kernel makes by itself are not held: from the next open on the file is written by way of this
//! daemon (`passthrough.rs`).

use std::time::Duration;

use mafs_arpc::blocking;
use tokio::time::timeout;

use super::file::File;
use super::{Error, Inner};

/// Time for which a write waits for the server's word about anything that waits.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Room that a write lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Crowded {
    /// Room that the cache may take.
    Cache,
    /// Room on its disk.
    Disk,
}

impl Inner {
    /// Waits until `bytes` may be written up to `end` of a file, as long as contents are sent meanwhile. Bytes within
    /// the file have their room, and a hole needs none.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if the disk would be too full.
    pub(super) async fn until_uncrowded(&self, file: &File, end: u64, bytes: u64) -> Result<(), Error> {
        let longer = |file: &File| end.saturating_sub(file.state().stat().size()).min(bytes);
        if self.crowded_by(longer(file)).is_none() {
            return Ok(());
        }
        let mut progress = self.watch_progress();
        // Room is looked for on the disk, and not on a session thread, which others need.
        tokio::task::yield_now().await;
        loop {
            let crowded = blocking(|| self.make_way(longer(file)));
            let Some(crowded) = crowded else { return Ok(()) };
            let is_sent = self.remote.is_up() && !self.is_paused() && self.replay.queue().waiting_bytes() > 0;
            let is_answered = is_sent && timeout(ANSWER_MAX, progress.changed()).await.is_ok();
            match crowded {
                Crowded::Disk if !is_answered => return Err(Error::CacheFull),
                Crowded::Cache if !is_answered => return Ok(()),
                Crowded::Disk | Crowded::Cache => {}
            }
        }
    }

    /// Lets clean contents make way for so many bytes, and containers that nothing names any more if the disk is
    /// short. Returns the room that is lacking then.
    fn make_way(&self, bytes: u64) -> Option<Crowded> {
        // Each turn but the last takes something out of the cache.
        loop {
            let crowded = self.crowded_by(bytes)?;
            let has_gone = match crowded {
                Crowded::Cache => self.make_room(bytes),
                Crowded::Disk => self.find_room(bytes),
            };
            if !has_gone {
                return Some(crowded);
            }
        }
    }

    /// Returns the room that is lacking to write so many bytes more.
    fn crowded_by(&self, bytes: u64) -> Option<Crowded> {
        if bytes == 0 {
            None
        } else if self.disk_short_bytes(bytes) > 0 {
            Some(Crowded::Disk)
        } else {
            (self.replacement().excess_bytes(bytes) > 0).then_some(Crowded::Cache)
        }
    }
}
