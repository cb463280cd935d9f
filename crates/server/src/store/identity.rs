//! Identity: the id of this server, and the number of its start; the file `server.json`.
//!
//! The file makes a directory a data directory: it is written last when one is made.

use mafs_durable::{Disk, write_file_atomically};
use mafs_proto::{ServerEpoch, ServerId, VolumeId};
use serde::{Deserialize, Serialize};

use super::{Storage, parse_hex, read_small};
use crate::ServerError;

pub(super) const SERVER_FILE: &str = "server.json";

/// The layout this build reads and writes.
const FORMAT: u32 = 1;

/// The identity of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) id: ServerId,
    /// Number of the present start, or the last one.
    pub(crate) epoch: ServerEpoch,
    /// Number of the next volume; none is ever used twice.
    pub(crate) next_volume: VolumeId,
}

impl Identity {
    /// Makes a new server that has never started. Not saved yet.
    pub(crate) fn new(storage: &dyn Storage) -> Result<Self, ServerError> {
        let id = storage.random().map_err(|source| ServerError::io("make the server's id", source))?;
        Ok(Self { id: ServerId(id), epoch: ServerEpoch(0), next_volume: VolumeId(1) })
    }

    /// Loads the identity in a data directory; `None` if it is not one yet.
    pub(crate) fn load(disk: &dyn Disk) -> Result<Option<Self>, ServerError> {
        let Some(bytes) = read_small(disk, SERVER_FILE)? else { return Ok(None) };
        let damaged = |why: String| ServerError::Damaged { path: SERVER_FILE.to_owned(), why };
        let file: ServerFile = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if file.format != FORMAT {
            return Err(ServerError::Format { found: file.format, known: FORMAT });
        }
        let id = parse_hex(&file.id).ok_or_else(|| damaged("`id` is not 32 hexadecimal digits".to_owned()))?;
        Ok(Some(Self { id: ServerId(id), epoch: ServerEpoch(file.epoch), next_volume: VolumeId(file.next_volume) }))
    }

    /// Makes the identity durable.
    pub(crate) fn save(&self, disk: &dyn Disk) -> Result<(), ServerError> {
        let file = ServerFile {
            format: FORMAT,
            id: self.id.to_string(),
            epoch: self.epoch.0,
            next_volume: self.next_volume.0,
        };
        let failed = |source| ServerError::io(format!("write {SERVER_FILE}"), source);
        let json = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        write_file_atomically(disk, SERVER_FILE, &json).map_err(failed)
    }
}

#[derive(Serialize, Deserialize)]
struct ServerFile {
    format: u32,
    id: String,
    epoch: u64,
    next_volume: u32,
}
