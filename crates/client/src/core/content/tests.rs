//! Decisions about several parts of a content, in examples and against a model in which the kernel writes, cuts, maps
//! and closes between any two steps.

use std::time::{Duration, UNIX_EPOCH};

use mafs_proto::{ClientId, Incarnation, Kind, Mode, StatusVersion};
use proptest::prelude::*;

use super::edits::Edit;
use super::versions::Version;
use super::*;

const SIZE: u64 = 10;

type Tested = Content<&'static str, (), &'static str>;

fn now() -> Timestamp {
    Timestamp::default()
}

fn status(version: u64) -> Status {
    Status {
        kind: Kind::File,
        mode: Mode::from_bits(0o644),
        nlink: 1,
        uid: 1,
        gid: 1,
        size: SIZE,
        rdev: 0,
        atime: now(),
        mtime: now(),
        ctime: now(),
        crtime: now(),
        data_version: DataVersion(version),
        status_version: StatusVersion(1),
        xattrs: None,
    }
}

fn hash(of: u64) -> ContentHash {
    ContentHash::of(&of.to_le_bytes())
}

fn sight(changed: u64) -> Sight {
    Sight { changed: UNIX_EPOCH + Duration::from_nanos(changed), bytes: SIZE }
}

fn record() -> StoreId {
    StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq: 1 }
}

fn whole() -> Tested {
    Content::shown(&status(1), Some(hash(1)), Arrival::whole())
}

#[test]
fn what_is_here_is_had_without_a_fetch() {
    let content = whole();
    assert!(content.is_ready(DataVersion(1)) && !content.is_behind(DataVersion(1)));
    for holder in [Holder::Reader, Holder::Locker] {
        assert!(!content.needs_fetch(DataVersion(1), holder) && content.needs_fetch(DataVersion(2), holder));
    }
    assert!(content.is_behind(DataVersion(2)) && !content.is_ready(DataVersion(2)));
}

#[test]
fn what_was_changed_here_is_replaced_by_nothing() {
    let mut content = whole();
    content.edit(now());
    assert!(content.is_dirty() && content.is_unlogged() && content.may_be_changed());
    for holder in [Holder::Reader, Holder::Locker] {
        assert!(!content.needs_fetch(DataVersion(2), holder));
    }
    assert!(content.is_ready(DataVersion(2)) && !content.is_behind(DataVersion(2)));
    assert_eq!(content.rebase(DataVersion(2)), None);
    assert_eq!(content.rest(), Rest::Unsent);
}

#[test]
fn what_the_kernel_may_write_is_replaced_for_who_has_locked_it_alone() {
    let mut content = whole();
    content.open();
    content.users_mut().begin_writing(false, sight(1));
    assert!(content.may_be_changed() && !content.is_dirty());
    assert!(!content.needs_fetch(DataVersion(2), Holder::Reader));
    assert!(content.needs_fetch(DataVersion(2), Holder::Locker), "it was not changed under the lock");
    assert!(content.is_held_by_writers(DataVersion(2)) && !content.is_held_by_writers(DataVersion(1)));
    assert!(!content.is_only_read());
}

#[test]
fn a_fetch_makes_of_it_what_the_server_shows() {
    let mut content = whole();
    let fetch = content.begin_fetch(&Status { size: 3, ..status(2) }, false, None);
    assert_eq!((content.basis().version(), content.basis().hash()), (DataVersion(2), None));
    assert_eq!((content.stat().size(), content.presence()), (3, Presence::Partly(0)));
    assert!(content.has_version(DataVersion(2)) && !content.is_complete());
    assert_eq!(content.rest(), Rest::InUse);
    content.complete_fetch(fetch, hash(2), sight(1));
    assert_eq!((content.basis().hash(), content.presence()), (Some(hash(2)), Presence::Whole));
    assert_eq!(content.rest(), Rest::Kept);
}

#[test]
fn a_version_that_is_turned_in_is_all_of_one_or_failed() {
    let mut content = whole();
    content.open();
    assert!(content.is_only_read());
    content.turn_over(&Status { size: 4, ..status(2) }, Ok(hash(2)));
    assert_eq!((content.basis().version(), content.stat().size()), (DataVersion(2), 4));
    assert!(content.is_only_read());
    content.turn_over(&status(3), Err("the disk fails"));
    assert!(!content.is_complete() && !content.has_version(DataVersion(2)) && !content.is_only_read());
}

