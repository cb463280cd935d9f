//! Tests of announced records: each holds others back, and only them, for as long as it may.

use std::collections::BTreeSet;

use mafs_proto::{
    Base, ChangeNumber, ClientId, CmlOp, CmlRecord, DataVersion, Fid, Incarnation, Kind, Mode, RenameMode, SetAttr,
    Status, StatusVersion, StoreId, SymlinkTarget, Uniquifier, VnodeId, XattrMode, XattrName, XattrValue,
};
use proptest::prelude::*;

use super::{ROOT, create, name, time};
use crate::core::pending::{About, Announced, Entered, PENDING_MAX, Pending, Viewer, slim, touched};

const ALICE: ClientId = ClientId([1; 16]);
const BOB: ClientId = ClientId([2; 16]);
const CAROL: ClientId = ClientId([3; 16]);
const FILE: Fid = Fid { vnode: VnodeId(7), unique: Uniquifier(1), ..ROOT };
const OLD: Fid = Fid { vnode: VnodeId(8), ..FILE };
const OBJECT: About = About::Object(FILE.vnode);

fn id(client: ClientId, seq: u64) -> StoreId {
    StoreId { client, incarnation: Incarnation(1), seq }
}

fn record(client: ClientId, seq: u64, op: CmlOp) -> CmlRecord {
    let seconds = i64::try_from(seq).unwrap();
    CmlRecord { id: id(client, seq), depends_on: Vec::new(), time: time(seconds), uid: 0, gid: 0, removes: None, op }
}

fn store(client: ClientId, seq: u64, size: u64) -> CmlRecord {
    let base = Base::Version(DataVersion(1));
    record(client, seq, CmlOp::Store { fid: FILE, base, size, mtime: time(500) })
}

fn rename(client: ClientId, seq: u64) -> CmlRecord {
    let op = CmlOp::Rename {
        from_parent: ROOT,
        from_name: name("temp"),
        to_parent: ROOT,
        to_name: name("f"),
        fid: FILE,
        replaced: Some(OLD),
        mode: RenameMode::Replace,
    };
    record(client, seq, op)
}

/// Makes a table with these records, announced one after the other.
fn pending(records: &[CmlRecord]) -> Pending {
    let mut pending = Pending::default();
    for (change, record) in (1..).zip(records) {
        assert_eq!(pending.announce(record, ChangeNumber(change)), Entered::Changed);
    }
    pending
}

const EVERYBODY: &dyn Fn(ClientId) -> bool = &|_| true;
const NOBODY: &dyn Fn(ClientId) -> bool = &|_| false;

fn bob(is_live: &dyn Fn(ClientId) -> bool) -> Viewer<'_> {
    Viewer { client: BOB, is_live }
}

fn ids(client: ClientId, seqs: &[u64]) -> Vec<StoreId> {
    seqs.iter().map(|seq| id(client, *seq)).collect()
}

#[test]
fn an_announced_store_touches_its_object_for_others_and_not_for_its_client() {
    let pending = pending(&[store(ALICE, 1, 10)]);
    assert_eq!(pending.touching(&OBJECT, bob(EVERYBODY)), ids(ALICE, &[1]));
    let alice = Viewer { client: ALICE, is_live: EVERYBODY };
    assert_eq!(pending.touching(&OBJECT, alice), []);
    assert!(pending.laid_over(FILE.vnode, alice).is_none());
    assert_eq!(pending.touching(&About::Object(OLD.vnode), bob(EVERYBODY)), []);
}

/// The first was on its way, was refused because the disk is full, and is announced when it waits again.
#[test]
fn the_records_of_one_client_count_in_the_order_of_its_log_however_they_are_announced() {
    let pending = pending(&[store(ALICE, 2, 20), store(CAROL, 1, 5), store(ALICE, 1, 10)]);
    let order = [id(ALICE, 1), id(CAROL, 1), id(ALICE, 2)];
    assert_eq!(pending.touching(&OBJECT, bob(EVERYBODY)), order);
}

