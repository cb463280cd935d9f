//! Passthrough: the kernel reads and writes the container of a file itself, without this daemon.
//!
//! The kernel does not tell the daemon of such a write, so the container does. Its time of change, which no program
//! can set, moves with every write that comes after a look (`core/content/watch.rs`). These rules keep a change from
//! being missed:
//!
//! - This program never sets the times of a container that the kernel may write. The container is sealed only when the
//!   kernel says that no program has it open for writing; mappings outlive the release of their handles.
//! - A change that was seen may go on. Before a content is sent or copied the watch is settled: every write that has
//!   begun has ended, and the pages of mappings are clean, so that the next store is a fault and moves the time.
//! - A change by this program itself counts as a change, and all that the kernel writes beside it belongs to that.
//! - A doubt counts as a change.
//! - The log says `Writing` before an open for writing returns, and until no program can write any more. The log also
//!   says that the container is lent until then: kill -9 of the daemon leaves descriptors and mappings with the
//!   programs, so that the next daemon goes on with a copy (`vfs/lent.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::{DataVersion, Object, Timestamp};
use tokio::time::timeout;

use super::editing::before_copy;
use super::file::{Content, File};
use super::{ContainerNumber, Error, FileHandle, Inner, OpenMode};
use crate::cache::{CacheError, last_change, seal, shows_seal};
use crate::core::content::users::DataPath;
use crate::core::content::watch::Sight;
use crate::core::log::LogEntry;

/// Largest file, opened for reading only and not being written, that is read through this daemon: once, as the kernel
/// keeps the pages. To hand over a container costs an open some 4 us (38,000 opens/s in place of 45,000), to read from
/// pages of FUSE costs 0.1 us more for each KB.
const KEPT_BYTES_MAX: u64 = 32 << 10;

/// How long the kernel's release of a handle may take after its program has closed it. The release is on its way when
/// close(2) returns; a thread that has read it may then wait for a processor.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// How long a version that is to be sent waits for such a release. After that the version is copied first.
const RELEASE_BEFORE_SEND_MAX: Duration = Duration::from_millis(20);

/// How often the daemon looks at the sizes of files that the kernel writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The first pause before another look at a container that a mapping may write to. Each later pause is longer by this
/// factor, up to [`LOOK_EVERY`].
const MAPPING_PAUSE: Duration = Duration::from_millis(1);
const MAPPING_PAUSE_GROWTH: u32 = 8;

/// How often an unsettled watch is settled before a content that is still being written is taken as it is.
const SETTLE_MAX: u32 = 3;

impl Inner {
    /// Decides how the kernel reads and writes a file that has been opened. All opens of a file go the same way.
    /// Returns whether the kernel is given the container.
    pub(super) async fn hand_over(self: &Arc<Self>, file: &Arc<File>, mode: OpenMode) -> Result<bool, Error> {
        loop {
            if self.choose_path(file, mode) == DataPath::Daemon {
                return Ok(false);
            }
            // Another version may be arriving in the container that the kernel has.
            file.complete().await?;
            if !mode.write {
                return Ok(true);
            }
            before_copy(file).await;
            if blocking(|| self.begin_passthrough_writing(file, mode))? {
                return Ok(true);
            }
        }
    }

    fn choose_path(&self, file: &File, mode: OpenMode) -> DataPath {
        let crowded = mode.write && self.is_crowded();
        let mut state = file.state();
        let allowed = self.passthrough.load(Ordering::Relaxed);
        let small = !mode.write && state.stat().size() <= KEPT_BYTES_MAX;
        let fit = state.is_complete() && !mode.direct && !crowded && !small;
        let path = if allowed && fit { DataPath::Passthrough } else { DataPath::Daemon };
        state.users_mut().choose_path(path)
    }

    /// Whether files take more room than they may: then writes should come through the daemon, which can refuse them.
    fn is_crowded(&self) -> bool {
        let short = self.cache.disk.space().is_ok_and(|space| space.bytes_free < self.settings.min_free_bytes);
        short || self.replacement().excess_bytes(0) > 0
    }

