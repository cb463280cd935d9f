//! Content: the state of one file's content in the cache, as a pure machine.
//!
//! Events come in (a look at the container, an open, a close, an answer), and what follows from them comes out as
//! values. Nothing here touches a file, a clock or the network, and nobody but the machine changes its fields. Each of
//! its parts guards what it alone tells; what follows from several of them is decided here:
//!
//! - A content that the kernel may be writing counts as changed, until a look behind the last writer says otherwise.
//! - A changed content is replaced by no version of the server's, and stays based on the one it was made from.
//! - A content that is neither changed nor here is whatever the server has.

pub(crate) mod arrival;
pub(crate) mod basis;
pub(crate) mod edits;
pub(crate) mod fate;
pub(crate) mod stat;
pub(crate) mod users;
pub(crate) mod versions;
pub(crate) mod watch;

use mafs_proto::{Base, ContentHash, DataVersion, Object, Purpose, SetAttr, Status, StoreId, Timestamp, Xattrs};

use self::arrival::{Arrival, Fetch, Part, Presence};
use self::basis::Basis;
use self::edits::Edits;
use self::fate::{Fate, Unlinked};
use self::stat::Stat;
use self::users::Users;
use self::versions::{Frozen, Versions};
use self::watch::Sight;
use crate::core::caller::Caller;
use crate::core::log::Stamp;

/// User for whom a content is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// A program that opens the file: a content that is open for writing stays as it is.
    Reader,
    /// A program that has locked the file.
    Locker,
}

/// The fate of a content when somebody lets go of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Somebody or something uses it still.
    InUse,
    /// The server is to get it first.
    Unsent,
    /// Useless to the next program that opens the file.
    Useless,
    /// Kept for the next program that opens the file.
    Kept,
}

/// The content of one file. `E` says why something of it does not come or go, `H` urges a fetch on, `C` is the frozen
/// content of a version.
pub(crate) struct Content<E, H, C> {
    /// Open handles.
    handles: u32,
    /// Open handles that write, or have cut the file.
    changers: u32,
    /// Use that the kernel makes of its own handles.
    users: Users,
    arrival: Arrival<E, H>,
    basis: Basis,
    edits: Edits,
    fate: Fate,
    stat: Stat,
    versions: Versions<C, E>,
    writer: Caller,
    writing_logged: bool,
}

impl<E: Clone, H, C> Content<E, H, C> {
    /// Makes the content of a file that the server shows like this, whose version hashes to that, if it is known.
    pub(crate) fn shown(status: &Status, hash: Option<ContentHash>, arrival: Arrival<E, H>) -> Self {
        let basis = Basis::new(status.data_version, hash);
        Self::new((arrival, basis), Edits::default(), (Fate::named(), Stat::of(status)))
    }

    /// Makes the content of a file without a name.
    pub(crate) fn nameless(status: &Status, unlinked: Unlinked) -> Self {
        Self { fate: Fate::unlinked(unlinked), ..Self::shown(status, None, Arrival::whole()) }
    }

    /// Makes the content of a file that an earlier life has left with changes of this version.
    pub(crate) fn taken_up(base: DataVersion, edits: Edits, fate: Fate, stat: Stat) -> Self {
        let content = Self::new((Arrival::whole(), Basis::new(base, None)), edits, (fate, stat));
        Self { writing_logged: true, ..content }
    }

    fn new((arrival, basis): (Arrival<E, H>, Basis), edits: Edits, (fate, stat): (Fate, Stat)) -> Self {
        let (users, versions, writer) = (Users::default(), Versions::default(), Caller::default());
        Self {
            handles: 0,
            changers: 0,
            users,
            arrival,
            basis,
            edits,
            fate,
            stat,
            versions,
            writer,
            writing_logged: false,
        }
    }

    /// Counts a handle more.
    pub(crate) fn open(&mut self) {
        self.handles += 1;
    }

    /// Counts a handle less.
    pub(crate) fn close(&mut self) {
        self.handles -= 1;
    }

    /// Counts a handle that writes, or has cut the file.
    pub(crate) fn begin_changing(&mut self) {
        self.changers += 1;
    }

    /// Counts such a handle less.
    pub(crate) fn end_changing(&mut self) {
        self.changers -= 1;
    }

    /// Whether such a handle is left, whose program will close it.
    pub(crate) fn has_changers(&self) -> bool {
        self.changers > 0
    }

    /// Forgets which way the data goes, if the last handle is gone: the next open decides anew.
    pub(crate) fn forget_path(&mut self) {
        if self.handles == 0 {
            self.users.forget_path();
        }
    }

