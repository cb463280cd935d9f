//! Announce: decides which records of an announcement can be entered, by what the volume holds; and loads those that
//! an earlier start has entered.
//!
//! An announcement that comes too late is no error: records overtake their announcements, and answers are lost.

use mafs_durable::Kv;
use mafs_proto::call::InvalidateRequest;
use mafs_proto::{Base, ClientId, CmlOp, CmlRecord, Fid, FsError, StoreId};

use super::pending::{Announced, Pending, touched};
use super::{Refusal, Transaction, replies, tables};

/// Announced records that are looked at at a time.
const SCAN_MAX: usize = 256;

/// The records of an announcement.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Records that are not applied yet, and in conflict with nothing that the volume holds.
    pub(crate) records: Vec<CmlRecord>,
    /// Records in conflict.
    pub(crate) refused: Vec<StoreId>,
    /// Records in conflict that give a name to what is not there, unless that is still to be announced.
    pub(crate) contested: Vec<StoreId>,
}

/// Looks at an announcement of `client`, and takes note of the replies that it confirms. `is_made` tells whether the
/// client has announced before that it makes an object.
///
/// # Errors
/// `Malformed` if a record cannot be one of this client's, `CrossVolume` if it is about another volume.
pub(crate) fn check(
    transaction: &mut Transaction<'_>,
    client: ClientId,
    request: &InvalidateRequest,
    is_made: impl Fn(Fid) -> bool,
) -> Result<Checked, Refusal> {
    let ids = request.records.iter().map(|record| record.id).chain(request.retracted.iter().copied());
    for id in ids {
        if id.client != client {
            return Err(Refusal::new(FsError::Malformed, format!("the record {id} was made by another client")));
        }
        replies::check_new(transaction, client, &id)?;
    }
    confirm(transaction, client, request.confirmed_below)?;
    let confirmed_below = transaction.client(client)?.and_then(|state| state.confirmed_below);
    let mut checked = Checked::default();
    for record in &request.records {
        check_volume(transaction, record)?;
        let is_decided = confirmed_below.is_some_and(|below| record.id < below);
        if is_decided || transaction.get(&tables::reply(&record.id))?.is_some() {
            continue;
        }
        let is_made = |fid| is_made(fid) || checked.records.iter().any(|record| record.op.made() == Some(fid));
        match look(transaction, record, is_made)? {
            Found::Expected => checked.records.push(record.clone()),
            Found::OlderOrNewer => checked.refused.push(record.id),
            Found::Gone => {
                checked.refused.push(record.id);
                checked.contested.push(record.id);
            }
        }
    }
    Ok(checked)
}

/// Loads the records that an earlier start has kept, as committed.
pub(crate) fn load(index: &dyn Kv) -> Result<Pending, Refusal> {
    let mut pending = Pending::default();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = index.scan(&tables::all_announced(), after.as_deref(), SCAN_MAX)?;
        let Some((last, _)) = page.last() else { return Ok(pending) };
        after = Some(last.clone());
        for (key, value) in page {
            let announced = Announced::decode(&value)?;
            if key != tables::announced(&announced.record.id) {
                return Err(Refusal::damaged("the key of an announced record"));
            }
            pending.insert(announced);
        }
    }
}

fn confirm(transaction: &mut Transaction<'_>, client: ClientId, below: Option<StoreId>) -> Result<(), Refusal> {
    if below.is_none() {
        return Ok(());
    }
    let unknown = || Refusal::new(FsError::Malformed, "the client never attached");
    let before = transaction.client(client)?.ok_or_else(unknown)?;
    let mut state = before.clone();
    replies::confirm(transaction, client, &mut state, below)?;
    if state != before {
        transaction.put_client(client, &state);
    }
    Ok(())
}

fn check_volume(transaction: &Transaction<'_>, record: &CmlRecord) -> Result<(), Refusal> {
    match touched(&record.op).iter().find(|touched| touched.fid.volume != transaction.volume()) {
        Some(touched) => {
            let detail = format!("the record {} is about {}, in another volume", record.id, touched.fid);
            Err(Refusal::new(FsError::CrossVolume, detail))
        }
        None => Ok(()),
    }
}

/// State of the volume that a record finds.
enum Found {
    /// The state that its client knew.
    Expected,
    /// Another version of the file that it stores.
    OlderOrNewer,
    /// Nothing to give a name to.
    Gone,
}

/// Looks whether a Store was made from the version that the file has, and whether what is given a name exists or is
/// announced to be made: or others would be shown an empty file under that name. If another record makes the object,
/// that record's fate decides.
fn look(
    transaction: &Transaction<'_>,
    record: &CmlRecord,
    is_made: impl FnOnce(Fid) -> bool,
) -> Result<Found, Refusal> {
    let found = |fid: Fid| match transaction.node(fid) {
        Ok(node) => Ok(Some(node)),
        Err(refusal) if refusal.error == FsError::Stale => Ok(None),
        Err(refusal) => Err(refusal),
    };
    if let Some(fid) = record.op.named_fid() {
        let is_there = found(fid)?.is_some() || is_made(fid);
        return Ok(if is_there { Found::Expected } else { Found::Gone });
    }
    let is_expected = match record.op {
        CmlOp::Store { base: Base::Record(id), .. } => id.client == record.id.client,
        CmlOp::Store { fid, base: Base::Version(base), .. } => match found(fid)? {
            Some(node) => node.status.data_version == base,
            None => is_made(fid),
        },
        _ => true,
    };
    Ok(if is_expected { Found::Expected } else { Found::OlderOrNewer })
}
