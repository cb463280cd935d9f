//! Shared mappings. Of a file that has a container a mapping holds that itself (`backing_file_mmap`), and outlives the
//! release of its handle; of any other it holds the open file, and its pages are written by way of that.

use mafs_client::vfs::FileHandle;
use mafs_durable::{DiskFile, MemoryDisk};
use mafs_proto::VnodeId;

use super::backing::{Backing, Change, left_on};
use super::data::read_backing;
use super::open::Descriptor;
use super::{Errno, FileId, Kernel};

/// A mapping of some program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MappingId(u64);

#[derive(Clone)]
pub(super) enum Mapping {
    Container(Backing),
    Pages(FileId),
}

impl Mapping {
    /// Notes that the daemon has been killed, and has left this disk.
    pub(super) fn adopt(&mut self, disk: &MemoryDisk) {
        if let Self::Container(backing) = self {
            *backing = left_on(disk, Backing::clone(backing));
        }
    }
}

impl Kernel {
    /// mmap(2) of a whole file, shared, to read and to write.
    ///
    /// # Errors
    /// As the call.
    pub fn map(&self, descriptor: Descriptor) -> Result<MappingId, Errno> {
        let (id, file) = self.file_of(descriptor)?;
        if !file.mode.read || !file.mode.write {
            return Err(Errno::BADF);
        }
        let mut state = self.state();
        let mapping = match file.backing {
            Some(backing) => Mapping::Container(backing),
            None => {
                if let Some(file) = state.files.get_mut(&id) {
                    file.users += 1;
                }
                Mapping::Pages(id)
            }
        };
        let id = MappingId(state.number());
        if let Mapping::Container(backing) = &mapping {
            backing.map(id.0)?;
        }
        state.mappings.insert(id, mapping);
        Ok(id)
    }

    /// Reads through a mapping, up to the end of the file.
    ///
    /// # Errors
    /// Where a program would get SIGBUS.
    pub async fn load(&self, mapping: MappingId, at: u64, count: usize) -> Result<Vec<u8>, Errno> {
        match self.mapping(mapping)? {
            Mapping::Container(backing) => read_backing(&backing, at, count),
            Mapping::Pages(id) => {
                let file = self.file(id)?;
                let end = (at + count as u64).min(self.size_of(file.vnode)?);
                self.bring_pages(&file, at, end.saturating_sub(at)).await?;
                Ok(self.state().inode(file.vnode)?.copy(at..end))
            }
        }
    }

    /// Stores through a mapping, up to the end of the file.
    ///
    /// # Errors
    /// Where a program would get SIGBUS.
    pub async fn store(&self, mapping: MappingId, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self.mapping(mapping)? {
            Mapping::Container(backing) => {
                let inside = backing.len()?.saturating_sub(at).min(bytes.len() as u64);
                let bytes = bytes[..usize::try_from(inside).unwrap_or(0)].to_vec();
                self.change(&backing, Change::Store { mapping: mapping.0, at, bytes }).await.map(drop)
            }
            Mapping::Pages(id) => {
                let file = self.file(id)?;
                let inside = self.size_of(file.vnode)?.saturating_sub(at).min(bytes.len() as u64);
                self.bring_pages(&file, at, inside).await?;
                let bytes = &bytes[..usize::try_from(inside).unwrap_or(0)];
                self.state().inode(file.vnode)?.store_pages(at, bytes);
                Ok(())
            }
        }
    }

    /// munmap(2), or the end of a program.
    ///
    /// # Errors
    /// As the call.
    pub async fn unmap(&self, mapping: MappingId) -> Result<(), Errno> {
        let id = match self.mapping(mapping)? {
            Mapping::Container(backing) => {
                backing.unmap(mapping.0)?;
                None
            }
            Mapping::Pages(id) => {
                // Nobody hears whether it was written.
                let _unheard = self.write_stores(&self.file(id)?).await;
                Some(id)
            }
        };
        self.state().mappings.remove(&mapping);
        if let Some(id) = id {
            self.put(id);
        }
        Ok(())
    }

    /// Returns an open file through which the pages of an inode are written.
    pub(super) fn mapped_handle(&self, vnode: VnodeId) -> Option<FileHandle> {
        let state = self.state();
        let mut mapped = state.mappings.values().filter_map(|mapping| match mapping {
            Mapping::Pages(id) => state.files.get(id).filter(|file| file.vnode == vnode),
            Mapping::Container(_) => None,
        });
        mapped.next().map(|file| file.handle)
    }

    fn mapping(&self, id: MappingId) -> Result<Mapping, Errno> {
        self.state().mappings.get(&id).cloned().ok_or(Errno::BADF)
    }
}
