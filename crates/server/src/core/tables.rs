//! Tables: the keys of a volume's index.
//!
//! The first byte of a key is its table; numbers are big-endian, so keys sort as the numbers do and the names of a
//! directory sort by their bytes. docs/formats.md shows the same layout.

use mafs_proto::{
    ChangeNumber, ClientId, DataVersion, Fid, Name, StatusVersion, StoreId, Uniquifier, VnodeId, VolumeId,
};

use super::ContentId;

/// Key of the one record with the volume's counters.
pub(crate) const VOLUME: &[u8] = b"v";

const NODE: u8 = b'n';
const ENTRY: u8 = b'd';
const INLINE: u8 = b'c';
const CLIENT: u8 = b'k';
const REPLY: u8 = b'r';
const GRANT: u8 = b'g';
const USED: u8 = b'u';
const XATTRS: u8 = b'x';
const ANNOUNCED: u8 = b'a';
const CONFLICT: u8 = b'f';
const MADE_BESIDE: u8 = b'b';
const ALIAS: u8 = b'l';
const BORROWED: u8 = b'o';
const CHANGE: u8 = b'm';

/// Length of a fid in a value.
pub(crate) const FID_BYTES: usize = 12;

/// Returns the key of an object.
pub(crate) fn node(fid: Fid) -> Vec<u8> {
    key(NODE, &[&fid_bytes(fid)])
}

/// Returns the prefix of all objects.
pub(crate) fn nodes() -> Vec<u8> {
    vec![NODE]
}

/// Returns the number of the object whose key this is.
pub(crate) fn parse_node(key: &[u8]) -> Option<VnodeId> {
    let (vnode, _) = key.strip_prefix(&[NODE])?.split_first_chunk::<8>()?;
    Some(VnodeId(u64::from_be_bytes(*vnode)))
}

/// Returns the key of the entry `name` in `directory`.
pub(crate) fn entry(directory: Fid, name: &Name) -> Vec<u8> {
    key(ENTRY, &[&fid_bytes(directory), name.as_bytes()])
}

/// Returns the prefix of all names of `directory`.
pub(crate) fn entries(directory: Fid) -> Vec<u8> {
    key(ENTRY, &[&fid_bytes(directory)])
}

/// Returns the prefix of all names of all directories.
pub(crate) fn all_entries() -> Vec<u8> {
    vec![ENTRY]
}

/// Returns the key of a content small enough to live in the index. The version is part of the key: a reader gets the
/// bytes of the node it read or none, never those of another version (invariant 4).
pub(crate) fn inline(fid: Fid, version: DataVersion) -> Vec<u8> {
    key(INLINE, &[&fid_bytes(fid), &version.0.to_be_bytes()])
}

/// Returns the key of the extended attributes of an object, as the change to `version` left them. The version is part
/// of the key for the same reason.
pub(crate) fn xattrs(fid: Fid, version: StatusVersion) -> Vec<u8> {
    key(XATTRS, &[&fid_bytes(fid), &version.0.to_be_bytes()])
}

/// Returns the key of a client's state.
pub(crate) fn client(client: ClientId) -> Vec<u8> {
    key(CLIENT, &[&client.0])
}

/// Returns the prefix of all clients.
pub(crate) fn clients() -> Vec<u8> {
    vec![CLIENT]
}

/// Returns the client whose key this is.
pub(crate) fn parse_client(key: &[u8]) -> Option<ClientId> {
    Some(ClientId(key.strip_prefix(&[CLIENT])?.try_into().ok()?))
}

/// Returns the key of the reply to a record.
pub(crate) fn reply(id: &StoreId) -> Vec<u8> {
    key(REPLY, &[&id.client.0, &id.incarnation.0.to_be_bytes(), &id.seq.to_be_bytes()])
}

/// Returns the prefix of all replies to a client, oldest first.
pub(crate) fn replies(client: ClientId) -> Vec<u8> {
    key(REPLY, &[&client.0])
}

/// Returns the key of an announced record.
pub(crate) fn announced(id: &StoreId) -> Vec<u8> {
    key(ANNOUNCED, &[&id.client.0, &id.incarnation.0.to_be_bytes(), &id.seq.to_be_bytes()])
}

/// Returns the prefix of all announced records.
pub(crate) fn all_announced() -> Vec<u8> {
    vec![ANNOUNCED]
}

/// Returns the key of the conflict of an object that is kept under `name` in `directory`.
pub(crate) fn conflict(directory: Fid, name: &Name) -> Vec<u8> {
    key(CONFLICT, &[&fid_bytes(directory), name.as_bytes()])
}

/// Returns the prefix of all conflicts.
pub(crate) fn conflicts() -> Vec<u8> {
    vec![CONFLICT]
}

/// Returns the key of the place where an object is kept that was made beside the name it was to have.
pub(crate) fn made_beside(fid: Fid) -> Vec<u8> {
    key(MADE_BESIDE, &[&fid_bytes(fid)])
}

/// Returns the key of the object that a client means by a fid.
pub(crate) fn alias(client: ClientId, fid: Fid) -> Vec<u8> {
    key(ALIAS, &[&client.0, &fid_bytes(fid)])
}

/// Returns the key of a content file that another object has than the one it is named after.
pub(crate) fn borrowed(id: ContentId) -> Vec<u8> {
    let ContentId { fid, serial } = id;
    key(BORROWED, &[&fid_bytes(fid), &serial.epoch.to_be_bytes(), &serial.number.to_be_bytes()])
}

/// Returns the key of what a change touched.
pub(crate) fn change(change: ChangeNumber) -> Vec<u8> {
    key(CHANGE, &[&change.0.to_be_bytes()])
}

/// Returns the prefix of all changes that are kept, the oldest first.
pub(crate) fn changes() -> Vec<u8> {
    vec![CHANGE]
}

/// Returns the key of the owner of a block of vnode numbers.
pub(crate) fn grant(block: u64) -> Vec<u8> {
    key(GRANT, &[&block.to_be_bytes()])
}

/// Returns the key that tells which of 64 neighbouring vnode numbers have been used.
pub(crate) fn used(vnode: VnodeId) -> Vec<u8> {
    key(USED, &[&(vnode.0 / 64).to_be_bytes()])
}

/// Encodes the value of an entry: the object that the name means.
pub(crate) fn fid_bytes(fid: Fid) -> [u8; FID_BYTES] {
    let mut bytes = [0; FID_BYTES];
    bytes[..8].copy_from_slice(&fid.vnode.0.to_be_bytes());
    bytes[8..].copy_from_slice(&fid.unique.0.to_be_bytes());
    bytes
}

/// Reads what [`fid_bytes`] wrote.
pub(crate) fn parse_fid(volume: VolumeId, bytes: &[u8]) -> Option<Fid> {
    let (vnode, unique) = bytes.split_first_chunk::<8>()?;
    let unique = unique.try_into().ok()?;
    Some(Fid { volume, vnode: VnodeId(u64::from_be_bytes(*vnode)), unique: Uniquifier(u32::from_be_bytes(unique)) })
}

fn key(table: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(table);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}