#[test]
fn who_cuts_it_replaces_what_was_shown_unless_the_cut_fails() {
    let mut content = whole();
    assert_eq!(content.rebase(DataVersion(1)), None, "it is based on that");
    let before = content.rebase(DataVersion(2)).unwrap();
    assert_eq!(content.rebase(DataVersion(1)), None, "whoever opened it was shown what has been replaced since");
    assert_eq!(content.basis().version(), DataVersion(2));
    assert_eq!(content.basis().version(), DataVersion(2));
    content.undo_rebase(before);
    assert_eq!((content.basis().version(), content.basis().hash()), (DataVersion(1), Some(hash(1))));
    content.edit(now());
    content.see_edit(Sight { bytes: 0, ..sight(1) });
    content.cut(SIZE);
    assert!(content.is_dirty() && content.is_complete() && content.stat().size() == 0);
}

#[test]
fn what_has_not_all_come_is_nobodys() {
    let mut content = whole();
    content.open();
    content.users_mut().begin_writing(false, sight(1));
    content.begin_fetch(&status(2), true, None);
    assert!(!content.look(sight(2), now()) && !content.is_dirty());
}

#[test]
fn what_this_program_has_changed_or_fetched_is_no_change_of_the_kernels() {
    let mut content = whole();
    content.open();
    content.users_mut().begin_writing(false, sight(1));
    content.edit(now());
    content.see_edit(sight(2));
    let edit = content.edits().newest();
    assert!(!content.look(sight(2), now()) && content.edits().newest() == edit);
    content.edits_mut().store(edit);
    let fetch = content.begin_fetch(&status(2), true, None);
    content.complete_fetch(fetch, hash(2), sight(3));
    assert!(!content.look(sight(3), now()) && !content.is_dirty());
    assert!(content.look(sight(4), now()) && content.is_dirty());
}

#[test]
fn a_change_ends_a_refusal() {
    let mut content = whole();
    content.fate_mut().refuse(fate::Refused { reason: mafs_proto::FsError::Quota, path: String::new() });
    content.edit(now());
    assert_eq!(content.fate().refusal(), None);
}

#[test]
fn a_file_without_a_name_stays_for_who_has_it_open() {
    let mut content = whole();
    content.open();
    content.edit(now());
    let object = Object { fid: mafs_proto::Fid::root(mafs_proto::VolumeId(1)), status: status(1), target: None };
    content.lose_name(Unlinked::new(object, None, Vec::new()), &status(1));
    assert!(!content.is_dirty() && content.is_ready(DataVersion(9)) && !content.is_only_read());
    assert_eq!(content.rest(), Rest::InUse);
    content.close();
    assert_eq!(content.rest(), Rest::Useless);
    assert_eq!(content.nameless_object().map(|(object, _)| object.status.size), Some(SIZE));
    assert_eq!(content.worth_keeping(), None);
}

#[test]
fn what_has_no_name_is_changed_on_this_machine_alone() {
    let set = SetAttr { mode: Some(Mode::from_bits(0o600)), mtime: Timestamp::new(7, 0), ..SetAttr::default() };
    let later = Timestamp::new(9, 0).unwrap();
    assert!(!whole().set_nameless(&set, later));
    assert_eq!(whole().change_nameless_xattrs(|_| Ok::<_, ()>(()), later), None);
    let object = Object { fid: mafs_proto::Fid::root(mafs_proto::VolumeId(1)), status: status(1), target: None };
    let mut content = Tested::nameless(&status(1), Unlinked::new(object, Some(Xattrs::default()), Vec::new()));
    assert_eq!(content.change_nameless_xattrs(|_| Err("there is none"), later), Some(Err("there is none")));
    assert!(content.nameless_object().is_some_and(|(object, _)| object.status.ctime == now()));
    assert!(content.set_nameless(&set, now()));
    assert_eq!(content.change_nameless_xattrs(|_| Ok::<_, ()>(()), later), Some(Ok(())));
    let (object, _) = content.nameless_object().unwrap();
    assert_eq!((object.status.mode, object.status.mtime), (Mode::from_bits(0o600), Timestamp::new(7, 0).unwrap()));
    assert_eq!((object.status.ctime, content.is_dirty()), (later, false));
}

