//! Records of the index about objects, names and the volume, and how they are written. Formats are in docs/formats.md.

use bytes::Bytes;
use mafs_durable::RangeSet;
use mafs_proto::call::Mark;
use mafs_proto::{
    ChangeNumber, ContentHash, DataVersion, Fid, HistoryId, Kind, Name, Object, ServerId, StatusVersion, Uniquifier,
    VnodeId, VolumeId, Wire, Xattrs,
};

use crate::core::log::ContainerId;

const FORMAT: u8 = 2;

/// Entries of a directory that are in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CachedEntries {
    /// The version of the directory they belong to.
    pub(crate) version: DataVersion,
    /// Whether these are all; a name that is not there does not exist then.
    pub(crate) complete: bool,
}

/// A whole version of a file in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CachedContent {
    /// Version of the file.
    pub(crate) version: DataVersion,
    /// Container that holds it.
    pub(crate) container: ContainerId,
    /// Hash that it must have.
    pub(crate) hash: ContentHash,
    /// The run in which it was written, or last found to be intact.
    pub(crate) intact_in: RunId,
}

/// Part of a version of a file that is in a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CachedPart {
    /// Uniquifier of the object under the vnode.
    pub(crate) unique: Uniquifier,
    /// Version of the file.
    pub(crate) version: DataVersion,
    /// Container that holds it.
    pub(crate) container: ContainerId,
    /// Whether the part is durable.
    pub(crate) durable: bool,
    /// Bytes that are in the container.
    pub(crate) present: RangeSet,
}

impl CachedPart {
    /// Most ranges that are kept. Bytes in more are fetched again: somebody has read here and there.
    const RANGES_MAX: usize = 1000;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.durable)];
        out.extend(self.unique.0.to_le_bytes());
        out.extend(self.version.0.to_le_bytes());
        out.extend(self.container.0.to_le_bytes());
        for range in self.present.iter().take(Self::RANGES_MAX) {
            out.extend(range.start.to_le_bytes());
            out.extend(range.end.to_le_bytes());
        }
        out
    }

    /// Decodes bytes; `None` if they make no sense.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader(bytes);
        let durable = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (unique, version) = (Uniquifier(reader.u32()?), DataVersion(reader.u64()?));
        let container = ContainerId(reader.u64()?);
        let mut present = RangeSet::default();
        while !reader.0.is_empty() {
            present.insert(reader.u64()?..reader.u64()?);
        }
        Some(Self { unique, version, container, durable, present })
    }
}

/// Number that tells the runs of the client on one cache apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunId(pub(crate) u64);

/// Known state of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CachedObject {
    /// Fid, status, target.
    pub(crate) object: Object,
    /// Trust of the object: the status is current while the index has the same.
    pub(crate) trust: u64,
    /// The directory it is in, if known.
    pub(crate) parent: Option<VnodeId>,
    /// Name that it had there when it was seen last.
    pub(crate) name: Option<Name>,
    /// Entries of a directory.
    pub(crate) entries: Option<CachedEntries>,
    /// Content of a file, if that is here whole.
    pub(crate) content: Option<CachedContent>,
}

impl CachedObject {
    /// Makes an object as it was shown, without trust.
    pub(crate) fn shown(object: Object) -> Self {
        Self { object, trust: 0, parent: None, name: None, entries: None, content: None }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.push(FORMAT);
        out.extend(self.trust.to_le_bytes());
        out.extend(self.parent.map_or(0, |parent| parent.0).to_le_bytes());
        out.extend(self.entries.map_or(0, |entries| entries.version.0).to_le_bytes());
        let flags = u8::from(self.entries.is_some())
            | u8::from(self.entries.is_some_and(|entries| entries.complete)) << 1
            | u8::from(self.content.is_some()) << 2
            | u8::from(self.name.is_some()) << 3;
        out.push(flags);
        out.extend(self.content.map_or(0, |content| content.version.0).to_le_bytes());
        out.extend(self.content.map_or(0, |content| content.container.0).to_le_bytes());
        out.extend(self.content.map_or([0; 32], |content| content.hash.0));
        out.extend(self.content.map_or(0, |content| content.intact_in.0).to_le_bytes());
        if let Some(name) = &self.name {
            // No name is longer than 255 bytes.
            out.extend(u8::try_from(name.as_bytes().len()));
            out.extend(name.as_bytes());
        }
        out.extend(self.object.encode());
        out
    }

