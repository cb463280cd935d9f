//! Replay: sends the records that wait in the queue, as long as there is a connection.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_arpc::{blocking, watch};
use mafs_proto::{CmlOp, CmlRecord, Fid, FsError, Name, Purpose, StoreId, VnodeId};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::file::{File, Version};
use super::frozen::FrozenContent;
use super::verdicts::{Answered, NotSent, arrive};
use super::{Error, Inner};
use crate::cache::Hold;
use crate::core::arrivals::Arrivals;
use crate::core::pauses::Pauses;
use crate::core::queue::{HeldUp, Policy, Polled, Queue, Queued};
use crate::remote::{Link, RemoteError, Terms};

/// Most answers that may wait to be taken in: more than there are records under way.
const ANSWERS_MAX: usize = 1024;

/// Most refused changes that are listed.
const REFUSED_MAX: usize = 1000;

/// The queue, and the callers that wait for its records.
pub(super) struct Replay {
    queue: Mutex<Queue>,
    verdicts: Mutex<HashMap<StoreId, oneshot::Sender<Result<(), FsError>>>>,
    refused: Mutex<Vec<(Queued, FsError)>>,
    trouble: Mutex<Option<Error>>,
    /// Paths of directories in which changes were made while the server was out of reach; as long as there are any
    /// changes.
    places: Mutex<HashMap<VnodeId, Vec<Name>>>,
    /// Places of files that other clients have removed, or made too, while changes of them wait here.
    homes: Mutex<HashMap<VnodeId, (Fid, Name)>>,
    /// Whether refused records are to be tried at once: there may be room now, or a program waits for them.
    again: AtomicBool,
    /// Whether the server may have heard of records of earlier lives that the log does not have.
    pub(super) may_have_lost: AtomicBool,
    pub(super) changed: Notify,
    progress: watch::Sender<()>,
}

impl Replay {
    /// Makes an empty queue that announces according to `policy`. `has_announced`: the client may have announced more
    /// in earlier lives.
    pub(super) fn new(policy: Policy, has_announced: bool) -> Self {
        let mut queue = Queue::default();
        queue.set_policy(policy);
        Self {
            queue: Mutex::new(queue),
            verdicts: Mutex::default(),
            refused: Mutex::default(),
            trouble: Mutex::default(),
            places: Mutex::default(),
            homes: Mutex::default(),
            again: AtomicBool::new(false),
            may_have_lost: AtomicBool::new(has_announced),
            changed: Notify::new(),
            progress: watch::Sender::new(()),
        }
    }
}

/// A version that is about to be sent.
struct Prepared {
    record: CmlRecord,
    content: Arc<FrozenContent>,
    /// Whether a part of it may be at the server.
    interrupted: bool,
    /// Keeps the content open: while it waits it is not.
    _open: Hold,
}

impl Replay {
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver for the server's answer to a record.
    pub(super) fn watch_verdict(&self, id: StoreId) -> oneshot::Receiver<Result<(), FsError>> {
        let (sender, receiver) = oneshot::channel();
        self.verdicts().insert(id, sender);
        receiver
    }

    /// Wakes callers that wait for records to go.
    pub(super) fn note_progress(&self) {
        self.progress.send_replace(());
    }