#[test]
fn what_was_changed_behind_its_last_version_is_another_content() {
    let edits = || {
        let mut edits = Edits::taken_up(false);
        edits.take_up_logged(Edit::BEFORE.next(), false);
        edits.leave_unseen(Stamp(1));
        edits
    };
    for (stamp, bytes, is_changed) in [(1, SIZE, false), (2, SIZE, true), (1, 3, true)] {
        let mut content = Tested::taken_up(DataVersion(1), edits(), Fate::named(), Stat::taken_up(SIZE, now()));
        content.fate_mut().refuse(fate::Refused { reason: mafs_proto::FsError::Quota, path: String::new() });
        assert_eq!(content.see(Stamp(stamp), bytes), is_changed);
        assert_eq!((content.is_unlogged(), content.fate().refusal().is_none()), (is_changed, is_changed));
        assert_eq!(content.stat().size(), bytes);
    }
}

#[test]
fn what_went_elsewhere_is_not_shown_again() {
    let (mut closed, mut opened) = (whole(), whole());
    closed.go_elsewhere(record());
    assert_eq!((closed.presence(), closed.rest()), (Presence::Absent, Rest::Useless));
    opened.open();
    opened.go_elsewhere(record());
    assert!(opened.is_complete() && !opened.is_only_read(), "who has it open goes on");
}

/// A frozen content of which the server may have all, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent(bool);

impl Frozen for Sent {
    fn may_have_arrived(&self) -> bool {
        self.0
    }
}

/// Makes a content that was changed and logged as one version.
fn closed(sent: bool) -> Content<&'static str, (), Sent> {
    let mut content = Content::shown(&status(1), Some(hash(1)), Arrival::whole());
    content.edit(now());
    let edit = content.edits_mut().log();
    content.versions_mut().push(Version::new(record(), edit, Sent(sent)));
    content
}

#[test]
fn what_was_closed_is_newer_than_what_is_shown_unless_it_may_be_that() {
    let (here, there) = (closed(false), closed(true));
    assert!(here.is_newer_than(DataVersion(2)) && here.unplaced(DataVersion(2)).is_none());
    assert_eq!(there.unplaced(DataVersion(1)), None, "that is what it was made from");
    assert_eq!(there.unplaced(DataVersion(2)), Some(record()));
    assert!(there.is_newer_than(DataVersion(1)) && !there.is_newer_than(DataVersion(2)));
    let mut changed = closed(true);
    changed.edit(now());
    assert!(changed.is_newer_than(DataVersion(2)), "of what was written since the server has nothing");
}

#[test]
fn a_file_stays_in_use_until_the_answer_to_its_last_version_is_taken_in() {
    let mut content = closed(true);
    assert_eq!(content.rest(), Rest::Unsent);
    let sent = content.edits().newest();
    content.edits_mut().store(sent);
    assert_eq!(content.rest(), Rest::InUse, "the index does not name its container yet");
    assert_eq!(content.versions_mut().take(record()).map(|version| version.edit()), Some(sent));
    assert_eq!(content.rest(), Rest::Kept);
}

#[test]
fn the_next_version_is_made_from_the_newest() {
    assert_eq!(whole().base_of_next(), Base::Version(DataVersion(1)));
    assert_eq!(closed(false).base_of_next(), Base::Record(record()));
}

#[test]
fn a_file_without_a_name_stays_as_long_as_a_version_is_sent_that_had_one() {
    let object = Object { fid: mafs_proto::Fid::root(mafs_proto::VolumeId(1)), status: status(1), target: None };
    for (named, rest) in [(vec![record()], Rest::InUse), (Vec::new(), Rest::Useless)] {
        let mut content = closed(true);
        content.lose_name(Unlinked::new(object.clone(), None, named), &status(1));
        assert_eq!(content.rest(), rest);
    }
}

#[test]
fn what_is_fetched_for_nobody_is_not_urgent() {
    let mut content = whole();
    assert_eq!(content.purpose(), Purpose::Prefetch);
    content.open();
    assert_eq!(content.purpose(), Purpose::Fetch);
}

