//! Checks of names: directories, links, renames, and what they refuse.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::{errno, names_in, open};

pub(super) fn rename_over_an_open_file(dir: &Path) {
    let (old, new) = (dir.join("f"), dir.join("f.new"));
    fs::write(&old, "old").unwrap();
    fs::write(&new, "new").unwrap();
    let mut reader = File::open(&old).unwrap();
    fs::rename(&new, &old).unwrap();
    assert_eq!(fs::read(&old).unwrap(), b"new");
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(names_in(dir), ["f"]);
}

pub(super) fn rename_rules(dir: &Path) {
    let (file, empty, full) = (dir.join("file"), dir.join("empty"), dir.join("full"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&empty).unwrap();
    fs::create_dir_all(full.join("inner")).unwrap();
    assert_eq!(errno(fs::rename(&file, &empty)), Errno::ISDIR);
    assert_eq!(errno(fs::rename(&empty, &file)), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(&empty, &full)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::rename(&full, full.join("inner/below"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(dir.join("none"), &file)), Errno::NOENT);
    fs::hard_link(&file, dir.join("link")).unwrap();
    fs::rename(&file, dir.join("link")).unwrap();
    assert!(file.exists(), "renaming one link over another of the same file does nothing");
    fs::rename(&full, &empty).unwrap();
    assert_eq!(names_in(dir), ["empty", "file", "link"]);
    assert_eq!(names_in(&empty), ["inner"]);
}

pub(super) fn rename_flags(dir: &Path) {
    let (one, two) = (dir.join("one"), dir.join("two"));
    fs::write(&one, "1").unwrap();
    fs::write(&two, "2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"2".to_vec(), b"1".to_vec()));
    fs::remove_file(&two).unwrap();
    rename(RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::read(&two).unwrap(), b"2");
}

pub(super) fn directories_move(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::create_dir(dir.join("z")).unwrap();
    fs::write(dir.join("a/b/c/f"), "deep").unwrap();
    let file = open(&dir.join("a/b/c/f"), OpenOptions::new().append(true));
    fs::rename(dir.join("a/b"), dir.join("z/moved")).unwrap();
    (&file).write_all(b"er").unwrap();
    drop(file);
    assert_eq!(fs::read(dir.join("z/moved/c/f")).unwrap(), b"deeper");
    assert_eq!(fs::read(dir.join("z/moved/../moved/c/../c/f")).unwrap(), b"deeper");
    assert!(names_in(&dir.join("a")).is_empty());
}

pub(super) fn hard_links(dir: &Path) {
    let (one, two) = (dir.join("one"), dir.join("two"));
    fs::write(&one, "first").unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::hard_link(&one, &two).unwrap();
    fs::hard_link(&one, dir.join("sub/three")).unwrap();
    let (a, b) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 3));
    fs::write(&two, "second").unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"second");
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::metadata(&two).unwrap().nlink(), 2);
    assert_eq!(fs::read(dir.join("sub/three")).unwrap(), b"second");
    assert_eq!(errno(fs::hard_link(&two, dir.join("sub/three"))), Errno::EXIST);
    assert_eq!(errno(fs::hard_link(dir.join("sub"), dir.join("directory"))), Errno::PERM);
}

