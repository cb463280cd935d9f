//! Tests of records in conflict: nothing of them is lost, and nothing of what they are in conflict with.

use mafs_durable::Kv;
use mafs_proto::call::{ApplyReply, ApplyRequest, ConflictsRequest};
use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, Conflict, ConflictKind, DataVersion, Fid, FidRange, FsError, Incarnation, Mode,
    OnConflict, Origin, Outcome, PlacedName, Removed, RenameMode, SetAttr, SymlinkTarget,
};

use super::{CLIENT, ROOT, World, attach, create, make_dir, name, store};
use crate::core::{Overlay, clients, conflicts, tables};

const OTHER: ClientId = ClientId([9; 16]);
/// State of a file as a client knew it that has removed it, without a connection and with one.
const ALONE: Removed = Removed { version: DataVersion(1), alone: true };
const CONNECTED: Removed = Removed { alone: false, ..ALONE };

/// A volume with two clients; the first makes what is there, then both go their ways.
struct Apart {
    world: World,
    other: Option<(Incarnation, FidRange, u64)>,
}

impl Apart {
    fn new() -> Self {
        let world = World::new();
        let clients::Granted { incarnation, fids, .. } = attach(&world.kv, OTHER);
        Self { world, other: Some((incarnation, fids, 0)) }
    }

    /// Acts as the other client.
    fn other<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let swap = |apart: &mut Self, client| {
            let (incarnation, fids, seq) = apart.other.take().unwrap();
            let world = &mut apart.world;
            apart.other = Some((world.incarnation, std::mem::replace(&mut world.fids, fids), world.seq));
            (world.client, world.incarnation, world.seq) = (client, incarnation, seq);
        };
        swap(self, OTHER);
        let acted = act(self);
        swap(self, CLIENT);
        acted
    }

    /// Applies a record that was made apart, at `directory`/`text`.
    fn late(&mut self, record: CmlRecord, at: (Fid, &str), bytes: Option<&[u8]>) -> Result<ApplyReply, FsError> {
        let path = vec![name("work"), name("deep")];
        let mode = Mode::from_bits(0o640);
        let origin = Origin { directory: at.0, name: name(at.1), path, mode, uid: 7, gid: 8 };
        let on_conflict = OnConflict::Keep(origin);
        let request = ApplyRequest { comes_again: true, on_conflict, ..ApplyRequest::new(record, None) };
        let reply = self.world.apply_request(&request, bytes);
        if let Ok(reply) = &reply {
            let size = self.world.kv.scan(b"", None, usize::MAX).unwrap().len();
            assert_eq!(self.world.apply_request(&request, bytes).as_ref(), Ok(reply), "it happens once");
            assert_eq!(self.world.kv.scan(b"", None, usize::MAX).unwrap().len(), size);
        }
        reply
    }

    fn do_late(&mut self, op: CmlOp, at: (Fid, &str)) -> Result<ApplyReply, FsError> {
        let record = self.world.next_record(op);
        self.late(record, at, None)
    }

    fn store_late(&mut self, fid: Fid, base: Base, at: (Fid, &str), bytes: &[u8]) -> ApplyReply {
        let record = self.world.next_record(store(fid, base, bytes));
        self.late(record, at, Some(bytes)).unwrap()
    }

    fn overlay(&self) -> Overlay<'_> {
        self.world.overlay()
    }

    fn conflicts(&self) -> Vec<Conflict> {
        conflicts::page(&self.overlay(), &ConflictsRequest::default()).unwrap().conflicts
    }

    fn the_conflict(&self) -> Conflict {
        let [conflict] = &self.conflicts()[..] else { panic!("{:?}", self.conflicts()) };
        conflict.clone()
    }

    fn meaning(&self, directory: Fid, text: &str) -> Option<Fid> {
        self.overlay().begin().entry(directory, &name(text)).unwrap()
    }

    fn text(&self, fid: Fid) -> Vec<u8> {
        let transaction = self.overlay();
        let transaction = transaction.begin();
        let node = transaction.node(fid).unwrap();
        transaction.get(&tables::inline(fid, node.status.data_version)).unwrap().unwrap_or_default()
    }

    /// Checks that objects and bytes are counted as they are.
    fn check_counters(&self) {
        let transaction = self.overlay();
        let state = transaction.begin().state().unwrap();
        let nodes = self.world.kv.scan(&tables::nodes(), None, usize::MAX).unwrap();
        assert_eq!(state.objects, nodes.len() as u64);
    }
}

