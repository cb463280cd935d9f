//! Fids, ids, times, statuses, objects.

use bytes::Bytes;

use super::{Convert, Malformed, optional, required, wire};
use crate::{
    ClientId, ContentHash, DataVersion, Entry, FILE_SIZE_MAX, Fid, FidRange, Incarnation, Kind, Mode, Name, Object,
    Status, StatusVersion, StoreId, SymlinkTarget, Timestamp, Uniquifier, VnodeId, VolumeId,
};

pub(super) fn name(bytes: Bytes) -> Result<Name, Malformed> {
    Name::new(bytes).map_err(|error| Malformed::invalid("name", error))
}

pub(super) fn target(bytes: Bytes) -> Result<SymlinkTarget, Malformed> {
    SymlinkTarget::new(bytes).map_err(|error| Malformed::invalid("target", error))
}

pub(super) fn mode(bits: u32) -> Result<Mode, Malformed> {
    Mode::parse(bits).ok_or_else(|| Malformed::invalid("mode", format_args!("{bits:o} is above 7777")))
}

pub(super) fn size(bytes: u64) -> Result<u64, Malformed> {
    if bytes <= FILE_SIZE_MAX {
        Ok(bytes)
    } else {
        Err(Malformed::invalid("size", format_args!("{bytes} is above 2^63-1")))
    }
}

pub(super) fn id16(bytes: &[u8], field: &'static str) -> Result<[u8; 16], Malformed> {
    bytes.try_into().map_err(|_| Malformed::invalid(field, format_args!("{} bytes instead of 16", bytes.len())))
}

pub(super) fn content_hash(bytes: &[u8]) -> Result<ContentHash, Malformed> {
    let hash = bytes.try_into();
    hash.map(ContentHash).map_err(|_| Malformed::invalid("hash", format_args!("{} bytes instead of 32", bytes.len())))
}

pub(super) fn kind(number: i32) -> Result<Kind, Malformed> {
    match wire::Kind::try_from(number) {
        Ok(wire::Kind::File) => Ok(Kind::File),
        Ok(wire::Kind::Directory) => Ok(Kind::Directory),
        Ok(wire::Kind::Symlink) => Ok(Kind::Symlink),
        Ok(wire::Kind::Fifo) => Ok(Kind::Fifo),
        Ok(wire::Kind::Socket) => Ok(Kind::Socket),
        Ok(wire::Kind::CharDevice) => Ok(Kind::CharDevice),
        Ok(wire::Kind::BlockDevice) => Ok(Kind::BlockDevice),
        Ok(wire::Kind::Unspecified) | Err(_) => Err(Malformed::invalid("kind", number)),
    }
}

pub(super) fn kind_number(kind: Kind) -> i32 {
    let message = match kind {
        Kind::File => wire::Kind::File,
        Kind::Directory => wire::Kind::Directory,
        Kind::Symlink => wire::Kind::Symlink,
        Kind::Fifo => wire::Kind::Fifo,
        Kind::Socket => wire::Kind::Socket,
        Kind::CharDevice => wire::Kind::CharDevice,
        Kind::BlockDevice => wire::Kind::BlockDevice,
    };
    message.into()
}

impl Convert for Fid {
    type Message = wire::Fid;
    const NAME: &'static str = "Fid";

    fn to_message(&self) -> wire::Fid {
        wire::Fid { volume: self.volume.0, vnode: self.vnode.0, unique: self.unique.0 }
    }

    fn from_message(message: wire::Fid) -> Result<Self, Malformed> {
        if message.vnode == 0 {
            return Err(Malformed::invalid("vnode", "0 is no vnode"));
        }
        Ok(Self { volume: VolumeId(message.volume), vnode: VnodeId(message.vnode), unique: Uniquifier(message.unique) })
    }
}

impl Convert for FidRange {
    type Message = wire::FidRange;
    const NAME: &'static str = "FidRange";

    fn to_message(&self) -> wire::FidRange {
        wire::FidRange { first: Some(self.first().to_message()), count: self.count() }
    }

