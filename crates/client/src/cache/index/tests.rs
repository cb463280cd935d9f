//! Tests of what an index holds for valid: while promises hold, and when it could not be written.

mod applied;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mafs_durable::{Kv, MemoryKv};
use mafs_proto::call::{ApplyReply, BrokenObject, ChangedObject, DirectoryChange, LookupReply, Mark, ReadDirPage};
use mafs_proto::{
    ChangeNumber, ClientId, Clock, CmlOp, CmlRecord, DataVersion, Entry, Fid, HistoryId, Incarnation, Instant, Kind,
    Mode, Name, Object, RenameMode, ServerId, Status, StatusVersion, StoreId, Timestamp, Uniquifier, VnodeId, VolumeId,
};

use super::{AttachedVolume, Index, Known, NameEdit};
use crate::cache::CachedEntry;
use crate::core::promises::{Grant, SessionNumber};
use crate::core::queue::Queued;

const LEASE: Duration = Duration::from_secs(60);

/// Clock that stands still until it is set.
#[derive(Clone, Default)]
struct SetClock(Arc<AtomicU64>);

impl Clock for SetClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

fn volume(change: u64) -> AttachedVolume {
    AttachedVolume { server: ServerId([1; 16]), history: HistoryId(2), mark: mark(change) }
}

fn mark(change: u64) -> Option<Mark> {
    (change > 0).then_some(Mark { change: ChangeNumber(change), tag: 9 })
}

fn root() -> Fid {
    Fid::root(VolumeId(1))
}

fn object(fid: Fid, kind: Kind, version: u64) -> Object {
    let time = Timestamp::default();
    let status = Status {
        kind,
        mode: Mode::from_bits(0o755),
        nlink: 1,
        uid: 0,
        gid: 0,
        // The size of a directory is the number of its names.
        size: version - 1,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(version),
        status_version: StatusVersion(version),
        xattrs: None,
    };
    Object { fid, status, target: None }
}

/// Returns the server's answer and the change of names when it has made the file `f` in the root.
fn creation() -> (ApplyReply, NameEdit) {
    let fid = Fid { vnode: VnodeId(2), unique: Uniquifier(1), ..root() };
    let reply = ApplyReply {
        outcome: mafs_proto::Outcome::AsSaid,
        change: ChangeNumber(1),
        directories: vec![DirectoryChange { fid: root(), before: DataVersion(1), after: DataVersion(2) }],
        objects: vec![object(root(), Kind::Directory, 2), object(fid, Kind::File, 1)],
        hash: None,
        exclusive: Vec::new(),
    };
    let entry = Some(CachedEntry { fid, kind: Kind::File });
    (reply, NameEdit { parent: root(), name: Name::new(&b"f"[..]).unwrap(), entry })
}

/// An index with a session in which the root has been shown.
struct Attached {
    kv: MemoryKv,
    clock: SetClock,
    index: Index,
    session: SessionNumber,
}

fn attached() -> Attached {
    let (kv, clock) = (MemoryKv::new(), SetClock::default());
    let index = Index::open(Arc::new(kv.clone()), Arc::new(clock.clone())).unwrap();
    let session = index.attached(volume(0), false, None).unwrap();
    index.renew_lease(clock.now(), LEASE);
    let attached = Attached { kv, clock, index, session };
    attached.show(1, 0);
    attached
}

impl Attached {
    fn grant(&self, change: u64) -> Grant {
        Grant { session: self.session, change: ChangeNumber(change) }
    }

    /// Shows the root in this version, as the server would.
    fn show(&self, version: u64, change: u64) {
        self.index.install(&[object(root(), Kind::Directory, version)], self.grant(change)).unwrap();
    }

    fn break_root(&self, change: u64) {
        self.index.break_objects(ChangeNumber(change), &[BrokenObject { fid: root(), names: Vec::new() }]);
    }

    /// Returns the version of the root that is valid.
    fn valid(&self) -> Option<DataVersion> {
        self.index.valid_object(VnodeId::ROOT).unwrap().map(|cached| cached.object.status.data_version)
    }
}

