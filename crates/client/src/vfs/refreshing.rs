//! Refreshing: newer versions come by themselves to the programs that have a file open for reading.
//!
//! Reads from here see one version until the next is here as a whole, in a file beside the container. Then the
//! container is *turned over* to that version. For a program that reads through this daemon this is one step: it
//! happens under `edit`, and a read that has met it is done again. The kernel, which may have the container, or pages
//! of it, is told behind that. A version that only appends changes nothing but the bytes behind the old end, so no
//! program can meet a mixture. For any other version the bytes that differ are written over, in order, before the end
//! is moved down: a program that reads the container past this daemon may then meet both versions in one read, but
//! never zeros that are in neither.
//!
//! Files that programs here write, or execute, stay as they are.

mod aside;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mafs_arpc::blocking;
use mafs_proto::call::Broken;
use mafs_proto::{DataVersion, FsError, Kind, Object, VnodeId};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Duration, Instant, sleep, timeout};

use super::file::{Content, File};
use super::{Error, Inner};
use crate::core::content::arrival::Turn;
use crate::core::refresh::{Watch, pause_after, pause_after_failures};

/// Largest version that is brought to programs that have the file open already, if it does more than append: it is
/// fetched as a whole though perhaps no program ever looks at it. An open of the file fetches a version of any size.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// Most files that are refreshed at a time, of those that no program waits for.
const FILES_MAX: usize = 4;

/// How long a call that looks at a file waits until its status is that of the version being read.
const LOOK_WAIT: Duration = Duration::from_millis(200);

/// Files that may have to be refreshed.
pub(super) struct Refreshes {
    noted: Mutex<Changed>,
    changed: Notify,
    places: Semaphore,
}

/// Objects that have changed elsewhere.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Changed {
    These(Vec<VnodeId>),
    /// Any object may have changed.
    All,
}

/// Most objects that are told apart: beyond that any open file may have changed.
const CHANGED_MAX: usize = 1024;

impl Default for Refreshes {
    fn default() -> Self {
        let noted = Mutex::new(Changed::NOTHING);
        Self { noted, changed: Notify::new(), places: Semaphore::new(FILES_MAX) }
    }
}

impl Changed {
    const NOTHING: Self = Self::These(Vec::new());

    /// Returns the objects that a break names.
    pub(super) fn of(broken: &Broken) -> Self {
        match broken {
            Broken::Objects(objects) => Self::These(objects.iter().map(|object| object.fid.vnode).collect()),
            Broken::All => Self::All,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::These(mut these), Self::These(those)) if these.len() + those.len() <= CHANGED_MAX => {
                these.extend(those);
                Self::These(these)
            }
            _ => Self::All,
        }
    }
}

impl Refreshes {
    /// Notes that objects have changed elsewhere.
    pub(super) fn note(&self, changed: Changed) {
        {
            let mut noted = self.noted();
            let before = std::mem::replace(&mut *noted, Changed::NOTHING);
            *noted = before.and(changed);
        }
        self.changed.notify_one();
    }

    fn take(&self) -> Changed {
        std::mem::replace(&mut *self.noted(), Changed::NOTHING)
    }

    fn noted(&self) -> MutexGuard<'_, Changed> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of a file's state that refreshing needs.
pub(super) struct Refresh {
    watch: Mutex<Watch>,
    /// Permit to bring a version: one at a time.
    one: Semaphore,
    /// Number of times that the container was turned over or emptied.
    turns: AtomicU64,
    is_turning: AtomicBool,
}

impl Default for Refresh {
    fn default() -> Self {
        Self {
            watch: Mutex::default(),
            one: Semaphore::new(1),
            turns: AtomicU64::new(0),
            is_turning: AtomicBool::new(false),
        }
    }
}

impl Refresh {
    /// Returns how often the container has come to hold something else; `None` while it is being turned over. Bytes
    /// read while the number stays the same are of one version.
    pub(super) fn turns(&self) -> Option<u64> {
        let turns = self.turns.load(Ordering::Acquire);
        (!self.is_turning.load(Ordering::Acquire)).then_some(turns)
    }

