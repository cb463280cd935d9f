//! A file in use: open, being fetched, or holding content that the server does not have.
//!
//! Two locks, in this order: `edit` is held while bytes of the container change, so that "which bytes" and "which
//! version" are decided together; `state` is held for a few instructions only. Neither is held across an await.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_arpc::watch;
use mafs_proto::{Fid, Purpose};

use super::frozen::FrozenContent;
use super::refreshing::Refresh;
use super::versions::Versions;
use super::{Caller, Error};
use crate::cache::Container;
use crate::core::content;
use crate::core::content::arrival::{self, Fetch, NotHere};
use crate::core::log::ContainerId;
use crate::remote::Urgency;

/// What of the content is in the container.
pub(super) type Arrival = arrival::Arrival<Error, Urgency>;

/// What is known of the content.
pub(super) type Content = content::Content<Error, Urgency>;

/// What changes of a file in use: its content, and what of that is on its way to the server.
pub(super) struct FileState {
    content: Content,
    /// The versions that are logged and not acknowledged.
    pub(super) versions: Versions,
    /// Who opened it for writing last: in whose name it is stored.
    pub(super) writer: Caller,
    /// Whether the log says that this file is being changed.
    pub(super) writing_logged: bool,
    /// What is being sent.
    pub(super) sending: Option<Arc<FrozenContent>>,
    /// How many wait until the server has it, as fsync does.
    pub(super) awaited: u32,
    /// Whether part of a content that was sent may be at the server.
    pub(super) interrupted: bool,
}

impl Deref for FileState {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

impl DerefMut for FileState {
    fn deref_mut(&mut self) -> &mut Content {
        &mut self.content
    }
}

impl FileState {
    /// Of a file of which nothing is on its way.
    pub(super) fn new(content: Content) -> Self {
        Self {
            content,
            versions: Versions::default(),
            writer: Caller::default(),
            writing_logged: false,
            sending: None,
            awaited: 0,
            interrupted: false,
        }
    }

    /// What content is fetched for: the rest of a file that nobody has open any more must not delay one that somebody
    /// waits for.
    pub(super) fn purpose(&self) -> Purpose {
        if self.handles() > 0 { Purpose::Fetch } else { Purpose::Prefetch }
    }

    /// Makes what brings content as urgent as it is wanted.
    fn set_urgency(&mut self) {
        let purpose = self.purpose();
        if let Some(urgency) = self.arrival_mut().handle() {
            urgency.set(purpose);
        }
    }

    /// Notes what is being sent, as urgently as it is awaited.
    pub(super) fn set_sending(&mut self, content: Arc<FrozenContent>) {
        self.sending = Some(content);
        self.change_awaited(|awaited| awaited);
    }

    /// Counts who waits until the server has the content.
    pub(super) fn change_awaited(&mut self, change: impl FnOnce(u32) -> u32) {
        self.awaited = change(self.awaited);
        if let Some(content) = &self.sending {
            content.set_purpose(if self.awaited > 0 { Purpose::ForcedStore } else { Purpose::Store });
        }
    }

    /// Notes what brings content from now on.
    pub(super) fn note_asked(&mut self, fetch: Fetch, urgency: Urgency) {
        self.arrival_mut().asked(fetch, urgency);
        self.set_urgency();
    }

    /// Whether the server is to get a version though the file has no name any more.
    pub(super) fn is_still_sent(&self) -> bool {
        self.fate().is_sent_unlinked(self.versions.iter().map(|version| version.id))
    }

    /// Says whether the server has refused the content.
    pub(super) fn check_refused(&self) -> Result<(), Error> {
        self.fate().refusal().map_or(Ok(()), |reason| Err(Error::Refused(reason)))
    }
}

/// A file in use.
pub(super) struct File {
    pub(super) fid: Fid,
    pub(super) container_id: ContainerId,
    pub(super) container: Arc<Container>,
    named_durably: AtomicBool,
    /// How newer versions come to its readers.
    pub(super) refresh: Refresh,
    edit: Mutex<()>,
    state: Mutex<FileState>,
    changes: watch::Sender<()>,
}

impl File {
    pub(super) fn new(fid: Fid, container: Arc<Container>, state: FileState) -> Arc<Self> {
        Arc::new(Self {
            fid,
            container_id: container.id,
            container,
            named_durably: AtomicBool::new(false),
            refresh: Refresh::default(),
            edit: Mutex::new(()),
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
        })
    }

    /// Makes the container's name durable, the first time.
    pub(super) fn make_name_durable(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.named_durably.load(Ordering::Relaxed) {
            sync()?;
            self.named_durably.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Changes of the container's bytes take turns.
    pub(super) fn edit(&self) -> MutexGuard<'_, ()> {
        self.edit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a handle more, which holds the container open.
    pub(super) fn add_handle(&self) -> io::Result<()> {
        self.container.hold()?;
        self.change_handles(Content::open);
        Ok(())
    }

    /// Counts a handle less.
    pub(super) fn remove_handle(&self) {
        self.change_handles(Content::close);
        self.container.let_go();
    }

    fn change_handles(&self, change: impl FnOnce(&mut Content)) {
        let turned = {
            let mut state = self.state();
            let before = state.purpose();
            change(&mut state);
            let turned = state.purpose() != before;
            if turned {
                state.set_urgency();
            }
            turned
        };
        if turned {
            self.notify();
        }
    }

    /// Wakes all who wait for a change.
    pub(super) fn notify(&self) {
        self.changes.send_replace(());
    }

    /// Waits until `check` gives an answer; it is asked again after every `notify`.
    pub(super) async fn wait<T>(&self, mut check: impl FnMut(&mut FileState) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(answer) = check(&mut self.state()) {
                return answer;
            }
            // The sender lives in `self`, so this cannot fail; an error would only ask once more.
            let _ = changes.changed().await;
        }
    }

    /// Waits for something of a content that is being fetched, which `check` knows when it is there; no longer than
    /// that is of use.
    pub(super) async fn wait_for_content<T>(
        &self,
        mut check: impl FnMut(&mut FileState) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let stalls = self.state().arrival().stalls();
        self.wait(|state| check(state).or_else(|| state.arrival().stalled_since(stalls).map(Err))).await
    }

    /// Waits until the bytes of `range` (as far as the file has them) are in the container. Returns the file's size.
    ///
    /// # Errors
    /// If they do not come.
    pub(super) async fn arrived(&self, range: Range<u64>) -> Result<u64, Error> {
        self.wait_for_content(|state| {
            let size = state.stat().size();
            let end = range.end.min(size);
            state.arrival_mut().want(range.start..end).map(|here| here.map(|()| size).map_err(Error::from))
        })
        .await
    }

    /// Waits until the whole content is in the container.
    pub(super) async fn complete(&self) -> Result<(), Error> {
        self.wait_for_content(|state| state.arrival().wholly().map(|here| here.map_err(Error::from))).await
    }

    /// The same, but no longer than somebody has the file open.
    pub(super) async fn complete_if_open(&self) -> Result<(), Error> {
        let here = |state: &mut FileState| match state.handles() {
            0 => Some(Ok(())),
            _ => state.arrival().wholly().map(|here| here.map_err(Error::from)),
        };
        self.wait_for_content(here).await
    }
}

impl From<NotHere<Self>> for Error {
    fn from(why: NotHere<Self>) -> Self {
        match why {
            NotHere::NotAsked => Self::Cache("the file is not being fetched".to_owned()),
            NotHere::Failed(error) => error,
        }
    }
}
