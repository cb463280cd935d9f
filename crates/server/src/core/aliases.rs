//! Aliases: a client knows an object by a fid that means nothing else any more, because the object that it made was
//! already there, or the one that it changed was gone. The client's records name that fid until it has learned
//! better.

use mafs_proto::{Base, ClientId, CmlOp, CmlRecord, Fid};

use super::records::ClientState;
use super::{Refusal, Transaction, tables};

/// The most aliases of one client: 40 bytes each. They are kept, because nobody knows which records still wait in a
/// log.
const ALIASES_MAX: u64 = 65_536;

/// Has records of `client` about `fid` mean another object from now on. Returns whether there was room.
pub(super) fn add(
    transaction: &mut Transaction<'_>,
    client: ClientId,
    state: &mut ClientState,
    (fid, object): (Fid, Fid),
) -> Result<bool, Refusal> {
    let key = tables::alias(client, fid);
    if transaction.get(&key)?.is_none() {
        if state.aliases >= ALIASES_MAX {
            return Ok(false);
        }
        state.aliases += 1;
    }
    transaction.put(key, tables::fid_bytes(object));
    Ok(true)
}

/// Returns the fid of the object that a client means by a fid.
pub(super) fn resolve(
    transaction: &Transaction<'_>,
    client: ClientId,
    state: &ClientState,
    fid: Fid,
) -> Result<Fid, Refusal> {
    if state.aliases == 0 || transaction.get(&tables::node(fid))?.is_some() {
        return Ok(fid);
    }
    Ok(alias(transaction, client, fid)?.unwrap_or(fid))
}

fn alias(transaction: &Transaction<'_>, client: ClientId, fid: Fid) -> Result<Option<Fid>, Refusal> {
    let Some(bytes) = transaction.get(&tables::alias(client, fid))? else { return Ok(None) };
    let found = tables::parse_fid(transaction.volume(), &bytes);
    found.map(Some).ok_or_else(|| Refusal::damaged("an alias"))
}

/// Returns a record with what its client means by the fids in it; `None`: the record is the same.
pub(super) fn redirected(
    transaction: &Transaction<'_>,
    client: ClientId,
    state: &ClientState,
    record: &CmlRecord,
) -> Result<Option<CmlRecord>, Refusal> {
    if state.aliases == 0 {
        return Ok(None);
    }
    let mut op = record.op.clone();
    for fid in fids_of(&mut op) {
        *fid = resolve(transaction, client, state, *fid)?;
    }
    if let CmlOp::Store { fid, base: Base::Record(before), .. } = &mut op
        && let Some(copy) = alias(transaction, client, *fid)?
        && transaction.node(copy).is_ok_and(|node| node.data_by == Some(*before))
    {
        *fid = copy;
    }
    Ok((op != record.op).then(|| CmlRecord { op, ..record.clone() }))
}

/// Lists the objects that are there before a record. The object that the record makes is not among them.
fn fids_of(op: &mut CmlOp) -> Vec<&mut Fid> {
    match op {
        CmlOp::Create { parent, .. } | CmlOp::MakeDir { parent, .. } | CmlOp::SymLink { parent, .. } => vec![parent],
        CmlOp::Link { parent, fid, .. } | CmlOp::Remove { parent, fid, .. } | CmlOp::RemoveDir { parent, fid, .. } => {
            vec![parent, fid]
        }
        CmlOp::Rename { from_parent, to_parent, fid, replaced, .. } => {
            [from_parent, to_parent, fid].into_iter().chain(replaced).collect()
        }
        CmlOp::SetAttr { fid, .. }
        | CmlOp::SetXattr { fid, .. }
        | CmlOp::RemoveXattr { fid, .. }
        | CmlOp::Store { fid, .. } => vec![fid],
    }
}
