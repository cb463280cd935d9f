//! Storage that survives a crash: the seams between mafs and its disk.
//!
//! Two seams, each a small trait with a real implementation and a memory twin that can lose whatever was not synced:
//! [`Disk`] (files and directories) and [`Kv`] (an index that can be rebuilt). Everything else, the append log and the
//! logged index, is written once on top of them, so it is tested on the twins and runs on the real ones.
//!
//! Calls block. Shells run them through `mafs_arpc::blocking`, so that nothing here knows of an executor.

mod arenas;
mod atomic;
mod checked_kv;
mod dir_disk;
mod disk;
mod extents;
#[cfg(test)]
mod formats;
mod guarded_disk;
mod hash;
mod index;
mod kv;
mod lease;
mod log;
mod memory_disk;
mod memory_kv;
mod ranges;
mod segments;
mod sled_kv;

pub use arenas::{LargeBlocks, limit_arenas};
pub use atomic::write_file_atomically;
pub use dir_disk::DirDisk;
pub use disk::{Disk, DiskFile, DiskPath, FileStat, SpaceInfo};
pub use extents::{Fallocate, copy_range, copy_sparse, next_extent, write_sparse};
pub use guarded_disk::GuardedDisk;
pub use hash::{begin_hash, hash_content};
pub use index::{KvOpen, LoggedIndex, LoggedIndexConfig, LoggedIndexError, OpenKv, sled_opener};
pub use kv::{Batch, Kv, KvError, Pair};
pub use log::{AppendLog, LogConfig, LogError, LogReader, LogRecovery, LogSync, Lsn, OldSegments, TornTail};
pub use memory_disk::{MemoryDisk, MemoryFile};
pub use memory_kv::MemoryKv;
pub use ranges::RangeSet;
pub use segments::FileSegments;
pub use sled_kv::SledKv;
