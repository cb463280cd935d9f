//! Versions, in examples and against a model that keeps each fact in a map of its own.

use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::{ClientId, Incarnation};
use proptest::prelude::*;

use super::*;

const FIRST: Edit = Edit::BEFORE;

/// Contents are numbers; those from 100 on may have arrived.
type Tested = Versions<u32, &'static str>;

impl Frozen for u32 {
    fn may_have_arrived(&self) -> bool {
        *self >= 100
    }
}

fn id(seq: u64) -> StoreId {
    StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq }
}

fn version(seq: u64, edit: Edit) -> Version<u32, &'static str> {
    Version::new(id(seq), edit, 0)
}

/// Makes two versions of two edits: the first has moved out.
fn two() -> (Tested, Edit) {
    let mut versions = Tested::default();
    versions.push(version(1, FIRST));
    versions.move_out(id(1), ContainerId(7));
    versions.push(version(2, FIRST.next()));
    (versions, FIRST.next())
}

#[test]
fn the_newest_is_in_place_until_it_moves_out() {
    let (mut versions, _) = two();
    assert_eq!(versions.in_place().map(Version::id), Some(id(2)));
    assert_eq!(versions.get(id(1)).and_then(Version::snapshot), Some(ContainerId(7)));
    versions.move_out(id(2), ContainerId(8));
    assert!(versions.in_place().is_none());
    assert_eq!(versions.newest().and_then(Version::snapshot), Some(ContainerId(8)));
}

#[test]
fn a_version_goes_on_from_its_fsync_to_the_close() {
    let (mut versions, _) = two();
    let goes_on = |versions: &Tested| versions.newest().is_some_and(Version::goes_on);
    versions.go_on(false);
    assert!(!goes_on(&versions), "it was closed before the fsync, and nothing was written since");
    versions.go_on(true);
    versions.go_on(false);
    assert!(goes_on(&versions), "as an fsync of what was written before");
    assert_eq!(versions.close(), Some(id(2)));
    assert!(!goes_on(&versions));
    assert_eq!(Tested::default().close(), None);
}

#[test]
fn what_has_grown_in_its_place_is_as_durable_as_before() {
    let (mut versions, edit) = two();
    versions.keep(id(2));
    versions.go_on(true);
    let before = versions.rewrite(Version::new(id(2), edit.next(), 5)).unwrap();
    assert!(before.is_durable() && before.goes_on() && before.edit() == edit);
    let now = |versions: &Tested| versions.get(id(2)).map(|now| (*now.content(), now.is_durable(), now.goes_on()));
    assert_eq!(now(&versions), Some((5, false, false)));
    versions.grow(id(2), (before.is_durable(), before.goes_on()));
    assert_eq!(now(&versions), Some((5, true, true)));
    assert!(versions.rewrite(version(9, edit)).is_none(), "it has gone");
    assert_eq!(versions.ids(), [id(1), id(2)]);
}

#[test]
fn a_version_that_was_copied_or_rewritten_is_not_durable_by_an_fsync_of_the_file() {
    let (mut versions, edit) = two();
    assert_eq!(versions.keep_in_place(FIRST), None, "the file has been changed since");
    assert_eq!(versions.keep_in_place(edit), Some(id(2)));
    assert_eq!(versions.first_undurable().map(Version::id), Some(id(1)));
    versions.keep(id(1));
    assert!(versions.first_undurable().is_none());
    versions.push(version(3, edit.next()));
    versions.move_out(id(3), ContainerId(9));
    assert_eq!(versions.keep_in_place(edit.next()), None);
}

#[test]
fn the_oldest_may_have_arrived_and_no_other_is_asked() {
    let mut versions = Tested::default();
    assert_eq!(versions.arrived(), None);
    versions.push(version(1, FIRST));
    versions.push(Version::new(id(2), FIRST.next(), 100));
    assert_eq!(versions.arrived(), None, "the second comes behind the first");
    assert_eq!(versions.take(id(1)).map(|version| version.id()), Some(id(1)));
    assert_eq!(versions.arrived(), Some(id(2)));
}

#[test]
fn one_version_is_all_if_it_holds_the_newest_edit() {
    let (mut versions, edit) = two();
    assert!(!versions.is_only(edit));
    versions.take(id(1));
    assert!(versions.is_only(edit) && !versions.is_only(edit.next()));
}

#[test]
fn an_interrupted_content_is_said_to_be_until_the_server_has_decided() {
    let mut versions = Tested::default();
    assert!(!versions.begin_sending(1), "the first time");
    assert_eq!(versions.sending(), Some(&1));
    versions.end_sending();
    assert_eq!(versions.sending(), None);
    assert!(versions.begin_sending(2), "the first may be there in part");
    versions.end_sending();
    versions.note_answered();
    assert!(!versions.begin_sending(3));
}

#[test]
fn what_an_earlier_life_has_left_may_be_there_in_part() {
    let mut versions = Tested::default();
    let (gone, here) = ((id(1), FIRST, 0), (id(2), FIRST.next(), 0));
    let left = [Version::taken_up(gone, None, false, true), Version::taken_up(here, Some(ContainerId(4)), true, false)];
    versions.take_up(left);
    assert!(versions.begin_sending(0));
    assert!(versions.get(id(1)).is_some_and(|first| first.is_gone() && first.snapshot().is_none()));
    assert!(versions.get(id(2)).is_some_and(|second| !second.is_gone() && second.is_durable()));
    versions.lose_newest();
    assert!(versions.newest().is_some_and(Version::is_gone));
}

