//! Exclusive: which client decides by itself what names mean in a directory (consistency.md, "Promises and leases").
//!
//! A client that nobody shares a directory with gives names there without asking. So whatever another client asks of
//! such a directory waits until the first one has been *recalled*: it decides no more, has announced what it has
//! decided, and says that the directory is *settled*; or until its lease has ended.
//!
//! Entries are kept by client, not by session: what a client has decided stays in its log when its session is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use mafs_proto::{ClientId, CmlOp, Fid, Instant, RenameMode, VnodeId};

use super::promises::changed_names;

/// Time for which nobody decides alone in a directory that has been recalled: each recall makes somebody wait.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// Clients that decide names, and the directories where they do.
#[derive(Debug, Default)]
pub(crate) struct Exclusive {
    /// Clients that decide names by themselves where they may.
    deciding: BTreeSet<ClientId>,
    directories: HashMap<VnodeId, ClientId>,
    /// Clients whose logs hold what they decided before their present sessions, nobody knows where; and the directories
    /// that they have settled since.
    anywhere: BTreeMap<ClientId, HashSet<VnodeId>>,
    /// Directories whose names are being changed, with the clients: these changes are decided and not committed yet.
    changing: HashMap<VnodeId, Vec<ClientId>>,
    /// Directories that clients have been asked to settle.
    recalled: HashSet<(VnodeId, ClientId)>,
    /// Times when directories were settled last.
    settled: HashMap<VnodeId, Instant>,
}

impl Exclusive {
    /// Notes an attach of a client. If it `was_gone` meanwhile others could decide where it did.
    pub(crate) fn attach(&mut self, client: ClientId, decides: bool, was_gone: bool) {
        if was_gone {
            self.end(client);
        }
        if decides {
            self.deciding.insert(client);
        } else {
            self.deciding.remove(&client);
        }
    }

    /// Notes that a client has no session any more: what it decides from now on are conflicts.
    pub(crate) fn end(&mut self, client: ClientId) {
        self.directories.retain(|_, decider| *decider != client);
        self.anywhere.remove(&client);
        self.deciding.remove(&client);
        self.recalled.retain(|(_, recalled)| *recalled != client);
    }

    /// Forgets directories that were settled long ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.settled.retain(|_, at| now < *at + SHARED_FOR);
    }

    /// Notes whether a client's log holds what it decided before its session.
    pub(crate) fn note_undecided(&mut self, client: ClientId, undecided: bool) {
        if undecided {
            self.anywhere.entry(client).or_default();
        } else {
            self.anywhere.remove(&client);
        }
    }

    /// Tells whether nobody decides anything alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.directories.is_empty() && self.anywhere.is_empty()
    }

    /// Returns the directories in which other clients decide; `None`: they are not known.
    pub(crate) fn directories_of_others(&self, client: ClientId) -> Option<impl Iterator<Item = VnodeId>> {
        let is_known = self.anywhere.keys().all(|other| *other == client);
        let others = self.directories.iter().filter(move |(_, decider)| **decider != client);
        is_known.then(|| others.map(|(directory, _)| *directory))
    }

    /// Returns the live clients but `client` that may have decided names in a directory.
    pub(crate) fn deciders(
        &self,
        directory: VnodeId,
        client: ClientId,
        is_live: impl Fn(ClientId) -> bool,
    ) -> Vec<ClientId> {
        let there = self.directories.get(&directory);
        let unsettled = self.anywhere.iter().filter(|(_, settled)| !settled.contains(&directory)).map(|(id, _)| id);
        let mut deciders: Vec<_> = there.into_iter().chain(unsettled).copied().collect();
        deciders.retain(|decider| *decider != client && is_live(*decider));
        deciders.sort_unstable();
        deciders.dedup();
        deciders
    }

    /// Notes that a client is about to make a directory, which nobody else can know.
    pub(crate) fn note_made(&mut self, directory: VnodeId, client: ClientId) {
        if self.deciding.contains(&client) {
            self.directories.insert(directory, client);
        }
    }

    /// Lets a client decide in a directory of which nobody else has been promised anything, unless others change it
    /// or have asked for it of late. Returns whether it may.
    pub(crate) fn grant(&mut self, directory: VnodeId, client: ClientId, now: Instant) -> bool {
        let others = |changing: &Vec<ClientId>| changing.iter().any(|other| *other != client);
        let is_shared = self.recalled.iter().any(|(recalled, _)| *recalled == directory)
            || self.changing.get(&directory).is_some_and(others)
            || self.settled.get(&directory).is_some_and(|at| now < *at + SHARED_FOR);
        let decides = self.deciding.contains(&client) && !is_shared;
        if decides {
            self.directories.insert(directory, client);
        }
        decides
    }

    /// Notes that a client is told to settle a directory. Until the client has settled it, it is not let decide
    /// there: by the number of the change that this is, it knows which answers are older.
    pub(crate) fn recall(&mut self, directory: VnodeId, client: ClientId) {
        self.recalled.insert((directory, client));
    }

    /// Notes that a client has announced all that it has decided in a directory, and decides nothing there any more.
    /// Said twice it counts once: the client may decide there again by then.
    pub(crate) fn settle(&mut self, directory: VnodeId, client: ClientId, now: Instant) {
        if !self.recalled.remove(&(directory, client)) {
            return;
        }
        if self.directories.get(&directory) == Some(&client) {
            self.directories.remove(&directory);
        }
        if let Some(settled) = self.anywhere.get_mut(&client) {
            settled.insert(directory);
        }
        self.settled.insert(directory, now);
    }

    /// Notes that a change of names in these directories is decided, and is about to be committed.
    pub(crate) fn begin_change(&mut self, directories: &[Fid], client: ClientId) {
        for directory in directories {
            self.changing.entry(directory.vnode).or_default().push(client);
        }
    }

    /// Notes that such a change is committed, or will not be.
    pub(crate) fn end_change(&mut self, directories: &[Fid], client: ClientId) {
        for directory in directories {
            let Some(changing) = self.changing.get_mut(&directory.vnode) else { continue };
            if let Some(at) = changing.iter().position(|other| *other == client) {
                changing.swap_remove(at);
            }
            if changing.is_empty() {
                self.changing.remove(&directory.vnode);
            }
        }
    }
}

/// Lists the directories whose names an operation relies on.
pub(crate) fn directories_of(op: &CmlOp) -> Vec<Fid> {
    let mut directories: Vec<_> = changed_names(op).into_iter().map(|(parent, _)| parent).collect();
    directories.extend(emptied(op));
    directories.sort_unstable();
    directories.dedup();
    directories
}

/// Returns the directory, if there is one, that an operation removes, which must be empty.
pub(crate) fn emptied(op: &CmlOp) -> Option<Fid> {
    match op {
        CmlOp::RemoveDir { fid, .. } => Some(*fid),
        CmlOp::Rename { replaced, mode: RenameMode::Replace, .. } => *replaced,
        _ => None,
    }
}