#[test]
fn the_log_is_told_once_that_a_file_is_written() {
    let mut content = whole();
    assert!(!content.log_writing(true) && content.is_writing_logged());
    assert!(content.log_writing(false) && !content.is_writing_logged());
    let left = Tested::taken_up(DataVersion(1), Edits::taken_up(false), Fate::named(), Stat::taken_up(SIZE, now()));
    assert!(left.is_writing_logged(), "or an earlier life would not have left it");
    let writer = Caller { uid: 3, gid: 4 };
    content.note_writer(writer);
    assert_eq!(content.writer(), writer);
}

#[test]
fn what_is_mapped_stays_in_use() {
    let mut content = whole();
    assert_eq!(content.rest(), Rest::Kept);
    content.users_mut().begin_writing(true, sight(1));
    content.users_mut().end_writing(true);
    assert_eq!(content.rest(), Rest::InUse, "a mapping may store still");
}

#[test]
fn the_last_handle_forgets_the_way() {
    let mut content = whole();
    content.open();
    content.users_mut().take_daemon_path();
    content.forget_path();
    assert!(content.users().path().is_some());
    content.close();
    content.forget_path();
    assert_eq!((content.users().path(), content.handles()), (None, 0));
}

/// An act of the kernel between a decision and its effect.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Writes,
    Unmaps,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Opens the file for writing past this program; `maps`: and maps it.
    Open {
        maps: bool,
    },
    Close(Meanwhile),
    /// Looks whether a mapping is left whose handle is gone.
    LookForMappings(Meanwhile),
    KernelWrites,
    Unmap,
    /// Opens it, writes through this program, and closes it.
    Write,
    Look,
    /// Opens it with `O_TRUNC`, or to read what the server shows.
    Cut,
    Fetch(Meanwhile),
    TurnOver,
    Freeze(Meanwhile),
    Answer(Meanwhile),
    OtherStores,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let meanwhile = || prop_oneof![Just(Meanwhile::Nothing), Just(Meanwhile::Writes), Just(Meanwhile::Unmaps)];
    let step = prop_oneof![
        3 => any::<bool>().prop_map(|maps| Step::Open { maps }),
        3 => meanwhile().prop_map(Step::Close),
        2 => meanwhile().prop_map(Step::LookForMappings),
        4 => Just(Step::KernelWrites),
        1 => Just(Step::Unmap),
        2 => Just(Step::Write),
        2 => Just(Step::Look),
        1 => Just(Step::Cut),
        3 => meanwhile().prop_map(Step::Fetch),
        2 => Just(Step::TurnOver),
        3 => meanwhile().prop_map(Step::Freeze),
        3 => meanwhile().prop_map(Step::Answer),
        1 => Just(Step::OtherStores),
    ];
    proptest::collection::vec(step, 0..60)
}

struct World {
    content: Tested,
    /// The container's content: contents are numbered in the order in which they were made.
    container: u64,
    made: u64,
    /// When it changed last; the time moves if somebody has looked since it moved last.
    time: u64,
    queried: bool,
    /// Whether programs have put something into the container that nobody else has.
    is_unsent: bool,
    writers: Vec<bool>,
    mapped: bool,
    frozen: Option<(Edit, u64)>,
    /// The contents of the versions from 1 on.
    versions: Vec<u64>,
}

impl World {
    fn new() -> Self {
        Self {
            content: whole(),
            container: 1,
            made: 1,
            time: 1,
            queried: true,
            is_unsent: false,
            writers: Vec::new(),
            mapped: false,
            frozen: None,
            versions: vec![1],
        }
    }

    fn present(&self) -> u64 {
        self.versions.len() as u64
    }

    fn put(&mut self, content: u64) {
        self.container = content;
        self.time += u64::from(std::mem::take(&mut self.queried));
    }

    fn write(&mut self) {
        self.made += 1;
        self.put(self.made);
        self.is_unsent = true;
    }

