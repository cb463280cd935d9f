//! Openers: they open the index that a logged index is about to trust, or a fresh one in its place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checked_kv::CheckedKv;
use crate::{Kv, KvError, SledKv};

/// The index that an opener shall give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvOpen {
    /// The one that is there; an empty one if there is none.
    Existing,
    /// An empty one. The one that is there is set aside.
    Fresh,
}

/// A function by which a [`LoggedIndex`](crate::LoggedIndex) opens its index. Called only while the logged index
/// opens, and never while an index that it gave before is still in use.
pub type OpenKv = Box<dyn Fn(KvOpen) -> Result<Arc<dyn Kv>, KvError> + Send + Sync>;

/// Opens an index in sled at `path`. An index that is set aside becomes `PATH.damaged-N`, for people to look at; the
/// one set aside before it is deleted.
#[must_use]
pub fn sled_opener(path: PathBuf) -> OpenKv {
    Box::new(move |how| {
        if how == KvOpen::Fresh {
            set_aside(&path)?;
        }
        let is_new = !path.try_exists()?;
        let kv = Arc::new(SledKv::open(&path)?);
        Ok(Arc::new(if is_new { CheckedKv::begin(kv)? } else { CheckedKv::open(kv)? }))
    })
}

fn set_aside(path: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{name}.damaged-");
    let parent = path.parent().unwrap_or(Path::new("/"));
    let mut number = 0;
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if let Some(older) = entry.file_name().to_string_lossy().strip_prefix(&prefix) {
            number = number.max(older.parse().unwrap_or(0));
            fs::remove_dir_all(entry.path())?;
        }
    }
    fs::rename(path, parent.join(format!("{prefix}{}", number + 1_u64)))
}