fn placed(directory: Fid, text: &str) -> PlacedName {
    PlacedName { directory, name: name(text) }
}

const KEPT: &str = "f (conflict laptop 1970-01-01 00.01).txt";

fn version(reply: &ApplyReply, fid: Fid) -> Base {
    Base::Version(reply.objects.iter().find(|object| object.fid == fid).unwrap().status.data_version)
}

#[test]
fn invariant_9_a_content_from_an_old_version_is_kept_beside_the_present_one() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f.txt");
    let base = Base::Version(DataVersion(1));
    apart.other(|apart| apart.world.store(file, base, b"theirs")).unwrap();
    let reply = apart.store_late(file, base, (ROOT, "f.txt"), b"mine");
    assert_eq!(reply.outcome, Outcome::Elsewhere(vec![placed(ROOT, KEPT)]));
    let conflict = apart.the_conflict();
    assert_eq!((conflict.kind, &conflict.wanted), (ConflictKind::Update, &placed(ROOT, "f.txt")));
    assert_eq!((conflict.base, conflict.client), (Some(DataVersion(1)), CLIENT));
    assert_eq!(conflict.theirs_now.map(|theirs| theirs.fid), Some(file));
    assert_eq!((apart.text(file), apart.text(conflict.mine)), (b"theirs".to_vec(), b"mine".to_vec()));
    let mine = conflict.mine_now.unwrap().status;
    assert_eq!((mine.mode.bits(), mine.uid, mine.gid, mine.size), (0o640, 7, 8, 4));
    apart.check_counters();

    // A content that was written on top of the copy belongs to it.
    let again = Base::Record(reply_id(&apart));
    let reply = apart.store_late(file, again, (ROOT, "f.txt"), b"mine, continued");
    assert_eq!(reply.outcome, Outcome::Elsewhere(Vec::new()));
    assert_eq!((apart.text(file), apart.text(conflict.mine)), (b"theirs".to_vec(), b"mine, continued".to_vec()));
    assert_eq!(apart.conflicts().len(), 1);
}

fn reply_id(apart: &Apart) -> mafs_proto::StoreId {
    mafs_proto::StoreId { client: CLIENT, incarnation: apart.world.incarnation, seq: apart.world.seq }
}

#[test]
fn equal_contents_are_no_conflict() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f");
    let base = Base::Version(DataVersion(1));
    apart.other(|apart| apart.world.store(file, base, b"same")).unwrap();
    let reply = apart.store_late(file, base, (ROOT, "f"), b"same");
    assert_eq!(reply.outcome, Outcome::WasSo);
    assert_eq!(version(&reply, file), Base::Version(DataVersion(2)));
    // And the next one builds on it.
    let reply = apart.store_late(file, Base::Record(reply_id(&apart)), (ROOT, "f"), b"next");
    assert_eq!((reply.outcome, apart.conflicts()), (Outcome::AsSaid, vec![]));
    assert_eq!(apart.text(file), b"next");
}

#[test]
fn a_content_of_what_was_removed_is_kept() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f.txt");
    apart.other(|apart| apart.world.apply(remove(ROOT, "f.txt", file))).unwrap();
    apart.store_late(file, Base::Version(DataVersion(1)), (ROOT, "f.txt"), b"mine");
    let conflict = apart.the_conflict();
    assert_eq!((conflict.kind, conflict.theirs_now), (ConflictKind::Removed, None));
    assert_eq!(conflict.place, placed(ROOT, KEPT));
    // Another change of the file is done to the copy.
    let set = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
    apart.do_late(CmlOp::SetAttr { fid: file, set }, (ROOT, "f.txt")).unwrap();
    assert_eq!(apart.the_conflict().mine_now.unwrap().status.mode, Mode::from_bits(0o600));
    assert_eq!(apart.text(conflict.mine), b"mine");
}

#[test]
fn a_name_that_both_made_means_what_was_first_and_the_other_is_kept() {
    let mut apart = Apart::new();
    let theirs = apart.other(|apart| apart.world.create(ROOT, "f.txt"));
    apart.other(|apart| apart.world.store(theirs, Base::Version(DataVersion(1)), b"theirs")).unwrap();
    let mine = apart.world.next_fid();
    let reply = apart.do_late(create(ROOT, "f.txt", mine), (ROOT, "f.txt")).unwrap();
    assert_eq!(reply.outcome, Outcome::Elsewhere(vec![placed(ROOT, KEPT)]));
    apart.store_late(mine, Base::Version(DataVersion(1)), (ROOT, "f.txt"), b"mine");
    assert_eq!((apart.text(theirs), apart.text(mine)), (b"theirs".to_vec(), b"mine".to_vec()));
    assert_eq!((apart.the_conflict().kind, apart.the_conflict().mine), (ConflictKind::Name, mine));
}

