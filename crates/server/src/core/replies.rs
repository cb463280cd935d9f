//! Replies: exactly once. The reply to a record is kept, in the same transaction as its effect, until its client has
//! it.
//!
//! A record that comes again gets the kept reply and has no second effect (invariant 2). Another record under the
//! same id is refused: that id is never used for anything else, so one side has lost its mind or its disk.

use bytes::Bytes;
use mafs_durable::Batch;
use mafs_proto::call::{ApplyReply, ApplyRequest};
use mafs_proto::{
    ChangeNumber, ClientId, CmlRecord, DataVersion, Fid, FsError, Name, OnConflict, Outcome, PlacedName, StoreId, Wire,
};

use super::edit::Effect;
use super::keep::{self, Keeper};
use super::promises::{self, Touched};
use super::records::ClientState;
use super::refused::Refused;
use super::{ContentId, NewContent, Overlay, Refusal, Transaction, aliases, changes, directory, quota, tables, trash};

/// The most replies kept for one client; one that confirms nothing for so long is refused.
pub(crate) const REPLIES_MAX: u64 = 65_536;

/// From this many kept replies on the confirmed ones are forgotten, up to [`FORGET_AT_ONCE`] with each record: one
/// scan for dozens of records.
const FORGET_FROM: u64 = 64;
const FORGET_AT_ONCE: usize = 128;

/// Decision on a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// The record has been applied before; this was the reply.
    Known(Bytes),
    /// The record is applied once this batch is committed.
    Apply(Applied),
}

/// A record's transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Applied {
    pub(crate) batch: Batch,
    /// The encoded [`ApplyReply`].
    pub(crate) reply: Bytes,
    /// The change that the record becomes.
    pub(crate) change: ChangeNumber,
    /// The objects whose promises the record breaks.
    pub(crate) touched: Vec<Touched>,
    /// Content files to remove after the commit.
    pub(crate) freed: Vec<ContentId>,
    /// Whether the record is the first of many removals that go to the trash.
    pub(crate) trashes: bool,
    /// Whether the record has done what it says.
    pub(crate) as_said: bool,
}

/// Limits of a volume at present. A record that has been applied gets its reply whatever they say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// Answer to a new record if the volume takes none.
    pub(crate) closed: Option<Refusal>,
    /// Reason why the record is in conflict with what others have announced, or locked.
    pub(crate) contested: Option<Refusal>,
    /// The most bytes of all files; no record takes them beyond it, and one that makes them fewer is always applied.
    pub(crate) quota_bytes: Option<u64>,
}

/// Decides a record of `client` on top of what has been decided, within `limits`.
///
/// # Errors
/// The refusal; it is not kept, so the same record may be tried again.
pub(crate) fn decide(
    overlay: &Overlay<'_>,
    client: ClientId,
    request: &ApplyRequest,
    content: Option<NewContent>,
    limits: Limits,
) -> Result<Decision, Refusal> {
    let record = &request.record;
    let mut transaction = overlay.begin();
    if let Some(reply) = known(&transaction, client, record)? {
        return Ok(Decision::Known(reply));
    }
    if let Some(refusal) = limits.closed {
        return Err(refusal);
    }
    let used_before = transaction.state()?.used_bytes;
    let mut state = check_new(&transaction, client, &record.id)?;
    confirm(&mut transaction, client, &mut state, request.confirmed_below)?;
    // The client may have waited for nothing but this record, which then is a confirmation of all before it.
    if state.replies >= REPLIES_MAX && request.confirmed_below != Some(record.id) {
        return Err(Refusal::new(FsError::Busy, format!("the client has not confirmed any of {REPLIES_MAX} replies")));
    }
    let hash = content.as_ref().map(|content| content.hash);
    let judged_before = state.judged;
    let performed = perform(&mut transaction, (client, &mut state), request, (content, limits.contested));
    let (effect, outcome) = performed?;
    let as_said = outcome == Outcome::AsSaid;
    let mut volume = transaction.state()?;
    quota::check(limits.quota_bytes, used_before, volume.used_bytes)?;
    volume.change = volume.change.next();
    transaction.put_state(&volume);
    let Effect { directories, objects, freed, aside: _ } = effect;
    let reply = ApplyReply { change: volume.change, directories, objects, hash, exclusive: Vec::new(), outcome };
    let (change, touched) = (reply.change, promises::touched(&record.op, &reply));
    let digest = digest(record);
    changes::note(&mut transaction, change, touched.iter().map(|touched| touched.fid), &digest)?;
    let reply = reply.encode();
    transaction.put(tables::reply(&record.id), [&digest[..], &reply].concat());
    state.replies += 1;
    transaction.put_client(client, &state);
    let trashes = state.judged != judged_before && state.judged.is_some_and(|judged| judged.trash.is_some());
    Ok(Decision::Apply(Applied { batch: transaction.finish(), reply, change, touched, freed, trashes, as_said }))
}

