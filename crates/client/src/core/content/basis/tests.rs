//! Versions that contents are made from, in examples and against a model of the server.

use mafs_proto::{ClientId, Incarnation};
use proptest::prelude::*;

use super::*;

const V1: DataVersion = DataVersion(1);
const V2: DataVersion = DataVersion(2);

fn record(seq: u64) -> StoreId {
    StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq }
}

fn hash(of: u64) -> ContentHash {
    ContentHash::of(&of.to_le_bytes())
}

#[test]
fn a_content_is_stored_over_the_version_that_it_was_made_from() {
    let basis = Basis::new(V1, None);
    assert_eq!((basis.version(), basis.own_version(), basis.hash()), (V1, Some(V1), None));
    assert_eq!(basis.of_store(), Base::Version(V1));
}

#[test]
fn a_new_version_says_all_that_is_known() {
    let mut basis = Basis::new(V1, Some(hash(1)));
    basis.forgot(record(1), V2);
    assert_eq!(basis.become_version(V2, hash(2)), V1);
    assert_eq!((basis.of_store(), basis.hash()), (Base::Version(V2), Some(hash(2))));
}

#[test]
fn a_hash_does_not_outlive_its_version() {
    let mut basis = Basis::new(V1, Some(hash(1)));
    basis.begin(V1);
    assert_eq!(basis.hash(), Some(hash(1)), "it comes once more");
    basis.begin(V2);
    assert_eq!(basis.hash(), None);
    basis.note_hash(hash(2));
    assert_eq!(basis.hash(), Some(hash(2)));
    basis.go_elsewhere(record(1));
    assert_eq!(basis.hash(), None);
}

#[test]
fn what_could_not_be_replaced_is_what_it_was() {
    let mut basis = Basis::new(V1, Some(hash(1)));
    basis.forgot(record(1), V2);
    let before = basis;
    let undo = basis.begin(V2);
    assert_eq!((basis.of_store(), undo), (Base::Version(V2), before));
}

#[test]
fn only_the_version_of_a_forgotten_record_may_be_replaced() {
    let mut basis = Basis::new(V1, None);
    basis.forgot(record(3), V1);
    assert_eq!(basis.of_store(), Base::Version(V1), "it was not applied: the version is what it was");
    basis.forgot(record(3), V2);
    assert_eq!((basis.of_store(), basis.version()), (Base::Record(record(3)), V1));
}

#[test]
fn what_went_elsewhere_goes_on_there() {
    let mut basis = Basis::new(V1, None);
    basis.go_elsewhere(record(1));
    assert!(basis.is_elsewhere());
    assert_eq!((basis.own_version(), basis.of_store()), (None, Base::Record(record(1))));
    basis.become_version(V2, hash(2));
    assert!(!basis.is_elsewhere());
}

/// A step of programs here, of the kernel, of another client, or of a store on its way.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Fetches what the server shows; programs cannot have changed the file.
    Fetch,
    /// Opens it with `O_TRUNC`, having been shown the version; `fails`: the disk does not cut it.
    Cut {
        fails: bool,
    },
    /// Writes on top of what is there, through this program or past it.
    Write,
    OtherStores,
    /// A store is logged and sent, and applied or refused; and its answer comes, or is lost and even forgotten.
    Send,
    Answer,
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Fetch),
        2 => any::<bool>().prop_map(|fails| Step::Cut { fails }),
        4 => Just(Step::Write),
        2 => Just(Step::OtherStores),
        4 => Just(Step::Send),
        3 => Just(Step::Answer),
        1 => Just(Step::Forget),
    ];
    proptest::collection::vec(step, 0..60)
}

/// A record that was sent, and the version that the server has made of it.
#[derive(Clone, Copy)]
struct Sent {
    id: StoreId,
    made: Option<DataVersion>,
}

struct World {
    basis: Basis,
    /// The version that the content here really goes back to, and whether programs have changed it since.
    goes_back_to: DataVersion,
    is_changed: bool,
    sent: Option<Sent>,
    records: u64,
    /// The version that the server has, and which record has made it.
    present: DataVersion,
    made_by: Option<StoreId>,
    /// Whether something has been overwritten that the overwriting client had not seen.
    is_lost: bool,
}

impl World {
    fn new() -> Self {
        Self {
            basis: Basis::new(V1, None),
            goes_back_to: V1,
            is_changed: false,
            sent: None,
            records: 0,
            present: V1,
            made_by: None,
            is_lost: false,
        }
    }

    fn send(&mut self) {
        self.records += 1;
        let id = record(self.records);
        let is_accepted = match self.basis.of_store() {
            Base::Version(version) => version == self.present,
            Base::Record(before) => self.made_by == Some(before),
        };
        let made = is_accepted.then(|| {
            self.is_lost |= self.goes_back_to != self.present;
            (self.present, self.made_by) = (DataVersion(self.present.0 + 1), Some(id));
            // Later writes go over this version.
            self.goes_back_to = self.present;
            self.present
        });
        self.sent = Some(Sent { id, made });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Fetch if !self.is_changed && self.sent.is_none() => {
                self.basis.begin(self.present);
                self.basis.note_hash(hash(self.present.0));
                self.goes_back_to = self.present;
            }
            Step::Cut { fails } if !self.is_changed && self.sent.is_none() => {
                let before = self.basis.begin(self.present);
                if fails {
                    self.basis = before;
                } else {
                    (self.goes_back_to, self.is_changed) = (self.present, true);
                }
            }
            Step::Fetch | Step::Cut { .. } => {}
            Step::Write => self.is_changed = true,
            Step::OtherStores => (self.present, self.made_by) = (DataVersion(self.present.0 + 1), None),
            Step::Send if self.is_changed && self.sent.is_none() => self.send(),
            Step::Send => {}
            Step::Answer => {
                if let Some(Sent { made: Some(version), .. }) = self.sent.take() {
                    self.basis.become_version(version, hash(version.0));
                    self.is_changed = false;
                }
            }
            Step::Forget => {
                if let Some(sent) = self.sent.take() {
                    self.basis.forgot(sent.id, self.present);
                }
            }
        }
    }
}

proptest! {
    /// Nothing is stored over a version that the content here does not go back to.
    #[test]
    fn proptest_invariant_9_nothing_is_stored_over_what_was_not_seen(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            prop_assert!(!world.is_lost, "{:?}", world.basis);
            let known = world.basis.hash();
            prop_assert!(known.is_none_or(|known| known == hash(world.basis.version().0)));
        }
    }
}
