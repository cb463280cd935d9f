//! Replay: sends what waits in the queue, as long as there is a connection, and takes the answers in.
//!
//! Answers are taken in in the order of the changes that they tell of, so that what is known of a directory goes from
//! one of its versions to the next.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::{blocking, watch};
use mafs_durable::DiskFile;
use mafs_proto::call::ApplyReply;
use mafs_proto::{CmlOp, CmlRecord, FsError, Purpose, StoreId, VnodeId};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::file::File;
use super::frozen::FrozenContent;
use super::{Error, Inner};
use crate::cache::Hold;
use crate::core::arrivals::Arrivals;
use crate::core::log::LogEntry;
use crate::core::overlay::edits_of;
use crate::core::queue::{Policy, Polled, Queue, Queued};
use crate::remote::{Answer, Link, RemoteError};

/// Answers that may wait to be taken in: more than there are records under way.
const ANSWERS_MAX: usize = 1024;

/// Pauses after a refusal that may pass: the first and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Refused changes that are listed.
const REFUSED_MAX: usize = 1000;

/// The queue, and who waits for it.
pub(super) struct Replay {
    queue: Mutex<Queue>,
    verdicts: Mutex<HashMap<StoreId, oneshot::Sender<Result<(), FsError>>>>,
    refused: Mutex<Vec<(Queued, FsError)>>,
    trouble: Mutex<Option<Error>>,
    /// What was refused is to be tried at once: there may be room now, or somebody waits for it.
    again: AtomicBool,
    /// The server may have heard of records of earlier lives that the log does not have.
    pub(super) may_have_lost: AtomicBool,
    pub(super) changed: Notify,
    progress: watch::Sender<()>,
}

impl Replay {
    /// An empty queue, of which this is announced, of a client that may have announced more in earlier lives or not.
    pub(super) fn new(policy: Policy, has_announced: bool) -> Self {
        let mut queue = Queue::default();
        queue.set_policy(policy);
        Self {
            queue: Mutex::new(queue),
            verdicts: Mutex::default(),
            refused: Mutex::default(),
            trouble: Mutex::default(),
            again: AtomicBool::new(false),
            may_have_lost: AtomicBool::new(has_announced),
            changed: Notify::new(),
            progress: watch::Sender::new(()),
        }
    }
}

/// A record's answer.
struct Answered {
    record: CmlRecord,
    result: Result<Answer<ApplyReply>, NotSent>,
    /// Whether the content was sent with it.
    whole: bool,
}

/// Why a record is not at the server.
enum NotSent {
    /// Its content cannot be sent as it is here.
    Here(Error),
    There(RemoteError),
}

/// A version that is about to be sent.
struct Prepared {
    record: CmlRecord,
    content: Arc<FrozenContent>,
    /// Part of it may be at the server.
    interrupted: bool,
    /// What waits is not open, and this is from now on.
    _open: Option<Hold>,
}

/// Notes that an answer has come.
fn arrive(arrivals: &mut Arrivals<Answered>, answered: Answered) {
    let about = (answered.record.id, answered.record.op.fid());
    match &answered.result {
        Ok(answer) => {
            let (change, directories) = (answer.reply.change.0, answer.reply.directories.clone());
            arrivals.arrived(about, Some(change), &directories, answered);
        }
        Err(_) => arrivals.arrived(about, None, &[], answered),
    }
}

impl Replay {
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has somebody told what the server says of a record.
    pub(super) fn watch_verdict(&self, id: StoreId) -> oneshot::Receiver<Result<(), FsError>> {
        let (sender, receiver) = oneshot::channel();
        self.verdicts().insert(id, sender);
        receiver
    }

    /// Wakes who waits for records to go.
    pub(super) fn note_progress(&self) {
        self.progress.send_replace(());
    }

    /// The changes of names and attributes that the server has refused, the oldest first.
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

    fn tell(&self, id: StoreId, verdict: Result<(), FsError>) -> bool {
        let waiting = self.verdicts().remove(&id);
        waiting.is_some_and(|waiting| waiting.send(verdict).is_ok())
    }

