//! Trees of files: generated from a seed, and compared as a whole.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::content::{self, Random};

/// Files that share a directory of a generated tree.
const FILES_PER_DIRECTORY: usize = 20;

/// Times of the symlinks of a generated tree.
const LINK_TIMES: Timestamps = {
    let time = Timespec { tv_sec: 1_550_000_000, tv_nsec: 987_654_321 };
    Timestamps { last_access: time, last_modification: time }
};

/// Differences that are worth listing.
const DIFFERENCES_SHOWN: usize = 10;

/// Makes a tree of `files` regular files below `root`, which must not exist: directories of 20 files, sizes from
/// nothing to 64 KB, mostly small; one in ten executable, one in twenty read-only; besides one symlink and one hard
/// link per directory, an empty directory, and names with spaces and with bytes that are no UTF-8. Times lie in the
/// past.
///
/// # Errors
/// The file system's error.
pub fn generate(root: &Path, seed: u64, files: usize) -> io::Result<()> {
    let mut random = Random::new(seed);
    fs::create_dir(root)?;
    fs::create_dir(root.join("empty"))?;
    let directories = files.div_ceil(FILES_PER_DIRECTORY);
    for number in 0..directories {
        let directory = root.join(format!("d{}", number % 10)).join(format!("sub {number}"));
        fs::create_dir_all(&directory)?;
        let count = FILES_PER_DIRECTORY.min(files - number * FILES_PER_DIRECTORY);
        for file in 0..count {
            generate_file(&directory.join(file_name(file)), &mut random)?;
        }
        let link = directory.join("symlink");
        symlink(format!("../sub {}/f0.txt", number.saturating_sub(10)), &link)?;
        rustix::fs::utimensat(CWD, &link, &LINK_TIMES, AtFlags::SYMLINK_NOFOLLOW)?;
        fs::hard_link(directory.join("f0.txt"), directory.join("hard link"))?;
    }
    set_directory_times(root)
}

/// Objects of one tree with everything that a copy has to keep: all but directories' sizes and inode numbers.
#[derive(Debug)]
pub struct Snapshot {
    objects: BTreeMap<PathBuf, Object>,
}

#[derive(PartialEq, Eq, Clone)]
struct Object {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    content: Content,
}

#[derive(PartialEq, Eq, Clone, Debug)]
enum Content {
    Directory,
    /// Size, hash, and the first of the names in the tree that share the file.
    File(u64, blake3::Hash, PathBuf),
    Symlink(PathBuf),
    Other,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o} {:?} {:?} {:?}", self.mode, self.owner, self.modified, self.content)
    }
}

impl Snapshot {
    /// Reads the whole tree below `root`.
    ///
    /// # Errors
    /// The file system's error, with the path.
    pub fn take(root: &Path) -> io::Result<Self> {
        let mut snapshot = Self { objects: BTreeMap::new() };
        snapshot.add(root, Path::new(""), &mut BTreeMap::new())?;
        Ok(snapshot)
    }

    /// Counts the objects, the root included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Compares two trees.
    ///
    /// # Errors
    /// If they differ; lists the first few differences.
    pub fn compare(&self, other: &Self) -> io::Result<()> {
        let paths = self.objects.keys().chain(other.objects.keys().filter(|path| !self.objects.contains_key(*path)));
        let both = paths.map(|path| (path, self.objects.get(path), other.objects.get(path)));
        let different: Vec<String> = both
            .filter(|(_, left, right)| left != right)
            .map(|(path, left, right)| format!("{}:\n  {left:?}\n  {right:?}", path.display()))
            .collect();
        if different.is_empty() {
            return Ok(());
        }
        let shown = &different[..different.len().min(DIFFERENCES_SHOWN)];
        Err(io::Error::other(format!("{} differences, first:\n{}", different.len(), shown.join("\n"))))
    }

