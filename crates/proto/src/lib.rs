//! The nouns of mafs and their wire form.
//!
//! Domain types here can only hold valid values: they are built by parsing constructors, and every message from a peer,
//! a log or an index goes through [`Wire::decode`] before anything else looks at it. The prost messages behind them
//! stay private to `convert`, so no other crate can use an unparsed one.
//!
//! Knows nothing of transports, storage or clocks.

pub mod call;
mod class;
mod conflict;
mod convert;
mod error;
mod fid;
mod hash;
mod identity;
mod lock;
mod name;
mod op;
mod random;
mod segments;
mod size;
mod status;
mod time;
mod version;
mod xattr;

pub use call::{Call, Method};
pub use class::{Class, Classes, Purpose};
pub use conflict::{Conflict, ConflictKind, OnConflict, Origin, Outcome, PlacedName, Removals};
pub use convert::{Malformed, Wire};
pub use error::FsError;
pub use fid::{Fid, FidRange, Uniquifier, VnodeId, VolumeId};
pub use hash::{ContentHash, ContentHasher};
pub use identity::{
    ClientId, Generation, HistoryId, Incarnation, PROTOCOL_MAX, PROTOCOL_MIN, ServerEpoch, ServerId, StoreId,
};
pub use lock::{HeldRange, Holder, Lock, LockKind, LockOwner, LockRange, LockTable};
pub use name::{InvalidName, Name, SymlinkTarget, VolumeName};
pub use op::{Base, CmlOp, CmlRecord, Removed, RenameMode, SetAttr};
pub use random::Random;
pub use segments::{BadSegments, ContentPart, Segment, SegmentHasher, SegmentReader};
pub use size::{InvalidSize, parse_size};
pub use status::{Entry, Kind, Mode, Object, Status};
pub use time::{Clock, Instant, Timestamp};
pub use version::{ChangeNumber, DataVersion, StatusVersion};
pub use xattr::{XattrMode, XattrName, XattrValue, Xattrs};

/// The largest file: what a signed 64-bit offset can reach, as on Linux.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// The most bytes of a message that is not a payload. Keeps a hostile peer from filling memory with one frame.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
