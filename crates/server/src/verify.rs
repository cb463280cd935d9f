//! Verifying: reads every content of a store that no server runs on, and compares it with its hash, which comes from
//! the client that has made it.
//!
//! Nothing is changed. Contents that nothing names are not looked at.

use std::io;
use std::path::Path;

use mafs_durable::{Kv, LoggedIndexConfig, hash_content};
use mafs_proto::{ContentHash, Fid, Name, ServerEpoch, VolumeId, VolumeName};

use crate::core::{Node, Overlay, Refusal, tables};
use crate::store::{ContentStore, SpaceReserve, Storage, VolumeFile, open_index, volume_dir};
use crate::{DirStorage, ServerError, admin};

/// Objects and names that are read from the index at a time.
const ROWS: usize = 1_000;
/// Damaged files that are named in a volume; the rest is counted.
const NAMED_MAX: usize = 1_000;
/// Directories above a file, at most: a path has 4,096 bytes.
const DEPTH_MAX: usize = 2_048;
/// Names of one directory that are looked at for the one of another directory.
const NAMES_MAX: usize = 1_000_000;

/// Findings in a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct VolumeCheck {
    /// Its name.
    pub name: String,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of damaged files.
    pub damaged_files: u64,
    /// The first 1,000 damaged files.
    pub damaged: Vec<DamagedFile>,
    /// Reason why the volume as a whole cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// A file that is not what was stored.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct DamagedFile {
    /// Path in the volume, if it still has a name.
    pub path: Option<String>,
    /// Its number.
    pub fid: String,
    /// Path of the content, below the data directory; none if it is in the index.
    pub content: Option<String>,
    /// The kind of damage.
    pub why: String,
}

/// Progress of the reading of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyProgress {
    /// Bytes of files so far.
    pub bytes: u64,
    /// Bytes of all files.
    pub of: u64,
}

impl VolumeCheck {
    /// Tells whether everything is as it was stored.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.damage.is_none() && self.damaged_files == 0
    }
}

/// Reads the contents of these volumes, or of all if none is named.
///
/// # Errors
/// `NoVolume`, or reasons why the data directory cannot be used; the damage of a volume is among the findings.
pub fn verify(
    path: &Path,
    names: &[VolumeName],
    mut progress: impl FnMut(&VolumeName, VerifyProgress),
) -> Result<Vec<VolumeCheck>, ServerError> {
    let (storage, listed) = admin::open_volumes(path)?;
    if let Some(missing) = names.iter().find(|name| !listed.iter().any(|(listed, _)| listed == *name)) {
        return Err(ServerError::NoVolume(missing.clone()));
    }
    let wanted = listed.into_iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    let check = |(name, file): (VolumeName, Result<VolumeFile, ServerError>)| {
        let checked = file.and_then(|file| check_volume(&storage, &name, &file, &mut progress));
        checked.unwrap_or_else(|error| VolumeCheck {
            name: name.to_string(),
            damage: Some(error.to_string()),
            ..VolumeCheck::default()
        })
    };
    Ok(wanted.map(check).collect())
}

fn check_volume(
    storage: &DirStorage,
    name: &VolumeName,
    file: &VolumeFile,
    progress: &mut impl FnMut(&VolumeName, VerifyProgress),
) -> Result<VolumeCheck, ServerError> {
    let index = open_index(storage.disk(), storage.index(name), name, LoggedIndexConfig::default())?;
    let damaged = |refusal: Refusal| ServerError::Damaged { path: name.to_string(), why: refusal.detail };
    let volume = Contents::new(storage, name, file.id(), index.index());
    let check = volume.check(name, progress).map_err(damaged)?;
    index.close().map_err(|source| ServerError::Volume { name: name.clone(), source })?;
    Ok(check)
}

/// The objects of a volume and their contents.
struct Contents<'i> {
    volume: VolumeId,
    index: &'i dyn Kv,
    files: ContentStore,
}

impl<'i> Contents<'i> {
    fn new(storage: &DirStorage, name: &VolumeName, volume: VolumeId, index: &'i dyn Kv) -> Self {
        let dir = format!("{}/content", volume_dir(name));
        let files = ContentStore::new(storage.disk(), dir, volume, ServerEpoch(0).0, SpaceReserve { bytes: 0 });
        Self { volume, index, files }
    }

