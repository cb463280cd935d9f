//! The kernel's words and ours: numbers, names, attributes and flags, both ways. No decisions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fuser::{FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow};
use mafs_proto::{Kind, Object, RenameMode, Timestamp, VnodeId, XattrMode, XattrName};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

use crate::vfs::{Caller, Fallocate, FileHandle, OpenMode, Opened, SeekTarget, SetTime};

/// The value of `st_blksize`: the page size, the least the kernel reads and writes.
pub(super) const BLOCK_BYTES: u32 = 4096;

/// The size of one block of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The time the kernel may keep an answer that has nothing to keep.
pub(super) const NO_TIME: Duration = Duration::ZERO;

pub(super) fn vnode(inode: INodeNo) -> VnodeId {
    VnodeId(inode.0)
}

pub(super) fn name(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

pub(super) fn file(handle: fuser::FileHandle) -> FileHandle {
    FileHandle(handle.0)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::SpecificTime(time) => SetTime::To(time_set(time)),
        TimeOrNow::Now => SetTime::Now,
    }
}

/// Converts a time that a caller sets. fuser 0.18 subtracts the nanoseconds of times before 1970 instead of adding
/// them (a TODO in its time.rs), so here they are taken back out as they went in.
fn time_set(time: SystemTime) -> Timestamp {
    let Err(before) = time.duration_since(UNIX_EPOCH) else { return time.into() };
    let before = before.duration();
    let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
    Timestamp::new(-seconds, before.subsec_nanos()).unwrap_or_else(|| time.into())
}

/// Converts flags of rename; `None` for the whiteouts of overlay file systems and for flags not known here.
pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}

/// Converts flags of setxattr(2); `None` for flags that it does not know.
pub(super) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match XattrFlags::from_bits(flags.cast_unsigned())? {
        flags if flags.is_empty() => Some(XattrMode::Either),
        XattrFlags::CREATE => Some(XattrMode::Create),
        XattrFlags::REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// Lists names as listxattr(2) does: each with a NUL behind it.
pub(super) fn xattr_list(names: &[XattrName]) -> Vec<u8> {
    names.iter().flat_map(|name| [name.as_bytes(), b"\0"]).flatten().copied().collect()
}

/// A flag of the kernel's own (include/linux/fs.h), which no program can set.
const FMODE_EXEC: u32 = 0x20;

pub(super) fn open_mode(flags: OpenFlags) -> OpenMode {
    let given = OFlags::from_bits_retain(flags.0.cast_unsigned());
    let access = flags.acc_mode();
    OpenMode {
        read: access != OpenAccMode::O_WRONLY,
        write: access != OpenAccMode::O_RDONLY,
        truncate: given.contains(OFlags::TRUNC),
        append: given.contains(OFlags::APPEND),
        direct: given.contains(OFlags::DIRECT),
        execute: flags.0.cast_unsigned() & FMODE_EXEC != 0,
        exclusive: given.contains(OFlags::EXCL),
        again: false,
    }
}

/// Converts a mode of fallocate(2); `None` for modes that move bytes, which few file systems have.
pub(super) fn fallocate_mode(mode: i32) -> Option<Fallocate> {
    const KEEP_SIZE: FallocateFlags = FallocateFlags::KEEP_SIZE;
    let given = FallocateFlags::from_bits_retain(mode.cast_unsigned());
    if given.is_empty() {
        Some(Fallocate::Reserve)
    } else if given == KEEP_SIZE {
        Some(Fallocate::ReserveKeepingSize)
    } else if given == FallocateFlags::PUNCH_HOLE | KEEP_SIZE {
        Some(Fallocate::Punch)
    } else if given == FallocateFlags::ZERO_RANGE {
        Some(Fallocate::Zero)
    } else if given == FallocateFlags::ZERO_RANGE | KEEP_SIZE {
        Some(Fallocate::ZeroKeepingSize)
    } else {
        None
    }
}

/// Converts the target of lseek(2); the kernel moves to other places by itself.
pub(super) fn seek_target(whence: i32) -> Option<SeekTarget> {
    const SEEK_DATA: i32 = 3;
    const SEEK_HOLE: i32 = 4;
    match whence {
        SEEK_DATA => Some(SeekTarget::Data),
        SEEK_HOLE => Some(SeekTarget::Hole),
        _ => None,
    }
}

/// Converts the result of an open. `maps_direct`: the kernel maps files that it does not keep.
pub(super) fn open_answer(opened: Opened, maps_direct: bool) -> (fuser::FileHandle, FopenFlags) {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct && maps_direct);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.file.closes_unseen());
    (fuser::FileHandle(opened.file.0), flags)
}

