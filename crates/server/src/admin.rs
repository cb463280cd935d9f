//! Administration: making data directories and volumes, while no server runs on them.
//!
//! Each function takes the data directory's lock (through [`DirStorage`]), so none of them can meet a running server.

use std::path::Path;

use mafs_arpc::BootClock;
use mafs_durable::LoggedIndexConfig;
use mafs_proto::{Clock, ServerEpoch, Timestamp, VolumeId, VolumeName};

use crate::core::Overlay;
use crate::store::{
    Identity, ListedVolume, Storage, VOLUMES_DIR, VolumeFile, create_volume, list_volumes, open_index, remove_volume,
    save_volume,
};
use crate::{DirStorage, ServerError};

/// The volume that every server begins with.
const FIRST_VOLUME: &str = "home";

/// A volume as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct VolumeSummary {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Whether it takes no changes.
    pub read_only: bool,
    /// The most bytes its files may have together; absent: as many as the disk holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Files, directories and the like, without the root.
    pub objects: u64,
    /// Bytes of all files.
    pub used_bytes: u64,
    /// The last change.
    pub change: u64,
    /// Why it cannot be served; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// Changes of a volume; `None` leaves a value as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeChange {
    /// Whether it takes no changes.
    pub read_only: Option<bool>,
    /// Its quota.
    pub quota: Option<Quota>,
}

/// The most bytes the files of a volume may have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// As many as the disk holds.
    Unlimited,
    /// So many. A quota below what is in use takes nothing away, and no new bytes.
    Bytes(u64),
}

/// Makes a data directory, with an empty volume `home` and a key.
///
/// # Errors
/// `Initialised` if it is one already; `NotDataDirectory` if something else is there.
pub fn init(path: &Path) -> Result<(), ServerError> {
    let storage = DirStorage::open(path)?;
    if storage.is_initialised()? {
        return Err(ServerError::Initialised { path: path.to_owned() });
    }
    initialise(&storage, BootClock.wall())?;
    storage.key().map(drop)
}

/// Adds an empty volume.
///
/// # Errors
/// `VolumeExists`, or why the data directory cannot be used.
pub fn add_volume(path: &Path, name: &VolumeName) -> Result<(), ServerError> {
    let (storage, mut identity) = open_existing(path)?;
    if find(&storage, name).is_ok() {
        return Err(ServerError::VolumeExists(name.clone()));
    }
    add(&storage, &mut identity, name, BootClock.wall())
}

/// Lists all volumes, in the order of their names.
///
/// # Errors
/// Reasons why the data directory cannot be used; the damage of a volume is in its summary.
pub fn volumes(path: &Path) -> Result<Vec<VolumeSummary>, ServerError> {
    let (storage, listed) = open_volumes(path)?;
    Ok(listed.into_iter().map(|(name, file)| summarise(&storage, &name, file)).collect())
}

/// Changes a volume.
///
/// # Errors
/// `NoVolume`, or why the data directory cannot be used.
pub fn set_volume(path: &Path, name: &VolumeName, change: VolumeChange) -> Result<(), ServerError> {
    let (storage, _) = open_existing(path)?;
    let mut file = find(&storage, name)??;
    file.read_only = change.read_only.unwrap_or(file.read_only);
    match change.quota {
        Some(Quota::Bytes(bytes)) => file.quota_bytes = Some(bytes),
        Some(Quota::Unlimited) => file.quota_bytes = None,
        None => {}
    }
    save_volume(&*storage.disk(), name, &file)
}

/// Removes a volume with everything in it; with `force` also one that is not empty, or cannot be opened.
///
/// # Errors
/// `NoVolume`, `VolumeNotEmpty`, or why the data directory cannot be used.
pub fn remove(path: &Path, name: &VolumeName, force: bool) -> Result<(), ServerError> {
    let (storage, _) = open_existing(path)?;
    let file = find(&storage, name)?;
    if !force {
        let objects = count(&storage, name, &file?)?.0;
        if objects > 0 {
            return Err(ServerError::VolumeNotEmpty { name: name.clone(), objects });
        }
    }
    remove_volume(&*storage.disk(), name)
}