pub(super) fn symlinks(dir: &Path) {
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/f"), "target").unwrap();
    symlink("sub/f", dir.join("relative")).unwrap();
    symlink(dir.join("sub"), dir.join("absolute")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    let long = "x".repeat(4_000);
    symlink(&long, dir.join("long")).unwrap();
    assert_eq!(fs::read(dir.join("relative")).unwrap(), b"target");
    assert_eq!(fs::read(dir.join("absolute/f")).unwrap(), b"target");
    assert_eq!(fs::read_link(dir.join("long")).unwrap().to_str(), Some(&long[..]));
    assert_eq!(fs::read(dir.join("dangling")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::symlink_metadata(dir.join("dangling")).unwrap().len(), 7);
    fs::remove_file(dir.join("relative")).unwrap();
    assert!(dir.join("sub/f").exists());
}

pub(super) fn exclusive_create(dir: &Path) {
    let path = dir.join("f");
    let create = || OpenOptions::new().write(true).create_new(true).open(&path);
    create().unwrap();
    assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::remove_file(&path).unwrap();
    symlink("nowhere", &path).unwrap();
    assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::create_dir(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

pub(super) fn names(dir: &Path) {
    let longest = [b'n'; 255];
    let all: [&[u8]; 7] = [b"no utf8 \xff\xfe", b" ", b"a\nb", b"...", b"-rf", "\u{e4}\u{1f600}".as_bytes(), &longest];
    for name in all {
        fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let found: BTreeSet<Vec<u8>> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(found, all.iter().map(|name| name.to_vec()).collect());
    for name in all {
        assert_eq!(fs::read(dir.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    assert_eq!(errno(fs::write(dir.join("n".repeat(256)), "")), Errno::NAMETOOLONG);
    assert_eq!(fs::metadata(dir.join("NO")).unwrap_err().kind(), ErrorKind::NotFound);
}

pub(super) fn large_directories(dir: &Path) {
    let wanted: BTreeSet<String> = (0..5_000).map(|number| format!("a rather long name of a file {number}")).collect();
    for name in &wanted {
        File::create(dir.join(name)).unwrap();
    }
    for _ in 0..2 {
        let found = names_in(dir);
        assert_eq!(found.len(), wanted.len());
        assert!(found.iter().eq(&wanted));
    }
    fs::remove_dir_all(dir).unwrap();
    assert!(!dir.exists());
}

pub(super) fn removal_while_reading(dir: &Path) {
    for number in 0..1_000 {
        File::create(dir.join(format!("f{number}"))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        assert!(seen.insert(entry.file_name()), "{:?} twice", entry.file_name());
        fs::remove_file(entry.path()).unwrap();
    }
    assert_eq!(seen.len(), 1_000);
    assert!(names_in(dir).is_empty());
}

/// The directory has more names than one getdents(2) of the C library takes, so that a reader stops half way; and so
/// many remain that its place lies within what others read then.
pub(super) fn readers_of_a_directory_that_changes(dir: &Path) {
    let all: BTreeSet<String> = (0..3_000).map(|number| format!("name {number:04}")).collect();
    for name in &all {
        File::create(dir.join(name)).unwrap();
    }
    for _ in 0..3 {
        assert!(names_in(dir).iter().eq(&all));
    }
    let names = |entries: fs::ReadDir| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut half_way = names(fs::read_dir(dir).unwrap());
    let first = half_way.next().unwrap();
    let (removed, kept): (Vec<_>, Vec<_>) = all.iter().partition(|name| name.as_str() < "name 1000");
    for name in removed {
        fs::remove_file(dir.join(name)).unwrap();
    }
    fs::write(dir.join("new"), "").unwrap();
    let new = "new".to_owned();
    let now: BTreeSet<&String> = kept.iter().copied().chain([&new]).collect();
    for _ in 0..3 {
        assert!(names_in(dir).iter().eq(now.iter().copied()), "who begins now sees what is there now");
    }
    let mut seen: Vec<String> = [first].into_iter().chain(half_way).collect();
    seen.sort();
    let distinct: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(seen.len(), distinct.len(), "some came twice");
    assert!(kept.iter().all(|name| distinct.contains(*name)), "what was there all the time is missing");
}

pub(super) fn directory_errors(dir: &Path) {
    fs::create_dir_all(dir.join("full/inner")).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    assert_eq!(errno(fs::remove_dir(dir.join("full"))), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_dir(dir.join("file"))), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(dir.join("full"))), Errno::ISDIR);
    assert_eq!(errno(fs::create_dir(dir.join("file/below"))), Errno::NOTDIR);
    assert_eq!(errno(fs::create_dir(dir.join("none/below"))), Errno::NOENT);
    assert_eq!(errno(File::create(dir.join("full"))), Errno::ISDIR);
    assert_eq!(errno(fs::read(dir.join("full"))), Errno::ISDIR);
}
