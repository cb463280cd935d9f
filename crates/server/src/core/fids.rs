//! Fids: blocks of vnode numbers, each granted to one client, each number used once.
//!
//! A block belongs to a client for ever, whichever of its lives it was granted in. A bit for each number tells
//! whether it has been used, so that no fid ever names a second object, removed ones included.

use mafs_proto::{ClientId, Fid, FidRange, FsError, Uniquifier, VnodeId};

use super::{Refusal, Transaction, tables};

/// Number of fids in a block.
pub(crate) const BLOCK_FIDS: u64 = 4096;

/// Blocks of one grant: a client that makes 500 files a second asks once a minute, and one that cannot reach the server
/// can make so many without asking.
const GRANT_BLOCKS: u64 = 8;

/// The first block that is granted: block 0 holds the root.
pub(crate) const FIRST_BLOCK: u64 = 1;

/// Gives the next blocks to `client`.
pub(crate) fn grant(transaction: &mut Transaction<'_>, client: ClientId) -> Result<FidRange, Refusal> {
    let mut state = transaction.state()?;
    let block = state.next_block;
    let exhausted = || Refusal::new(FsError::NoSpace, "the volume has no vnode numbers left");
    let first = block.checked_mul(BLOCK_FIDS).ok_or_else(exhausted)?;
    let first = Fid { volume: transaction.volume(), vnode: VnodeId(first), unique: Uniquifier(1) };
    let range = FidRange::new(first, GRANT_BLOCKS * BLOCK_FIDS).ok_or_else(exhausted)?;
    state.next_block = block + GRANT_BLOCKS;
    transaction.put_state(&state);
    (block..state.next_block).for_each(|granted| transaction.put(tables::grant(granted), client.0));
    Ok(range)
}

/// Takes a fid for an object that the server makes itself: from blocks of its own, of which no client is granted any.
pub(super) fn own(transaction: &mut Transaction<'_>) -> Result<Fid, Refusal> {
    let mut state = transaction.state()?;
    if state.own_vnodes[0] >= state.own_vnodes[1] {
        let exhausted = || Refusal::new(FsError::NoSpace, "the volume has no vnode numbers left");
        let first = state.next_block.checked_mul(BLOCK_FIDS).ok_or_else(exhausted)?;
        let end = first.checked_add(BLOCK_FIDS).ok_or_else(exhausted)?;
        (state.own_vnodes, state.next_block) = ([first, end], state.next_block + 1);
    }
    let vnode = VnodeId(state.own_vnodes[0]);
    state.own_vnodes[0] += 1;
    transaction.put_state(&state);
    Ok(Fid { volume: transaction.volume(), vnode, unique: Uniquifier(1) })
}

/// Tells whether this number was granted to `client`: then nobody else has made the object that has it.
pub(super) fn is_of(transaction: &Transaction<'_>, client: ClientId, vnode: VnodeId) -> Result<bool, Refusal> {
    let owner = transaction.get(&tables::grant(vnode.0 / BLOCK_FIDS))?;
    Ok(owner.as_deref() == Some(&client.0[..]))
}

/// Uses a fid that was granted to `client`.
///
/// # Errors
/// [`FsError::FidNotGranted`] if it was not, or has been used.
pub(crate) fn take(transaction: &mut Transaction<'_>, client: ClientId, fid: Fid) -> Result<(), Refusal> {
    let refuse = |why: &str| Refusal::new(FsError::FidNotGranted, format!("the fid {fid} {why}"));
    if fid.volume != transaction.volume() || fid.unique != Uniquifier(1) {
        return Err(refuse("was never granted"));
    }
    if !is_of(transaction, client, fid.vnode)? {
        return Err(refuse("was not granted to this client"));
    }
    let key = tables::used(fid.vnode);
    let used = match transaction.get(&key)? {
        None => 0,
        Some(bytes) => {
            let bytes = bytes.try_into().map_err(|_| Refusal::damaged("the used fids"))?;
            u64::from_be_bytes(bytes)
        }
    };
    let bit = 1 << (fid.vnode.0 % 64);
    if used & bit != 0 {
        return Err(refuse("has been used before"));
    }
    transaction.put(key, (used | bit).to_be_bytes());
    Ok(())
}
