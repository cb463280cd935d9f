//! The hoard on this disk: a small file of its own, replaced as a whole. Its format is in docs/formats.md.

use std::io::ErrorKind;
use std::sync::Arc;

use mafs_durable::{Disk, DiskFile, write_file_atomically};

use super::CacheError;
use crate::core::hoard::Hoard;

const FILE: &str = "hoard";

/// The file in which the hoard is kept.
pub(crate) struct HoardFile(Arc<dyn Disk>);

impl HoardFile {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self(disk)
    }

    /// Reads the hoard; it is empty if the file is damaged, which the user hears of: he can hoard again.
    pub(crate) fn load(&self) -> Result<Hoard, CacheError> {
        let file = match self.0.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Hoard::default()),
            Err(error) => return Err(error.into()),
        };
        let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let hoard = if length > Hoard::BYTES_MAX { None } else { Hoard::decode(&read(file.as_ref(), length)?) };
        Ok(hoard.unwrap_or_else(|| {
            tracing::error!("the hoard in the cache is damaged: nothing is pinned or hoarded until it is again");
            Hoard::default()
        }))
    }

    /// Writes the hoard, durably.
    pub(crate) fn store(&self, hoard: &Hoard) -> Result<(), CacheError> {
        Ok(write_file_atomically(self.0.as_ref(), FILE, &hoard.encode())?)
    }
}

fn read(file: &dyn DiskFile, length: usize) -> Result<Vec<u8>, CacheError> {
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use mafs_durable::MemoryDisk;

    use super::*;
    use crate::hoard::HoardSpec;

    fn hoard(paths: &[&str]) -> Hoard {
        let mut hoard = Hoard::default();
        paths.iter().for_each(|path| hoard.add(path.as_bytes(), HoardSpec::PIN).unwrap());
        hoard
    }

    #[test]
    fn a_loss_of_power_leaves_what_was_written_last() {
        for seed in 0..50 {
            let disk = MemoryDisk::new();
            let file = HoardFile::new(Arc::new(disk.clone()));
            assert_eq!(file.load().unwrap(), Hoard::default());
            file.store(&hoard(&["a"])).unwrap();
            file.store(&hoard(&["a", "b"])).unwrap();
            let survived = HoardFile::new(Arc::new(disk.crash_torn(seed)));
            assert_eq!(survived.load().unwrap(), hoard(&["a", "b"]));
        }
    }

    #[test]
    fn invariant_10_a_damaged_file_is_an_empty_hoard() {
        let disk = MemoryDisk::new();
        let file = HoardFile::new(Arc::new(disk.clone()));
        file.store(&hoard(&["a"])).unwrap();
        disk.open(FILE).unwrap().write_all_at(b"x", 40).unwrap();
        assert_eq!(file.load().unwrap(), Hoard::default());
        file.store(&hoard(&["b"])).unwrap();
        assert_eq!(file.load().unwrap(), hoard(&["b"]));
    }
}