    fn kernel(&mut self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Writes if self.mapped || !self.writers.is_empty() => self.write(),
            Meanwhile::Unmaps if self.writers.is_empty() => self.mapped = false,
            Meanwhile::Nothing | Meanwhile::Writes | Meanwhile::Unmaps => {}
        }
    }

    fn sight(&mut self) -> Sight {
        self.queried = true;
        sight(self.time)
    }

    fn look_for_writes(&mut self) {
        let sight = self.sight();
        self.content.look(sight, now());
    }

    fn look(&mut self) {
        if self.content.users().may_write() {
            self.look_for_writes();
        }
    }

    fn open(&mut self, maps: bool) {
        self.look();
        if self.content.is_complete() {
            let sight = self.sight();
            self.content.open();
            self.content.users_mut().begin_writing(maps, sight);
            self.writers.push(maps);
            self.mapped |= maps;
        }
    }

    fn close(&mut self, meanwhile: Meanwhile) {
        let Some(maps) = self.writers.pop() else { return };
        self.content.users_mut().end_writing(maps);
        self.end_writing(meanwhile);
        self.content.close();
        self.content.forget_path();
    }

    fn end_writing(&mut self, meanwhile: Meanwhile) {
        let asks = self.content.users().lingers() && !self.content.users().has_writers();
        let is_over = asks && !self.mapped;
        self.kernel(meanwhile);
        self.look_for_writes();
        if is_over {
            self.content.users_mut().end_lingering();
        }
    }

    fn fetch(&mut self, meanwhile: Meanwhile) {
        self.look();
        let version = self.present();
        if self.content.needs_fetch(DataVersion(version), Holder::Reader) {
            assert!(!self.is_unsent, "a fetch replaces what nobody else has");
            let fetch = self.content.begin_fetch(&status(version), false, None);
            self.kernel(meanwhile);
            self.put(self.versions[self.versions.len() - 1]);
            self.content.arrival_mut().came(fetch, 0..SIZE);
            let hashed = self.sight();
            self.content.complete_fetch(fetch, hash(version), hashed);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open { maps } => self.open(maps),
            Step::Close(meanwhile) => self.close(meanwhile),
            Step::LookForMappings(meanwhile) if self.content.users().lingers() => self.end_writing(meanwhile),
            Step::LookForMappings(_) => {}
            Step::KernelWrites => self.kernel(Meanwhile::Writes),
            Step::Unmap => self.kernel(Meanwhile::Unmaps),
            Step::Write | Step::Cut => {
                self.look();
                if let Step::Cut = step {
                    self.content.rebase(DataVersion(self.present()));
                    self.content.cut(SIZE);
                }
                self.write();
                self.content.edit(now());
                let after = self.sight();
                self.content.see_edit(after);
            }
            Step::Look => self.look(),
            Step::Fetch(meanwhile) => self.fetch(meanwhile),
            Step::TurnOver => {
                self.content.open();
                let version = self.present();
                if self.content.is_only_read() && self.content.basis().version() != DataVersion(version) {
                    assert!(!self.is_unsent, "what nobody else has is turned over");
                    self.put(self.versions[self.versions.len() - 1]);
                    self.content.turn_over(&status(version), Ok(hash(version)));
                }
                self.content.close();
            }
            Step::Freeze(meanwhile) => {
                self.look();
                let edit = self.content.is_unlogged().then(|| self.content.edits_mut().log());
                self.kernel(meanwhile);
                self.frozen = edit.map(|edit| (edit, self.container)).or(self.frozen);
            }
            Step::Answer(meanwhile) => self.answer(meanwhile),
            Step::OtherStores => {
                self.made += 1;
                self.versions.push(self.made);
            }
        }
    }

    fn answer(&mut self, meanwhile: Meanwhile) {
        let Some((edit, sent)) = self.frozen.take() else { return };
        self.versions.push(sent);
        self.kernel(meanwhile);
        self.look();
        self.content.edits_mut().store(edit);
        let version = self.present();
        self.content.basis_mut().become_version(DataVersion(version), hash(version));
        self.is_unsent = self.container != sent;
    }
}

proptest! {
    /// All that programs have written, through this program or past it, is there until the server has it.
    #[test]
    fn proptest_invariant_1_what_was_written_is_never_let_go(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            let rest = world.content.rest();
            if world.is_unsent {
                prop_assert!(matches!(rest, Rest::InUse | Rest::Unsent), "{rest:?}");
                prop_assert!(world.content.may_be_changed());
                prop_assert!(!world.content.is_only_read());
            }
            if world.content.is_as_known() && !world.content.users().may_write() {
                let version = world.content.basis().version().0;
                let of_version = world.versions[usize::try_from(version - 1).unwrap()];
                prop_assert_eq!(world.container, of_version);
            }
        }
    }
}
