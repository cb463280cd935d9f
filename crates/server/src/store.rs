//! Store: the content of a data directory, and the storage it comes from.
//!
//! Owns the [`Storage`] seam with its two kinds (a directory, memory), the identity of the server, the list of
//! volumes and the content files. docs/formats.md ("Server data directory") is the layout. All calls block.
//!
//! Must not know sessions or operations.

mod content;
mod dir;
mod identity;
mod key;
mod memory;
mod spool;
mod spools;
mod volumes;

use std::io;
use std::sync::Arc;

use mafs_durable::{Disk, DiskPath, OpenKv};
use mafs_proto::VolumeName;

pub(crate) use content::{ContentStore, INLINE_BYTES_MAX, SpaceReserve, refuse_io};
pub use dir::{DirStorage, default_data_dir};
pub(crate) use identity::Identity;
pub use memory::MemoryStorage;
pub(crate) use spools::{Arrival, Spools};
pub(crate) use volumes::{
    ListedVolume, VOLUMES_DIR, VolumeFile, create_volume, list_volumes, open_index, remove_volume, save_volume,
    volume_dir,
};

use crate::ServerError;

/// Storage of a server's data: the seam between a real directory and the simulator.
pub trait Storage: Send + Sync + 'static {
    /// Returns the data directory.
    fn disk(&self) -> Arc<dyn Disk>;

    /// Returns the opener of a volume's index.
    fn index(&self, volume: &VolumeName) -> OpenKv;

    /// Returns bytes nobody can guess, for identities.
    ///
    /// # Errors
    /// If the system gives none.
    fn random(&self) -> io::Result<[u8; 16]>;

    /// Returns the user and group that new volumes belong to.
    fn owner(&self) -> (u32, u32);
}

/// Size of the largest file that [`read_small`] reads.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Reads a small file whole; `None` if there is none.
fn read_small(disk: &dyn Disk, path: &DiskPath) -> Result<Option<Vec<u8>>, ServerError> {
    let failed = |source| ServerError::io(format!("read {path}"), source);
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let size = file.len().map_err(failed)?;
    if size > SMALL_BYTES_MAX {
        return Err(ServerError::Damaged { path: path.to_owned(), why: format!("it has {size} bytes") });
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Parses bytes of two hexadecimal digits each; `None` if they are not so many.
fn parse_hex<const BYTES: usize>(hex: &str) -> Option<[u8; BYTES]> {
    if hex.len() != 2 * BYTES || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}
