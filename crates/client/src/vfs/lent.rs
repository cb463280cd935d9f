//! Containers that the kernel had when the last daemon was killed: programs may still write to them, through
//! descriptors and mappings that outlive it.
//!
//! A changed container of this kind is taken up as a copy, and the container goes. All other contents stay where they
//! are, so that the cost of a start grows with the files that were open, not with those that wait.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use mafs_proto::Fid;

use super::Inner;
use super::contents::SYNC_ALL_FROM;
use crate::cache::{CacheError, is_sealed};
use crate::core::log::{ContainerId, LogEntry, LogState, Writing};

/// A content that has been copied out of the reach of programs.
struct Moved {
    fid: Fid,
    before: ContainerId,
    now: ContainerId,
    /// Whether the content survives a loss of power. The move must keep that.
    durable: bool,
}

impl Inner {
    /// Copies contents that programs may still write to out of their reach. A file that is still `lent` afterwards is
    /// as it was when it was lent, or is gone. After a power loss no such program is left. Returns the files that were
    /// lent: they may hold bytes that no version tells of.
    pub(super) fn move_out_lent(&self, log: &mut LogState) -> Result<BTreeSet<Fid>, CacheError> {
        if self.cache.power_lost {
            log.writing.values_mut().for_each(|writing| writing.lent = false);
            return Ok(BTreeSet::new());
        }
        let durable = log.logged.values().filter(|store| store.durable);
        let durable: BTreeSet<Fid> = durable.map(|store| store.record.op.fid()).collect();
        let lent: BTreeSet<Fid> = log.writing.iter().filter(|(_, file)| file.lent).map(|(fid, _)| *fid).collect();
        let mut moved = Vec::new();
        for (&fid, writing) in log.writing.iter_mut().filter(|(_, writing)| writing.lent) {
            moved.extend(self.copy_lent(fid, writing, writing.synced || durable.contains(&fid))?);
        }
        self.sync_moved(&moved)?;
        for &Moved { fid, now, .. } in &moved {
            let entry = LogEntry::Moved { fid, container: now };
            self.cache.cml.append(entry.clone())?;
            log.apply(entry);
        }
        if moved.iter().any(|moved| moved.durable) {
            self.cache.cml.sync()?;
        }
        for moved in &moved {
            self.cache.containers.remove(moved.fid.vnode, moved.before)?;
        }
        Ok(lent)
    }

    /// Copies a content that has changed since it was lent.
    fn copy_lent(&self, fid: Fid, writing: &mut Writing, durable: bool) -> Result<Option<Moved>, CacheError> {
        let before = writing.container;
        let Some(container) = self.cache.containers.get(fid.vnode, before)? else { return Ok(None) };
        if is_sealed(container.as_ref(), writing.base, container.len()?)? {
            return Ok(None);
        }
        match self.cache.containers.duplicate(fid.vnode, container.as_ref()) {
            Ok((now, _)) => Ok(Some(Moved { fid, before, now, durable })),
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                tracing::warn!(%fid, %error, "a changed file is taken up where it is; programs may still write to it");
                if durable {
                    container.sync_data()?;
                }
                // In this life only: the next one tries again.
                writing.lent = false;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes copies durable, before the log names them and before their originals go.
    fn sync_moved(&self, moved: &[Moved]) -> Result<(), CacheError> {
        let durable = moved.iter().filter(|moved| moved.durable);
        if durable.clone().count() >= SYNC_ALL_FROM {
            return Ok(self.cache.disk.sync_all()?);
        }
        for &Moved { fid, now, .. } in durable {
            if let Some(copy) = self.cache.containers.get(fid.vnode, now)? {
                copy.sync_data()?;
            }
            self.cache.containers.sync_name(fid.vnode)?;
        }
        Ok(())
    }
}
