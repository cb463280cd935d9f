//! Changes: they note what each of the last changes of a volume touched, for clients that come back (consistency.md,
//! "Revalidation").
//!
//! Every change notes its objects in its own transaction, so removed objects are found too. A change is known by its
//! number and by a tag, which is a hash of what it was and of the tag before it: a client that has seen another
//! history of the volume (its end was lost, or an older copy restored) is not taken for one that has seen this.

use mafs_durable::Kv;
use mafs_proto::call::{ChangedObject, Mark};
use mafs_proto::{ChangeNumber, Fid, FsError};

use super::{Refusal, Transaction, tables};

/// Number of changes that are kept. An index is read whole when it is opened: these add a third of a second to that,
/// and some 6 MB. A checkout of 10,000 files is about 30,000 changes.
pub(crate) const KEPT: u64 = 1 << 17;

/// Changes that are looked at at a time.
const SCAN_MAX: usize = 1024;

const TAG_BYTES: usize = 8;

/// Changes since a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The objects, each once.
    pub(crate) objects: Vec<ChangedObject>,
    /// The last change that was looked at.
    pub(crate) through: Mark,
    /// Whether there are more.
    pub(crate) more: bool,
}

/// Notes that `change`, which is decided in this transaction, touches `fids`. `what` tells it from any other change
/// that could have been made in its place.
pub(crate) fn note(
    transaction: &mut Transaction<'_>,
    change: ChangeNumber,
    fids: impl Iterator<Item = Fid>,
    what: &[u8],
) -> Result<(), Refusal> {
    let before = mark(transaction, ChangeNumber(change.0.saturating_sub(1)))?.map_or(0, |mark| mark.tag);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&before.to_be_bytes()).update(&change.0.to_be_bytes()).update(what);
    let mut value = hasher.finalize().as_bytes()[..TAG_BYTES].to_vec();
    fids.for_each(|fid| value.extend(tables::fid_bytes(fid)));
    transaction.put(tables::change(change), value);
    if let Some(oldest) = change.0.checked_sub(KEPT) {
        transaction.remove(tables::change(ChangeNumber(oldest)));
    }
    Ok(())
}

/// Returns the mark of a change, if that is kept.
pub(crate) fn mark(transaction: &Transaction<'_>, change: ChangeNumber) -> Result<Option<Mark>, Refusal> {
    let Some(value) = transaction.get(&tables::change(change))? else { return Ok(None) };
    let (tag, _) = parse(&value)?;
    Ok((change.0 > 0).then_some(Mark { change, tag }))
}

/// Finds the changes committed since a mark: at least `objects_max` objects if there are so many, and few more.
/// `None`: the mark is not of this history, or too old.
pub(crate) fn since(
    index: &dyn Kv,
    transaction: &Transaction<'_>,
    from: Mark,
    objects_max: usize,
) -> Result<Option<Found>, Refusal> {
    if mark(transaction, from.change)? != Some(from) {
        return Ok(None);
    }
    let (mut through, mut fids) = (from, std::collections::BTreeSet::new());
    let more = loop {
        let page = index.scan(&tables::changes(), Some(&tables::change(through.change)), SCAN_MAX)?;
        let is_last = page.len() < SCAN_MAX;
        for (key, value) in page {
            let change = through.change.next();
            if key != tables::change(change) {
                // A version of the server that kept no changes has been here, or the oldest ones went meanwhile.
                return Ok(None);
            }
            let (tag, touched) = parse(&value)?;
            for bytes in touched.chunks(tables::FID_BYTES) {
                let damaged = || Refusal::damaged("what a change touched");
                fids.insert(tables::parse_fid(transaction.volume(), bytes).ok_or_else(damaged)?);
            }
            through = Mark { change, tag };
            if fids.len() >= objects_max {
                break;
            }
        }
        if is_last || fids.len() >= objects_max {
            break !is_last || transaction.get(&tables::change(through.change.next()))?.is_some();
        }
    };
    let objects = fids.into_iter().map(|fid| as_it_is(transaction, fid)).collect::<Result<_, _>>()?;
    Ok(Some(Found { objects, through, more }))
}

fn as_it_is(transaction: &Transaction<'_>, fid: Fid) -> Result<ChangedObject, Refusal> {
    let version = match transaction.node(fid) {
        Ok(node) => Some(node.status.status_version),
        Err(refusal) if refusal.error == FsError::Stale => None,
        Err(refusal) => return Err(refusal),
    };
    Ok(ChangedObject { vnode: fid.vnode, version })
}

fn parse(value: &[u8]) -> Result<(u64, &[u8]), Refusal> {
    let (tag, touched) = value.split_first_chunk::<TAG_BYTES>().ok_or_else(|| Refusal::damaged("a change"))?;
    Ok((u64::from_be_bytes(*tag), touched))
}
