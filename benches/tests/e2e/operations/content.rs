//! Checks of the content of files: writes, truncation, and the other operations that hold bytes or space.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use mafs_bench::content::{bytes, check_file, write_file};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{appender, errno, open};

pub(super) fn files_keep_what_was_written(dir: &Path) {
    for (number, length) in [0, 1, 4_095, 4_096, 4_097, 16_384, 16_385, 262_144, 3_000_001].into_iter().enumerate() {
        let path = dir.join(format!("f{number}"));
        write_file(&path, length, length).unwrap();
        check_file(&path, length, length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length);
        write_file(&path, length + 1, length / 2).unwrap();
        check_file(&path, length + 1, length / 2).unwrap();
    }
}

pub(super) fn writes_at_offsets(dir: &Path) {
    let file = open(&dir.join("f"), OpenOptions::new().read(true).write(true).create_new(true));
    file.write_all_at(b"world", 6).unwrap();
    file.write_all_at(b"hello ", 0).unwrap();
    let mut text = String::new();
    (&file).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello world");
    assert_eq!((&file).seek(SeekFrom::End(-5)).unwrap(), 6);
    file.write_all_at(b"W", 6).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"hello World");
    let only_write = open(&dir.join("f"), OpenOptions::new().write(true));
    assert_eq!((&only_write).read(&mut [0]).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

pub(super) fn append_from_two_descriptors(dir: &Path) {
    let path = dir.join("log");
    let (mut one, mut two) = (appender(&path), appender(&path));
    for number in 0..100 {
        writeln!(one, "one {number}").unwrap();
        writeln!(two, "two {number}").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    let wanted: String = (0..100).map(|number| format!("one {number}\ntwo {number}\n")).collect();
    assert_eq!(text, wanted);
}

pub(super) fn truncate_down_and_up(dir: &Path) {
    let path = dir.join("f");
    let file = open(&path, OpenOptions::new().read(true).write(true).create_new(true));
    file.write_all_at(&bytes(1, 10_000), 0).unwrap();
    file.set_len(5_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5_000);
    file.set_len(20_000).unwrap();
    drop(file);
    let mut wanted = bytes(1, 5_000);
    wanted.resize(20_000, 0);
    assert!(fs::read(&path).unwrap() == wanted);
}

pub(super) fn truncate_by_path(dir: &Path) {
    let path = dir.join("f");
    write_file(&path, 1, 100_000).unwrap();
    for length in [70_000, 0, 30_000] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length);
    }
    assert!(fs::read(&path).unwrap() == vec![0; 30_000]);
}

/// Checks that a running program is neither written nor cut, not even through an open only to read (pjdfstest,
/// open/20.t).
pub(super) fn programs_that_run(dir: &Path) {
    let path = dir.join("program");
    let size = fs::copy("/bin/sleep", &path).unwrap();
    let mut program = Command::new(&path).arg("60").spawn().unwrap();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC, OFlags::RDONLY | OFlags::TRUNC] {
        assert_eq!(rustix::fs::open(&path, flags, Mode::empty()).unwrap_err(), Errno::TXTBSY, "{flags:?}");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
    assert_eq!(program.try_wait().unwrap(), None, "it runs");
    program.kill().unwrap();
    program.wait().unwrap();
    write_file(&path, 1, 100).unwrap();
    check_file(&path, 1, 100).unwrap();
}

/// Checks that EFBIG comes beyond the largest file, and only there. Its size depends on the disk (16 TiB less a block
/// on ext4).
pub(super) fn sizes_beyond_the_limit(dir: &Path) {
    let path = dir.join("f");
    let file = open(&path, OpenOptions::new().read(true).write(true).create_new(true));
    file.write_all_at(b"kept", 0).unwrap();
    for size in [1 << 44, (1 << 44) + 1, 1 << 50, 1 << 62, i64::MAX as u64] {
        match file.set_len(size) {
            Ok(()) => file.set_len(4).unwrap(),
            Err(error) => assert_eq!(errno::<()>(Err(error)), Errno::FBIG, "size {size}"),
        }
        match file.write_at(b"x", size - 1) {
            Ok(_) => file.set_len(4).unwrap(),
            Err(error) => assert_eq!(errno::<()>(Err(error)), Errno::FBIG, "offset {}", size - 1),
        }
    }
    assert_eq!(file.metadata().unwrap().len(), 4);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}

pub(super) fn open_truncates(dir: &Path) {
    let path = dir.join("f");
    write_file(&path, 1, 100_000).unwrap();
    let reader = File::open(&path).unwrap();
    let writer = File::create(&path).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 0);
    assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
    writer.write_all_at(b"new", 0).unwrap();
    drop(writer);
    let mut text = String::new();
    (&reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
}

pub(super) fn sparse_files(dir: &Path) {
    let path = dir.join("sparse");
    let file = open(&path, OpenOptions::new().read(true).write(true).create_new(true));
    file.write_all_at(b"end", 50_000_000).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().len(), 50_000_003);
    let file = File::open(&path).unwrap();
    let mut piece = [1; 4_096];
    file.read_exact_at(&mut piece, 25_000_000).unwrap();
    assert_eq!(piece, [0; 4_096]);
    let mut end = [0; 3];
    file.read_exact_at(&mut end, 50_000_000).unwrap();
    assert_eq!(&end, b"end");
}

pub(super) fn unlinked_open_file(dir: &Path) {
    let path = dir.join("f");
    let file = open(&path, OpenOptions::new().read(true).write(true).create_new(true));
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    file.write_all_at(b" and after", 6).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    fs::write(&path, "another").unwrap();
    let mut text = String::new();
    (&file).read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and after");
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
}

pub(super) fn fifos_and_sockets(dir: &Path) {
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    let other = fifo.clone();
    let writer = std::thread::spawn(move || fs::write(other, "through").unwrap());
    assert_eq!(fs::read(&fifo).unwrap(), b"through");
    writer.join().unwrap();
    rustix::fs::mknodat(CWD, dir.join("socket"), FileType::Socket, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(fs::metadata(dir.join("socket")).unwrap().file_type().is_socket());
    fs::remove_file(&fifo).unwrap();
}

pub(super) fn free_space(dir: &Path) {
    let space = rustix::fs::statvfs(dir).unwrap();
    assert!(space.f_blocks > 0 && space.f_bavail <= space.f_bfree && space.f_bfree <= space.f_blocks);
    assert!(space.f_bsize >= 512 && space.f_namemax == 255);
}