#[test]
fn the_last_announced_record_about_a_name_says_what_it_will_mean() {
    let meaning = |pending: &Pending, what| pending.meaning(ROOT.vnode, &name(what), bob(EVERYBODY));
    let mut saved = pending(&[store(ALICE, 1, 10), rename(ALICE, 2)]);
    assert_eq!(meaning(&saved, "f"), Some(FILE));
    assert_eq!(meaning(&saved, "temp"), None, "it will mean nothing, or what was not announced");
    assert_eq!(meaning(&saved, "other"), None);
    assert_eq!(saved.meaning(ROOT.vnode, &name("f"), bob(NOBODY)), None);
    let removed = record(ALICE, 3, CmlOp::Remove { parent: ROOT, name: name("f"), fid: FILE });
    saved.announce(&removed, ChangeNumber(3));
    assert_eq!(meaning(&saved, "f"), None);
}

#[test]
fn records_of_a_client_without_session_do_not_count_and_are_known_to_be_left_out() {
    let pending = pending(&[store(ALICE, 1, 10)]);
    assert_eq!(pending.touching(&OBJECT, bob(NOBODY)), []);
    let leaves_out = |version, viewer| pending.leaves_out(FILE.vnode, DataVersion(version), viewer);
    assert!(leaves_out(1, bob(NOBODY)));
    assert!(!leaves_out(2, bob(NOBODY)), "somebody else has written meanwhile");
    assert!(!leaves_out(1, bob(EVERYBODY)));
    assert!(!leaves_out(1, Viewer { client: ALICE, is_live: NOBODY }), "its own are no loss");
}

#[test]
fn a_rename_touches_both_names_their_directories_and_both_objects() {
    let pending = pending(&[rename(ALICE, 1)]);
    let touches = |about| !pending.touching(&about, bob(EVERYBODY)).is_empty();
    for text in ["temp", "f"] {
        assert!(touches(About::Name(ROOT.vnode, name(text))));
    }
    assert!(!touches(About::Name(ROOT.vnode, name("g"))));
    assert!(touches(About::Names(ROOT.vnode)) && touches(About::Object(ROOT.vnode)));
    assert!(touches(OBJECT) && touches(About::Object(OLD.vnode)));
    let touched = touched(&rename(ALICE, 1).op);
    let fids: BTreeSet<_> = touched.iter().map(|touched| touched.fid).collect();
    assert_eq!(fids, BTreeSet::from([ROOT, FILE, OLD]));
    let of_root = touched.iter().find(|touched| touched.fid == ROOT).unwrap();
    assert_eq!(of_root.names, [name("temp"), name("f")]);
}

#[test]
fn what_is_announced_again_is_replaced_and_keeps_its_place() {
    let mut pending = pending(&[store(ALICE, 1, 10), store(CAROL, 1, 20)]);
    assert_eq!(pending.announce(&store(ALICE, 1, 30), ChangeNumber(9)), Entered::Changed);
    assert_eq!(pending.announce(&store(ALICE, 1, 30), ChangeNumber(10)), Entered::Repeated);
    assert_eq!(pending.touching(&OBJECT, bob(EVERYBODY)), [id(ALICE, 1), id(CAROL, 1)]);
    let announced = pending.get(&id(ALICE, 1)).unwrap();
    assert_eq!((announced.since, announced.changed), (ChangeNumber(1), ChangeNumber(9)));
}

#[test]
fn a_status_shows_the_announced_stores_and_attributes_in_order_with_the_versions_as_they_are() {
    let mode = SetAttr { mode: Some(Mode::from_bits(0o600)), mtime: Some(time(700)), ..SetAttr::default() };
    let chmod = record(ALICE, 2, CmlOp::SetAttr { fid: FILE, set: mode });
    let pending = pending(&[store(ALICE, 1, 10), chmod]);
    let committed = status();
    let mut shown = committed;
    pending.laid_over(FILE.vnode, bob(EVERYBODY)).unwrap().iter().for_each(|laid| laid.lay_over(&mut shown));
    let expected = Status { size: 10, mode: Mode::from_bits(0o600), mtime: time(700), ctime: time(2), ..committed };
    assert_eq!(shown, expected);
    assert_eq!(pending.laid_over(OLD.vnode, bob(EVERYBODY)), None);
}