#[test]
fn nothing_is_valid_once_the_lease_has_ended() {
    let attached = attached();
    assert_eq!(attached.valid(), Some(DataVersion(1)));
    assert_eq!(attached.index.valid_for(VnodeId::ROOT), LEASE);
    let end = attached.clock.now() + LEASE;
    attached.clock.0.store(end.0, Ordering::Relaxed);
    assert_eq!(attached.valid(), None);
    assert_eq!(attached.index.valid_for(VnodeId::ROOT), Duration::ZERO);
    attached.index.renew_lease(end, LEASE);
    assert_eq!(attached.valid(), Some(DataVersion(1)), "the session has gone on");
}

#[test]
fn a_broken_object_is_valid_again_when_it_was_shown_since() {
    let attached = attached();
    attached.break_root(5);
    assert_eq!(attached.valid(), None);
    attached.show(2, 4);
    assert_eq!(attached.valid(), None, "the answer was overtaken by the break");
    attached.show(2, 5);
    assert_eq!(attached.valid(), Some(DataVersion(2)));
}

#[test]
fn an_overtaken_answer_takes_no_validity_away() {
    let attached = attached();
    attached.break_root(5);
    attached.show(2, 5);
    attached.show(1, 4);
    assert_eq!(attached.valid(), Some(DataVersion(2)));
}

#[test]
fn an_answer_older_than_what_was_shown_before_brings_no_validity() {
    let attached = attached();
    // As after a mutation that was sent again.
    let shown = [object(root(), Kind::Directory, 3)];
    attached.index.install(&shown, Grant { session: SessionNumber::NONE, ..attached.grant(3) }).unwrap();
    attached.show(2, 2);
    assert_eq!(attached.valid(), None);
    attached.show(3, 3);
    assert_eq!(attached.valid(), Some(DataVersion(3)));
}

#[test]
fn what_others_have_announced_is_shown_without_validity() {
    let attached = attached();
    let (reply, edit) = creation();
    attached.index.applied(&reply, attached.session, std::slice::from_ref(&edit)).unwrap();
    let (root, file) = (reply.objects[0].clone(), reply.objects[1].clone());
    let is_valid = |object: &Object| attached.index.valid_object(object.fid.vnode).unwrap().is_some();
    attached.break_root(2);
    attached.index.break_objects(ChangeNumber(2), &[BrokenObject { fid: file.fid, names: Vec::new() }]);
    let install = |pending: &Object| {
        attached.index.install_some(&[&root, &file], std::slice::from_ref(pending), attached.grant(3)).unwrap();
    };
    install(&file);
    assert!(is_valid(&root) && !is_valid(&file));
    let lookup = |pending| LookupReply {
        object: Some(file.clone()),
        parent_version: root.status.data_version,
        change: ChangeNumber(3),
        pending,
        name_pending: false,
        applied: Vec::new(),
    };
    attached.index.install_lookup(root.fid, &edit.name, &lookup(Some(file.clone())), attached.session, true).unwrap();
    assert!(!is_valid(&file));
    let page = ReadDirPage {
        directory: root.clone(),
        entries: vec![Entry { name: edit.name.clone(), object: file.clone() }],
        end: true,
        change: ChangeNumber(3),
        pending: vec![file.fid],
        applied: Vec::new(),
    };
    attached.index.install_page(&page, attached.session, true, &BTreeSet::new()).unwrap();
    assert!(is_valid(&root) && !is_valid(&file));
    attached
        .index
        .install_page(&ReadDirPage { pending: Vec::new(), ..page }, attached.session, true, &BTreeSet::new())
        .unwrap();
    assert!(is_valid(&file));
}

#[test]
fn the_answer_to_a_change_gives_back_no_validity_that_an_announcement_has_taken() {
    let attached = attached();
    let (reply, edit) = creation();
    attached.break_root(2);
    let late = ApplyReply { change: ChangeNumber(3), ..reply };
    attached.index.applied(&late, attached.session, &[edit]).unwrap();
    assert_eq!(attached.valid(), None);
    let made = late.objects[1].fid.vnode;
    assert!(attached.index.valid_object(made).unwrap().is_some(), "nobody else knows it");
    attached.show(2, 3);
    assert_eq!(attached.valid(), Some(DataVersion(2)));
}