    fn check(
        &self,
        name: &VolumeName,
        progress: &mut impl FnMut(&VolumeName, VerifyProgress),
    ) -> Result<VolumeCheck, Refusal> {
        let of = Overlay::new(self.volume, self.index).begin().state()?.used_bytes;
        let mut check = VolumeCheck { name: name.to_string(), ..VolumeCheck::default() };
        let mut after = None;
        loop {
            let rows = self.index.scan(&tables::nodes(), after.as_deref(), ROWS)?;
            let Some((last, _)) = rows.last() else { return Ok(check) };
            after = Some(last.clone());
            for (key, value) in rows {
                let Some(fid) = key.get(1..).and_then(|fid| tables::parse_fid(self.volume, fid)) else { continue };
                self.check_object(fid, Node::decode(fid, value)?, &mut check)?;
                progress(name, VerifyProgress { bytes: check.bytes, of });
            }
        }
    }

    fn check_object(&self, fid: Fid, node: Node, check: &mut VolumeCheck) -> Result<(), Refusal> {
        let Some(content) = node.content else { return Ok(()) };
        check.files += 1;
        check.bytes += node.status.size;
        let why = match self.hash(fid, &node) {
            Ok(hash) if hash == content.hash => return Ok(()),
            Ok(_) => "it is not what was stored".to_owned(),
            Err(error) => error.to_string(),
        };
        check.damaged_files += 1;
        if check.damaged.len() < NAMED_MAX {
            let path = self.path_of(fid)?;
            let content = node.content_file(fid).map(|id| self.files.path(id));
            check.damaged.push(DamagedFile { path, fid: fid.to_string(), content, why });
        }
        Ok(())
    }

    fn hash(&self, fid: Fid, node: &Node) -> io::Result<ContentHash> {
        let size = node.status.size;
        if let Some(id) = node.content_file(fid) {
            let file = self.files.read(id)?;
            return match file.len()? {
                len if len == size => hash_content(&*file, size),
                len => Err(io::Error::other(format!("it has {len} bytes and should have {size}"))),
            };
        }
        let bytes = match size {
            0 => Vec::new(),
            _ => {
                let found = self.index.get(&tables::inline(fid, node.status.data_version)).map_err(io::Error::other)?;
                found.ok_or_else(|| io::Error::other("it is missing in the index"))?
            }
        };
        Ok(ContentHash::of(&bytes))
    }

    /// Returns a name that means a file, with those of the directories above.
    fn path_of(&self, fid: Fid) -> Result<Option<String>, Refusal> {
        let Some((mut directory, name)) = self.name_of(fid)? else { return Ok(None) };
        let mut names = vec![name];
        let overlay = Overlay::new(self.volume, self.index);
        let transaction = overlay.begin();
        for _ in 0..DEPTH_MAX {
            let Some(parent) = transaction.node(directory)?.parent else {
                let names: Vec<_> = names.iter().rev().map(|name| String::from_utf8_lossy(name.as_bytes())).collect();
                return Ok(Some(names.join("/")));
            };
            let Some(name) = transaction.committed_name(parent, directory, NAMES_MAX)? else { return Ok(None) };
            names.push(name);
            directory = parent;
        }
        Ok(None)
    }

    /// Returns a name of a file. Looks at all names, because a file does not say which it has.
    fn name_of(&self, fid: Fid) -> Result<Option<(Fid, Name)>, Refusal> {
        let (all, means) = (tables::all_entries(), tables::fid_bytes(fid));
        let mut after = None;
        loop {
            let rows = self.index.scan(&all, after.as_deref(), ROWS)?;
            let Some((last, _)) = rows.last() else { return Ok(None) };
            after = Some(last.clone());
            if let Some((key, _)) = rows.iter().find(|(_, meaning)| *meaning == means) {
                let (directory, name) =
                    key.get(1..).unwrap_or_default().split_at_checked(tables::FID_BYTES).unwrap_or_default();
                let directory = tables::parse_fid(self.volume, directory);
                return Ok(directory.zip(Name::new(name.to_vec()).ok()));
            }
        }
    }
}