/// Makes an empty data directory one, its identity last. Volumes that are there already (the identity was lost, or
/// never got written) are kept.
pub(crate) fn initialise(storage: &dyn Storage, now: Timestamp) -> Result<Identity, ServerError> {
    let mut identity = Identity::new(storage)?;
    let disk = storage.disk();
    let failed = |source| ServerError::io("make the data directory", source);
    disk.create_dir_all(&[VOLUMES_DIR]).map_err(failed)?;
    let volumes = list_volumes(&*disk)?;
    let numbers = volumes.iter().filter_map(|(_, file)| Some(file.as_ref().ok()?.id().0));
    match numbers.max() {
        Some(last) => {
            identity.next_volume = VolumeId(last + 1);
            // Epochs count starts, so the clock's seconds are above all that were lost: no content file gets a used
            // name.
            identity.epoch = ServerEpoch(now.seconds().try_into().unwrap_or(0));
        }
        None => {
            let name = VolumeName::new(FIRST_VOLUME).map_err(|error| failed(std::io::Error::other(error)))?;
            create_volume(storage, &name, identity.next_volume, now)?;
            identity.next_volume = VolumeId(identity.next_volume.0 + 1);
        }
    }
    identity.save(&*disk)?;
    Ok(identity)
}

/// Adds a volume. Its number is used up before the volume is there: it is never given to two.
fn add(storage: &dyn Storage, identity: &mut Identity, name: &VolumeName, now: Timestamp) -> Result<(), ServerError> {
    let id = identity.next_volume;
    identity.next_volume = VolumeId(id.0 + 1);
    identity.save(&*storage.disk())?;
    create_volume(storage, name, id, now)
}

fn open_existing(path: &Path) -> Result<(DirStorage, Identity), ServerError> {
    let missing = || ServerError::NotInitialised { path: path.to_owned() };
    if !path.try_exists().map_err(|source| ServerError::io(format!("look at {}", path.display()), source))? {
        return Err(missing());
    }
    let storage = DirStorage::open(path)?;
    let identity = Identity::load(&*storage.disk())?.ok_or_else(missing)?;
    Ok((storage, identity))
}

/// Lists the volumes of a data directory, in the order of their names.
pub(crate) fn open_volumes(path: &Path) -> Result<(DirStorage, Vec<ListedVolume>), ServerError> {
    let (storage, _) = open_existing(path)?;
    let listed = list_volumes(&*storage.disk())?;
    Ok((storage, listed))
}

fn find(storage: &DirStorage, name: &VolumeName) -> Result<Result<VolumeFile, ServerError>, ServerError> {
    let volumes = list_volumes(&*storage.disk())?;
    let found = volumes.into_iter().find(|(listed, _)| listed == name);
    found.map(|(_, file)| file).ok_or_else(|| ServerError::NoVolume(name.clone()))
}

fn summarise(storage: &DirStorage, name: &VolumeName, file: Result<VolumeFile, ServerError>) -> VolumeSummary {
    let id = file.as_ref().map_or(0, |file| file.id().0);
    let read_only = file.as_ref().is_ok_and(|file| file.read_only);
    let quota_bytes = file.as_ref().ok().and_then(|file| file.quota_bytes);
    let counted = file.and_then(|file| count(storage, name, &file));
    let damage = counted.as_ref().err().map(ToString::to_string);
    let (objects, used_bytes, change) = counted.unwrap_or_default();
    VolumeSummary { name: name.to_string(), id, read_only, quota_bytes, objects, used_bytes, change, damage }
}

/// Counts the objects beside the root and the bytes of files; returns the number of the last change, too.
fn count(storage: &DirStorage, name: &VolumeName, file: &VolumeFile) -> Result<(u64, u64, u64), ServerError> {
    let index = open_index(storage.disk(), storage.index(name), name, LoggedIndexConfig::default())?;
    let state = Overlay::new(file.id(), index.index()).begin().state();
    let state = state.map_err(|refusal| ServerError::Damaged { path: name.to_string(), why: refusal.detail })?;
    index.close().map_err(|source| ServerError::Volume { name: name.clone(), source })?;
    Ok((state.objects.saturating_sub(1), state.used_bytes, state.change.0))
}
