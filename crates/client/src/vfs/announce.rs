//! Announcing: tells the server of the records that wait in the log, and sends at once what somebody elsewhere waits
//! for.
//!
//! From the answer to an announcement on nobody is shown the state before the announced records (consistency.md,
//! "SIRP").

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mafs_arpc::watch;
use mafs_proto::call::{InvalidateRequest, PullReply, PullRequest};
use mafs_proto::{CmlOp, CmlRecord, Fid, StoreId};
use tokio::time::timeout;

use super::file::{File, Version};
use super::{Error, Inner};
use crate::core::queue::{Announcement, Heard, store_bytes_for};
use crate::remote::{Connection, Link, RemoteError};

/// A close waits for its announcement if that is expected within this time: nobody notices it.
const HEARING_SOON: Duration = Duration::from_millis(10);

/// Time for which a close waits at most for an announcement that was expected so soon.
const HEARING_MAX: Duration = Duration::from_millis(500);

/// The pause behind an announcement that the server could not take now.
const PAUSE: Duration = Duration::from_secs(1);

/// Answerer of the server's pulls: nobody answers until the log of the last life has been taken up, or that log would
/// seem to be lost.
#[derive(Clone)]
pub(super) struct Writer(Arc<watch::Sender<Weak<Inner>>>);

impl Default for Writer {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Weak::new())))
    }
}

impl Writer {
    /// Begins to answer: the log has been taken up.
    pub(super) fn begin(&self, inner: &Arc<Inner>) {
        self.0.send_replace(Arc::downgrade(inner));
    }

    /// Forgets the announcements that the server knew of: the server knows them no more.
    pub(super) fn forget_announcements(&self) {
        let inner = self.0.borrow().upgrade();
        if let Some(inner) = inner {
            inner.replay.queue().forget_announcements();
            inner.note_queue_changed();
        }
    }

    /// Begins to catch up: the server is in reach again.
    pub(super) fn begin_catching_up(&self) {
        let inner = self.0.borrow().upgrade();
        if let Some(inner) = inner {
            inner.replay.queue().begin_catching_up();
        }
    }

    /// Settles directories in which names were decided here: others want to know them, and nothing is decided there
    /// any more. Waits until the log has been taken up, for before that the names are not known.
    pub(super) fn recalled(&self, directories: Vec<Fid>) {
        if directories.is_empty() {
            return;
        }
        let mut writer = self.0.subscribe();
        tokio::spawn(async move {
            let begun = writer.wait_for(|inner| inner.strong_count() > 0).await;
            if let Some(inner) = begun.ok().and_then(|inner| inner.upgrade()) {
                for directory in directories {
                    tokio::spawn(Arc::clone(&inner).settle_names(directory));
                }
            }
        });
    }

    /// Returns whether the log holds what was decided before a life of this client; `None`: the log has not been
    /// taken up.
    pub(super) fn has_undecided_before(&self, incarnation: u64) -> Option<bool> {
        let inner = self.0.borrow().upgrade()?;
        Some(inner.has_undecided_before(incarnation))
    }

    /// Answers a pull: somebody waits for these records. Records of a mount that has ended are in its log.
    pub(super) fn pulled(&self, request: PullRequest) -> impl Future<Output = PullReply> + use<> {
        let mut writer = self.0.subscribe();
        async move {
            let begun = writer.wait_for(|inner| inner.strong_count() > 0).await;
            let inner = begun.ok().and_then(|inner| inner.upgrade());
            inner.map_or_else(|| PullReply { missing: Vec::new() }, |inner| inner.pulled(&request))
        }
    }
}

impl Inner {
    /// Lets as much be under way as the link holds, if the rest is announced.
    pub(super) fn follow_link(&self, connection: &Connection) {
        let mut queue = self.replay.queue();
        if queue.announces() {
            let estimate = connection.peer.estimate();
            queue.set_store_bytes_max(store_bytes_for(estimate.rate.zip(estimate.rtt_min)));
        }
    }

    /// Announces the records that wait.
    pub(super) fn announce_ready(self: &Arc<Self>) {
        loop {
            let next = self.replay.queue().poll_announce(InvalidateRequest::RECORDS_MAX);
            let Some(announcement) = next else { return };
            let inner = Arc::clone(self);
            tokio::spawn(async move { inner.announce(announcement).await });
        }
    }