    fn from_message(message: wire::FidRange) -> Result<Self, Malformed> {
        Self::new(required(message.first, "first")?, message.count)
            .ok_or_else(|| Malformed::invalid("count", "beyond the last vnode"))
    }
}

impl Convert for StoreId {
    type Message = wire::StoreId;
    const NAME: &'static str = "StoreId";

    fn to_message(&self) -> wire::StoreId {
        wire::StoreId { client: Bytes::copy_from_slice(&self.client.0), incarnation: self.incarnation.0, seq: self.seq }
    }

    fn from_message(message: wire::StoreId) -> Result<Self, Malformed> {
        Ok(Self {
            client: ClientId(id16(&message.client, "client")?),
            incarnation: Incarnation(message.incarnation),
            seq: message.seq,
        })
    }
}

impl Convert for Timestamp {
    type Message = wire::Timestamp;
    const NAME: &'static str = "Timestamp";

    fn to_message(&self) -> wire::Timestamp {
        wire::Timestamp { seconds: self.seconds(), nanos: self.nanos() }
    }

    fn from_message(message: wire::Timestamp) -> Result<Self, Malformed> {
        Self::new(message.seconds, message.nanos).ok_or_else(|| Malformed::invalid("nanos", message.nanos))
    }
}

impl Convert for Status {
    type Message = wire::Status;
    const NAME: &'static str = "Status";

    fn to_message(&self) -> wire::Status {
        wire::Status {
            kind: kind_number(self.kind),
            mode: u32::from(self.mode.bits()),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            rdev: self.rdev,
            atime: Some(self.atime.to_message()),
            mtime: Some(self.mtime.to_message()),
            ctime: Some(self.ctime.to_message()),
            crtime: Some(self.crtime.to_message()),
            data_version: self.data_version.0,
            status_version: self.status_version.0,
            xattr_version: self.xattrs.map_or(0, |version| version.0),
        }
    }

    fn from_message(message: wire::Status) -> Result<Self, Malformed> {
        Ok(Self {
            kind: kind(message.kind)?,
            mode: mode(message.mode)?,
            nlink: message.nlink,
            uid: message.uid,
            gid: message.gid,
            size: size(message.size)?,
            rdev: message.rdev,
            atime: required(message.atime, "atime")?,
            mtime: required(message.mtime, "mtime")?,
            ctime: required(message.ctime, "ctime")?,
            crtime: required(message.crtime, "crtime")?,
            data_version: DataVersion(message.data_version),
            status_version: StatusVersion(message.status_version),
            xattrs: (message.xattr_version != 0).then_some(StatusVersion(message.xattr_version)),
        })
    }
}

impl Convert for Object {
    type Message = wire::Object;
    const NAME: &'static str = "Object";

    fn to_message(&self) -> wire::Object {
        wire::Object {
            fid: Some(self.fid.to_message()),
            status: Some(self.status.to_message()),
            target: self.target.as_ref().map(SymlinkTarget::to_bytes).unwrap_or_default(),
        }
    }

    fn from_message(message: wire::Object) -> Result<Self, Malformed> {
        let status: Status = required(message.status, "status")?;
        let target = match status.kind {
            Kind::Symlink => Some(target(message.target)?),
            Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                if !message.target.is_empty() {
                    return Err(Malformed::invalid("target", "only symlinks have one"));
                }
                None
            }
        };
        Ok(Self { fid: required(message.fid, "fid")?, status, target })
    }
}

impl Convert for Entry {
    type Message = wire::Entry;
    const NAME: &'static str = "Entry";

    fn to_message(&self) -> wire::Entry {
        wire::Entry { name: self.name.to_bytes(), object: Some(self.object.to_message()) }
    }

    fn from_message(message: wire::Entry) -> Result<Self, Malformed> {
        Ok(Self { name: name(message.name)?, object: required(message.object, "object")? })
    }
}

/// Parses an object that may be absent, where absence has a meaning.
pub(super) fn optional_object(message: Option<wire::Object>) -> Result<Option<Object>, Malformed> {
    optional(message)
}