    /// Lets the kernel write from now on. `false` if the content is not all here any more.
    fn begin_passthrough_writing(self: &Arc<Self>, file: &Arc<File>, mode: OpenMode) -> Result<bool, Error> {
        let _edit = file.edit();
        self.look(file)?;
        let (complete, first, base, dirty) = {
            let state = file.state();
            (state.is_complete(), !state.users().may_write(), state.basis().version(), state.is_dirty())
        };
        if !complete {
            return Ok(false);
        }
        if !file.state().users().has_writers() {
            self.begin_lending(file)?;
        }
        if first && !dirty && !shows_seal(&file.container.stat()?, base, file.container.len()?) {
            // No program writes yet, so the container holds the known content.
            seal(file.container.as_ref(), base)?;
        }
        let sight = sight(file)?;
        file.state().users_mut().begin_writing(mode.read, sight);
        self.kernel.forget_pages(file.fid.vnode);
        self.watch_sizes();
        Ok(true)
    }

    /// Takes in that a handle is gone through which the kernel could write. A mapping made through it may still be
    /// there.
    pub(super) fn end_passthrough_writing(self: &Arc<Self>, file: &Arc<File>, mode: OpenMode) -> Result<(), Error> {
        let ended = self.end_kernel_writing(file, Some(mode));
        let begins = file.state().users_mut().begin_watching_mappings();
        if begins {
            tokio::spawn(watch_mappings(Arc::downgrade(self), Arc::clone(file)));
        }
        ended
    }

    /// Finds out whether a mapping is still there whose handle is gone.
    pub(super) fn look_for_mappings(&self, file: &File) -> Result<(), Error> {
        let lingers = file.state().users().lingers();
        if lingers { blocking(|| self.end_kernel_writing(file, None)) } else { Ok(()) }
    }

    /// Counts writes by a handle that has `ended`, or by mappings without a handle, and looks whether any program can
    /// still write. If none can, the container of an unchanged file is sealed.
    fn end_kernel_writing(&self, file: &File, ended: Option<OpenMode>) -> Result<(), Error> {
        let _edit = file.edit();
        let asks = {
            let mut state = file.state();
            if let Some(mode) = ended {
                state.users_mut().end_writing(mode.read);
            } else if !state.users().lingers() {
                return Ok(());
            }
            state.users().lingers() && !state.users().has_writers()
        };
        // Before the look, so that the look sees all that was written while programs could.
        let is_over = asks && !file.container.is_written_elsewhere().unwrap_or(true);
        let looked = self.look_for_writes(file);
        let may_write = {
            let mut state = file.state();
            if looked.is_err() {
                // The file may have changed unseen.
                state.count_edit();
            }
            !is_over && state.users().may_write()
        };
        let looked = looked.map_err(Error::from);
        let settled = if may_write { looked } else { looked.and_then(|()| self.settle_unwritable(file)) };
        if is_over {
            // Last: from then on the file may be dropped, and the index must name its container by then.
            file.state().users_mut().end_lingering();
        }
        file.notify();
        settled
    }