/// Does what a record says, or decides its fate if others stand against that.
fn perform(
    transaction: &mut Transaction<'_>,
    (client, state): (ClientId, &mut ClientState),
    request: &ApplyRequest,
    (content, contested): (Option<NewContent>, Option<Refusal>),
) -> Result<(Effect, Outcome), Refusal> {
    let redirected = aliases::redirected(transaction, client, state, &request.record)?;
    let record = redirected.as_ref().unwrap_or(&request.record);
    if let Some(content) = &content
        && let Some(merged) = keep::merge(transaction, (client, state), record, content)?
    {
        return Ok(merged);
    }
    let trash = trash::judge(transaction, (client, state), request)?;
    let mut tried = transaction.fork();
    let performed = || {
        let trashed = match trash {
            Some(begun) => trash::take(&mut tried, (client, state), (request, record), begun)?,
            None => None,
        };
        let done = |effect: Effect| {
            let outcome = said(record, redirected.is_some(), effect.aside.clone());
            (effect, outcome)
        };
        trashed.map_or_else(|| directory::perform(&mut tried, client, record, content.clone()).map(done), Ok)
    };
    // A record that goes to a copy is in nobody's way.
    let contested = contested.filter(|_| redirected.is_none());
    let refusal = match contested.map_or_else(performed, Err) {
        Ok(performed) => {
            *transaction = tried;
            return Ok(performed);
        }
        Err(refusal) => refusal,
    };
    match &request.on_conflict {
        OnConflict::Keep(origin) if refusal.error.is_conflict() => {
            keep::keep(transaction, Keeper { client, state, origin }, record, content, refusal)
        }
        OnConflict::Keep(_) | OnConflict::Ask | OnConflict::Refuse => Err(refusal),
    }
}

fn said(record: &CmlRecord, redirected: bool, aside: Option<PlacedName>) -> Outcome {
    let placed = |(directory, name): (Fid, &Name)| PlacedName { directory, name: name.clone() };
    match aside {
        _ if redirected => {
            let changed = promises::changed_names(&record.op).into_iter().map(placed);
            Outcome::Elsewhere(changed.chain(aside).collect())
        }
        Some(place) => Outcome::SetAside(place),
        None => Outcome::AsSaid,
    }
}

/// Returns the version of a file that a record of its client's has left, if its reply is still kept and says so:
/// others may have made the same.
pub(super) fn left(transaction: &Transaction<'_>, id: &StoreId, fid: Fid) -> Result<Option<DataVersion>, Refusal> {
    let Some(kept) = transaction.get(&tables::reply(id))? else { return Ok(None) };
    let (_, reply) = kept.split_at_checked(32).ok_or_else(|| Refusal::damaged("a kept reply"))?;
    let reply = ApplyReply::decode(Bytes::copy_from_slice(reply)).map_err(|_| Refusal::damaged("a kept reply"))?;
    let object = reply.objects.iter().find(|object| object.fid == fid);
    Ok(object.filter(|_| reply.outcome == Outcome::WasSo).map(|object| object.status.data_version))
}

/// Returns a record that must be decided before that of `request`, and has not been: neither applied nor refused for
/// good.
///
/// # Errors
/// `Malformed` if a record depends on what cannot come before it; the reason of a postponement, if it depends on a
/// record that was postponed.
pub(crate) fn awaited(
    overlay: &Overlay<'_>,
    request: &ApplyRequest,
    refused: &Refused,
) -> Result<Option<StoreId>, Refusal> {
    let record = &request.record;
    if record.depends_on.is_empty() {
        return Ok(None);
    }
    let transaction = overlay.begin();
    let confirmed_below = transaction.client(record.id.client)?.and_then(|state| state.confirmed_below);
    let confirmed_below = confirmed_below.max(request.confirmed_below);
    let mut awaited = None;
    for id in &record.depends_on {
        if id.client != record.id.client || *id >= record.id {
            let detail = format!("the record {} cannot depend on {id}", record.id);
            return Err(Refusal::new(FsError::Malformed, detail));
        }
        let is_confirmed = confirmed_below.is_some_and(|below| *id < below);
        if !is_confirmed && !refused.lets_pass(request, id)? && transaction.get(&tables::reply(id))?.is_none() {
            awaited = awaited.or(Some(*id));
        }
    }
    Ok(awaited)
}