#[test]
fn the_same_file_made_by_both_is_one() {
    let mut apart = Apart::new();
    let theirs = apart.other(|apart| apart.world.create(ROOT, "f.txt"));
    apart.other(|apart| apart.world.store(theirs, Base::Version(DataVersion(1)), b"same")).unwrap();
    let mine = apart.world.next_fid();
    apart.do_late(create(ROOT, "f.txt", mine), (ROOT, "f.txt")).unwrap();
    let reply = apart.store_late(mine, Base::Version(DataVersion(1)), (ROOT, "f.txt"), b"same");
    assert_eq!(reply.outcome, Outcome::Elsewhere(vec![placed(ROOT, KEPT)]));
    assert_eq!((apart.conflicts(), apart.meaning(ROOT, KEPT)), (vec![], None));
    let set = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
    apart.do_late(CmlOp::SetAttr { fid: mine, set }, (ROOT, "f.txt")).unwrap();
    assert_eq!(apart.overlay().begin().node(theirs).unwrap().status.mode, Mode::from_bits(0o600));
    apart.check_counters();
}

#[test]
fn directories_that_both_made_are_one_with_what_both_put_into_them() {
    let mut apart = Apart::new();
    let theirs = apart.other(|apart| apart.world.make_dir(ROOT, "photos"));
    apart.other(|apart| apart.world.create(theirs, "theirs"));
    let (mine, file) = (apart.world.next_fid(), apart.world.next_fid());
    let reply = apart.do_late(make_dir(ROOT, "photos", mine), (ROOT, "photos")).unwrap();
    assert_eq!(reply.outcome, Outcome::Elsewhere(Vec::new()));
    let reply = apart.do_late(create(mine, "mine", file), (mine, "mine")).unwrap();
    assert_eq!(reply.outcome, Outcome::Elsewhere(vec![placed(theirs, "mine")]));
    assert_eq!((apart.meaning(theirs, "mine"), apart.conflicts()), (Some(file), vec![]));
    let made = apart.world.next_fid();
    apart.do_late(create(mine, "theirs", made), (mine, "theirs")).unwrap();
    assert_eq!(apart.conflicts(), vec![], "both are empty");
    apart.check_counters();
}

#[test]
fn what_was_made_in_a_directory_that_was_removed_is_kept_under_its_path() {
    let mut apart = Apart::new();
    let directory = apart.world.make_dir(ROOT, "gone");
    apart.other(|apart| apart.world.apply(remove_dir(ROOT, "gone", directory))).unwrap();
    let (sub, file) = (apart.world.next_fid(), apart.world.next_fid());
    let reply = apart.do_late(make_dir(directory, "sub", sub), (directory, "sub")).unwrap();
    let Outcome::Elsewhere(placed) = &reply.outcome else { panic!("{reply:?}") };
    let names: Vec<_> = placed.iter().map(|place| place.name.to_string()).collect();
    assert_eq!(names, [".mafs-conflicts", "laptop", "work", "deep", "sub"]);
    // A record in that directory needs nothing special.
    let reply = apart.do_late(create(sub, "f", file), (sub, "f")).unwrap();
    assert_eq!(reply.outcome, Outcome::AsSaid);
    let second = apart.world.next_fid();
    apart.do_late(create(directory, "second", second), (directory, "second")).unwrap();
    let places: Vec<_> = apart.conflicts().into_iter().map(|conflict| conflict.place).collect();
    assert_eq!(places.len(), 2);
    assert_eq!(places[0].directory, places[1].directory, "the way is made once");
    apart.check_counters();
}

fn rename(from: (Fid, &str), to: (Fid, &str), fid: Fid, replaced: Option<Fid>) -> CmlOp {
    let (from_name, to_name) = (name(from.1), name(to.1));
    let mode = RenameMode::Replace;
    CmlOp::Rename { from_parent: from.0, from_name, to_parent: to.0, to_name, fid, replaced, mode }
}

fn remove(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::Remove { parent, name: name(text), fid }
}

fn remove_dir(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::RemoveDir { parent, name: name(text), fid }
}

