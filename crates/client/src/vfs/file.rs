//! A file in use: open, being fetched, or holding content that the server does not have.
//!
//! Two locks, in this order: `edit` is held while bytes of the container change, so that "which bytes" and "which
//! version" are decided together; `state` is held for a few instructions only. Neither is held across an await.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_arpc::watch;
use mafs_proto::{Fid, Purpose};

use super::Error;
use super::frozen::FrozenContent;
use super::refreshing::Refresh;
use crate::cache::Container;
use crate::core::content;
use crate::core::content::arrival::{self, Fetch, NotHere};
use crate::core::content::versions;
use crate::core::log::ContainerId;
use crate::remote::Urgency;

/// State of arrival of the content in the container.
pub(super) type Arrival = arrival::Arrival<Error, Urgency>;

/// State of the content, as far as it is known.
pub(super) type Content = content::Content<Error, Urgency, Arc<FrozenContent>>;

/// A version that is logged and not acknowledged.
pub(super) type Version = versions::Version<Arc<FrozenContent>, Error>;

/// A file in use.
pub(super) struct File {
    pub(super) fid: Fid,
    pub(super) container_id: ContainerId,
    pub(super) container: Arc<Container>,
    named_durably: AtomicBool,
    /// Refresh that brings newer versions to the file's readers.
    pub(super) refresh: Refresh,
    edit: Mutex<()>,
    state: Mutex<Content>,
    changes: watch::Sender<()>,
}

impl File {
    pub(super) fn new(fid: Fid, container: Arc<Container>, state: Content) -> Arc<Self> {
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

    /// Locks the container's bytes: changes of them take turns.
    pub(super) fn edit(&self) -> MutexGuard<'_, ()> {
        self.edit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Content> {
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
                urge(&mut state);
            }
            turned
        };
        if turned {
            self.notify();
        }
    }

    /// Notes what brings content from now on.
    pub(super) fn note_asked(&self, fetch: Fetch, urgency: Urgency) {
        let mut state = self.state();
        state.arrival_mut().asked(fetch, urgency);
        urge(&mut state);
    }

    /// Notes what is sent from now on. Returns whether part of a content that was sent before may be at the server.
    pub(super) fn begin_sending(&self, content: Arc<FrozenContent>) -> bool {
        let mut state = self.state();
        let interrupted = state.versions_mut().begin_sending(content);
        urge(&mut state);
        interrupted
    }

    /// Counts one more caller that waits until the server has the content.
    pub(super) fn await_more(&self) {
        let mut state = self.state();
        state.versions_mut().await_more();
        urge(&mut state);
    }

    /// Counts one such caller less.
    pub(super) fn await_less(&self) {
        let mut state = self.state();
        state.versions_mut().await_less();
        urge(&mut state);
    }

    /// Returns an error if the server has refused the content.
    pub(super) fn check_refused(&self) -> Result<(), Error> {
        self.state().fate().refusal().map_or(Ok(()), |reason| Err(Error::Refused(reason)))
    }

    /// Wakes all waiters for a change.
    pub(super) fn notify(&self) {
        self.changes.send_replace(());
    }

    /// Waits until `check` gives an answer; it is asked again after every `notify`.
    pub(super) async fn wait<T>(&self, mut check: impl FnMut(&mut Content) -> Option<T>) -> T {
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
        mut check: impl FnMut(&mut Content) -> Option<Result<T, Error>>,
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

    /// Waits as [`Self::complete`] does, but no longer than somebody has the file open.
    pub(super) async fn complete_if_open(&self) -> Result<(), Error> {
        let here = |state: &mut Content| match state.handles() {
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

/// Makes what brings or takes content as urgent as it is wanted.
fn urge(state: &mut Content) {
    let purpose = state.purpose();
    if let Some(urgency) = state.arrival_mut().handle() {
        urgency.set(purpose);
    }
    if let Some(content) = state.versions().sending() {
        content.set_purpose(if state.versions().are_awaited() { Purpose::ForcedStore } else { Purpose::Store });
    }
}
