//! Checks of what `stat` shows: modes, owners, times, link counts.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mafs_bench::content::write_file;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::open;

pub(super) fn modes(dir: &Path) {
    let path = dir.join("f");
    open(&path, OpenOptions::new().write(true).create_new(true).mode(0o640));
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode() & !0o640, 0, "the umask only takes away");
    for bits in [0o600, 0o755, 0o4755, 0o1644, 0o000] {
        fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
        assert_eq!(mode(), bits);
    }
    fs::create_dir(dir.join("d")).unwrap();
    fs::set_permissions(dir.join("d"), Permissions::from_mode(0o1770)).unwrap();
    assert_eq!(fs::metadata(dir.join("d")).unwrap().permissions().mode() & 0o7777, 0o1770);
}

/// Checks that the owner can always give a file to themselves; only root can give it away.
pub(super) fn owners(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, "").unwrap();
    let (user, group) = (fs::metadata(dir).unwrap().uid(), fs::metadata(dir).unwrap().gid());
    chown(&path, Some(user), Some(group)).unwrap();
    let owner = |path: &Path| fs::metadata(path).map(|metadata| (metadata.uid(), metadata.gid())).unwrap();
    assert_eq!(owner(&path), (user, group));
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(1_234), Some(5_678)).unwrap();
        assert_eq!(owner(&path), (1_234, 5_678));
        chown(&path, None, Some(7)).unwrap();
        assert_eq!(owner(&path), (1_234, 7));
    }
}

pub(super) fn set_times(dir: &Path) {
    let path = dir.join("f");
    write_file(&path, 1, 5_000).unwrap();
    symlink("f", dir.join("link")).unwrap();
    let stamp = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    let both = |seconds, nanos| Timestamps { last_access: stamp(seconds, 1), last_modification: stamp(seconds, nanos) };
    for (seconds, nanos) in [(1_000_000_000, 123_456_789), (0, 0), (-1_000_000, 5), (4_000_000_000, 999_999_999)] {
        rustix::fs::utimensat(CWD, &path, &both(seconds, nanos), AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanos));
    }
    rustix::fs::utimensat(CWD, dir.join("link"), &both(77, 8), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(fs::symlink_metadata(dir.join("link")).unwrap().mtime(), 77);
    File::open(dir).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(88)).unwrap();
    assert_eq!(fs::metadata(dir).unwrap().mtime(), 88);
    let file = open(&path, OpenOptions::new().append(true));
    (&file).write_all(b"more").unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(99)).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 99, "close keeps a time that was set after the last write");
}

pub(super) fn changes_move_times(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, "x").unwrap();
    let past = SystemTime::now() - Duration::from_secs(1_000);
    let age = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let put_back = |path: &Path| File::open(path).unwrap().set_modified(past).unwrap();
    let recent = past + Duration::from_secs(900);
    put_back(&path);
    put_back(dir);
    open(&path, OpenOptions::new().append(true)).write_all(b"y").unwrap();
    assert!(age(&path) > recent, "a write moves the time of the file");
    assert!(age(dir) < recent, "a write does not move the time of the directory");
    fs::rename(&path, dir.join("g")).unwrap();
    assert!(age(dir) > recent, "a rename moves the time of the directory");
    put_back(&dir.join("g"));
    fs::set_permissions(dir.join("g"), Permissions::from_mode(0o600)).unwrap();
    let metadata = fs::metadata(dir.join("g")).unwrap();
    assert!(metadata.modified().unwrap() < recent && metadata.ctime() > metadata.mtime() + 900);
    fs::read(dir.join("g")).unwrap();
    assert!(age(&dir.join("g")) < recent, "a read moves no time");
}

pub(super) fn link_counts_of_directories(dir: &Path) {
    let links = || fs::metadata(dir).unwrap().nlink();
    assert_eq!(links(), 2);
    fs::create_dir(dir.join("one")).unwrap();
    fs::create_dir(dir.join("two")).unwrap();
    assert_eq!(links(), 4);
    fs::rename(dir.join("one"), dir.join("two/one")).unwrap();
    assert_eq!(links(), 3);
    fs::remove_dir(dir.join("two/one")).unwrap();
    fs::remove_dir(dir.join("two")).unwrap();
    assert_eq!(links(), 2);
}