    /// Has what was refused and comes again tried at once, and forgets why it was refused.
    pub(super) fn try_again(&self) {
        self.trouble().take();
        self.again.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn trouble(&self) -> MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// There may be something to send.
    pub(super) fn note_queue_changed(&self) {
        self.replay.changed.notify_one();
        self.log_changed.notify_one();
    }

    /// Sends what waits, for ever: after every connect, and whenever something comes.
    pub(super) async fn keep_replaying(self: Arc<Self>) {
        let mut link = self.remote.watch_link();
        let (sender, mut answers) = mpsc::channel(ANSWERS_MAX);
        let mut arrivals = Arrivals::default();
        let mut pause = PAUSES[0];
        let mut resume_at = Instant::now();
        // Until then nothing is tried again, and if the server is not just full nothing else either.
        let mut full = false;
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
            if up && resume_at <= Instant::now() {
                full = false;
                self.send_ready(&sender, &mut arrivals, Queue::poll_next);
            } else if up && full {
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
                    resume_at = Instant::now();
                    self.renew_room();
                }
                Some(first) = answers.recv() => {
                    arrive(&mut arrivals, first);
                    while let Ok(next) = answers.try_recv() {
                        arrive(&mut arrivals, next);
                    }
                    match blocking(|| self.take_in(&mut arrivals)) {
                        outcome @ (Outcome::Full | Outcome::Passes) => {
                            full = outcome == Outcome::Full;
                            resume_at = Instant::now() + pause;
                            pause = (pause * 2).min(PAUSES[1]);
                        }
                        Outcome::Done => pause = PAUSES[0],
                    }
                }
                () = self.replay.changed.notified() => {
                    if self.replay.again.swap(false, Ordering::AcqRel) {
                        resume_at = Instant::now();
                    }
                }
                () = sleep_until(resume_at), if up && resume_at > Instant::now() => {}
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
                // It fails when the mount has ended.
                let _ = answers.send(answered).await;
            });
        }
    }

    async fn send_change(&self, record: CmlRecord, repeated: bool) -> Answered {
        let awaited = self.replay.is_awaited(record.id) || self.replay.queue().is_raised(record.id);
        let purpose = if awaited { Purpose::Change } else { Purpose::Replay };
        let result = self.remote.replay(&record, purpose, repeated).await.map_err(NotSent::There);
        Answered { record, result, whole: true }
    }

    async fn send_version(self: &Arc<Self>, record: CmlRecord) -> Answered {
        let id = record.id;
        match self.prepare_version(&record).await {
            Ok(Some(Prepared { record, content, interrupted, _open })) => {
                let begun = self.clock.now();
                let result = self.remote.store(&record, &content, interrupted).await;
                if result.is_ok() {
                    let sent = content.allocated().unwrap_or(content.size).min(content.size);
                    self.upload_rate().observe(sent, self.clock.now().since(begun));
                }
                Answered { record, result: result.map_err(NotSent::There), whole: true }
            }
            // Its content is not there any more: only whether it was applied before is of interest.
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

    /// The content of a version, which does not change from now on, and its record.
    async fn prepare_version(&self, record: &CmlRecord) -> Result<Option<Prepared>, Error> {
        let Some(file) = self.file_of(record) else { return Ok(None) };
        if file.state().kernel.writers > 0 {
            self.settle(&file).await?;
        }
        super::editing::before_copy(&file).await;
        blocking(|| match self.look_at_unseen(&file) {
            Ok(()) => self.freeze_version(&file, record.id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    pub(super) fn file_of(&self, record: &CmlRecord) -> Option<Arc<File>> {
        let file = self.files().get(record.op.fid().vnode)?;
        let has_version = file.state().version(record.id).is_some();
        has_version.then_some(file)
    }

    fn freeze_version(&self, file: &File, id: StoreId) -> Result<Option<Prepared>, Error> {
        let _edit = file.edit();
        self.end_edit(file)?;
        if file.state().version(id).is_none_or(|version| version.gone) {
            return Ok(None);
        }
        self.catch_up(file, id)?;
        let (writers, synced) = {
            let state = file.state();
            (state.kernel.writers > 0, state.says_synced())
        };
        let content = match file.state().version(id) {
            Some(version) => Arc::clone(&version.content),
            None => return Ok(None),
        };
        if writers && content.is_in_container() {
            self.move_out(file)?;
        }
        if synced {
            // Or a loss of power puts what is fsynced later under the name of what the server has got.
            self.cache.cml.sync()?;
        }
        let open = content.hold()?;
        let mut queue = self.replay.queue();
        let Some(record) = queue.freeze(id) else { return Ok(None) };
        if queue.is_raised(id) {
            content.pull();
        }
        let mut state = file.state();
        state.set_sending(Arc::clone(&content));
        let interrupted = std::mem::replace(&mut state.interrupted, true);
        Ok(Some(Prepared { record, content, interrupted, _open: open }))
    }

    /// Takes answers in.
    fn take_in(&self, arrivals: &mut Arrivals<Answered>) -> Outcome {
        let mut outcome = Outcome::Done;
        let known = |directory| self.cache.index.names_version(directory);
        let pending = |id| self.replay.queue().contains(id);
        while let Some(Answered { record, result, whole }) = arrivals.take(known, pending) {
            let id = record.id;
            match result {
                Ok(answer) => {
                    if let CmlOp::Remove { .. } | CmlOp::RemoveDir { .. } | CmlOp::Rename { .. } = record.op {
                        // That makes room.
                        self.replay.try_again();
                    }
                    *self.replay.trouble() = None;
                    if let CmlOp::Store { size, .. } = record.op {
                        self.drain().finish(size);
                        self.room().stored(size);
                    }
                    if let Err(error) = self.take_in_applied(&record, &answer, whole) {
                        tracing::error!(%error, "an answer of the server cannot be noted");
                    }
                }
                Err(NotSent::Here(error)) => {
                    self.end_sending(&record);
                    self.replay.queue().postpone(id, true);
                    *self.replay.trouble() = Some(error);
                    outcome = Outcome::Passes;
                }
                Err(NotSent::There(error)) => outcome = outcome.max(self.take_in_error(&record, error, whole)),
            }
        }
        self.replay.note_progress();
        outcome
    }

    fn take_in_error(&self, record: &CmlRecord, error: RemoteError, whole: bool) -> Outcome {
        match error {
            RemoteError::Refused { error, .. } if error.is_transient() || self.waits_for_another(record) => {
                self.end_sending(record);
                self.replay.queue().postpone(record.id, true);
                if error.is_transient() {
                    *self.replay.trouble() = Some(error.into());
                    let is_full = matches!(error, FsError::NoSpace | FsError::Quota);
                    return if is_full { Outcome::Full } else { Outcome::Passes };
                }
            }
            RemoteError::Refused { error: FsError::Malformed, .. } if !whole => self.send_anew(record),
            RemoteError::Refused { error, message } => self.take_in_refusal(record, error, &message),
            RemoteError::Pulling { .. } | RemoteError::Unreachable(_) | RemoteError::TimedOut(_) => {
                tracing::debug!(id = %record.id, %error, "a change was not answered");
                self.end_sending(record);
                self.replay.queue().postpone(record.id, false);
            }
        }
        Outcome::Done
    }

    /// What it depends on was refused and comes again, so its own refusal says nothing.
    fn waits_for_another(&self, record: &CmlRecord) -> bool {
        let queue = self.replay.queue();
        record.depends_on.iter().any(|before| queue.contains(*before))
    }

    fn take_in_applied(&self, record: &CmlRecord, answer: &Answer<ApplyReply>, whole: bool) -> Result<(), Error> {
        let id = record.id;
        let Some(queued) = self.replay.queue().get(id).cloned() else { return Ok(()) };
        if let CmlOp::Store { .. } = record.op {
            return self.take_in_stored(record, answer, whole);
        }
        let noted = self.cache.index.applied_pending(&answer.reply, answer.session, &queued);
        self.replay.queue().remove(id);
        // Or the server forgets a reply that the next start asks for again.
        if let Err(error) = self.cache.cml.append(LogEntry::Ended { id }) {
            tracing::error!(%error, "the modify log cannot be written");
        } else {
            self.remote.end(id);
        }
        self.replay.tell(id, Ok(()));
        self.log_changed.notify_one();
        Ok(noted?)
    }

    fn take_in_stored(&self, record: &CmlRecord, answer: &Answer<ApplyReply>, whole: bool) -> Result<(), Error> {
        let file = self.file_of(record);
        self.replay.queue().remove(record.id);
        let Some(file) = file else {
            self.cache.index.applied(&answer.reply, answer.session, &[])?;
            self.log_all([LogEntry::Abandoned { id: record.id }]);
            self.remote.end(record.id);
            return Ok(());
        };
        let edits = {
            let mut state = file.state();
            state.sending = None;
            state.version(record.id).map(|version| version.edits).filter(|_| whole)
        };
        let stored = self.stored(&file, record, answer, edits);
        if stored.is_err() {
            let _edit = file.edit();
            self.forget_version(&file, record.id);
        }
        stored?;
        if !whole {
            self.log_version(&file)?;
        }
        file.notify();
        self.drop_if_unused(&file);
        Ok(())
    }

    /// A store whose content had gone was not applied: it is sent with what the file holds now.
    fn send_anew(&self, record: &CmlRecord) {
        let file = self.file_of(record);
        let missing = |file: &Arc<File>| file.container.stat().is_err_and(|why| why.kind() == io::ErrorKind::NotFound);
        let is_lost = file.as_ref().is_some_and(missing);
        let rewritten = file.map(|file| {
            let _edit = file.edit();
            let mut queue = self.replay.queue();
            queue.thaw(record.id);
            self.rewrite_version(&mut queue, &file, record.clone())
        });
        match rewritten {
            Some(Ok(())) => self.replay.queue().postpone(record.id, true),
            Some(Err(error)) if !is_lost => {
                tracing::error!(%error, "a content cannot be logged anew");
                self.replay.queue().postpone(record.id, true);
            }
            Some(Err(_)) | None => {
                // It has not refused the record either, and would wait for it.
                self.free_dependents(record.id);
                self.take_in_refusal(record, FsError::Malformed, "its content is not there any more");
            }
        }
    }

    fn end_sending(&self, record: &CmlRecord) {
        if let Some(file) = self.file_of(record) {
            file.state().sending = None;
            file.notify();
        }
    }

    /// The server will never do what a record says.
    fn take_in_refusal(&self, record: &CmlRecord, reason: FsError, message: &str) {
        let id = record.id;
        let file = self.file_of(record);
        let Some(queued) = self.replay.queue().remove(id) else { return };
        if let CmlOp::Store { .. } = record.op {
            self.log_all([LogEntry::Abandoned { id }]);
            if let Some(file) = file {
                file.state().sending = None;
                self.refuse_version(&file, id, reason);
                file.notify();
            }
        } else {
            self.cache.index.drop_pending(&queued);
            self.forget_refused(&queued);
            let awaited = self.replay.tell(id, Err(reason));
            tracing::warn!(?reason, message, awaited, op = ?record.op, "the server refused a change");
            if awaited {
                self.log_all([LogEntry::Ended { id }]);
            } else {
                self.log_all([LogEntry::Refused { id, reason }]);
                self.replay.note_refused(queued, reason);
            }
        }
        self.remote.end(id);
    }

    /// What was known here said that it could be done, so it is asked for again, by the kernel too.
    fn forget_refused(&self, queued: &Queued) {
        let names: Vec<_> = edits_of(queued).into_iter().map(|(parent, name, _)| (parent, name)).collect();
        let fid = queued.record.op.fid();
        let touched = names.iter().map(|(parent, _)| *parent).chain([fid]);
        if let Err(error) = self.cache.index.distrust(touched) {
            tracing::warn!(%error, "everything must be asked for again, because the index cannot be written");
        }
        self.kernel.forget_names(names.into_iter().map(|(parent, name)| (parent.vnode, name)).collect());
        self.kernel.forget_inodes(vec![fid.vnode]);
    }

    fn refuse_version(&self, file: &Arc<File>, id: StoreId, reason: FsError) {
        {
            let _edit = file.edit();
            self.forget_version(file, id);
        }
        let unlinked = file.state().unlinked.is_some();
        if !unlinked {
            self.note_refused(file, reason, &RemoteError::refused(reason, ""));
        }
        self.drop_if_unused(file);
    }

    /// Waits until nothing about an object waits for the server.
    pub(super) async fn until_applied(&self, vnode: VnodeId) -> Result<(), Error> {
        let fid = self.fid_of(vnode)?;
        let newest = self.remote.outstanding(|log| log.newest(fid));
        match newest.filter(|id| self.replay.queue().contains(*id)) {
            Some(newest) => self.until_answered(newest).await,
            None => Ok(()),
        }
    }

    /// Waits until the server has answered to a record.
    pub(super) async fn until_answered(&self, id: StoreId) -> Result<(), Error> {
        self.replay.queue().let_go(id);
        self.note_queue_changed();
        // The record may wait for another client's answer, and that one for this client's answer to a break.
        let _waiting = self.remote.waiting();
        self.until_gone(|queue| !queue.contains(id), |queue| queue.is_held_up(id)).await
    }

    /// Notifies of records that go, and of announcements.
    pub(super) fn watch_progress(&self) -> watch::Receiver<()> {
        self.replay.progress.subscribe()
    }

    /// Waits as long as there is progress, or a connection on which nothing speaks against it. What was refused before
    /// is tried once more: the error is that of what `is_stuck` afterwards.
    pub(super) async fn until_gone(
        &self,
        is_gone: impl Fn(&Queue) -> bool,
        is_stuck: impl Fn(&Queue) -> bool,
    ) -> Result<(), Error> {
        let mut progress = self.replay.progress.subscribe();
        self.replay.try_again();
        loop {
            let trouble = self.replay.trouble().clone();
            let (gone, stuck) = {
                let queue = self.replay.queue();
                (is_gone(&queue), trouble.is_some() && is_stuck(&queue))
            };
            if gone {
                return Ok(());
            }
            if let Some(error) = trouble.filter(|_| stuck) {
                return Err(error);
            }
            let waited = timeout(self.settings.deadline, progress.changed()).await;
            if waited.is_err() && !self.remote.is_up() {
                return Err(Error::TimedOut("the server cannot be reached".to_owned()));
            }
        }
    }
}

/// What the answers say about those to come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Done,
    /// There is no room for some.
    Full,
    /// Something stands in the way that may pass.
    Passes,
}