#[test]
fn who_waits_in_vain_says_why_to_the_next_until_it_is_asked_again() {
    let (mut versions, _) = two();
    let why = |versions: &Tested, seq| versions.get(id(seq)).and_then(|version| version.unanswered().copied());
    versions.note_unanswered(id(1), Some("it is out of reach"));
    assert_eq!((why(&versions, 1), why(&versions, 2)), (Some("it is out of reach"), None));
    versions.note_unanswered(id(1), None);
    versions.note_unanswered(id(9), Some("nobody knows it"));
    assert_eq!((why(&versions, 1), why(&versions, 9)), (None, None));
}

#[test]
fn versions_are_awaited_as_long_as_somebody_waits() {
    let mut versions = Tested::default();
    versions.await_more();
    versions.await_more();
    versions.await_less();
    assert!(versions.are_awaited());
    versions.await_less();
    assert!(!versions.are_awaited());
}

/// Step in the life of a file's versions; records are named by small numbers.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A program writes.
    Edit,
    Log,
    Rewrite(u64),
    MoveOut(u64),
    Keep(u64),
    KeepInPlace,
    Unanswered(u64),
    Take(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..12_u64;
    prop_oneof![
        2 => Just(Step::Edit),
        4 => Just(Step::Log),
        1 => which.clone().prop_map(Step::Rewrite),
        2 => which.clone().prop_map(Step::MoveOut),
        2 => which.clone().prop_map(Step::Keep),
        1 => Just(Step::KeepInPlace),
        1 => which.clone().prop_map(Step::Unanswered),
        2 => which.prop_map(Step::Take),
    ]
}

/// The facts about each record, as they were last said.
#[derive(Default)]
struct Model {
    edit: Edit,
    edits: BTreeMap<u64, Edit>,
    moved: BTreeMap<u64, ContainerId>,
    durable: BTreeSet<u64>,
    unanswered: BTreeMap<u64, &'static str>,
    logged: u64,
}

impl Model {
    /// Forgets all that is known of a record.
    fn forget(&mut self, seq: u64) {
        self.moved.remove(&seq);
        self.durable.remove(&seq);
        self.unanswered.remove(&seq);
    }

    fn take(&mut self, step: Step, versions: &mut Tested) {
        match step {
            Step::Edit => self.edit = self.edit.next(),
            Step::Log => {
                self.logged += 1;
                versions.push(version(self.logged, self.edit));
                self.edits.insert(self.logged, self.edit);
            }
            Step::Rewrite(seq) => {
                let replaced = versions.rewrite(version(seq, self.edit)).map(|version| version.id());
                assert_eq!(replaced, self.edits.contains_key(&seq).then(|| id(seq)));
                if let Some(edit) = self.edits.get_mut(&seq) {
                    *edit = self.edit;
                    self.forget(seq);
                }
            }
            Step::MoveOut(seq) => {
                versions.move_out(id(seq), ContainerId(seq));
                self.say(seq, |model| model.moved.extend([(seq, ContainerId(seq))]));
            }
            Step::Keep(seq) => {
                versions.keep(id(seq));
                self.say(seq, |model| model.durable.extend([seq]));
            }
            Step::KeepInPlace => {
                let newest = self.edits.last_key_value().map(|(seq, edit)| (*seq, *edit));
                let kept = newest.filter(|(seq, edit)| *edit == self.edit && !self.moved.contains_key(seq));
                assert_eq!(versions.keep_in_place(self.edit), kept.map(|(seq, _)| id(seq)));
                self.durable.extend(kept.map(|(seq, _)| seq));
            }
            Step::Unanswered(seq) => {
                versions.note_unanswered(id(seq), Some("no"));
                self.say(seq, |model| model.unanswered.extend([(seq, "no")]));
            }
            Step::Take(seq) => {
                assert_eq!(versions.take(id(seq)).is_some(), self.edits.remove(&seq).is_some());
                self.forget(seq);
            }
        }
    }

    fn say(&mut self, seq: u64, what: impl FnOnce(&mut Self)) {
        if self.edits.contains_key(&seq) {
            what(self);
        }
    }

    fn check(&self, versions: &Tested) {
        assert_eq!(versions.ids(), self.edits.keys().map(|seq| id(*seq)).collect::<Vec<_>>());
        for (seq, edit) in &self.edits {
            let version = versions.get(id(*seq)).unwrap();
            assert_eq!((version.edit(), version.snapshot()), (*edit, self.moved.get(seq).copied()));
            assert_eq!(version.is_durable(), self.durable.contains(seq));
            assert_eq!(version.unanswered(), self.unanswered.get(seq));
        }
        let first = self.edits.keys().find(|seq| !self.durable.contains(seq));
        assert_eq!(versions.first_undurable().map(Version::id), first.map(|seq| id(*seq)));
        let newest = self.edits.keys().last().filter(|seq| !self.moved.contains_key(seq));
        assert_eq!(versions.in_place().map(Version::id), newest.map(|seq| id(*seq)));
    }
}

proptest! {
    #[test]
    fn proptest_what_is_said_of_one_version_is_never_about_another(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut versions, mut model) = (Tested::default(), Model::default());
        for step in steps {
            model.take(step, &mut versions);
            model.check(&versions);
        }
    }
}