#[test]
fn a_directory_with_announced_names_is_touched_and_shown_as_it_is() {
    let pending = pending(&[record(ALICE, 1, create(ROOT, "f", FILE))]);
    assert_eq!(pending.laid_over(ROOT.vnode, bob(EVERYBODY)), Some(Vec::new()));
}

#[test]
fn of_two_changes_only_the_later_one_finds_the_other_before_it() {
    let (first, second, third) = (store(CAROL, 1, 5), store(ALICE, 1, 10), store(ALICE, 2, 20));
    let never = store(BOB, 1, 5);
    let pending = pending(&[first.clone(), second.clone(), third.clone()]);
    let is_before = |one: &CmlRecord, other: &CmlRecord| pending.is_before(&one.id, other);
    assert!(is_before(&first, &second) && !is_before(&second, &first));
    assert!(is_before(&second, &third) && !is_before(&second, &second));
    assert!(is_before(&second, &never) && !is_before(&never, &second), "one is not announced");
}

#[test]
fn what_comes_before_an_announced_change_of_a_name_in_its_log_counts_as_announced_with_it() {
    let made = |client, seq| record(client, seq, create(ROOT, "f", FILE));
    let pending = pending(&[made(ALICE, 5), made(BOB, 1)]);
    assert!(!pending.is_before(&id(BOB, 1), &made(ALICE, 2)), "Bob's waits for the other, which waits for this");
    assert!(pending.is_before(&id(BOB, 1), &made(ALICE, 6)), "it is behind");
    assert!(pending.is_before(&id(BOB, 1), &record(ALICE, 2, create(ROOT, "g", FILE))), "it is about another name");
}

#[test]
fn what_has_ended_touches_nothing() {
    let mut pending = pending(&[store(ALICE, 1, 10), rename(ALICE, 2)]);
    assert!(pending.remove(&id(ALICE, 1)) && pending.remove(&id(ALICE, 2)));
    assert!(!pending.remove(&id(ALICE, 2)));
    for about in [OBJECT, About::Name(ROOT.vnode, name("f")), About::Names(ROOT.vnode)] {
        assert_eq!(pending.touching(&about, bob(EVERYBODY)), []);
    }
    assert_eq!(pending.of_client(ALICE).count(), 0);
}

#[test]
fn what_is_below_a_confirmation_is_that_of_its_client_only() {
    let records = [store(ALICE, 1, 10), store(ALICE, 2, 20), store(ALICE, 3, 30), store(BOB, 1, 40)];
    let pending = pending(&records);
    assert_eq!(pending.below(id(ALICE, 3)), ids(ALICE, &[1, 2]));
    let next_life = StoreId { incarnation: Incarnation(2), ..id(ALICE, 1) };
    assert_eq!(pending.below(next_life), ids(ALICE, &[1, 2, 3]));
}

#[test]
fn one_client_announces_no_more_than_the_bound_and_that_holds_up_nobody_else() {
    let mut pending = Pending::default();
    let max = u64::try_from(PENDING_MAX).unwrap();
    for seq in 1..=max {
        assert_eq!(pending.announce(&store(ALICE, seq, 1), ChangeNumber(seq)), Entered::Changed);
    }
    assert_eq!(pending.announce(&store(ALICE, max + 1, 1), ChangeNumber(max + 1)), Entered::Full);
    assert_eq!(pending.announce(&store(ALICE, 1, 2), ChangeNumber(max + 1)), Entered::Changed, "again, as it counts");
    assert_eq!(pending.announce(&store(BOB, 1, 1), ChangeNumber(max + 1)), Entered::Changed);
    pending.remove(&id(ALICE, 1));
    assert_eq!(pending.announce(&store(ALICE, max + 1, 1), ChangeNumber(max + 1)), Entered::Changed);
}