    /// Counts that the container is about to hold something else. Under `edit`.
    pub(super) fn note_turn(&self) {
        self.turns.fetch_add(1, Ordering::AcqRel);
    }

    fn set_turning(&self, turning: bool) {
        if turning {
            self.is_turning.store(true, Ordering::Release);
            self.note_turn();
        } else {
            self.is_turning.store(false, Ordering::Release);
        }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.one.acquire().await.ok()
    }
}

/// Reason to bring a newer version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// Only programs that have an older version open want it.
    ByChange,
    /// A program opens the file, or has locked it.
    ByOpen,
}

impl Asked {
    /// Returns the largest size of a version that is fetched as a whole.
    fn whole_max(self) -> u64 {
        match self {
            Self::ByChange => WHOLE_BYTES_MAX,
            Self::ByOpen => u64::MAX,
        }
    }
}

/// The content that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Read {
    version: DataVersion,
    size: u64,
    turn: Turn,
}

/// Returns the content being read, if it is not this version and may become it.
fn read_before(state: &Content, version: DataVersion) -> Option<Read> {
    let read = Read { version: state.basis().version(), size: state.stat().size(), turn: state.arrival().turn() };
    (state.is_only_read() && state.basis().version() != version).then_some(read)
}

/// Refreshes what changes elsewhere, until the mount ends.
pub(super) async fn keep_refreshing(inner: Weak<Inner>, refreshes: Arc<Refreshes>) {
    loop {
        refreshes.changed.notified().await;
        let Some(inner) = inner.upgrade() else { return };
        let files: Vec<Arc<File>> = match refreshes.take() {
            Changed::All => inner.files().all(),
            Changed::These(vnodes) => {
                let files = inner.files();
                vnodes.into_iter().filter_map(|vnode| files.get(vnode)).collect()
            }
        };
        files.iter().filter(|file| file.state().is_only_read()).for_each(|file| inner.begin_refresh(file));
    }
}

impl Inner {
    fn begin_refresh(self: &Arc<Self>, file: &Arc<File>) {
        let begins = file.refresh.watch().ask();
        if begins {
            tokio::spawn(Arc::clone(self).refresh_while_read(Arc::clone(file)));
        }
    }

    /// Brings newer versions as long as there are some, and readers.
    async fn refresh_while_read(self: Arc<Self>, file: Arc<File>) {
        let mut failures = 0;
        loop {
            file.refresh.watch().look();
            let began = Instant::now();
            let pause = match self.refresh(&file).await {
                Ok(true) => {
                    failures = 0;
                    Some(pause_after(began.elapsed()))
                }
                Ok(false) => None,
                Err(error) => {
                    failures += 1;
                    tracing::debug!(fid = %file.fid, %error, "a newer version of an open file does not come");
                    pause_after_failures(failures).filter(|_| file.state().is_only_read())
                }
            };
            file.notify();
            match pause {
                Some(pause) => sleep(pause).await,
                None if file.refresh.watch().end() => break,
                None => {}
            }
        }
        file.notify();
    }