    /// Adds the object at `path` and all below it. `names` has the first name of every file that has several.
    fn add(&mut self, root: &Path, path: &Path, names: &mut BTreeMap<u64, PathBuf>) -> io::Result<()> {
        let full = root.join(path);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", full.display()));
        let metadata = fs::symlink_metadata(&full).map_err(named)?;
        let content = content_of(&full, path, &metadata, names).map_err(named)?;
        let object = Object {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            content,
        };
        self.objects.insert(path.to_path_buf(), object);
        if !metadata.is_dir() {
            return Ok(());
        }
        let mut entries = fs::read_dir(&full).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(named)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.iter().try_for_each(|entry| self.add(root, &path.join(entry.file_name()), names))
    }
}

fn content_of(
    full: &Path,
    path: &Path,
    metadata: &Metadata,
    names: &mut BTreeMap<u64, PathBuf>,
) -> io::Result<Content> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        Ok(Content::Directory)
    } else if kind.is_symlink() {
        Ok(Content::Symlink(fs::read_link(full)?))
    } else if kind.is_file() {
        let first = match metadata.nlink() {
            1 => path.to_path_buf(),
            _ => names.entry(metadata.ino()).or_insert_with(|| path.to_path_buf()).clone(),
        };
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut File::open(full)?, &mut hasher)?;
        Ok(Content::File(hasher.count(), hasher.finalize(), first))
    } else {
        Ok(Content::Other)
    }
}

fn file_name(number: usize) -> PathBuf {
    match number {
        1 => PathBuf::from("with space.txt"),
        2 => PathBuf::from(OsStr::from_bytes(b"no-utf8-\xff\xfe.txt")),
        _ => PathBuf::from(format!("f{number}.txt")),
    }
}

fn generate_file(path: &Path, random: &mut Random) -> io::Result<()> {
    let length = match random.below(10) {
        0 => 0,
        1..=7 => random.below(4_096),
        _ => random.below(65_536),
    };
    content::write_file(path, random.number(), length)?;
    let mode = match random.below(20) {
        0 | 1 => 0o755,
        2 => 0o444,
        _ => 0o644,
    };
    let age = Duration::new(1_600_000_000 + random.below(100_000_000), 123_456_789);
    File::open(path)?.set_modified(UNIX_EPOCH + age)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Gives all directories one time in the past, from the bottom up.
fn set_directory_times(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            set_directory_times(&entry.path())?;
        }
    }
    File::open(directory)?.set_modified(UNIX_EPOCH + Duration::from_secs(1_500_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        generate(&one, 5, 45).unwrap();
        generate(&two, 5, 45).unwrap();
        let before = Snapshot::take(&one).unwrap();
        before.compare(&Snapshot::take(&two).unwrap()).unwrap();
        assert_eq!(before.count(), 45 + 3 + 3 + 2 * 3 + 2);

        let file = two.join("d1/sub 1/f5.txt");
        let changes: [&dyn Fn(); 6] = [
            &|| fs::write(two.join("d1/sub 1/f4.txt"), "other").unwrap(),
            &|| fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap(),
            &|| File::open(&file).unwrap().set_modified(UNIX_EPOCH).unwrap(),
            &|| fs::remove_file(two.join("d0/sub 0/symlink")).unwrap(),
            &|| fs::remove_file(two.join("d0/sub 0/hard link")).unwrap(),
            &|| fs::create_dir(two.join("more")).unwrap(),
        ];
        let mut last = Snapshot::take(&two).unwrap();
        for (number, change) in changes.iter().enumerate() {
            change();
            let now = Snapshot::take(&two).unwrap();
            assert!(last.compare(&now).is_err(), "change {number}");
            last = now;
        }
    }

    #[test]
    fn a_hard_link_is_not_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        for root in [&one, &two] {
            fs::create_dir(root).unwrap();
            fs::write(root.join("a"), "x").unwrap();
        }
        fs::hard_link(one.join("a"), one.join("b")).unwrap();
        fs::copy(two.join("a"), two.join("b")).unwrap();
        for path in [one.join("a"), two.join("a"), two.join("b"), one.clone(), two.clone()] {
            File::open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        let (one, two) = (Snapshot::take(&one).unwrap(), Snapshot::take(&two).unwrap());
        assert!(one.compare(&two).unwrap_err().to_string().starts_with("1 differences"));
    }
}
