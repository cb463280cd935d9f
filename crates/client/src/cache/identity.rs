//! Identity: which client a cache is to servers, and where it was made, so that a copy is not taken for the original
//! (consistency.md, "Objects").

use std::io::{self, ErrorKind};

use mafs_durable::{Disk, write_file_atomically};
use mafs_proto::ClientId;

use super::CacheError;

const FILE: &str = "identity";
const ID_BYTES: usize = 16;

/// Bound on a place: far longer than a machine id and an inode number.
const PLACE_BYTES_MAX: usize = 256;

/// Identity of a cache, as far as its file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Identity {
    /// The cache is new.
    None,
    /// The cache is this client.
    Own(ClientId),
    /// The cache is a copy: the original may be in use elsewhere.
    OfAnother,
}

impl Identity {
    /// Reads the identity of the cache at `place`.
    pub(super) fn load(disk: &dyn Disk, place: &str) -> Result<Self, CacheError> {
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = [0; ID_BYTES + PLACE_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0)?;
        let Some((id, made_at)) = bytes[..length].split_first_chunk::<ID_BYTES>() else {
            return Err(CacheError::Damaged(format!("the file `{FILE}` has {length} bytes")));
        };
        Ok(if made_at == place.as_bytes() { Self::Own(ClientId(*id)) } else { Self::OfAnother })
    }

    /// Makes a new identity, at random, and writes it.
    pub(super) fn make(disk: &dyn Disk, place: &str) -> Result<ClientId, CacheError> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        write_file_atomically(disk, FILE, &[&id[..], place.as_bytes()].concat())?;
        Ok(ClientId(id))
    }
}