/// Returns the kind of object that `mknod` with this mode makes; a mode without type makes a file. `None` for
/// directories, symlinks and unknown types.
pub(super) fn node_kind(mode: u32) -> Option<Kind> {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::CharDevice),
        FileType::BlockDevice => Some(Kind::BlockDevice),
        FileType::Symlink | FileType::Directory => None,
        FileType::Unknown => (mode & !0o7777 == 0).then_some(Kind::File),
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// Converts an object's attributes. `room`: how many bytes the content takes.
pub(super) fn attributes(object: &Object, room: u64) -> FileAttr {
    let status = &object.status;
    FileAttr {
        ino: INodeNo(object.fid.vnode.0),
        size: status.size,
        blocks: room.div_ceil(STAT_BLOCK_BYTES),
        atime: status.atime.into(),
        mtime: status.mtime.into(),
        ctime: status.ctime.into(),
        crtime: status.crtime.into(),
        kind: file_type(status.kind),
        perm: status.mode.bits(),
        nlink: status.nlink,
        uid: status.uid,
        gid: status.gid,
        // The kernel's encoding of device numbers has 32 bits; what came from it fits.
        rdev: u32::try_from(status.rdev).unwrap_or(0),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Makes the attributes of an entry of which only the type is known. With inode 0 the kernel looks nothing up by it.
pub(super) fn bare_attributes(inode: INodeNo, kind: FileType) -> FileAttr {
    let never: SystemTime = UNIX_EPOCH;
    FileAttr {
        ino: inode,
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(flags: OFlags) -> OpenMode {
        open_mode(OpenFlags(flags.bits().cast_signed()))
    }

    #[test]
    fn open_flags_keep_their_meaning() {
        assert_eq!(flags(OFlags::RDONLY), OpenMode { read: true, ..OpenMode::default() });
        assert_eq!(
            flags(OFlags::WRONLY | OFlags::TRUNC),
            OpenMode { write: true, truncate: true, ..OpenMode::default() }
        );
        assert_eq!(
            flags(OFlags::RDWR | OFlags::APPEND | OFlags::NONBLOCK),
            OpenMode { read: true, write: true, append: true, ..OpenMode::default() }
        );
    }

    #[test]
    fn times_before_1970_are_set_as_the_caller_meant_them() {
        let as_fuser_says_it = UNIX_EPOCH - Duration::new(1_000_000, 5);
        assert_eq!(Some(time_set(as_fuser_says_it)), Timestamp::new(-1_000_000, 5));
        assert_eq!(Some(time_set(UNIX_EPOCH + Duration::new(7, 5))), Timestamp::new(7, 5));
    }

    #[test]
    fn closes_are_told_but_of_who_reads_what_nobody_locks() {
        let opened = |mode, locked| {
            let file = FileHandle::new(3, flags(mode), locked);
            open_answer(Opened { file, keep_cache: false, direct: false, passthrough: false }, true).1
        };
        assert_eq!(opened(OFlags::RDONLY, false), FopenFlags::FOPEN_NOFLUSH);
        for (mode, locked) in
            [(OFlags::RDONLY, true), (OFlags::RDWR, false), (OFlags::WRONLY, false), (OFlags::TRUNC, false)]
        {
            assert_eq!(opened(mode, locked), FopenFlags::empty(), "{mode:?}");
        }
    }

    #[test]
    fn modes_of_fallocate_that_move_bytes_are_refused() {
        assert_eq!(fallocate_mode(0), Some(Fallocate::Reserve));
        assert_eq!(fallocate_mode(1), Some(Fallocate::ReserveKeepingSize));
        assert_eq!(fallocate_mode(1 | 2), Some(Fallocate::Punch));
        assert_eq!(fallocate_mode(16), Some(Fallocate::Zero));
        assert_eq!(fallocate_mode(16 | 1), Some(Fallocate::ZeroKeepingSize));
        for refused in [2, 8, 32, 64, 2 | 16, 1 | 8, i32::MIN] {
            assert_eq!(fallocate_mode(refused), None, "{refused}");
        }
    }

    #[test]
    fn rename_flags_that_are_not_known_are_refused() {
        assert_eq!(rename_mode(RenameFlags::empty()), Some(RenameMode::Replace));
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE), Some(RenameMode::NoReplace));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE), None);
    }

    #[test]
    fn mknod_makes_what_the_mode_says() {
        assert_eq!(node_kind(0o100_644), Some(Kind::File));
        assert_eq!(node_kind(0o644), Some(Kind::File));
        assert_eq!(node_kind(0o010_600), Some(Kind::Fifo));
        assert_eq!(node_kind(0o140_755), Some(Kind::Socket));
        assert_eq!(node_kind(0o020_600), Some(Kind::CharDevice));
        assert_eq!(node_kind(0o060_600), Some(Kind::BlockDevice));
        assert_eq!(node_kind(0o040_755), None);
        assert_eq!(node_kind(0o030_000), None);
    }
}