    /// Tells log and index of a container that no program can write to any more. Under `edit`.
    fn settle_unwritable(&self, file: &File) -> Result<(), Error> {
        let (as_known, base, hash, lent) = {
            let state = file.state();
            let basis = state.basis();
            (state.is_as_known(), basis.version(), basis.hash(), state.is_writing_logged())
        };
        if !as_known {
            return if lent { Ok(self.cache.cml.append(LogEntry::Returned { fid: file.fid })?) } else { Ok(()) };
        }
        seal(file.container.as_ref(), base)?;
        if let Some(hash) = hash {
            self.set_content(file, base, hash)?;
        }
        self.count_content(file)?;
        if file.state().log_writing(false) {
            self.cache.cml.append(LogEntry::Dropped { fid: file.fid })?;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// Counts the kernel's writes since the last look. Under `edit`.
    pub(super) fn look(&self, file: &File) -> Result<(), CacheError> {
        let may_write = file.state().users().may_write();
        if may_write { self.look_for_writes(file) } else { Ok(()) }
    }

    /// Counts the kernel's writes to a file that the kernel could write until just now. Under `edit`.
    fn look_for_writes(&self, file: &File) -> Result<(), CacheError> {
        // Bytes that arrive under a lock change the container as well, and an incomplete content is no program's.
        let (is_complete, base) = {
            let state = file.state();
            (state.is_complete(), state.basis().version())
        };
        if !is_complete {
            return Ok(());
        }
        let stat = file.container.stat()?;
        let changed = last_change(stat.modified, base).map_or_else(|| self.clock.wall(), Timestamp::from);
        file.state().look(Sight::of(&stat), changed);
        Ok(())
    }

    /// Counts the kernel's writes, for a caller that is not changing the file.
    pub(super) fn look_now(&self, file: &File) -> Result<(), CacheError> {
        let may_write = file.state().users().may_write();
        if !may_write {
            return Ok(());
        }
        let _edit = file.edit();
        self.look(file)
    }

    /// Looks at every file that the kernel may be writing.
    pub(super) fn look_at_all(&self) {
        let files = self.files().all();
        for file in files {
            if let Err(error) = self.look_now(&file) {
                tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
            }
        }
    }

    /// Makes a container hold all changes that looks have seen, while programs may go on changing it.
    pub(super) async fn settle(&self, file: &File) -> Result<(), Error> {
        for _ in 0..SETTLE_MAX {
            self.look_now(file)?;
            let unsettled = file.state().users().unsettled();
            let Some(found) = unsettled else { break };
            // Not on a session thread: a disk takes its time.
            tokio::task::yield_now().await;
            blocking(|| end_writes(file))?;
            file.state().users_mut().watch.end_settling(found);
        }
        Ok(())
    }

    /// Waits until every write that was seen has ended, and makes the next store through a mapping show. If programs
    /// go on writing, the next look finds their writes. Under `edit`.
    pub(super) fn settle_now(&self, file: &File) -> Result<(), Error> {
        for _ in 0..SETTLE_MAX {
            self.look(file)?;
            let unsettled = file.state().users().unsettled();
            let Some(found) = unsettled else { break };
            end_writes(file)?;
            file.state().users_mut().watch.end_settling(found);
        }
        Ok(())
    }

    /// Waits until closed handles of programs here no longer count as writing, where another client has made the
    /// version `shown` since. A handle that stays, because its descriptor has another owner too, is waited for once.
    pub(super) async fn until_released(&self, file: &File, shown: DataVersion) {
        let in_the_way = |state: &Content| state.is_held_by_writers(shown);
        // Two locks, one after the other: elsewhere they are taken in the other order.
        let is_in_the_way = in_the_way(&file.state());
        if !is_in_the_way || !self.files().are_closing(file.fid.vnode) {
            return;
        }
        let released = file.wait(|state| (!in_the_way(state)).then_some(()));
        if timeout(RELEASE_MAX, released).await.is_err() {
            self.files().stay_open(file.fid.vnode);
        }
    }

    /// Waits a little until the kernel has released handles that programs have closed: a container that no program can
    /// write to is sent as it is, without a copy. With `writeback=sync` close waits for the send, and the release
    /// comes after it.
    pub(super) async fn until_nobody_writes(&self, file: &File) {
        if self.settings.writeback.waits() {
            return;
        }
        let may_write = file.state().users().may_write();
        if may_write && self.files().are_closing(file.fid.vnode) {
            let released = file.wait(|state| (!state.users().may_write()).then_some(()));
            // Another program may still have the file open, through an inherited descriptor.
            let _ = timeout(RELEASE_BEFORE_SEND_MAX, released).await;
        }
    }

    /// Sets the status that stat(2) shows of a file that the kernel may be writing: that of its container, unless all
    /// programs that could have written have closed the file and have not written.
    pub(super) fn present_written(&self, file: &File, object: &mut Object) {
        let (watch, base, newer) = {
            let state = file.state();
            if !state.users().may_write() {
                return;
            }
            (state.users().watch, state.basis().version(), state.is_newer_than(object.status.data_version))
        };
        let are_closing = !newer && self.files().are_closing(file.fid.vnode);
        match file.container.stat() {
            Ok(stat) if watch.has_seen(Sight::of(&stat)) && are_closing => {}
            Ok(stat) => {
                object.status.size = stat.bytes;
                if !watch.has_seen(Sight::of(&stat))
                    && let Some(changed) = last_change(stat.modified, base)
                {
                    object.status.mtime = changed.into();
                    object.status.ctime = object.status.ctime.max(changed.into());
                }
            }
            Err(error) => {
                tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
            }
        }
    }

    /// Returns the container behind a handle, and its number.
    pub(super) fn numbered_container(&self, handle: FileHandle) -> Result<(ContainerNumber, Arc<dyn DiskFile>), Error> {
        let file = self.handle(handle)?.file;
        Ok((ContainerNumber(file.container_id.0), file.container.file()?))
    }

    /// Returns the container behind a handle.
    pub(super) fn container(&self, handle: FileHandle) -> Result<Arc<dyn DiskFile>, Error> {
        Ok(self.handle(handle)?.file.container.file()?)
    }

    /// Stops passthrough, because the kernel does not take containers: from now on it is given none.
    pub(super) fn end_passthrough(&self, why: &str) {
        if self.passthrough.swap(false, Ordering::Relaxed) {
            tracing::info!(why, "files are read and written through this daemon: no passthrough");
        }
    }

    /// Takes the data of a handle through the daemon, because the kernel has not taken its container.
    pub(super) fn leave_passthrough(self: &Arc<Self>, handle: FileHandle) -> Result<(), Error> {
        let left = self.files().leave_passthrough(handle);
        let Some((file, mode)) = left else { return Ok(()) };
        file.state().users_mut().take_daemon_path();
        self.kernel.forget_end(file.fid.vnode);
        if mode.write { self.end_passthrough_writing(&file, mode) } else { Ok(()) }
    }

    /// Watches how large files grow while the kernel writes any.
    fn watch_sizes(self: &Arc<Self>) {
        if self.watching_sizes.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                if !blocking(|| inner.look_at_sizes()) {
                    inner.watching_sizes.store(false, Ordering::Release);
                    // A writer may have come between the look and the line above.
                    if !blocking(|| inner.look_at_sizes()) || inner.watching_sizes.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
            }
        });
    }

