//! Node: an object as the index holds it: its status as clients see it, and the place of its content.

use bytes::Bytes;
use mafs_proto::{ContentHash, Fid, Kind, Object, Status, StoreId, SymlinkTarget, Wire};
use prost::Message;

use super::Refusal;

/// An object of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) status: Status,
    /// Target of a symlink.
    pub(crate) target: Option<SymlinkTarget>,
    /// Parent of a directory that is not the root.
    pub(crate) parent: Option<Fid>,
    /// Content of a file.
    pub(crate) content: Option<Content>,
    /// The record that made the present data version; for a directory, the record whose times it has.
    pub(crate) data_by: Option<StoreId>,
}

/// The content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    pub(crate) hash: ContentHash,
    pub(crate) place: Place,
    /// The object that its file is named after, if that is another: the content came for it.
    pub(crate) came_for: Option<Fid>,
}

/// Place of a content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The content is in the index, under the file's fid and data version; an empty one nowhere.
    Index,
    /// The content is in a file of its own.
    File(ContentSerial),
}

/// Number that tells the content files of one object apart: made in which start of the server, as which one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ContentSerial {
    /// Never 0.
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// Name of a content file. The name holds the object's fid, so that a file that nothing refers to is found without a
/// search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ContentId {
    pub(crate) fid: Fid,
    pub(crate) serial: ContentSerial,
}

impl Node {
    /// Returns the object as clients see it.
    pub(crate) fn object(&self, fid: Fid) -> Object {
        Object { fid, status: self.status, target: self.target.clone() }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.status.kind == Kind::Directory
    }

    /// Returns the bytes that this object counts for in the volume's used bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        match self.status.kind {
            Kind::File => self.status.size,
            Kind::Directory | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => 0,
        }
    }

    /// Returns the content file, if the content lies in one.
    pub(crate) fn content_file(&self, fid: Fid) -> Option<ContentId> {
        let Content { place, came_for, .. } = self.content?;
        match place {
            Place::Index => None,
            Place::File(serial) => Some(ContentId { fid: came_for.unwrap_or(fid), serial }),
        }
    }

    pub(crate) fn encode(&self, fid: Fid) -> Vec<u8> {
        let file = match self.content.map(|content| content.place) {
            Some(Place::File(serial)) => serial,
            Some(Place::Index) | None => ContentSerial { epoch: 0, number: 0 },
        };
        let message = NodeMessage {
            object: self.object(fid).encode(),
            parent: self.parent.map(|parent| Wire::encode(&parent)).unwrap_or_default(),
            data_by: self.data_by.map(|id| Wire::encode(&id)).unwrap_or_default(),
            hash: self.content.map(|content| Bytes::copy_from_slice(&content.hash.0)).unwrap_or_default(),
            file_epoch: file.epoch,
            file_number: file.number,
            came_for: self.content.and_then(|content| content.came_for).map(|fid| fid.encode()).unwrap_or_default(),
        };
        message.encode_to_vec()
    }

    pub(crate) fn decode(fid: Fid, bytes: Vec<u8>) -> Result<Self, Refusal> {
        let damaged = |why: &dyn std::fmt::Display| Refusal::damaged(&format!("object {fid}: {why}"));
        let message = NodeMessage::decode(Bytes::from(bytes)).map_err(|error| damaged(&error))?;
        let object = Object::decode(message.object).map_err(|error| damaged(&error))?;
        if object.fid != fid {
            return Err(damaged(&format_args!("is under the key of {}", object.fid)));
        }
        let content = match &message.hash[..] {
            [] => None,
            hash => {
                let hash = hash.try_into().map(ContentHash).map_err(|_| damaged(&"a hash of the wrong length"))?;
                let place = match message.file_epoch {
                    0 => Place::Index,
                    epoch => Place::File(ContentSerial { epoch, number: message.file_number }),
                };
                let came_for = optional(message.came_for).map_err(|error| damaged(&error))?;
                Some(Content { hash, place, came_for })
            }
        };
        Ok(Self {
            status: object.status,
            target: object.target,
            parent: optional(message.parent).map_err(|error| damaged(&error))?,
            content,
            data_by: optional(message.data_by).map_err(|error| damaged(&error))?,
        })
    }
}

fn optional<T: Wire>(bytes: Bytes) -> Result<Option<T>, mafs_proto::Malformed> {
    if bytes.is_empty() { Ok(None) } else { T::decode(bytes).map(Some) }
}

/// The nouns inside are in their wire form.
#[derive(Clone, PartialEq, Message)]
struct NodeMessage {
    #[prost(bytes = "bytes", tag = "1")]
    object: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    parent: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    data_by: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    hash: Bytes,
    #[prost(uint64, tag = "5")]
    file_epoch: u64,
    #[prost(uint64, tag = "6")]
    file_number: u64,
    #[prost(bytes = "bytes", tag = "7")]
    came_for: Bytes,
}
