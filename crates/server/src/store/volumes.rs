//! Volumes on disk: `volumes/NAME/`, each with a `volume.json` that makes it one.
//!
//! `volume.json` is written after the volume's first transaction is durable, so a volume without counters has lost
//! its journal and is never taken for a new one. A volume that is being removed has a name with a dot first, which no
//! volume has.

use std::sync::Arc;

use mafs_durable::{Disk, LoggedIndex, LoggedIndexConfig, OpenKv, write_file_atomically};
use mafs_proto::{HistoryId, Timestamp, VolumeId, VolumeName};
use serde::{Deserialize, Serialize};

use super::{Storage, read_small};
use crate::ServerError;
use crate::core::{Overlay, clients};

pub(crate) const VOLUMES_DIR: &str = "volumes";

/// Content of `volume.json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeFile {
    id: u32,
    history: u64,
    /// The volume takes no changes.
    pub(crate) read_only: bool,
    /// The most bytes its files may have together; `None`: as many as the disk holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota_bytes: Option<u64>,
}

impl VolumeFile {
    pub(crate) fn id(&self) -> VolumeId {
        VolumeId(self.id)
    }

    pub(crate) fn history(&self) -> HistoryId {
        HistoryId(self.history)
    }
}

/// Returns the directory of a volume.
pub(crate) fn volume_dir(name: &VolumeName) -> String {
    format!("{VOLUMES_DIR}/{name}")
}

/// Opens a volume's journal, on a disk that may be guarded, and its index.
pub(crate) fn open_index(
    disk: Arc<dyn Disk>,
    open_kv: OpenKv,
    name: &VolumeName,
    config: LoggedIndexConfig,
) -> Result<LoggedIndex, ServerError> {
    let volume = |source| ServerError::Volume { name: name.clone(), source };
    LoggedIndex::open(disk, &volume_dir(name), open_kv, config).map_err(volume)
}

/// Makes a volume with an empty root directory. Anything at its place is removed: the caller knows that it is no
/// volume.
pub(crate) fn create_volume(
    storage: &dyn Storage,
    name: &VolumeName,
    id: VolumeId,
    now: Timestamp,
) -> Result<(), ServerError> {
    let (disk, dir) = (storage.disk(), volume_dir(name));
    let failed = |source| ServerError::io(format!("make the volume {name}"), source);
    disk.remove_dir_all(&dir).map_err(failed)?;
    disk.create_dir_all(&[&dir]).map_err(failed)?;
    let random = storage.random().map_err(failed)?;
    let index = open_index(Arc::clone(&disk), storage.index(name), name, LoggedIndexConfig::default())?;
    let first = clients::found(&Overlay::new(id, index.index()), storage.owner(), now);
    let volume = |source| ServerError::Volume { name: name.clone(), source };
    index.commit(&[first]).map_err(volume)?;
    index.close().map_err(volume)?;
    let [h0, h1, h2, h3, h4, h5, h6, h7, ..] = random;
    let history = u64::from_be_bytes([h0, h1, h2, h3, h4, h5, h6, h7]);
    save_volume(&*disk, name, &VolumeFile { id: id.0, history, read_only: false, quota_bytes: None })
}

/// Makes `volume.json` durable.
pub(crate) fn save_volume(disk: &dyn Disk, name: &VolumeName, file: &VolumeFile) -> Result<(), ServerError> {
    let path = volume_file(name);
    let failed = |source| ServerError::io(format!("write {path}"), source);
    let json = serde_json::to_vec_pretty(file).map_err(|error| failed(error.into()))?;
    write_file_atomically(disk, &path, &json).map_err(failed)
}

/// A volume's name and the content of its `volume.json`, if that can be read.
pub(crate) type ListedVolume = (VolumeName, Result<VolumeFile, ServerError>);

/// Lists the volumes by name. Removes the remains of removed ones.
pub(crate) fn list_volumes(disk: &dyn Disk) -> Result<Vec<ListedVolume>, ServerError> {
    let mut volumes = Vec::new();
    let names = disk.list(VOLUMES_DIR).map_err(|source| ServerError::io(format!("list {VOLUMES_DIR}"), source))?;
    for name in names {
        if name.starts_with('.') {
            let removed = disk.remove_dir_all(&format!("{VOLUMES_DIR}/{name}"));
            removed.map_err(|source| ServerError::io(format!("remove {VOLUMES_DIR}/{name}"), source))?;
            continue;
        }
        let Ok(name) = VolumeName::new(&name) else { continue };
        let path = volume_file(&name);
        let file = match read_small(disk, &path)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
            None => Err("it is missing".to_owned()),
        };
        volumes.push((name, file.map_err(|why| ServerError::Damaged { path, why })));
    }
    Ok(volumes)
}

/// Removes a volume with everything in it; from the first step on it is no volume any more.
pub(crate) fn remove_volume(disk: &dyn Disk, name: &VolumeName) -> Result<(), ServerError> {
    let failed = |source| ServerError::io(format!("remove the volume {name}"), source);
    let grave = format!("{VOLUMES_DIR}/.removed-{name}");
    disk.remove_dir_all(&grave).map_err(failed)?;
    disk.rename(&volume_dir(name), &grave).map_err(failed)?;
    disk.sync_dir(VOLUMES_DIR).map_err(failed)?;
    disk.remove_dir_all(&grave).map_err(failed)
}

fn volume_file(name: &VolumeName) -> String {
    format!("{}/volume.json", volume_dir(name))
}