    /// Counts the bytes that the kernel has written, and makes room for them. Returns whether it may be writing.
    fn look_at_sizes(&self) -> bool {
        let mut written = false;
        {
            // The lock is held so that no file is dropped, and evicted, meanwhile.
            let files = self.files();
            for file in files.all().into_iter().filter(|file| file.state().users().may_write()) {
                written = true;
                if let Err(error) = self.count_content(&file) {
                    tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
                }
            }
        }
        if written {
            self.make_room(0);
        }
        written
    }
}

/// Looks again and again at a container that mappings without handles may write to, until none can. Changes are logged
/// when nothing more comes between two looks.
async fn watch_mappings(inner: Weak<Inner>, file: Arc<File>) {
    let (mut pause, mut edit) = (MAPPING_PAUSE, file.state().edits().newest());
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * MAPPING_PAUSE_GROWTH).min(LOOK_EVERY);
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.look_for_mappings(&file) {
            tracing::error!(fid = %file.fid, %error, "a file that is mapped cannot be looked at");
        }
        let (over, now) = {
            let mut state = file.state();
            (state.users_mut().end_watching_mappings(), state.edits().newest())
        };
        if over || edit == now {
            inner.log_last_version(&file);
        }
        if over {
            file.state().forget_path();
            return inner.drop_if_unused(&file);
        }
        edit = now;
    }
}

/// Waits until the writes have ended that the kernel has begun, and makes the next store through a mapping move the
/// time of change: such a store is a fault only while its page is clean. Pages are written to the disk twice, for a
/// fault that has moved the time may make its page dirty just after the first pass; the fault has all the time of a
/// disk's flush to do so.
pub(super) fn end_writes(file: &File) -> Result<(), Error> {
    file.container.wait_for_writes()?;
    let mapped = file.state().users().may_be_mapped();
    if mapped {
        file.container.sync_data()?;
        file.container.sync_data()?;
    }
    Ok(())
}

/// Returns what a look at the container of a file sees now.
pub(super) fn sight(file: &File) -> std::io::Result<Sight> {
    Ok(Sight::of(&file.container.stat()?))
}