    /// Begins a fetch of what the server shows. The bytes in the container count no more.
    pub(crate) fn begin_fetch(&mut self, status: &Status, in_place: bool, part: Option<Part>) -> Fetch {
        self.basis.begin(status.data_version);
        self.stat.become_version(status);
        self.arrival.begin((status.data_version, status.size), in_place, part)
    }

    /// Notes that all is here and hashes to this, as a look saw the container when it was hashed.
    pub(crate) fn complete_fetch(&mut self, fetch: Fetch, hash: ContentHash, hashed: Sight) {
        self.arrival.complete(fetch);
        self.basis.note_hash(hash);
        self.users.watch.begin(hashed);
    }

    /// Notes that the container was turned over to a version, which hashes to this; or why it may hold something of
    /// both.
    pub(crate) fn turn_over(&mut self, status: &Status, turned: Result<ContentHash, E>) {
        match turned {
            Ok(hash) => {
                self.arrival.turned_over(None);
                self.basis.become_version(status.data_version, hash);
                self.stat.become_version(status);
            }
            Err(why) => self.arrival.turned_over(Some(why)),
        }
    }

    /// Bases the content on this version, as it is about to be replaced as a whole by something made from that. Returns
    /// the older basis before. Content that was changed here keeps its basis. So does one with a newer basis, which has
    /// come since the program was shown this version, as the answer to a store of its own does: to go back would be a
    /// conflict with that.
    pub(crate) fn rebase(&mut self, version: DataVersion) -> Option<Basis> {
        let stays = self.may_be_changed() || version <= self.basis.version();
        (!stays).then(|| self.basis.begin(version))
    }

    /// Notes that the content was not replaced after all.
    pub(crate) fn undo_rebase(&mut self, before: Basis) {
        self.basis = before;
    }

    /// Notes that a program has set the size, which was another `before`: what is in the container is the content.
    pub(crate) fn cut(&mut self, before: u64) {
        self.arrival.cut();
        self.stat.resized(before);
    }

    /// Counts a change of the content by this program: it is another one than was stored, or refused.
    pub(crate) fn edit(&mut self, now: Timestamp) {
        self.count_edit();
        self.stat.change(now);
    }

    /// Takes in a look at the container behind such a change.
    pub(crate) fn see_edit(&mut self, after: Sight) {
        self.stat.set_size(after.bytes);
        if self.users.may_write() {
            self.users.watch.note_change(after);
        }
    }

    /// Takes in a look at a container that the kernel may write to, or could until just now. Its writes are an edit,
    /// made at this time. A content that has not all come is nobody's.
    pub(crate) fn look(&mut self, sight: Sight, changed: Timestamp) -> bool {
        let is_changed = self.arrival.is_whole() && self.users.watch.look(sight);
        if is_changed {
            self.edit(changed);
            self.stat.set_size(sight.bytes);
        }
        is_changed
    }

    /// Takes in the first look at a content that an earlier life has left: it shows this. Returns whether it has been
    /// changed behind its last version.
    pub(crate) fn see(&mut self, shown: Stamp, bytes: u64) -> bool {
        let is_changed = self.edits.see(shown, bytes == self.stat.size());
        if is_changed {
            self.fate.end_refusal();
            self.stat.set_size(bytes);
        }
        is_changed
    }

    /// Counts a change that may have been made unseen.
    pub(crate) fn count_edit(&mut self) {
        self.edits.count();
        self.fate.end_refusal();
    }

    /// Notes that what was written here went elsewhere: it is no version of this file, nor made from one.
    pub(crate) fn go_elsewhere(&mut self, id: StoreId) {
        self.basis.go_elsewhere(id);
        if self.handles == 0 && !self.is_dirty() {
            self.arrival.lose();
        }
    }

    /// Notes that the last name of the file is gone. Its content is shown as it is here, all else as it was then.
    pub(crate) fn lose_name(&mut self, unlinked: Unlinked, status: &Status) {
        if !self.is_dirty() {
            self.stat.set_mtime(status.mtime);
        }
        self.stat.set_ctime(status.ctime);
        self.fate.lose_name(unlinked);
    }

    /// Changes attributes of a file without a name, which exists on this machine only. Returns whether it is one.
    pub(crate) fn set_nameless(&mut self, set: &SetAttr, now: Timestamp) -> bool {
        let Some(object) = self.fate.left_mut().and_then(Unlinked::object_mut) else { return false };
        object.status.set(set);
        set.mtime.into_iter().for_each(|mtime| self.stat.set_mtime(mtime));
        self.stat.set_ctime(now);
        true
    }