#[test]
fn a_break_of_everything_leaves_nothing_valid() {
    let attached = attached();
    attached.index.break_all(ChangeNumber(5));
    assert_eq!(attached.valid(), None);
    attached.show(1, 4);
    assert_eq!(attached.valid(), None);
    attached.show(1, 5);
    assert_eq!(attached.valid(), Some(DataVersion(1)));
}

#[test]
fn only_a_resumed_session_keeps_what_is_valid() {
    let mut attached = attached();
    assert_eq!(attached.index.attached(volume(7), true, None).unwrap(), attached.session);
    assert_eq!(attached.valid(), Some(DataVersion(1)));
    let next = attached.index.attached(volume(7), false, None).unwrap();
    assert_ne!(next, attached.session);
    assert_eq!(attached.valid(), None);
    attached.show(1, 7);
    assert_eq!(attached.valid(), None, "the answer is of the session before");
    attached.session = next;
    attached.show(1, 7);
    assert_eq!(attached.valid(), Some(DataVersion(1)));
}

/// consistency.md, "Revalidation".
#[test]
fn what_has_not_changed_since_the_last_session_is_valid_in_the_next() {
    for (version, is_valid) in [(Some(1), true), (Some(2), false), (None, false)] {
        let mut attached = attached();
        let changed = ChangedObject { vnode: VnodeId::ROOT, version: version.map(StatusVersion) };
        let other = ChangedObject { vnode: VnodeId(77), version: None };
        attached.index.caught_up(attached.session, Mark { change: ChangeNumber(5), tag: 9 });
        attached.session = attached.index.attached(volume(7), false, Some(&[changed, other])).unwrap();
        assert_eq!(attached.valid().is_some(), is_valid, "{version:?}");
        assert_eq!(attached.index.mark(), mark(7));
        assert_eq!(attached.index.unnamed(), Some(attached.session));
        let held = if is_valid { vec![VnodeId::ROOT] } else { Vec::new() };
        assert_eq!(attached.index.promised_behind(None).unwrap(), (held, None));
        attached.index.named(attached.session);
        assert_eq!(attached.index.unnamed(), None);
        let next = attached.index.attached(volume(8), false, None).unwrap();
        assert_eq!(attached.valid(), None);
        assert_eq!(attached.index.unnamed(), Some(next), "it may have been asked, and the answer lost");
    }
}

#[test]
fn nothing_is_kept_of_another_history_nor_after_a_change_that_was_missed() {
    let other = AttachedVolume { history: HistoryId(3), ..volume(7) };
    let moved = attached();
    moved.index.attached(other, false, Some(&[])).unwrap();
    assert_eq!(moved.valid(), None);
    let missing = attached();
    missing.index.miss(&mut missing.index.lock());
    assert_eq!(missing.index.mark(), None);
    missing.index.attached(volume(7), false, Some(&[])).unwrap();
    assert_eq!(missing.valid(), None);
}

#[test]
fn only_what_was_heard_in_the_present_session_moves_the_mark() {
    let attached = attached();
    let mark = |change| Mark { change: ChangeNumber(change), tag: change };
    attached.index.caught_up(attached.session, mark(5));
    assert_eq!(attached.index.mark(), Some(mark(5)));
    attached.index.caught_up(attached.session.next(), mark(6));
    assert_eq!(attached.index.mark(), Some(mark(5)));
}

#[test]
fn a_restarted_client_has_nothing_valid() {
    let Attached { kv, clock, .. } = attached();
    let index = Index::open(Arc::new(kv), Arc::new(clock.clone())).unwrap();
    index.attached(volume(0), true, None).unwrap();
    index.renew_lease(clock.now(), LEASE);
    assert_eq!(index.valid_object(VnodeId::ROOT).unwrap(), None);
}

#[test]
fn a_name_of_a_newer_version_makes_its_directory_invalid() {
    let attached = attached();
    let reply = LookupReply {
        object: None,
        parent_version: DataVersion(2),
        change: ChangeNumber(1),
        pending: None,
        name_pending: false,
        applied: Vec::new(),
    };
    attached.index.install_lookup(root(), &Name::new("f").unwrap(), &reply, attached.session, true).unwrap();
    assert_eq!(attached.valid(), None, "the break is on its way");
}