    /// Decodes bytes; `None` if they make no sense.
    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        let mut reader = Reader(Bytes::from(bytes));
        if reader.u8()? != FORMAT {
            return None;
        }
        let trust = reader.u64()?;
        let parent = Some(VnodeId(reader.u64()?)).filter(|parent| parent.0 != 0);
        let entries_version = DataVersion(reader.u64()?);
        let flags = reader.u8()?;
        let content = CachedContent {
            version: DataVersion(reader.u64()?),
            container: ContainerId(reader.u64()?),
            hash: ContentHash(reader.array()?),
            intact_in: RunId(reader.u64()?),
        };
        let name = if flags & 8 != 0 { Some(reader.name()?) } else { None };
        Some(Self {
            object: Object::decode(reader.0).ok()?,
            trust,
            parent,
            name,
            entries: (flags & 1 != 0).then_some(CachedEntries { version: entries_version, complete: flags & 2 != 0 }),
            content: (flags & 4 != 0).then_some(content),
        })
    }
}

/// Meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CachedEntry {
    /// The object.
    pub(crate) fid: Fid,
    /// Its type.
    pub(crate) kind: Kind,
}

impl CachedEntry {
    pub(crate) fn of(object: &Object) -> Self {
        Self { fid: object.fid, kind: object.status.kind }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        out.push(kind_number(self.kind));
        out.extend(self.fid.volume.0.to_le_bytes());
        out.extend(self.fid.vnode.0.to_le_bytes());
        out.extend(self.fid.unique.0.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        let mut reader = Reader(Bytes::from(bytes));
        let kind = kind_from_number(reader.u8()?)?;
        let fid =
            Fid { volume: VolumeId(reader.u32()?), vnode: VnodeId(reader.u64()?), unique: Uniquifier(reader.u32()?) };
        Some(Self { fid, kind })
    }
}

/// All extended attributes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CachedXattrs {
    /// Version of the attributes: they are current while the object's status names it.
    pub(crate) version: StatusVersion,
    /// Uniquifier of the object under the vnode.
    pub(crate) unique: Uniquifier,
    /// Names and values.
    pub(crate) xattrs: Xattrs,
}

impl CachedXattrs {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = self.version.0.to_le_bytes().to_vec();
        out.extend(self.unique.0.to_le_bytes());
        out.extend(self.xattrs.encode());
        out
    }

    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        let mut reader = Reader(Bytes::from(bytes));
        let (version, unique) = (StatusVersion(reader.u64()?), Uniquifier(reader.u32()?));
        Some(Self { version, unique, xattrs: Xattrs::decode(reader.0).ok()? })
    }
}

/// Known state of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownVolume {
    /// Server that has the volume.
    pub(crate) server: ServerId,
    /// History of the volume.
    pub(crate) history: HistoryId,
    /// Mark up to which this client has heard of everything that it was promised to.
    pub(crate) mark: Option<Mark>,
    /// Trust of the index: rises whenever changes may have been missed, so that every older status must be validated.
    pub(crate) trust: u64,
}

impl KnownVolume {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = self.server.0.to_vec();
        out.extend(self.history.0.to_le_bytes());
        out.extend(self.mark.map_or(0, |mark| mark.change.0).to_le_bytes());
        out.extend(self.trust.to_le_bytes());
        out.extend(self.mark.map_or(0, |mark| mark.tag).to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        let mut reader = Reader(Bytes::from(bytes));
        let server = ServerId(reader.array()?);
        let (history, change, trust) = (HistoryId(reader.u64()?), ChangeNumber(reader.u64()?), reader.u64()?);
        // Versions of the client that knew no marks wrote no tag.
        let tag = reader.u64().filter(|_| change.0 > 0);
        Some(Self { server, history, mark: tag.map(|tag| Mark { change, tag }), trust })
    }
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];

