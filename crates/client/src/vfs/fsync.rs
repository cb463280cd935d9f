//! fsync: makes what was written durable, on this machine or at the server.

use std::sync::Arc;

use mafs_arpc::blocking;
use mafs_durable::DiskFile;

use super::error::is_busy;
use super::file::{File, Version};
use super::storing::{Awaited, Patience};
use super::{Error, FileHandle, Inner};
use crate::core::content::edits::Edit;
use crate::core::log::LogEntry;

/// Place where fsync makes content durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// At the server if it is there and that is quick, else on this machine.
    #[default]
    Auto,
    /// On this machine.
    Local,
    /// At the server.
    Server,
}

/// Edit up to which the content of a file was made durable.
struct Durable {
    edit: Edit,
    /// Whether nothing more can belong to that edit.
    settled: bool,
}

impl Inner {
    /// Makes what was written durable, where the user wants that.
    pub(super) async fn fsync(self: &Arc<Self>, handle: FileHandle) -> Result<(), Error> {
        let file = self.handle(handle)?.file;
        self.check_locks(handle)?;
        if !self.settings.writeback.waits() {
            self.remote.outstanding(|log| log.note_fsynced(file.fid));
        }
        if !self.is_changed(&file)? {
            return blocking(|| self.fsync_attributes(&file));
        }
        match self.settings.fsync {
            Fsync::Server => {
                return self.store_now(&file).await;
            }
            Fsync::Auto => {
                if let Some(stored) = self.store_if_quick(&file).await? {
                    return stored;
                }
            }
            Fsync::Local => {}
        }
        // Not on a session thread: a disk takes its time.
        tokio::task::yield_now().await;
        blocking(|| self.fsync_here(&file))
    }

    /// Stores the content if that takes no longer than the user likes to wait for it; says how that ended if it has.
    async fn store_if_quick(self: &Arc<Self>, file: &Arc<File>) -> Result<Option<Result<(), Error>>, Error> {
        let bytes = file.container.allocated()?.min(file.state().stat().size());
        if !self.remote.is_up() || self.is_paused() || self.upload_rate().expected(bytes) >= self.settings.fsync_wait {
            return Ok(None);
        }
        let _awaited = Awaited::begin(file);
        let storing = tokio::spawn({
            let (inner, file) = (Arc::clone(self), Arc::clone(file));
            async move { inner.store(&file, Patience::Full).await }
        });
        Ok(match tokio::time::timeout(self.settings.fsync_wait, storing).await {
            // The server has no time for it now, which says nothing about the content.
            Ok(Ok(Err(Error::Refused(reason)))) if is_busy(reason) => None,
            Ok(Ok(stored @ (Ok(()) | Err(Error::Refused(_))))) => Some(stored),
            // Too slow, or the connection broke: the store goes on by itself.
            Ok(Ok(Err(_)) | Err(_)) | Err(_) => None,
        })
    }

    pub(super) async fn fsync_dir(&self) -> Result<(), Error> {
        if !self.settings.writeback.waits() {
            // Not on a session thread: a disk takes its time.
            tokio::task::yield_now().await;
            blocking(|| self.cache.cml.sync())?;
        }
        Ok(())
    }

    /// Makes sure that a restart of the machine does not cost the content of a file that the server does not have.
    /// Nobody has asked for an order: what the server has no room for must not hold up what it has room for.
    pub(super) fn keep_unsent(&self, file: &File) {
        let needed = {
            let state = file.state();
            let is_durable = |version: &Version| version.is_durable() && version.edit() == state.edits().newest();
            state.is_dirty() && !state.edits().are_kept() && !state.versions().newest().is_some_and(is_durable)
        };
        if needed && let Err(error) = self.make_durable(file).and_then(|made| self.confirm_durable(file, made)) {
            tracing::error!(fid = %file.fid, %error, "a content that was not sent is not durable here");
        }
    }

    /// Makes durable the changes of name and attributes that wait, of a file whose content the server has.
    fn fsync_attributes(&self, file: &File) -> Result<(), Error> {
        let waits = self.remote.outstanding(|log| log.newest(file.fid).is_some_and(|id| log.is_queued(id)));
        if waits {
            self.raise_barrier(file)?;
            self.cache.cml.sync()?;
        }
        Ok(())
    }

    fn fsync_here(&self, file: &File) -> Result<(), Error> {
        let made = self.make_durable(file)?;
        self.raise_barrier(file)?;
        self.confirm_durable(file, made)
    }

    /// Makes durable what a file holds; [`Self::confirm_durable`] does the rest. Returns up to which edit.
    fn make_durable(&self, file: &File) -> Result<Durable, Error> {
        if !self.settings.writeback.waits() {
            self.log_fsynced(file)?;
        }
        let made = {
            let state = file.state();
            // Later writes of the kernel may belong to the same edit.
            Durable { edit: state.edits().newest(), settled: !state.users().may_write() }
        };
        file.container.sync_data()?;
        file.make_name_durable(|| self.cache.containers.sync_name(file.fid.vnode))?;
        self.note_synced(file, made.edit)?;
        self.note_version_durable(file, made.edit)?;
        Ok(made)
    }

    fn confirm_durable(&self, file: &File, made: Durable) -> Result<(), Error> {
        self.cache.cml.sync()?;
        if made.settled {
            file.state().edits_mut().keep(made.edit);
        }
        Ok(())
    }

    /// Notes that something of this edit is durable here, which matters unless the server has it by now.
    fn note_synced(&self, file: &File, edit: Edit) -> Result<(), Error> {
        let _edit = file.edit();
        let unsent = {
            let state = file.state();
            state.is_dirty() && state.edits().lacks(edit)
        };
        if unsent {
            self.cache.cml.append(LogEntry::Synced { fid: file.fid })?;
            file.state().edits_mut().sync(edit);
        }
        Ok(())
    }
}