#[test]
fn a_store_on_a_version_is_in_conflict_with_another_content_or_the_end_that_another_client_has_announced() {
    let pending = pending(&[store(ALICE, 1, 10), rename(CAROL, 1)]);
    let (base, none) = (Base::Version(DataVersion(1)), BTreeSet::new());
    assert!(pending.is_in_conflict(FILE, base, &none, bob(EVERYBODY), |_| 1));
    assert!(!pending.is_in_conflict(FILE, base, &none, bob(NOBODY), |_| 1), "its client is gone");
    assert!(
        !pending.is_in_conflict(FILE, base, &BTreeSet::from([id(ALICE, 1)]), bob(EVERYBODY), |_| 1),
        "it only moves"
    );
    assert!(!pending.is_in_conflict(FILE, Base::Record(id(BOB, 1)), &none, bob(EVERYBODY), |_| 1), "its own chain");
    assert!(pending.is_in_conflict(OLD, base, &none, bob(EVERYBODY), |_| 1), "it is replaced");
    assert!(!pending.is_in_conflict(OLD, base, &BTreeSet::from([id(CAROL, 1)]), bob(EVERYBODY), |_| 1), "it has been");
    let viewer = |client| Viewer { client, is_live: EVERYBODY };
    assert!(!pending.is_in_conflict(FILE, base, &none, viewer(ALICE), |_| 1), "its own");
    assert!(!pending.is_in_conflict(OLD, base, &none, viewer(CAROL), |_| 1), "its own");
}

#[test]
fn a_store_is_in_conflict_with_an_announced_removal_but_not_with_an_exchange() {
    let removal = CmlOp::Remove { parent: ROOT, name: name("f"), fid: FILE };
    let CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, .. } = rename(CAROL, 1).op else {
        panic!("a rename");
    };
    let mode = RenameMode::Exchange;
    let exchange = CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode };
    let pending = pending(&[record(ALICE, 1, removal), record(CAROL, 1, exchange)]);
    let (base, none) = (Base::Version(DataVersion(1)), BTreeSet::new());
    assert!(pending.is_in_conflict(FILE, base, &none, bob(EVERYBODY), |_| 1), "the removal would take it along");
    assert!(!pending.is_in_conflict(FILE, base, &none, bob(EVERYBODY), |_| 2), "it has another name");
    assert!(!pending.is_in_conflict(OLD, base, &none, bob(EVERYBODY), |_| 1), "it is still there");
}

#[test]
fn a_store_is_not_in_conflict_with_a_removal_if_another_name_is_announced() {
    let removal = CmlOp::Remove { parent: ROOT, name: name("f"), fid: FILE };
    let link = CmlOp::Link { parent: ROOT, name: name("g"), fid: FILE };
    let pending = pending(&[record(ALICE, 1, link), record(ALICE, 2, removal)]);
    let (base, none) = (Base::Version(DataVersion(1)), BTreeSet::new());
    assert!(!pending.is_in_conflict(FILE, base, &none, bob(EVERYBODY), |_| 1));
    let ended = BTreeSet::from([id(ALICE, 1)]);
    assert!(pending.is_in_conflict(FILE, base, &ended, bob(EVERYBODY), |_| 1), "it came to nothing");
}

#[test]
fn an_entry_is_small_and_survives_encoding() {
    let target = SymlinkTarget::new(vec![b'x'; 4000]).unwrap();
    let link = CmlOp::SymLink { parent: ROOT, name: name("l"), fid: FILE, target };
    let value = XattrValue::new(vec![0; XattrValue::BYTES_MAX]).unwrap();
    let attribute =
        CmlOp::SetXattr { fid: FILE, name: XattrName::new(&b"user.a"[..]).unwrap(), value, mode: XattrMode::Either };
    let depends_on = (1..1000).map(|seq| id(ALICE, seq)).collect();
    for op in [link, attribute, store(ALICE, 1, 1).op, rename(ALICE, 1).op] {
        let record = CmlRecord { depends_on: Vec::clone(&depends_on), ..record(ALICE, 1001, op) };
        let (since, changed) = (ChangeNumber(5), ChangeNumber(5));
        let announced = Announced { record: slim(&record), since, changed };
        let bytes = announced.encode();
        assert!(bytes.len() < 1024, "{}", bytes.len());
        assert_eq!(Announced::decode(&bytes).unwrap(), announced);
        for cut in 0..bytes.len() {
            // Any outcome but a panic is right.
            let _ = Announced::decode(&bytes[..cut]);
        }
    }
}