    /// Changes extended attributes of a file without a name. `None`: it is none, or they are not known.
    pub(crate) fn change_nameless_xattrs<F>(
        &mut self,
        change: impl FnOnce(&mut Xattrs) -> Result<(), F>,
        now: Timestamp,
    ) -> Option<Result<(), F>> {
        let changed = change(self.fate.left_mut().and_then(Unlinked::xattrs_mut)?);
        if changed.is_ok() {
            self.stat.set_ctime(now);
        }
        Some(changed)
    }

    /// Returns how many handles are open.
    pub(crate) fn handles(&self) -> u32 {
        self.handles
    }

    /// Whether the server lacks content that it should get.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.edits.are_stored() && !self.fate.is_unlinked()
    }

    /// Whether there are changes that are in no version yet.
    pub(crate) fn is_unlogged(&self) -> bool {
        self.is_dirty() && !self.edits.are_logged()
    }

    /// Whether the content may be another than the one it is based on: what the kernel may be writing counts as
    /// changed.
    pub(crate) fn may_be_changed(&self) -> bool {
        self.is_dirty() || self.users.may_write()
    }

    /// Whether all of the content is here.
    pub(crate) fn is_complete(&self) -> bool {
        self.arrival.is_whole()
    }

    /// Whether this version is here, or on its way.
    pub(crate) fn has_version(&self, version: DataVersion) -> bool {
        self.basis.version() == version && !self.arrival.is_absent()
    }

    /// Whether the content here is what `version` is, or what this client makes of it.
    pub(crate) fn is_current(&self, version: DataVersion) -> bool {
        self.may_be_changed() || self.has_version(version)
    }

    /// Whether this version has to be fetched before somebody can have the content.
    pub(crate) fn needs_fetch(&self, version: DataVersion, holder: Holder) -> bool {
        match holder {
            Holder::Reader => !self.is_current(version),
            Holder::Locker => !self.is_dirty() && !self.has_version(version),
        }
    }

    /// Whether a program that opens the file, having been shown this version, can have it without a fetch.
    pub(crate) fn is_ready(&self, version: DataVersion) -> bool {
        let without_name = self.fate.is_unlinked() && self.is_complete();
        without_name || self.is_current(version) && !self.arrival.is_stalled()
    }

    /// Whether the content is older than a version, so that this may take its place: what programs here have changed
    /// may not be lost.
    pub(crate) fn is_behind(&self, version: DataVersion) -> bool {
        let is_here = self.basis.version() == version && self.is_complete();
        !self.is_dirty() && !self.fate.is_unlinked() && !is_here
    }

    /// Whether the container holds the version that the content is based on, all of it and nothing else, as far as
    /// anybody has looked.
    pub(crate) fn is_as_known(&self) -> bool {
        self.is_unchanged() && self.is_complete()
    }

    /// Whether what is here, or on its way, is of the version that the content is based on, and has a name.
    fn is_unchanged(&self) -> bool {
        !self.is_dirty() && !self.fate.is_unlinked()
    }

    /// Whether programs have the content open, and nobody here has changed it or could.
    pub(crate) fn is_only_read(&self) -> bool {
        self.is_being_read() && self.is_complete()
    }

    /// Whether the content is only read, as in [`Self::is_only_read`], also while it is still on its way.
    pub(crate) fn is_being_read(&self) -> bool {
        let is_here_or_coming = !self.arrival.is_absent() && !self.basis.is_elsewhere();
        self.handles > 0 && self.is_unchanged() && is_here_or_coming && !self.users.may_write()
    }

    /// Whether handles through which nobody has written keep the content from becoming the version `shown`.
    pub(crate) fn is_held_by_writers(&self, shown: DataVersion) -> bool {
        self.users.has_writers() && !self.is_dirty() && self.basis.version() != shown
    }

    /// Returns the purpose of a fetch: the rest of a file that nobody has open any more must not delay one that
    /// somebody waits for.
    pub(crate) fn purpose(&self) -> Purpose {
        if self.handles > 0 { Purpose::Fetch } else { Purpose::Prefetch }
    }

    /// Returns the base of the file's next version.
    pub(crate) fn base_of_next(&self) -> Base {
        self.versions.newest().map_or_else(|| self.basis.of_store(), |newest| Base::Record(newest.id()))
    }

    /// Whether the server is to get a version though the file has no name any more.
    fn is_still_sent(&self) -> bool {
        self.fate.is_sent_unlinked(&self.versions.ids())
    }

    /// Whether the answer to a version is being taken in: the server has all of it, and not all who must know that do.
    fn is_being_answered(&self) -> bool {
        !self.is_dirty() && !self.fate.is_unlinked() && !self.versions.is_empty()
    }

    /// Says what becomes of the content now that somebody lets go of it.
    pub(crate) fn rest(&self) -> Rest {
        let busy = self.is_still_sent() || self.is_being_answered();
        let is_useless = self.arrival.is_absent() || self.basis.is_elsewhere() || self.fate.is_unlinked();
        if self.handles > 0 || busy || self.arrival.is_coming() || self.users.lingers() {
            Rest::InUse
        } else if self.is_dirty() {
            Rest::Unsent
        } else if is_useless {
            Rest::Useless
        } else {
            Rest::Kept
        }
    }

    /// Returns how much of the content is here.
    pub(crate) fn presence(&self) -> Presence {
        self.arrival.presence(self.basis.version())
    }

    /// Names the part that is here and that a later life should find.
    pub(crate) fn worth_keeping(&self) -> Option<Part> {
        self.arrival.worth_keeping(self.basis.version()).filter(|_| !self.fate.is_unlinked())
    }

    /// Gives the kernel what it keeps of a file without a name: the object, and its extended attributes.
    pub(crate) fn nameless_object(&self) -> Option<(Object, Option<Xattrs>)> {
        self.fate.left().filter(|_| self.is_complete())?.left_with(&self.stat)
    }

    /// Returns the kernel's ways to the content.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// Returns the kernel's ways to the content, to change what concerns nothing else.
    pub(crate) fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }

    /// Returns the bytes that have arrived.
    pub(crate) fn arrival(&self) -> &Arrival<E, H> {
        &self.arrival
    }

    /// Returns the bytes that have arrived, for the steps of a fetch that concern nothing else.
    pub(crate) fn arrival_mut(&mut self) -> &mut Arrival<E, H> {
        &mut self.arrival
    }

    /// Returns the version that the content was made from.
    pub(crate) fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns the version that the content was made from, for answers to stores.
    pub(crate) fn basis_mut(&mut self) -> &mut Basis {
        &mut self.basis
    }

    /// Returns the edits: how far the content has been changed here, and what of that is safe where.
    pub(crate) fn edits(&self) -> &Edits {
        &self.edits
    }

    /// Returns the edits, for whatever makes one safe.
    pub(crate) fn edits_mut(&mut self) -> &mut Edits {
        &mut self.edits
    }

    /// Returns the fate: whether the file has a name still, and whether the server has refused the content.
    pub(crate) fn fate(&self) -> &Fate {
        &self.fate
    }

    /// Returns the fate of the file, to change what concerns nothing else.
    pub(crate) fn fate_mut(&mut self) -> &mut Fate {
        &mut self.fate
    }

    /// Returns size and times of the content.
    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns size and times of the content, to change what concerns nothing else.
    pub(crate) fn stat_mut(&mut self) -> &mut Stat {
        &mut self.stat
    }

    /// Returns the versions that are logged and not acknowledged.
    pub(crate) fn versions(&self) -> &Versions<C, E> {
        &self.versions
    }

    /// Returns the versions, to change what concerns nothing else.
    pub(crate) fn versions_mut(&mut self) -> &mut Versions<C, E> {
        &mut self.versions
    }

    /// Returns the caller that opened the file for writing last: the file is stored in its name.
    pub(crate) fn writer(&self) -> Caller {
        self.writer
    }

    /// Notes the caller that has opened the file for writing.
    pub(crate) fn note_writer(&mut self, writer: Caller) {
        self.writer = writer;
    }

    /// Whether the log says that the file is being changed.
    pub(crate) fn is_writing_logged(&self) -> bool {
        self.writing_logged
    }

    /// Notes whether the log says so. Returns whether it did.
    pub(crate) fn log_writing(&mut self, logged: bool) -> bool {
        std::mem::replace(&mut self.writing_logged, logged)
    }
}

impl<E: Clone, H, C: Frozen> Content<E, H, C> {
    /// Returns the version that `shown` may be, or be made from, although the answer to it has not come.
    pub(crate) fn unplaced(&self, shown: DataVersion) -> Option<StoreId> {
        self.versions.arrived().filter(|_| self.basis.version() != shown)
    }

    /// Whether what was changed here comes after the version `shown`. Not so if all of it is one version that the
    /// server may have: then `shown` is that, or was made from it, or it will be refused.
    pub(crate) fn is_newer_than(&self, shown: DataVersion) -> bool {
        let is_that = self.unplaced(shown).is_some() && self.versions.is_only(self.edits.newest());
        self.is_dirty() && !is_that
    }
}

#[cfg(test)]
mod tests;