    /// Tells the server once that nothing more of earlier lives will come. The server may have heard of records that
    /// a loss of power has taken from the log, and would show them to others.
    pub(super) fn end_earlier_lives(self: &Arc<Self>) {
        let may_have_lost = &self.replay.may_have_lost;
        if !may_have_lost.load(Ordering::Acquire) || self.remote.outstanding(|log| log.has_earlier_lives()) {
            return;
        }
        may_have_lost.store(false, Ordering::Release);
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            // Every call says what has been answered.
            match inner.remote.announce(InvalidateRequest::default()).await {
                Ok(_) => return,
                Err(RemoteError::Refused { error, .. }) if error.is_transient() => tokio::time::sleep(PAUSE).await,
                Err(RemoteError::Refused { .. }) => return,
                Err(_) => {}
            }
            inner.replay.may_have_lost.store(true, Ordering::Release);
            inner.replay.changed.notify_one();
        });
    }

    async fn announce(&self, announcement: Announcement) {
        let Announcement { records, retracted } = announcement.clone();
        let ids: Vec<StoreId> = records.iter().map(|record| record.id).collect();
        // Nobody is to wait for what may be in conflict with what is locked.
        let is_doubtful =
            |record: &CmlRecord| matches!(record.op, CmlOp::Store { .. }) && self.is_doubtful(record.op.fid());
        let (doubtful, records): (Vec<_>, Vec<_>) = records.into_iter().partition(is_doubtful);
        let doubtful: Vec<StoreId> = doubtful.iter().map(|record| record.id).collect();
        let (confirmed_below, settled) = (None, Vec::new());
        let request = InvalidateRequest { records, retracted, confirmed_below, settled };
        let begun = self.clock.now();
        let mut answer = self.remote.announce(request).await;
        if answer.is_ok() {
            self.hearing_time().observe(self.clock.now().since(begun));
        }
        if let Ok(reply) = &mut answer {
            reply.refused.extend(&doubtful);
            reply.contested.extend(&doubtful);
        }
        if let Err(RemoteError::Refused { error, .. }) = &answer
            && error.is_transient()
        {
            tokio::time::sleep(PAUSE).await;
        }
        let heard = match &answer {
            Ok(reply) => Heard::But(&reply.refused),
            Err(RemoteError::Refused { error, .. }) if error.is_transient() => Heard::Perhaps,
            // As to a server that knows no announcements.
            Err(RemoteError::Refused { .. }) => Heard::But(&ids),
            Err(_) => Heard::Perhaps,
        };
        match heard {
            Heard::But(refused) => tracing::debug!(?ids, ?refused, "announced"),
            Heard::Perhaps => tracing::debug!(?ids, "an announcement was not answered"),
        }
        {
            let mut queue = self.replay.queue();
            queue.end_announcement(&announcement, heard);
            answer.iter().for_each(|reply| queue.note_contested(&reply.contested));
        }
        self.replay.note_progress();
        self.note_queue_changed();
    }

    fn pulled(self: &Arc<Self>, request: &PullRequest) -> PullReply {
        let missing = self.send_first(&request.ids);
        let held_up = {
            let queue = self.replay.queue();
            let is_held_up = queue.is_held_up(&request.ids);
            is_held_up.then(|| queue.bytes_up_to(&request.ids))
        };
        if let Some(bytes) = held_up {
            // Not when the pause is over.
            self.try_if_there_is_room(bytes);
        }
        tracing::debug!(ids = ?request.ids, ?missing, "somebody waits for what was announced");
        PullReply { missing }
    }

    /// Sends these records next, with all that they depend on. Returns those that are not in the log.
    pub(super) fn send_first(&self, ids: &[StoreId]) -> Vec<StoreId> {
        let raised = self.replay.queue().raise(ids);
        for record in &raised.under_way {
            let content = self
                .file_of(record)
                .and_then(|file| file.state().versions().get(record.id).map(|version| Arc::clone(version.content())));
            if let Some(content) = content {
                content.pull();
            }
        }
        self.note_queue_changed();
        raised.missing
    }

    /// Waits until the newest version of a file is announced, or more than that.
    pub(super) async fn until_announced(&self, file: &File) -> Result<(), Error> {
        let newest = file.state().versions().newest().map(Version::id);
        let Some(id) = newest else { return Ok(()) };
        self.until_record_announced(id).await?;
        file.check_refused()
    }

    /// Waits until the newest version of a file is announced, if others may be looking at the file and that is
    /// expected soon. If that takes longer than expected, the version is in the log, and others hear of it later.
    pub(super) async fn until_announced_if_soon(&self, file: &File) -> Result<(), Error> {
        if !self.hears_soon() || !self.may_be_looked_at(file.fid) {
            return Ok(());
        }
        timeout(HEARING_MAX, self.until_announced(file)).await.unwrap_or(Ok(()))
    }

    /// Returns whether the server is expected to have heard of a change in a few milliseconds.
    fn hears_soon(&self) -> bool {
        let Link::Up(connection) = self.remote.link().0 else { return false };
        let round_trip = connection.peer.estimate().rtt_min;
        let expected = self.hearing_time().expected(round_trip);
        expected.is_some_and(|expected| expected <= HEARING_SOON) && self.replay.queue().announces()
    }

    /// Returns whether another client may have been shown a file: the directory that it is in, as far as is known
    /// here, is not this client's alone.
    fn may_be_looked_at(&self, fid: Fid) -> bool {
        let known = |vnode| self.cache.index.object(vnode).ok().flatten();
        let parent = known(fid.vnode).and_then(|file| file.parent).and_then(known);
        parent.is_none_or(|parent| !self.is_alone_in(&self.replay.queue(), parent.object.fid))
    }

    /// Waits until a record is announced, or answered, or the server is out of reach.
    pub(super) async fn until_record_announced(&self, id: StoreId) -> Result<(), Error> {
        self.replay.queue().demand_announcement(id);
        self.note_queue_changed();
        let mut progress = self.watch_progress();
        // The answer may wait for another client, and that one for this client's answer to a break.
        let _waiting = self.remote.waiting();
        let announced = async {
            while self.replay.queue().is_announced(id) == Some(false) {
                // The sender lives in `self`.
                let _ = progress.changed().await;
            }
        };
        let late = |_| Error::TimedOut("the server has not heard of what was changed".to_owned());
        tokio::select! {
            biased;
            announced = timeout(self.settings.deadline, announced) => announced.map_err(late),
            // Nobody can be told, and it is logged.
            () = self.remote.until_out_of_reach() => Ok(()),
        }
    }
}