    /// Returns the changes of names and attributes that the server has refused, oldest first.
    pub(super) fn refused(&self) -> MutexGuard<'_, Vec<(Queued, FsError)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_refused(&self, queued: Queued, reason: FsError) {
        let mut refused = self.refused();
        if refused.len() < REFUSED_MAX {
            refused.push((queued, reason));
        }
    }

    fn verdicts(&self) -> MutexGuard<'_, HashMap<StoreId, oneshot::Sender<Result<(), FsError>>>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_awaited(&self, id: StoreId) -> bool {
        self.verdicts().get(&id).is_some_and(|verdict| !verdict.is_closed())
    }

    /// Returns the records for which programs wait for the server's answer.
    pub(super) fn awaited(&self) -> Vec<StoreId> {
        self.verdicts().iter().filter(|(_, verdict)| !verdict.is_closed()).map(|(id, _)| *id).collect()
    }

    pub(super) fn tell(&self, id: StoreId, verdict: Result<(), FsError>) -> bool {
        let waiting = self.verdicts().remove(&id);
        waiting.is_some_and(|waiting| waiting.send(verdict).is_ok())
    }

    /// Has refused records that come again tried at once, and forgets why they were refused.
    pub(super) fn try_again(&self) {
        self.trouble().take();
        self.again.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn places(&self) -> MutexGuard<'_, HashMap<VnodeId, Vec<Name>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn homes(&self) -> MutexGuard<'_, HashMap<VnodeId, (Fid, Name)>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn trouble(&self) -> MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Notes that there may be something to send.
    pub(super) fn note_queue_changed(&self) {
        self.replay.changed.notify_one();
        self.log_changed.notify_one();
    }

    /// Sends waiting records, for ever: after every connect, and whenever something comes.
    pub(super) async fn keep_replaying(self: Arc<Self>) {
        let mut link = self.remote.watch_link();
        let (sender, mut answers) = mpsc::channel(ANSWERS_MAX);
        let mut arrivals = Arrivals::default();
        let mut pauses = Pauses::new(self.clock.now());
        self.renew_room();
        loop {
            let up = match self.remote.link().0 {
                Link::Up(connection) => {
                    self.follow_link(&connection);
                    true
                }
                Link::Down(_) => false,
                Link::Closed => return,
            };
            let pause = pauses.left(self.clock.now());
            if up && pause.is_none() {
                self.send_ready(&sender, &mut arrivals, Queue::poll_next);
            } else if up && pauses.lets_others_pass() {
                self.send_ready(&sender, &mut arrivals, Queue::poll_next_untried);
            }
            if up {
                self.announce_ready();
                self.end_earlier_lives();
            }
            self.note_drain();
            tokio::select! {
                biased;
                changed = link.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    pauses.end(self.clock.now());
                    self.count_conflicts();
                    self.renew_room();
                }
                Some(first) = answers.recv() => {
                    arrive(&mut arrivals, first);
                    while let Ok(next) = answers.try_recv() {
                        arrive(&mut arrivals, next);
                    }
                    let outcome = blocking(|| self.take_in(&mut arrivals));
                    pauses.answered(outcome, self.clock.now());
                    if self.conflicts.take_due() {
                        self.count_conflicts();
                    }
                }
                () = self.replay.changed.notified() => {
                    if self.replay.again.swap(false, Ordering::AcqRel) {
                        pauses.end(self.clock.now());
                    }
                }
                () = sleep(pause.unwrap_or_default()), if up && pause.is_some() => {}
            }
        }
    }

    /// Sends as much as may be under way.
    fn send_ready(
        self: &Arc<Self>,
        answers: &mpsc::Sender<Answered>,
        arrivals: &mut Arrivals<Answered>,
        poll: impl Fn(&mut Queue) -> Option<Polled>,
    ) {
        loop {
            let next = poll(&mut self.replay.queue());
            let Some(Polled { record, repeated }) = next else { return };
            if let CmlOp::MakeDir { fid, .. } = record.op
                && !repeated
            {
                self.cache.index.making_directory(fid.vnode);
            }
            arrivals.sent(record.id, &record.op);
            let (inner, answers) = (Arc::clone(self), answers.clone());
            tokio::spawn(async move {
                let answered = match record.op {
                    CmlOp::Store { .. } => inner.send_version(record).await,
                    _ => inner.send_change(record, repeated).await,
                };
                // The send fails when the mount has ended.
                let _ = answers.send(answered).await;
            });
        }
    }

    async fn send_change(&self, record: CmlRecord, repeated: bool) -> Answered {
        let awaited = self.replay.is_awaited(record.id);
        let purpose =
            if awaited || self.replay.queue().is_raised(record.id) { Purpose::Change } else { Purpose::Replay };
        if record.op.unnamed_fid().is_some()
            && let Err(error) = blocking(|| self.cache.cml.sync_drops())
        {
            return Answered { record, result: Err(NotSent::Here(error.into())), whole: true };
        }
        let on_conflict = self.on_conflict(&record, awaited);
        let about = (on_conflict, self.removals_with(&record));
        let result = self.remote.replay(&record, purpose, about, repeated).await.map_err(NotSent::There);
        Answered { record, result, whole: true }
    }

    async fn send_version(self: &Arc<Self>, record: CmlRecord) -> Answered {
        let id = record.id;
        match self.prepare_version(&record).await {
            Ok(Some(Prepared { record, content, interrupted, _open })) => {
                let begun = self.clock.now();
                let (on_conflict, lock_lost) = (self.on_conflict(&record, false), self.is_doubtful(record.op.fid()));
                let terms = Terms { interrupted, on_conflict, lock_lost };
                let result = tokio::select! {
                    biased;
                    result = self.remote.store(&record, &content, terms) => result,
                    // Bytes that have arrived are not sent again.
                    () = self.until_paused_for(id) => Err(RemoteError::TimedOut("the queue is paused".to_owned())),
                };
                if result.is_ok() {
                    let sent = content.allocated().unwrap_or(content.size).min(content.size);
                    self.upload_rate().observe(sent, self.clock.now().since(begun));
                }
                Answered { record, result: result.map_err(NotSent::There), whole: true }
            }
            // The content of the version is gone: the only question is whether the record was applied before.
            Ok(None) => {
                let frozen = self.replay.queue().freeze(id);
                let record = frozen.unwrap_or(record);
                let result = self.remote.resolve(&record).await.map_err(NotSent::There);
                Answered { record, result, whole: false }
            }
            Err(error) => {
                tracing::warn!(%error, "a content cannot be sent yet");
                Answered { record, result: Err(NotSent::Here(error)), whole: true }
            }
        }
    }

    /// Prepares the content of a version, which does not change from now on, and its record.
    async fn prepare_version(&self, record: &CmlRecord) -> Result<Option<Prepared>, Error> {
        let Some(file) = self.file_of(record) else { return Ok(None) };
        self.until_nobody_writes(&file).await;
        self.settle(&file).await?;
        super::editing::before_copy(&file).await;
        blocking(|| match self.look_at_unseen(&file) {
            Ok(()) => self.freeze_version(&file, record.id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    pub(super) fn file_of(&self, record: &CmlRecord) -> Option<Arc<File>> {
        let file = self.files().get(record.op.fid().vnode)?;
        let has_version = file.state().versions().get(record.id).is_some();
        has_version.then_some(file)
    }

    fn freeze_version(&self, file: &File, id: StoreId) -> Result<Option<Prepared>, Error> {
        let _edit = file.edit();
        self.settle_now(file)?;
        if file.state().versions().get(id).is_none_or(Version::is_gone) {
            return Ok(None);
        }
        self.catch_up(file, id)?;
        let (may_write, synced) = {
            let state = file.state();
            (state.users().may_write(), state.edits().say_synced())
        };
        let found = file.state().versions().get(id).map(|version| (Arc::clone(version.content()), version.snapshot()));
        let Some((content, snapshot)) = found else { return Ok(None) };
        if may_write && snapshot.is_none() {
            self.move_out(file)?;
        }
        if synced {
            // Otherwise a loss of power would put data fsynced later under the name of the version that the server has
            // got.
            self.cache.cml.sync()?;
        }
        let open = content.hold()?;
        let mut queue = self.replay.queue();
        let Some(record) = queue.freeze(id) else { return Ok(None) };
        if queue.is_raised(id) && self.comes_again(&record) {
            content.pull();
        }
        let interrupted = file.begin_sending(Arc::clone(&content));
        Ok(Some(Prepared { record, content, interrupted, _open: open }))
    }

    /// Waits until no record about an object waits for the server.
    pub(super) async fn until_applied(&self, vnode: VnodeId) -> Result<(), Error> {
        let fid = self.fid_of(vnode)?;
        let newest = self.remote.outstanding(|log| log.newest(fid));
        match newest.filter(|id| self.replay.queue().contains(*id)) {
            Some(newest) => self.until_answered(newest).await,
            None => Ok(()),
        }
    }

    /// Waits until the server has answered a record.
    pub(super) async fn until_answered(&self, id: StoreId) -> Result<(), Error> {
        self.replay.queue().let_go(id);
        self.note_queue_changed();
        // The record may wait for another client's answer, and that one for this client's answer to a break.
        let _waiting = self.remote.waiting();
        let ask = || drop(self.replay.queue().ask(&[id]));
        let mut held_up = HeldUp::new(vec![id]);
        self.until_gone(|queue| !queue.contains(id), |queue| held_up.is_so(queue), ask).await
    }

    /// Notifies of records that go, and of announcements.
    pub(super) fn watch_progress(&self) -> watch::Receiver<()> {
        self.replay.progress.subscribe()
    }

    /// Waits as long as there is progress, or a connection without trouble. Records refused before are tried once
    /// more. If the wait `is_stuck` afterwards, returns the error of the last attempt; if the server is busy, only
    /// after a while. If the queue is paused, `ask` asks for the records that are waited for.
    pub(super) async fn until_gone(
        &self,
        mut is_gone: impl FnMut(&Queue) -> bool,
        mut is_stuck: impl FnMut(&Queue) -> bool,
        ask: impl Fn(),
    ) -> Result<(), Error> {
        let mut progress = self.replay.progress.subscribe();
        let mut in_vain = pin!(self.until_in_vain());
        self.replay.try_again();
        let (mut busy_since, mut asked) = (None, false);
        loop {
            if self.is_paused() != asked {
                asked = !asked;
                if asked {
                    ask();
                    self.note_queue_changed();
                }
            }
            let trouble = self.replay.trouble().clone();
            let (gone, stuck) = {
                let queue = self.replay.queue();
                (is_gone(&queue), trouble.is_some() && is_stuck(&queue))
            };
            if gone {
                return Ok(());
            }
            match trouble.filter(|_| stuck) {
                Some(Error::Refused(FsError::Busy)) => {
                    let since = *busy_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.settings.deadline {
                        return Err(FsError::Busy.into());
                    }
                }
                Some(error) => return Err(error),
                None => busy_since = None,
            }
            let waited = tokio::select! {
                biased;
                waited = timeout(self.settings.deadline, progress.changed()) => waited.is_ok(),
                () = &mut in_vain => {
                    in_vain.set(self.until_in_vain());
                    false
                }
            };
            if !waited && !self.remote.is_up() {
                return Err(self.unanswered_in_time());
            }
        }
    }

    /// Returns why the server's answer has not come. A wait that lasts to the deadline does not report what was found
    /// out meanwhile.
    fn unanswered_in_time(&self) -> Error {
        match self.remote.unanswered().into() {
            Error::OutOfReach(why) if self.settings.writeback.waits() => Error::TimedOut(why),
            other => other,
        }
    }

    /// Waits until there is no point in waiting for the server's answer. With `writeback=sync` that is after as long as
    /// a call waits, even if the server is known to be out of reach, unless the user has ended the connection.
    async fn until_in_vain(&self) {
        if !self.settings.writeback.waits() {
            return self.remote.until_in_vain().await;
        }
        tokio::select! {
            biased;
            () = self.remote.until_in_vain_by_hand() => {}
            () = self.until_given_up() => {}
        }
    }
}