#[test]
fn a_name_that_is_not_noted_is_not_good_for_any_time() {
    let (reply, NameEdit { name, .. }) = creation();
    let shown = reply.objects.into_iter().find(|object| object.status.kind == Kind::File);
    for version in 1..=3 {
        let attached = attached();
        attached.show(2, 1);
        let parent_version = DataVersion(version);
        let reply = LookupReply {
            object: shown.clone(),
            parent_version,
            change: ChangeNumber(1),
            pending: None,
            name_pending: false,
            applied: Vec::new(),
        };
        attached.index.install_lookup(root(), &name, &reply, attached.session, true).unwrap();
        let noted = attached.index.entry(VnodeId::ROOT, &name).unwrap().is_some();
        assert_eq!(noted, attached.valid().is_some(), "version {version}: nobody would tell the kernel of its end");
    }
}

#[test]
fn what_a_name_is_announced_to_mean_is_not_what_it_means() {
    let (reply, NameEdit { name, .. }) = creation();
    let coming = reply.objects.into_iter().find(|object| object.status.kind == Kind::File);
    let attached = attached();
    attached.show(2, 1);
    let (fid, parent_version) = (coming.as_ref().unwrap().fid, DataVersion(2));
    let reply = LookupReply {
        object: coming.clone(),
        parent_version,
        change: ChangeNumber(1),
        pending: coming,
        name_pending: true,
        applied: Vec::new(),
    };
    attached.index.install_lookup(root(), &name, &reply, attached.session, true).unwrap();
    assert_eq!(attached.index.entry(VnodeId::ROOT, &name).unwrap(), None);
    assert!(attached.index.object(fid.vnode).unwrap().is_some(), "it can be opened");
    assert!(attached.index.valid_object(fid.vnode).unwrap().is_none());
}

#[test]
fn a_late_answer_leaves_names_that_were_shown_since() {
    let (reply, edit) = creation();
    let attached = attached();
    let directory = object(root(), Kind::Directory, 3);
    let (entries, pending, applied) = (Vec::new(), Vec::new(), Vec::new());
    let page = ReadDirPage { directory, entries, end: true, change: ChangeNumber(2), pending, applied };
    attached.index.install_page(&page, attached.session, true, &BTreeSet::new()).unwrap();
    attached.index.applied(&reply, attached.session, std::slice::from_ref(&edit)).unwrap();
    assert_eq!(attached.index.entry(VnodeId::ROOT, &edit.name).unwrap(), None, "it has been removed since");
    let entries = attached.index.object(VnodeId::ROOT).unwrap().unwrap().entries;
    assert!(entries.is_some_and(|entries| entries.complete), "all names are asked for again");
}

/// Makes an index that knows the root with one name, all of it.
fn listed() -> Attached {
    let (reply, edit) = creation();
    let attached = attached();
    let [directory, file] = reply.objects.try_into().unwrap();
    let entries = vec![Entry { name: edit.name, object: file }];
    let (pending, applied) = (Vec::new(), Vec::new());
    let page = ReadDirPage { directory, entries, end: true, change: ChangeNumber(1), pending, applied };
    attached.index.install_page(&page, attached.session, true, &BTreeSet::new()).unwrap();
    attached.kv.sync().unwrap();
    attached.index.install_page(&page, attached.session, true, &BTreeSet::new()).unwrap();
    attached
}

#[test]
fn a_crash_between_the_old_names_and_the_new_ones_leaves_no_directory_that_seems_empty() {
    let attached = listed();
    let name = creation().1.name;
    let mut lost = 0;
    for seed in 0..20 {
        let index = Index::open(Arc::new(attached.kv.crash(seed)), Arc::new(attached.clock.clone())).unwrap();
        let complete = index.object(VnodeId::ROOT).unwrap().unwrap().entries.is_some_and(|entries| entries.complete);
        let known = index.entry(VnodeId::ROOT, &name).unwrap().is_some();
        lost += u32::from(!known);
        assert!(known || !complete, "seed {seed}: a name is gone");
    }
    assert!(lost > 0, "no crash came between");
}

