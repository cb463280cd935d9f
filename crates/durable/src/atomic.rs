//! Small files that are replaced whole.

use std::io;

use crate::disk::parent;
use crate::{Disk, DiskPath};

/// Replaces a file so that a crash at any moment leaves the old bytes or the new, durably the new when this returns.
/// Uses `PATH.tmp`; two calls for one path must not overlap.
///
/// # Errors
/// Errors of the disk. The old file is untouched then, unless only the last sync failed.
pub fn write_file_atomically(disk: &dyn Disk, path: &DiskPath, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{path}.tmp");
    let file = disk.create(&temporary)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&temporary, path)?;
    disk.sync_dir(parent(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDisk;

    fn read(disk: &MemoryDisk) -> Vec<u8> {
        let file = disk.open("d/f").unwrap();
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_crash_leaves_the_old_file_or_the_new() {
        for syncs in 0..2 {
            for seed in 0..50 {
                let disk = MemoryDisk::new();
                disk.create_dir_all(&["d"]).unwrap();
                write_file_atomically(&disk, "d/f", b"old").unwrap();
                disk.freeze_after_syncs(disk.syncs() + syncs);
                write_file_atomically(&disk, "d/f", b"the new one").unwrap();
                assert_eq!(read(&disk.crash()), b"old");
                let torn = read(&disk.crash_torn(seed));
                assert!(torn == b"old" || torn == b"the new one", "{torn:?}");
            }
        }
    }

    #[test]
    fn what_was_acknowledged_is_durable() {
        let disk = MemoryDisk::new();
        disk.create_dir_all(&["d"]).unwrap();
        write_file_atomically(&disk, "d/f", b"new").unwrap();
        assert_eq!(read(&disk.crash()), b"new");
    }
}