#[test]
fn a_file_saved_by_renaming_is_kept_beside_what_others_have_saved() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f.txt");
    // The other client saves in place, this one by a new file that takes the name.
    apart.other(|apart| apart.world.store(file, Base::Version(DataVersion(1)), b"theirs")).unwrap();
    let temp = apart.world.create(ROOT, "f.tmp");
    let record = apart.world.next_record(rename((ROOT, "f.tmp"), (ROOT, "f.txt"), temp, Some(file)));
    let record = CmlRecord { removes: Some(ALONE), ..record };
    apart.late(record, (ROOT, "f.txt"), None).unwrap();
    assert_eq!(apart.meaning(ROOT, "f.txt"), Some(file));
    assert_eq!((apart.meaning(ROOT, "f.tmp"), apart.meaning(ROOT, KEPT)), (None, Some(temp)));
    assert_eq!(apart.the_conflict().kind, ConflictKind::Update);
    assert_eq!(apart.text(file), b"theirs");
    // A user who gives it another name has resolved the conflict.
    apart.world.apply(rename((ROOT, KEPT), (ROOT, "f.txt"), temp, Some(file))).unwrap();
    assert_eq!((apart.conflicts(), apart.meaning(ROOT, "f.txt")), (vec![], Some(temp)));
    assert_eq!(apart.overlay().begin().node(temp).unwrap().status.xattrs, None);
    apart.check_counters();
}

#[test]
fn invariant_9_a_rename_of_a_connected_client_sets_aside_what_another_has_stored() {
    let mut apart = Apart::new();
    let directory = apart.world.make_dir(ROOT, "d");
    let file = apart.world.create(directory, "f.txt");
    let temp = apart.world.create(directory, "f.tmp");
    apart.other(|apart| apart.world.store(file, Base::Version(DataVersion(1)), b"theirs")).unwrap();
    let record = apart.world.next_record(rename((directory, "f.tmp"), (directory, "f.txt"), temp, Some(file)));
    let record = CmlRecord { removes: Some(CONNECTED), ..record };
    let reply = apart.late(record, (directory, "f.txt"), None).unwrap();
    assert_eq!(reply.outcome, Outcome::SetAside(placed(directory, KEPT)));
    assert_eq!((apart.meaning(directory, "f.txt"), apart.meaning(directory, "f.tmp")), (Some(temp), None));
    assert_eq!(apart.meaning(directory, KEPT), Some(file));
    assert_eq!(apart.text(file), b"theirs");
    let listed = apart.conflicts();
    assert_eq!((listed[0].client, listed[0].mine, listed[0].kind), (OTHER, file, ConflictKind::Update));
    assert_eq!((listed[0].path.as_slice(), &listed[0].wanted), (&[name("d")][..], &placed(directory, "f.txt")));
    apart.check_counters();
}

#[test]
fn invariant_9_a_removal_of_a_connected_client_sets_aside_what_another_has_stored() {
    let mut apart = Apart::new();
    let [changed, known, linked] = ["changed", "known", "linked"].map(|text| apart.world.create(ROOT, text));
    apart.world.apply(CmlOp::Link { parent: ROOT, name: name("other"), fid: linked }).unwrap();
    for file in [changed, known, linked] {
        apart.other(|apart| apart.world.store(file, Base::Version(DataVersion(1)), b"theirs")).unwrap();
    }
    let mut removed = |text: &str, fid, removes| {
        let record = apart.world.next_record(remove(ROOT, text, fid));
        apart.late(CmlRecord { removes: Some(removes), ..record }, (ROOT, text), None).unwrap().outcome
    };
    let Outcome::SetAside(place) = removed("changed", changed, CONNECTED) else { panic!("it is kept") };
    let now = Removed { version: DataVersion(2), alone: false };
    assert_eq!(removed("known", known, now), Outcome::AsSaid, "it was known");
    assert_eq!(removed("linked", linked, CONNECTED), Outcome::AsSaid, "it has another name");
    assert_eq!(apart.overlay().begin().entry(ROOT, &place.name).unwrap(), Some(changed));
    assert_eq!(apart.meaning(ROOT, "changed"), None);
    assert!(apart.overlay().begin().node(known).is_err());
    apart.check_counters();
}