#[test]
fn an_older_answer_brings_no_promise_on_what_is_known_to_be_applied_since() {
    let attached = attached();
    let fid = Fid { vnode: VnodeId(2), unique: Uniquifier(1), ..root() };
    let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(2), seq: 1 };
    let name = |name: &'static [u8]| Name::new(name).unwrap();
    let op = CmlOp::Rename {
        from_parent: root(),
        from_name: name(b"old"),
        to_parent: root(),
        to_name: name(b"new"),
        fid,
        replaced: None,
        mode: RenameMode::Replace,
    };
    let record =
        CmlRecord { id, depends_on: Vec::new(), time: Timestamp::default(), uid: 0, gid: 0, removes: None, op };
    let queued = Queued { record, kind: Kind::File, replaced: None };
    attached.index.push_pending(&queued);
    let of_earlier_session = Grant { session: SessionNumber::NONE, ..attached.grant(7) };
    attached.index.applied_unanswered(std::slice::from_ref(&queued), of_earlier_session).unwrap();
    assert!(attached.index.is_laid_over(&queued));
    attached.index.applied_unanswered(std::slice::from_ref(&queued), attached.grant(5)).unwrap();
    assert!(!attached.index.is_laid_over(&queued));
    attached.show(2, 4);
    assert_eq!(attached.valid(), None, "an answer from before the rename, which is not laid over it any more");
    attached.show(3, 5);
    assert_eq!(attached.valid(), Some(DataVersion(3)));
}

/// The status may be of after the removal, which only the answer will tell: a file with a second name must not be gone.
#[test]
fn what_a_record_of_a_life_before_removes_may_be_there_by_another_name() {
    let (before, now) = (attached(), attached());
    let (mut reply, edit) = creation();
    reply.objects[1].status.nlink = 1;
    let (fid, id) = (reply.objects[1].fid, StoreId { seq: 2, ..creating().record.id });
    let op = CmlOp::Remove { parent: root(), name: edit.name.clone(), fid };
    let queued = Queued { record: CmlRecord { id, op, ..creating().record }, ..creating() };
    for attached in [&before, &now] {
        attached.index.applied(&reply, attached.session, std::slice::from_ref(&edit)).unwrap();
    }
    before.index.restore_pending(&queued);
    now.index.push_pending(&queued);
    let is_removed = |attached: &Attached| attached.index.is_removed(fid.vnode).unwrap();
    let is_certain = |attached: &Attached| attached.index.is_certainly_removed(fid.vnode).unwrap();
    assert_eq!((is_removed(&before), is_certain(&before)), (true, false));
    assert_eq!((is_removed(&now), is_certain(&now)), (true, true));
    before.index.drop_pending(&queued);
    before.index.push_pending(&queued);
    assert!(is_certain(&before), "it is of this life");
}

/// Returns the record that makes what [`creation`] says the server has made.
fn creating() -> Queued {
    let (reply, edit) = creation();
    let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(2), seq: 1 };
    let (fid, kind) = (reply.objects[1].fid, Kind::File);
    let op = CmlOp::Create { parent: root(), name: edit.name, fid, kind, mode: Mode::from_bits(0o644), rdev: 0 };
    let record =
        CmlRecord { id, depends_on: Vec::new(), time: Timestamp::default(), uid: 0, gid: 0, removes: None, op };
    Queued { record, kind, replaced: None }
}

impl Attached {
    /// Returns what is known of a name in the root.
    fn knows(&self, name: &'static [u8]) -> Known {
        self.index.known_entry(VnodeId::ROOT, &Name::new(name).unwrap()).unwrap()
    }
}

#[test]
fn names_are_known_while_a_status_shows_more_of_this_clients_changes_than_was_answered() {
    let attached = attached();
    let (reply, edit) = creation();
    attached.index.push_pending(&creating());
    attached.show(2, 1);
    assert_eq!((attached.valid(), attached.knows(b"g")), (Some(DataVersion(2)), Known::Means(None)));
    assert_eq!(attached.knows(b"f"), Known::Means(edit.entry));
    attached.index.applied_pending(&reply, attached.session, &creating()).unwrap();
    assert_eq!((attached.knows(b"g"), attached.knows(b"f")), (Known::Means(None), Known::Means(edit.entry)));
    assert_eq!(attached.index.names_version(root()), Some(DataVersion(2)));
    attached.show(3, 2);
    assert_eq!(attached.knows(b"g"), Known::Unknown, "nothing of this client's is missing");
}

