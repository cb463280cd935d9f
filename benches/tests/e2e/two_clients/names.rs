//! Names and attributes: `ls` and `stat` show what one client has changed on the other, through every name, at once.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use mafs_bench::tree::Snapshot;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::{Mounts, on_two_clients};

/// Rounds of which one is run: a step takes as long as ten opens.
const ROUNDS_SHARE: u32 = 10;

/// A change that one client makes in a directory, and the check of what the other must find then.
type Step = (&'static str, fn(&Path) -> io::Result<()>, fn(&Path) -> io::Result<bool>);

/// The steps. Each stands on those before it; at the end the directory is empty again.
const STEPS: [Step; 18] = [
    ("create", |d| fs::write(d.join("a"), "1"), |d| Ok(names(d)? == ["a"] && size(&d.join("a"))? == 1)),
    ("append", |d| append(&d.join("a"), "23"), |d| Ok(size(&d.join("a"))? == 3)),
    ("chmod", |d| chmod(&d.join("a"), 0o640), |d| Ok(mode(&d.join("a"))? == 0o640)),
    (
        "set times",
        |d| fs::File::open(d.join("a"))?.set_modified(UNIX_EPOCH + AGE),
        |d| Ok(fs::metadata(d.join("a"))?.modified()? == UNIX_EPOCH + AGE),
    ),
    (
        "set an attribute",
        |d| Ok(setxattr(d.join("a"), "user.mafs", b"value", XattrFlags::empty())?),
        |d| {
            let mut value = [0; 16];
            Ok(getxattr(d.join("a"), "user.mafs", &mut value).map(|length| &value[..length] == b"value")?)
        },
    ),
    (
        "link",
        |d| fs::hard_link(d.join("a"), d.join("b")),
        |d| Ok(links(&d.join("a"))? == 2 && links(&d.join("b"))? == 2),
    ),
    (
        "write by the other name",
        |d| fs::write(d.join("b"), "12345"),
        |d| Ok(size(&d.join("a"))? == 5 && fs::read(d.join("a"))? == b"12345"),
    ),
    ("chmod by the other name", |d| chmod(&d.join("b"), 0o600), |d| Ok(mode(&d.join("a"))? == 0o600)),
    ("truncate", |d| OpenOptions::new().write(true).open(d.join("a"))?.set_len(2), |d| Ok(size(&d.join("b"))? == 2)),
    (
        "rename",
        |d| fs::rename(d.join("a"), d.join("c")),
        |d| Ok(names(d)? == ["b", "c"] && is_absent(&d.join("a")) && size(&d.join("c"))? == 2),
    ),
    (
        "remove one of two names",
        |d| fs::remove_file(d.join("b")),
        |d| Ok(names(d)? == ["c"] && is_absent(&d.join("b")) && links(&d.join("c"))? == 1),
    ),
    ("symlink", |d| symlink("c", d.join("a")), |d| Ok(fs::read_link(d.join("a"))? == Path::new("c"))),
    (
        "rename over",
        |d| fs::rename(d.join("c"), d.join("a")),
        |d| Ok(names(d)? == ["a"] && size(&d.join("a"))? == 2 && is_absent(&d.join("c"))),
    ),
    ("mkdir", |d| fs::create_dir(d.join("c")), |d| Ok(names(&d.join("c"))?.is_empty() && links(d)? == 3)),
    (
        "move into a directory",
        |d| fs::rename(d.join("a"), d.join("c/a")),
        |d| Ok(names(d)? == ["c"] && names(&d.join("c"))? == ["a"] && is_absent(&d.join("a"))),
    ),
    (
        "move a directory",
        |d| fs::rename(d.join("c"), d.join("b")),
        |d| Ok(is_absent(&d.join("c/a")) && size(&d.join("b/a"))? == 2),
    ),
    (
        "remove",
        |d| fs::remove_file(d.join("b/a")),
        |d| Ok(names(&d.join("b"))?.is_empty() && is_absent(&d.join("b/a"))),
    ),
    (
        "rmdir",
        |d| fs::remove_dir(d.join("b")),
        |d| Ok(names(d)?.is_empty() && is_absent(&d.join("b")) && links(d)? == 2),
    ),
];

const AGE: Duration = Duration::new(1_234_567_890, 123_456_789);

/// Every name that there is at some time.
const NAMES: [&str; 6] = ["a", "b", "c", "c/a", "b/a", "none"];

#[test]
#[ignore = "needs: fuse"]
fn what_one_client_changes_ls_and_stat_show_on_the_other_at_once() {
    on_two_clients(at_once);
}

pub(super) fn at_once(mounts: &Mounts) {
    let directories = mounts.below("directory");
    for round in 0..mounts.rounds.div_ceil(ROUNDS_SHARE) {
        let [writer, reader] = directories.writer_and_reader(round);
        for (name, change, is_seen) in STEPS {
            look_at_all(&writer).unwrap();
            look_at_all(&reader).unwrap();
            change(&writer).unwrap_or_else(|error| panic!("{name}, round {round}: {error}"));
            let seen = is_seen(&reader);
            let listing = || names(&reader).map(|names| (names, is_seen(&reader).ok()));
            assert!(matches!(seen, Ok(true)), "{name}, round {round}: {seen:?}; when asked again {:?}", listing());
            let there = Snapshot::take(&writer).unwrap();
            let here = Snapshot::take(&reader).unwrap();
            here.compare(&there).unwrap_or_else(|error| panic!("after {name}, round {round}: {error}"));
        }
    }
}

/// Looks at all names, so that they, their absence and the listing are remembered.
fn look_at_all(directory: &Path) -> io::Result<()> {
    for name in NAMES {
        let _ = fs::symlink_metadata(directory.join(name));
    }
    names(directory).map(|_| ())
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = entries.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn size(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.len())
}

fn links(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.nlink())
}

fn mode(path: &Path) -> io::Result<u32> {
    Ok(fs::symlink_metadata(path)?.mode() & 0o7777)
}

fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())
}