/// Makes some record of Alice's or Carol's about two objects and two names.
fn any_record() -> impl Strategy<Value = CmlRecord> {
    let client = prop_oneof![Just(ALICE), Just(CAROL)];
    let fid = prop_oneof![Just(FILE), Just(OLD)];
    let text = prop_oneof![Just("a"), Just("b")];
    (client, 1..6u64, fid, text, 0..5, 0..3u64).prop_map(|(client, seq, fid, text, kind, size)| {
        let op = match kind {
            0 => CmlOp::Store { fid, base: Base::Version(DataVersion(1)), size, mtime: time(1) },
            1 => create(ROOT, text, fid),
            2 => CmlOp::Remove { parent: OLD, name: name(text), fid },
            3 => CmlOp::RemoveXattr { fid, name: XattrName::new(&b"user.a"[..]).unwrap() },
            _ => rename(client, seq).op,
        };
        record(client, seq, op)
    })
}

proptest! {
    #[test]
    fn whatever_comes_and_goes_each_question_finds_what_a_look_at_all_finds(
        steps in prop::collection::vec((any_record(), any::<bool>()), 1..40),
    ) {
        let (mut pending, mut all) = (Pending::default(), Vec::<CmlRecord>::new());
        for (change, (record, comes)) in (1..).zip(steps) {
            let place = all.iter().position(|known| known.id == record.id);
            match (comes, place) {
                (true, Some(place)) => all[place] = record.clone(),
                (true, None) => all.push(record.clone()),
                (false, Some(place)) => drop(all.remove(place)),
                (false, None) => {}
            }
            if comes {
                pending.announce(&record, ChangeNumber(change));
            } else {
                prop_assert_eq!(pending.remove(&record.id), place.is_some());
            }
            for vnode in [ROOT.vnode, FILE.vnode, OLD.vnode] {
                let mut abouts = vec![About::Object(vnode), About::Names(vnode), About::Xattrs(vnode)];
                abouts.extend(["a", "b", "f"].map(|text| About::Name(vnode, name(text))));
                for about in abouts {
                    let viewer = Viewer { client: CAROL, is_live: EVERYBODY };
                    let expected = all.iter().filter(|record| record.id.client == ALICE && touches(record, &about));
                    // The records are in the order of her log, as they are all of one client.
                    let expected: BTreeSet<_> = expected.map(|record| record.id).collect();
                    let expected: Vec<_> = expected.into_iter().collect();
                    prop_assert_eq!(pending.touching(&about, viewer), expected, "{:?}", about);
                }
            }
        }
        prop_assert_eq!(pending.is_empty(), all.is_empty());
    }
}

fn touches(record: &CmlRecord, about: &About) -> bool {
    let is_removal = matches!(record.op, CmlOp::RemoveXattr { .. });
    touched(&record.op).iter().any(|touched| match about {
        About::Xattrs(vnode) => touched.fid.vnode == *vnode && is_removal,
        About::Object(vnode) => touched.fid.vnode == *vnode,
        About::Names(vnode) => touched.fid.vnode == *vnode && !touched.names.is_empty(),
        About::Name(vnode, name) => touched.fid.vnode == *vnode && touched.names.contains(name),
    })
}

fn status() -> Status {
    Status {
        kind: Kind::File,
        mode: Mode::from_bits(0o644),
        nlink: 1,
        uid: 1,
        gid: 1,
        size: 3,
        rdev: 0,
        atime: time(1),
        mtime: time(1),
        ctime: time(1),
        crtime: time(1),
        data_version: DataVersion(4),
        status_version: StatusVersion(5),
        xattrs: None,
    }
}
