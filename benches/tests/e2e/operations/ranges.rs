//! Checks of ranges: fallocate(2), holes, copy_file_range(2), offsets far out, and the flags of open(2) about data.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::content::bytes;
use mafs_bench::process::wait_until;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use super::open;

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE;
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

fn new_file(dir: &Path, name: &str) -> File {
    open(&dir.join(name), OpenOptions::new().read(true).write(true).create_new(true))
}

#[track_caller]
fn check_content(path: &Path, wanted: &[u8]) {
    assert!(fs::read(path).unwrap() == wanted, "{} differs", path.display());
}

pub(super) fn reserved_and_punched_ranges(dir: &Path) {
    let path = dir.join("f");
    let file = new_file(dir, "f");
    let mut wanted = bytes(1, 100_000);
    file.write_all_at(&wanted, 0).unwrap();
    let steps: [(FallocateFlags, u64, u64); 7] = [
        (FallocateFlags::empty(), 90_000, 30_000),
        (KEEP, 100_000, 1_000_000),
        (PUNCH | KEEP, 10_000, 20_000),
        (PUNCH | KEEP, 119_000, 50_000),
        (ZERO | KEEP, 40_000, 10_000),
        (ZERO | KEEP, 110_000, 100_000),
        (ZERO, 115_000, 20_000),
    ];
    for (mode, offset, length) in steps {
        fallocate(&file, mode, offset, length).unwrap();
        let (start, end) = (usize::try_from(offset).unwrap(), usize::try_from(offset + length).unwrap());
        if !mode.contains(KEEP) && end > wanted.len() {
            wanted.resize(end, 0);
        }
        if !mode.is_empty() && mode != KEEP {
            let end = end.min(wanted.len());
            wanted[start.min(end)..end].fill(0);
        }
        assert_eq!(file.metadata().unwrap().len(), wanted.len() as u64, "{mode:?}");
        check_content(&path, &wanted);
    }
    drop(file);
    check_content(&path, &wanted);
}

pub(super) fn fallocate_refusals(dir: &Path) {
    let path = dir.join("f");
    let file = new_file(dir, "f");
    file.write_all_at(&bytes(1, 8_192), 0).unwrap();
    let refused = |mode, offset, length| fallocate(&file, mode, offset, length).unwrap_err();
    assert_eq!(refused(FallocateFlags::empty(), 0, 0), Errno::INVAL);
    assert_eq!(refused(PUNCH, 0, 1), Errno::OPNOTSUPP);
    assert_eq!(refused(PUNCH | ZERO | KEEP, 0, 1), Errno::OPNOTSUPP);
    assert_eq!(refused(FallocateFlags::empty(), 1 << 62, 1 << 62), Errno::FBIG);
    assert_eq!(refused(FallocateFlags::empty(), i64::MAX.cast_unsigned() - 4_096, 4_096), Errno::FBIG);
    let reader = File::open(&path).unwrap();
    assert_eq!(fallocate(&reader, FallocateFlags::empty(), 0, 1).unwrap_err(), Errno::BADF);
    check_content(&path, &bytes(1, 8_192));
}

pub(super) fn fallocate_moves_times(dir: &Path) {
    let file = new_file(dir, "f");
    file.write_all_at(&bytes(1, 10_000), 0).unwrap();
    for mode in [FallocateFlags::empty(), KEEP, PUNCH | KEEP, ZERO | KEEP, ZERO] {
        let before = file.metadata().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fallocate(&file, mode, 0, 5_000).unwrap();
        let after = file.metadata().unwrap();
        let times = |of: &fs::Metadata| [(of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec())];
        assert!(times(&before)[0] < times(&after)[0] && times(&before)[1] < times(&after)[1], "{mode:?}");
    }
}