#[test]
fn names_that_lack_something_are_not_known_in_the_next_session() {
    let (attached, volume) = (attached(), volume(5));
    attached.index.caught_up(attached.session, volume.mark.unwrap());
    attached.index.push_pending(&creating());
    // The root is changed by another client, which does not wait for this one any more; the break is lost.
    attached.show(2, 1);
    assert_eq!(attached.knows(b"g"), Known::Means(None));
    attached.index.attached(volume, false, Some(&[])).unwrap();
    assert_eq!((attached.valid(), attached.knows(b"g")), (Some(DataVersion(2)), Known::Unknown));
}

#[test]
fn names_are_not_known_when_others_may_have_changed_them_too() {
    let attached = attached();
    let (reply, _) = creation();
    attached.index.push_pending(&creating());
    attached.break_root(1);
    attached.show(3, 2);
    assert_eq!((attached.valid(), attached.knows(b"g")), (Some(DataVersion(3)), Known::Unknown));
    // The break comes behind what it breaks.
    let late = self::attached();
    late.index.push_pending(&creating());
    late.show(3, 2);
    late.break_root(1);
    late.show(3, 2);
    assert_eq!((late.valid(), late.knows(b"g")), (Some(DataVersion(3)), Known::Unknown));
    // Only the server knows what became of the name.
    let elsewhere = self::attached();
    elsewhere.index.push_pending(&creating());
    elsewhere.index.applied_otherwise(&reply, elsewhere.session, &creating()).unwrap();
    assert_eq!((elsewhere.valid(), elsewhere.knows(b"g")), (None, Known::Unknown));
    elsewhere.show(2, 1);
    assert_eq!((elsewhere.valid(), elsewhere.knows(b"g")), (Some(DataVersion(2)), Known::Unknown));
}

#[test]
fn an_overtaken_listing_is_known_but_not_valid() {
    let attached = attached();
    attached.break_root(5);
    let directory = object(root(), Kind::Directory, 2);
    let page = ReadDirPage {
        directory,
        entries: Vec::new(),
        end: true,
        change: ChangeNumber(4),
        pending: Vec::new(),
        applied: Vec::new(),
    };
    attached.index.install_page(&page, attached.session, true, &BTreeSet::new()).unwrap();
    assert_eq!(attached.valid(), None);
    let known = attached.index.object(VnodeId::ROOT).unwrap().unwrap();
    assert!(known.entries.unwrap().complete);
}

#[test]
fn after_a_change_that_could_not_be_noted_nothing_is_valid_until_it_was_asked_for_again() {
    let attached = attached();
    let (reply, edit) = creation();
    attached.kv.set_full(true);
    attached.index.check_writable().unwrap_err();
    attached.index.applied(&reply, attached.session, &[edit]).unwrap_err();
    assert_eq!(attached.valid(), None);
    attached.kv.set_full(false);
    assert_eq!(attached.valid(), None, "there is room, but what is known is as old as before");
    attached.show(2, 1);
    let valid = attached.index.valid_object(VnodeId::ROOT).unwrap().unwrap();
    assert_eq!((valid.object.status.data_version, valid.entries), (DataVersion(2), None));
}

#[test]
fn what_cannot_be_distrusted_for_want_of_room_is_not_trusted_either() {
    let attached = attached();
    attached.kv.set_full(true);
    attached.index.distrust(std::iter::once(root())).unwrap_err();
    assert_eq!(attached.valid(), None);
}

#[test]
fn a_break_that_cannot_be_noted_leaves_nothing_valid() {
    for all in [true, false] {
        let attached = attached();
        attached.kv.set_full(true);
        match all {
            true => attached.index.break_all(ChangeNumber(1)),
            false => attached.break_root(1),
        }
        assert_eq!(attached.valid(), None);
    }
}

#[test]
fn what_another_session_was_promised_for_a_mutation_is_not_valid() {
    let attached = attached();
    let (reply, edit) = creation();
    attached.index.applied(&reply, SessionNumber::NONE, &[edit]).unwrap();
    assert_eq!(attached.valid(), None);
}