/// Returns the kind with this number.
pub(super) fn kind_from_number(number: u8) -> Option<Kind> {
    KINDS.get(usize::from(number)).copied()
}

pub(super) fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::File => 0,
        Kind::Directory => 1,
        Kind::Symlink => 2,
        Kind::Fifo => 3,
        Kind::Socket => 4,
        Kind::CharDevice => 5,
        Kind::BlockDevice => 6,
    }
}

/// Takes numbers off the front of hostile bytes.
struct Reader(Bytes);

impl Reader {
    fn take(&mut self, count: usize) -> Option<Bytes> {
        (self.0.len() >= count).then(|| self.0.split_to(count))
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|one| one[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Option<Name> {
        let bytes = usize::from(self.u8()?);
        Name::new(self.take(bytes)?).ok()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?[..].try_into().ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mafs_proto::{Mode, Status, Timestamp, XattrMode, XattrName, XattrValue};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Returns a directory of which everything is known.
    pub(crate) fn example() -> CachedObject {
        let time = Timestamp::default();
        let status = Status {
            kind: Kind::Directory,
            mode: Mode::from_bits(0o755),
            nlink: 2,
            uid: 3,
            gid: 4,
            size: 5,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            data_version: DataVersion(6),
            status_version: StatusVersion(7),
            xattrs: Some(StatusVersion(6)),
        };
        CachedObject {
            object: Object { fid: Fid::root(VolumeId(9)), status, target: None },
            trust: 8,
            parent: Some(VnodeId(1)),
            name: Name::new(&b"name"[..]).ok(),
            entries: Some(CachedEntries { version: DataVersion(6), complete: true }),
            content: Some(CachedContent {
                version: DataVersion(6),
                container: ContainerId(9),
                hash: ContentHash([10; 32]),
                intact_in: RunId(11),
            }),
        }
    }

    #[test]
    fn what_is_known_of_a_volume_round_trips_and_is_read_as_earlier_versions_wrote_it() {
        let mark = Some(Mark { change: ChangeNumber(5), tag: 6 });
        let known = KnownVolume { server: ServerId([1; 16]), history: HistoryId(2), mark, trust: 3 };
        assert_eq!(KnownVolume::decode(known.encode()), Some(known));
        let unmarked = KnownVolume { mark: None, ..known };
        assert_eq!(KnownVolume::decode(unmarked.encode()), Some(unmarked));
        let mut before = known.encode();
        before.truncate(before.len() - 8);
        assert_eq!(KnownVolume::decode(before), Some(unmarked));
    }

    #[test]
    fn records_round_trip() {
        let record = example();
        assert_eq!(CachedObject::decode(record.encode()), Some(record.clone()));
        let entry = CachedEntry::of(&record.object);
        assert_eq!(CachedEntry::decode(entry.encode()), Some(entry));
        let mut xattrs = Xattrs::default();
        let name = XattrName::new(&b"user.a"[..]).unwrap();
        xattrs.set(name, XattrValue::new(vec![7; 300]).unwrap(), XattrMode::Either).unwrap();
        let xattrs = CachedXattrs { version: StatusVersion(7), unique: Uniquifier(2), xattrs };
        assert_eq!(CachedXattrs::decode(xattrs.encode()), Some(xattrs));
        let mut present = RangeSet::default();
        [5..7, 100..u64::MAX].into_iter().for_each(|range| present.insert(range));
        for durable in [false, true] {
            let (unique, version, container) = (Uniquifier(1), DataVersion(2), ContainerId(3));
            let part = CachedPart { unique, version, container, durable, present: present.clone() };
            assert_eq!(CachedPart::decode(part.encode().into()), Some(part));
        }
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(usize::from(kind_number(kind)), number);
        }
    }

    proptest! {
        #[test]
        fn proptest_invariant_10_arbitrary_index_records_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = CachedObject::decode(bytes.clone());
            let _ = CachedEntry::decode(bytes.clone());
            let _ = CachedXattrs::decode(bytes.clone());
            let _ = CachedPart::decode(bytes.clone().into());
            let _ = KnownVolume::decode(bytes);
        }
    }
}