#[test]
fn what_others_have_changed_is_not_removed() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f");
    apart.other(|apart| apart.world.store(file, Base::Version(DataVersion(1)), b"theirs")).unwrap();
    let record = apart.world.next_record(remove(ROOT, "f", file));
    let record = CmlRecord { removes: Some(ALONE), ..record };
    assert_eq!(apart.late(record, (ROOT, "f"), None), Err(FsError::BaseChanged));
    let directory = apart.world.make_dir(ROOT, "d");
    apart.other(|apart| apart.world.create(directory, "new"));
    assert_eq!(apart.do_late(remove_dir(ROOT, "d", directory), (ROOT, "d")), Err(FsError::NotEmpty));
    assert_eq!(apart.text(file), b"theirs");
}

#[test]
fn what_both_have_removed_or_moved_alike_is_no_conflict() {
    let mut apart = Apart::new();
    let (file, moved) = (apart.world.create(ROOT, "f"), apart.world.create(ROOT, "m"));
    apart.other(|apart| apart.world.apply(remove(ROOT, "f", file))).unwrap();
    apart.other(|apart| apart.world.apply(rename((ROOT, "m"), (ROOT, "n"), moved, None))).unwrap();
    assert_eq!(apart.do_late(remove(ROOT, "f", file), (ROOT, "f")).unwrap().outcome, Outcome::WasSo);
    let again = rename((ROOT, "m"), (ROOT, "n"), moved, None);
    assert_eq!(apart.do_late(again, (ROOT, "n")).unwrap().outcome, Outcome::WasSo);
    let target = SymlinkTarget::new(&b"x"[..]).unwrap();
    let symlink = |fid| CmlOp::SymLink { parent: ROOT, name: name("l"), fid, target: target.clone() };
    let theirs = apart.other(|apart| {
        let fid = apart.world.next_fid();
        apart.world.apply(symlink(fid)).unwrap();
        fid
    });
    let mine = apart.world.next_fid();
    assert_eq!(apart.do_late(symlink(mine), (ROOT, "l")).unwrap().outcome, Outcome::Elsewhere(vec![]));
    assert_eq!((apart.meaning(ROOT, "l"), apart.conflicts()), (Some(theirs), vec![]));
}

#[test]
fn what_both_have_moved_stays_where_it_was_moved_first() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f");
    apart.other(|apart| apart.world.apply(rename((ROOT, "f"), (ROOT, "theirs"), file, None))).unwrap();
    let moved = apart.do_late(rename((ROOT, "f"), (ROOT, "mine"), file, None), (ROOT, "mine"));
    assert_eq!(moved, Err(FsError::NotFound));
    let (a, b) = (apart.world.make_dir(ROOT, "a"), apart.world.make_dir(ROOT, "b"));
    apart.other(|apart| apart.world.apply(rename((ROOT, "a"), (b, "a"), a, None))).unwrap();
    let moved = apart.do_late(rename((ROOT, "b"), (a, "b"), b, None), (a, "b"));
    assert_eq!(moved, Err(FsError::BelowItself));
    assert_eq!((apart.meaning(ROOT, "theirs"), apart.meaning(b, "a")), (Some(file), Some(a)));
}

#[test]
fn many_copies_of_one_minute_have_numbers() {
    let mut apart = Apart::new();
    let file = apart.world.create(ROOT, "f.txt");
    let base = Base::Version(DataVersion(1));
    apart.other(|apart| apart.world.store(file, base, b"theirs")).unwrap();
    for content in [&b"one"[..], b"two", b"three"] {
        apart.store_late(file, base, (ROOT, "f.txt"), content);
    }
    let names: Vec<String> = apart.conflicts().iter().map(|conflict| conflict.place.name.to_string()).collect();
    let numbered = |nth| format!("f (conflict laptop 1970-01-01 00.01){nth}.txt");
    assert_eq!(names, [numbered(" (2)"), numbered(" (3)"), numbered("")]);
    let first = conflicts::page(&apart.overlay(), &ConflictsRequest::default()).unwrap();
    let after = Some(first.conflicts[0].place.clone());
    assert_eq!(conflicts::page(&apart.overlay(), &ConflictsRequest { after }).unwrap().conflicts.len(), 2);
}

#[test]
fn without_an_origin_a_conflict_is_refused_as_ever() {
    let mut apart = Apart::new();
    apart.other(|apart| apart.world.create(ROOT, "f"));
    let fid = apart.world.next_fid();
    let record = apart.world.next_record(create(ROOT, "f", fid));
    for on_conflict in [OnConflict::Refuse, OnConflict::Ask] {
        let request = ApplyRequest { on_conflict, ..ApplyRequest::new(record.clone(), None) };
        assert_eq!(apart.world.apply_request(&request, None), Err(FsError::Exists));
    }
    assert!(apart.conflicts().is_empty());
}
