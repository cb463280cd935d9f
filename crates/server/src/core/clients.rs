//! Clients: decides which of them may make records, in which life, with which fids; and makes the first transaction
//! of a volume.

use mafs_durable::{Batch, Kv};
use mafs_proto::{
    ClientId, DataVersion, Fid, FidRange, FsError, Incarnation, Kind, Mode, Status, StatusVersion, StoreId, Timestamp,
};

use super::records::{ClientState, VolumeState};
use super::{Node, Overlay, Refusal, fids, replies, tables};

/// Lives of a client that a volume may have lost, at one for each mount; beyond, a claim makes no sense.
const LOST_LIVES_MAX: u64 = 1 << 20;

/// Lives that a client may begin without an attach: mounts while the server is out of reach.
const SPARE_LIVES: u64 = 64;

/// Clients that are looked at at a time.
const SCAN_MAX: usize = 1024;

/// Grants of an attach to a client, durable once its batch is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) incarnation: Incarnation,
    pub(crate) spare_lives: u64,
    pub(crate) fids: FidRange,
    /// Whether the client had a later life than this volume knows of: its journal was cut or an older copy restored.
    pub(crate) was_forgotten: bool,
}

/// Registers a client and grants it a new life and new fids.
pub(crate) fn attach(
    overlay: &Overlay<'_>,
    client: ClientId,
    name: &str,
    confirmed_below: Option<StoreId>,
) -> Result<(Batch, Granted), Refusal> {
    let mut transaction = overlay.begin();
    let mut state = transaction.client(client)?.unwrap_or(ClientState {
        incarnation: Incarnation(0),
        confirmed_below: None,
        replies: 0,
        name: String::new(),
        has_session: false,
        aliases: 0,
        judged: None,
    });
    // A life is never granted twice, whatever the volume has lost: records would be taken for others of the same name.
    let lost = state.incarnation.0.saturating_add(1)..=state.incarnation.0.saturating_add(LOST_LIVES_MAX);
    let forgotten = confirmed_below.filter(|below| below.client == client && lost.contains(&below.incarnation.0));
    if let Some(below) = forgotten {
        state.incarnation = below.incarnation;
    }
    replies::confirm(&mut transaction, client, &mut state, confirmed_below)?;
    let none_left = || Refusal::new(FsError::NoSpace, "the client has no lives left");
    let last = state.incarnation.0.checked_add(1 + SPARE_LIVES).ok_or_else(none_left)?;
    state.incarnation = Incarnation(last);
    name.clone_into(&mut state.name);
    state.has_session = true;
    transaction.put_client(client, &state);
    let fids = fids::grant(&mut transaction, client)?;
    let incarnation = Incarnation(last - SPARE_LIVES);
    let granted = Granted { incarnation, spare_lives: SPARE_LIVES, fids, was_forgotten: forgotten.is_some() };
    Ok((transaction.finish(), granted))
}

/// Grants more fids.
pub(crate) fn grant_fids(overlay: &Overlay<'_>, client: ClientId) -> Result<(Batch, FidRange), Refusal> {
    let mut transaction = overlay.begin();
    let fids = fids::grant(&mut transaction, client)?;
    Ok((transaction.finish(), fids))
}

/// Notes that clients hold no promises any more.
pub(crate) fn end_sessions(overlay: &Overlay<'_>, clients: &[ClientId]) -> Result<Batch, Refusal> {
    let mut transaction = overlay.begin();
    for client in clients {
        if let Some(mut state) = transaction.client(*client)? {
            state.has_session = false;
            transaction.put_client(*client, &state);
        }
    }
    Ok(transaction.finish())
}

/// Lists the clients that may hold promises, as committed.
pub(crate) fn with_sessions(index: &dyn Kv) -> Result<Vec<ClientId>, Refusal> {
    let mut found = Vec::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = index.scan(&tables::clients(), after.as_deref(), SCAN_MAX)?;
        let Some((last, _)) = page.last() else { return Ok(found) };
        after = Some(last.clone());
        for (key, value) in page {
            if ClientState::decode(value)?.has_session {
                found.push(tables::parse_client(&key).ok_or_else(|| Refusal::damaged("the key of a client"))?);
            }
        }
    }
}

/// Makes the first transaction of a volume: its root directory, owned by `owner` (uid, gid).
pub(crate) fn found(overlay: &Overlay<'_>, owner: (u32, u32), time: Timestamp) -> Batch {
    let mut transaction = overlay.begin();
    let root = Fid::root(transaction.volume());
    let status = Status {
        kind: Kind::Directory,
        mode: Mode::from_bits(0o755),
        nlink: 2,
        uid: owner.0,
        gid: owner.1,
        size: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    };
    let node = Node { status, target: None, parent: None, content: None, data_by: None };
    transaction.put(tables::node(root), node.encode(root));
    transaction.put_state(&VolumeState { next_block: fids::FIRST_BLOCK, objects: 1, ..VolumeState::default() });
    transaction.finish()
}