    /// Brings the newest version of an open file, if it is not here. Returns whether it was not.
    async fn refresh(&self, file: &Arc<File>) -> Result<bool, Error> {
        let _place = self.refreshes.places.acquire().await;
        if !file.state().is_only_read() || self.stays(file, Asked::ByChange) {
            return Ok(false);
        }
        match self.settled_status(file.fid.vnode).await {
            Ok(cached) => self.refresh_to(file, &cached.object, Asked::ByChange).await,
            // The file has lost its name.
            Err(Error::Refused(FsError::Stale)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Brings the version that the index says is the present one to programs that read another, if the file has
    /// handles besides `own`.
    pub(super) async fn refresh_read(&self, file: &Arc<File>, own: u32) -> Result<(), Error> {
        let is_read = || {
            let state = file.state();
            state.is_only_read() && state.handles() > own
        };
        while is_read() {
            let known = self.cache.index.object(file.fid.vnode)?.ok_or(Error::Refused(FsError::Stale))?.object;
            let _waiting = self.remote.waiting();
            if !self.refresh_to(file, &known, Asked::ByOpen).await? {
                break;
            }
        }
        Ok(())
    }

    /// Whether a file stays as it is for programs that have it open now.
    fn stays(&self, file: &File, asked: Asked) -> bool {
        asked == Asked::ByChange && self.files().is_written_or_executed(file.fid.vnode)
    }

    /// Brings the version of a file that was `shown`. Returns whether the file holds it now and did not before.
    async fn refresh_to(&self, file: &Arc<File>, shown: &Object, asked: Asked) -> Result<bool, Error> {
        let status = &shown.status;
        let _turn = file.refresh.turn().await;
        let before = read_before(&file.state(), status.data_version);
        let Some(read) = before.filter(|_| shown.fid == file.fid) else { return Ok(false) };
        let is_over = file.wait(|state| (read_before(state, status.data_version) != Some(read)).then_some(()));
        let next = tokio::select! {
            biased;
            next = self.fetch_aside(file, read, status, asked.whole_max()) => next?,
            () = is_over => return Ok(false),
            () = self.remote.until_in_vain() => return Err(self.remote.unanswered().into()),
        };
        let Some(next) = next else { return Ok(false) };
        if self.stays(file, asked) || !blocking(|| self.turn_over(file, read, status, &next))? {
            return Ok(false);
        }
        self.kernel.forget_content(file.fid.vnode, None).await;
        Ok(true)
    }

    /// Gives a newer version a moment to come, if programs have an older one of this file open: a program that looks
    /// at the file is shown the version that they read.
    pub(super) async fn until_refreshed(self: &Arc<Self>, shown: &Object) {
        let in_use = self.files().get(shown.fid.vnode);
        let Some(file) = in_use.filter(|_| shown.status.kind == Kind::File) else { return };
        let (is_read, version) = {
            let state = file.state();
            (state.is_only_read(), state.basis().version())
        };
        let is_known = version == shown.status.data_version
            && self.cache.index.valid_object(shown.fid.vnode).is_ok_and(|valid| valid.is_some());
        if !is_read || is_known || !self.remote.is_up() {
            return;
        }
        self.begin_refresh(&file);
        let refreshed = file.wait(|state| {
            let is_over = state.basis().version() != version || !file.refresh.watch().is_looking();
            is_over.then_some(())
        });
        let _ = timeout(LOOK_WAIT, refreshed).await;
    }

    /// Sets the status of an object to the version that open files read, also before all of it has come: the kernel
    /// ends a read where it believes the file to end.
    pub(super) fn show_as_read(&self, file: &File, object: &mut Object) {
        let read = {
            let state = file.state();
            state.is_being_read().then(|| (state.basis().version(), state.stat().clone()))
        };
        let Some((version, stat)) = read else { return };
        let status = &mut object.status;
        if status.data_version != version {
            stat.lay_over(status);
            status.data_version = version;
        } else if let Ok(Some(known)) = self.cache.index.object(object.fid.vnode)
            && known.object.status.data_version == version
        {
            // Not the size and time that other clients have announced.
            (status.size, status.mtime) = (stat.size(), known.object.status.mtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_more_changes_than_are_told_apart_any_file_may_be_one() {
        let these = |count: usize| Changed::These(vec![VnodeId(1); count]);
        assert_eq!(these(1).and(these(CHANGED_MAX - 1)), these(CHANGED_MAX));
        assert_eq!(these(1).and(these(CHANGED_MAX)), Changed::All);
        assert_eq!(these(1).and(Changed::All).and(these(1)), Changed::All);
    }
}