/// Checks that the limit of the process holds for everything that makes a file longer, and for nothing else.
pub(super) fn file_size_limit(dir: &Path) {
    const SCRIPT: &str = "
import errno, os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
other = os.open(sys.argv[1] + '.source', os.O_RDWR | os.O_CREAT)
os.pwrite(other, b'x' * 20000, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
def too_large(operation):
    try: operation()
    except OSError as error: assert error.errno == errno.EFBIG, error
    else: raise AssertionError('no EFBIG')
too_large(lambda: os.posix_fallocate(fd, 0, 16385))
too_large(lambda: os.ftruncate(fd, 16385))
too_large(lambda: os.truncate(sys.argv[1], 16385))
too_large(lambda: os.pwrite(fd, b'x', 16384))
too_large(lambda: os.copy_file_range(other, fd, 10, 0, 16384))
assert os.fstat(fd).st_size == 0, os.fstat(fd).st_size
os.posix_fallocate(fd, 0, 16384)
assert os.pwrite(fd, b'x' * 100, 16300) == 84
assert os.fstat(fd).st_size == 16384
";
    let status = Command::new("python3").args(["-c", SCRIPT]).arg(dir.join("f")).status().unwrap();
    assert!(status.success(), "see above");
}

pub(super) fn holes_are_found(dir: &Path) {
    const MB: u64 = 1 << 20;
    let file = new_file(dir, "f");
    let nothing = |file: &File, at| seek(file, at).unwrap_err();
    assert_eq!((nothing(&file, SeekFrom::Data(0)), nothing(&file, SeekFrom::Hole(0))), (Errno::NXIO, Errno::NXIO));
    file.set_len(64 * MB).unwrap();
    file.write_all_at(&bytes(1, 70_000), 16 * MB).unwrap();
    file.write_all_at(b"end", 64 * MB - 3).unwrap();
    let check = |file: &File| {
        assert_eq!(seek(file, SeekFrom::Data(0)).unwrap(), 16 * MB);
        assert_eq!(seek(file, SeekFrom::Hole(0)).unwrap(), 0);
        assert_eq!(seek(file, SeekFrom::Data(16 * MB + 5)).unwrap(), 16 * MB + 5);
        assert_eq!(seek(file, SeekFrom::Hole(16 * MB)).unwrap(), 16 * MB + 73_728);
        assert_eq!(seek(file, SeekFrom::Data(17 * MB)).unwrap(), 64 * MB - 4_096);
        assert_eq!(seek(file, SeekFrom::Hole(64 * MB - 1)).unwrap(), 64 * MB);
        assert_eq!(nothing(file, SeekFrom::Data(64 * MB)), Errno::NXIO);
        assert_eq!(nothing(file, SeekFrom::Hole(64 * MB)), Errno::NXIO);
    };
    drop(file);
    let file = File::open(dir.join("f")).unwrap();
    // All is data until the kernel has released what may be mapped, where it has no container.
    wait_until(Duration::from_secs(20), "holes are told of", || Ok(seek(&file, SeekFrom::Hole(0)).unwrap() == 0))
        .unwrap();
    check(&file);
}

pub(super) fn sparse_files_take_little_room(dir: &Path) {
    const GB: u64 = 1 << 30;
    let path = dir.join("f");
    let file = new_file(dir, "f");
    file.set_len(20 * GB).unwrap();
    file.write_all_at(&bytes(1, 1 << 20), 10 * GB).unwrap();
    drop(file);
    let room = fs::metadata(&path).unwrap().blocks() * 512;
    assert!((1 << 20..3 << 20).contains(&room), "{room} bytes");
    let copy = dir.join("copy");
    let status = Command::new("cp").arg("--sparse=always").args([&path, &copy]).status().unwrap();
    assert!(status.success());
    let mut middle = vec![0; 1 << 20];
    File::open(&copy).unwrap().read_exact_at(&mut middle, 10 * GB).unwrap();
    assert!(middle == bytes(1, 1 << 20));
    assert_eq!(fs::metadata(&copy).unwrap().len(), 20 * GB);
}

pub(super) fn copies_of_ranges(dir: &Path) {
    let source = new_file(dir, "source");
    let content = bytes(1, 5_000_000);
    source.write_all_at(&content, 0).unwrap();
    let target = new_file(dir, "target");
    target.write_all_at(&bytes(2, 10_000), 0).unwrap();
    let copy = |mut from, to: &File, mut at, mut length: usize| {
        let mut copied = 0;
        while length > 0 {
            match copy_file_range(&source, Some(&mut from), to, Some(&mut at), length).unwrap() {
                0 => break,
                some => (copied, length) = (copied + some, length - some),
            }
        }
        copied
    };
    assert_eq!(copy(1_000, &target, 5_000, 4_000_000), 4_000_000);
    assert_eq!(copy(4_999_990, &target, 0, 100), 10, "to the end of the source");
    assert_eq!(copy(5_000_000, &target, 0, 100), 0);
    let mut wanted = bytes(2, 5_000);
    wanted.extend_from_slice(&content[1_000..4_001_000]);
    wanted[..10].copy_from_slice(&content[4_999_990..]);
    check_content(&dir.join("target"), &wanted);
    assert_eq!(copy(0, &source, 5_000_000, 1_000), 1_000, "within one file");
    let within = |mut from, mut to, length| {
        copy_file_range(&source, Some(&mut from), &source, Some(&mut to), length).unwrap_err()
    };
    assert_eq!(within(0, 500, 1_000), Errno::INVAL, "overlapping");
    let appender = open(&dir.join("target"), OpenOptions::new().append(true));
    let refused = copy_file_range(&source, Some(&mut 0), &appender, Some(&mut 0), 10).unwrap_err();
    assert_eq!(refused, Errno::BADF);
    drop(source);
    let mut wanted = content.clone();
    wanted.extend_from_slice(&content[..1_000]);
    check_content(&dir.join("source"), &wanted);
}

pub(super) fn far_offsets(dir: &Path) {
    let path = dir.join("f");
    let file = new_file(dir, "f");
    for offset in [(1 << 31) - 2, (1 << 32) - 2, (1 << 40) - 2] {
        file.write_all_at(b"text", offset).unwrap();
        assert_eq!(file.metadata().unwrap().len(), offset + 4);
        let mut text = [0; 4];
        file.read_exact_at(&mut text, offset).unwrap();
        assert_eq!(&text, b"text");
    }
    let far = i64::MAX.cast_unsigned();
    assert_eq!(file.write_at(b"x", far - 1).unwrap_err().raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    assert_eq!(file.set_len(far).unwrap_err().raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    assert_eq!(file.read_at(&mut [0], far - 1).unwrap(), 0);
    file.set_len(4_096).unwrap();
    drop(file);
    check_content(&path, &[0; 4_096]);
}

/// Aligned requests have to do where a file system demands alignment; mafs takes any.
pub(super) fn direct_io(dir: &Path) {
    const SCRIPT: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
block = mmap.mmap(-1, 8192)
block[:] = b'ab' * 4096
assert os.pwritev(fd, [block], 4096) == 8192
other = os.open(sys.argv[1], os.O_RDONLY)
assert os.pread(other, 20000, 0) == bytes(4096) + b'ab' * 4096
back = mmap.mmap(-1, 8192)
assert os.preadv(fd, [back], 4096) == 8192 and back[:] == block[:]
buffered = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(buffered, b'new', 4096)
os.fsync(buffered)
assert os.preadv(fd, [back], 4096) == 8192 and back[:5] == b'newba'
";
    let status = Command::new("python3").args(["-c", SCRIPT]).arg(dir.join("f")).status().unwrap();
    assert!(status.success(), "see above");
}

/// ext4 has files without a name from the start and mafs has not: either is said clearly.
pub(super) fn nameless_files(dir: &Path) {
    let flags = i32::try_from(OFlags::TMPFILE.bits()).unwrap();
    match OpenOptions::new().write(true).custom_flags(flags).open(dir) {
        Ok(file) => assert_eq!(file.metadata().unwrap().nlink(), 0),
        Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::OPNOTSUPP.raw_os_error())),
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}