/// Returns the kept reply to a record, if it has been applied before.
///
/// # Errors
/// [`FsError::StoreIdReused`] if another record has been, or its reply was confirmed.
pub(crate) fn known(
    transaction: &Transaction<'_>,
    client: ClientId,
    record: &CmlRecord,
) -> Result<Option<Bytes>, Refusal> {
    if record.id.client != client {
        return Err(Refusal::new(FsError::Malformed, format!("the record {} was made by another client", record.id)));
    }
    let Some(kept) = transaction.get(&tables::reply(&record.id))? else {
        return check_unconfirmed(transaction, client, &record.id).map(|()| None);
    };
    let (kept_digest, reply) = kept.split_at_checked(32).ok_or_else(|| Refusal::damaged("a kept reply"))?;
    if *kept_digest != digest(record) {
        return Err(FsError::StoreIdReused.into());
    }
    Ok(Some(Bytes::copy_from_slice(reply)))
}

/// Lists what the record of a kept reply touched.
///
/// # Errors
/// `VolumeDamaged` if the reply is not one.
pub(crate) fn touched(record: &CmlRecord, reply: &Bytes) -> Result<Vec<Touched>, Refusal> {
    let reply = ApplyReply::decode(reply.clone()).map_err(|_| Refusal::damaged("a kept reply"))?;
    Ok(promises::touched(&record.op, &reply))
}

/// Takes note that the replies below `below` have arrived, and forgets some of them. Does not write `state`.
pub(crate) fn confirm(
    transaction: &mut Transaction<'_>,
    client: ClientId,
    state: &mut ClientState,
    below: Option<StoreId>,
) -> Result<(), Refusal> {
    let Some(below) = below else { return Ok(()) };
    if below.client != client || below.incarnation > state.incarnation {
        return Err(Refusal::new(FsError::Malformed, format!("the confirmation up to {below} makes no sense")));
    }
    let below = state.confirmed_below.map_or(below, |confirmed| confirmed.max(below));
    state.confirmed_below = Some(below);
    let (replies, confirmed_before) = (tables::replies(client), tables::reply(&below));
    let is_confirmed = |key: &Vec<u8>| *key < confirmed_before;
    let oldest = || transaction.committed_keys(&replies, 1);
    if state.replies < FORGET_FROM || !oldest()?.first().is_some_and(is_confirmed) {
        return Ok(());
    }
    for key in transaction.committed_keys(&replies, FORGET_AT_ONCE)? {
        if !is_confirmed(&key) {
            break;
        }
        transaction.remove(key);
        state.replies = state.replies.saturating_sub(1);
    }
    Ok(())
}

/// Checks that `id` belongs to a life granted to `client`.
///
/// # Errors
/// `Malformed` if it does not.
pub(crate) fn check_new(transaction: &Transaction<'_>, client: ClientId, id: &StoreId) -> Result<ClientState, Refusal> {
    let refuse = |why: &str| Refusal::new(FsError::Malformed, format!("the record {id} {why}"));
    let state = transaction.client(client)?.ok_or_else(|| refuse("is from a client that never attached"))?;
    if id.incarnation.0 == 0 || id.incarnation > state.incarnation {
        return Err(refuse("is from a life that was never granted"));
    }
    if id.seq == 0 {
        return Err(refuse("has no place in its log"));
    }
    Ok(state)
}

/// Checks that the reply to `id`, which is not kept, may still come: so a store is known before its content is looked
/// at.
fn check_unconfirmed(transaction: &Transaction<'_>, client: ClientId, id: &StoreId) -> Result<(), Refusal> {
    let confirmed_below = transaction.client(client)?.and_then(|state| state.confirmed_below);
    if confirmed_below.is_some_and(|below| *id < below) {
        let detail = format!("the record {id} comes again after its reply was confirmed");
        return Err(Refusal::new(FsError::StoreIdReused, detail));
    }
    Ok(())
}

fn digest(record: &CmlRecord) -> [u8; 32] {
    blake3::hash(&record.encode()).into()
}
