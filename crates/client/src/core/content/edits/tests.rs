//! Edits, in examples and against a model in which the kernel writes between any two steps.

use proptest::prelude::*;

use super::*;

fn changed() -> Edits {
    let mut edits = Edits::default();
    edits.count();
    edits
}

#[test]
fn what_nobody_has_changed_is_stored_logged_and_kept() {
    let edits = Edits::default();
    assert!(edits.are_stored() && edits.are_logged() && edits.are_kept() && !edits.say_synced());
    assert!(!edits.are_unseen());
}

#[test]
fn a_change_is_neither_stored_nor_logged_nor_kept() {
    let edits = changed();
    assert!(!edits.are_stored() && !edits.are_logged() && !edits.are_kept());
    assert!(edits.lacks(edits.newest()) && !edits.lacks(Edit::BEFORE));
}

#[test]
fn an_answer_is_about_the_edit_that_was_frozen() {
    let mut edits = changed();
    let frozen = edits.log();
    edits.count();
    edits.store(frozen);
    assert!(!edits.are_stored() && !edits.are_logged(), "it was changed while it was sent");
    assert!(edits.lacks(edits.newest()) && !edits.lacks(frozen));
    let next = edits.log();
    edits.store(next);
    assert!(edits.are_stored() && edits.are_logged());
}

#[test]
fn what_nobody_is_to_get_is_not_sent() {
    let mut edits = changed();
    edits.give_up();
    assert!(edits.are_stored());
    edits.count();
    assert!(!edits.are_stored(), "that is another change");
}

#[test]
fn what_was_fsynced_is_said_until_the_server_has_it() {
    let mut edits = changed();
    let fsynced = edits.newest();
    edits.sync(fsynced);
    edits.count();
    assert!(edits.say_synced());
    edits.store(fsynced);
    assert!(!edits.say_synced());
}

#[test]
fn a_late_fsync_takes_nothing_back() {
    let mut edits = changed();
    let early = edits.newest();
    edits.count();
    let late = edits.newest();
    edits.sync(late);
    edits.keep(late);
    edits.sync(early);
    edits.keep(early);
    edits.store(early);
    assert!(edits.say_synced() && edits.are_kept());
}

#[test]
fn what_was_written_since_is_not_kept() {
    let mut edits = changed();
    let kept = edits.newest();
    edits.count();
    edits.keep(kept);
    assert!(!edits.are_kept());
}

#[test]
fn what_was_fsynced_and_moved_out_is_not_what_is_written_next() {
    let mut edits = changed();
    let fsynced = edits.log();
    edits.sync(fsynced);
    assert!(edits.hold_synced(fsynced));
    edits.move_synced_out();
    edits.count();
    assert!(!edits.say_synced(), "a loss of power may take what comes behind the copy");
}

#[test]
fn a_version_does_not_hold_what_was_fsynced_behind_it() {
    let mut edits = changed();
    let version = edits.log();
    edits.count();
    edits.sync(edits.newest());
    assert!(!edits.hold_synced(version));
}

#[test]
fn what_an_earlier_life_has_left_is_a_change() {
    let lost = Edits::taken_up(false);
    assert!(!lost.are_stored() && !lost.are_logged() && !lost.are_kept() && !lost.say_synced());
    let kept = Edits::taken_up(true);
    assert!(!kept.are_stored() && kept.are_kept() && kept.say_synced());
    assert!(kept.lacks(kept.newest()) && !kept.lacks(Edit::BEFORE));
}

#[test]
fn an_answer_to_an_earlier_life_leaves_what_was_changed_since() {
    let mut edits = Edits::taken_up(false);
    edits.store(Edit::BEFORE);
    assert!(!edits.are_stored());
}

#[test]
fn versions_that_an_earlier_life_has_logged_are_all_unless_the_file_is_newer() {
    let newest = Edit::BEFORE.next().next();
    for newer in [false, true] {
        let mut edits = Edits::taken_up(true);
        edits.take_up_logged(newest, newer);
        assert_eq!((edits.are_logged(), edits.are_stored()), (!newer, false));
        edits.store(newest);
        assert_eq!(edits.are_stored(), !newer);
    }
}

#[test]
fn a_first_look_finds_what_was_changed_behind_the_last_version() {
    let logged = Stamp(7);
    for (shown, has_size, is_changed) in [(7, true, false), (8, true, true), (7, false, true)] {
        let mut edits = Edits::taken_up(false);
        edits.take_up_logged(edits.newest(), false);
        edits.leave_unseen(logged);
        assert!(edits.are_unseen());
        assert_eq!(edits.see(Stamp(shown), has_size), is_changed);
        assert_eq!((edits.are_logged(), edits.are_unseen()), (!is_changed, false));
        assert!(!edits.see(Stamp(9), true), "that is known by other means from then on");
    }
}

/// A step of a program, of the kernel or of this program. A decision and its effect are two.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A program writes, cuts or grows the file through this program.
    Change,
    /// A program writes, cuts, or stores through a mapping, past this program.
    ChangeUnseen,
    /// A handle through which the kernel may write is opened, or the last one and all mappings are gone.
    Lend,
    Return,
    Look,
    /// A close or an fsync: looks, and decides which edit a version holds.
    DecideLog,
    Log,
    /// The version is sent, and the answer comes.
    Send,
    Answer,
    DecideSync,
    Sync,
    /// The version is moved out of the way, into a container that is durable.
    MoveOut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let all = [
        Step::Change,
        Step::ChangeUnseen,
        Step::ChangeUnseen,
        Step::Lend,
        Step::Return,
        Step::Look,
        Step::DecideLog,
        Step::Log,
        Step::Send,
        Step::Answer,
        Step::DecideSync,
        Step::Sync,
        Step::MoveOut,
    ];
    proptest::collection::vec(proptest::sample::select(all.to_vec()), 0..60)
}

/// A version that is logged.
#[derive(Clone, Copy)]
struct Version {
    edit: Edit,
    content: u64,
    durable: bool,
}

/// Contents are numbered in the order in which they were made.
#[derive(Default)]
struct World {
    edits: Edits,
    content: u64,
    /// The content that the last look has found.
    seen: u64,
    is_lent: bool,
    to_log: Option<Edit>,
    version: Option<Version>,
    sent: Option<Version>,
    to_sync: Option<(Edit, u64, bool)>,
    /// The newest content that is there.
    at_server: u64,
    on_disk: u64,
    moved_out: u64,
    /// The content that fsync has acknowledged.
    promised: u64,
}

impl World {
    fn look(&mut self) {
        if self.seen != self.content {
            self.edits.count();
            self.seen = self.content;
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change => {
                self.look();
                self.content += 1;
                self.seen = self.content;
                self.edits.count();
            }
            Step::ChangeUnseen => self.content += u64::from(self.is_lent),
            Step::Lend => self.is_lent = true,
            Step::Return => {
                self.is_lent = false;
                self.look();
            }
            Step::Look => self.look(),
            Step::DecideLog => {
                self.look();
                self.to_log = (!self.edits.are_stored() && !self.edits.are_logged()).then(|| self.edits.newest());
            }
            Step::Log => {
                // Another change through this program comes before or behind both: they are under one lock.
                if let Some(edit) = self.to_log.take().filter(|edit| *edit == self.edits.newest()) {
                    assert_eq!(self.edits.log(), edit);
                    self.version = Some(Version { edit, content: self.content, durable: false });
                }
            }
            Step::Send => self.sent = self.version.or(self.sent),
            Step::Answer => {
                if let Some(sent) = self.sent.take() {
                    self.look();
                    self.at_server = sent.content;
                    self.edits.store(sent.edit);
                    self.version = self.version.filter(|version| version.edit != sent.edit);
                }
            }
            Step::DecideSync => {
                self.look();
                self.to_sync = Some((self.edits.newest(), self.content, !self.is_lent));
            }
            Step::Sync => self.sync(),
            Step::MoveOut => self.move_out(),
        }
    }

    fn sync(&mut self) {
        let Some((edit, content, is_settled)) = self.to_sync.take() else { return };
        self.on_disk = self.content;
        if self.edits.lacks(edit) {
            self.edits.sync(edit);
        }
        if let Some(version) = self.version.as_mut().filter(|version| version.edit == edit) {
            version.durable = true;
        }
        if is_settled {
            self.edits.keep(edit);
        }
        self.promised = content;
    }

    fn move_out(&mut self) {
        let Some(version) = self.version.filter(|version| version.durable) else { return };
        if self.edits.hold_synced(version.edit) {
            self.moved_out = version.content;
            self.edits.move_synced_out();
        }
    }
}

proptest! {
    /// The file holds what is said to be stored or kept, as far as anybody has looked; and a content that fsync has
    /// acknowledged is found again after a loss of power.
    #[test]
    fn proptest_invariant_1_nothing_is_said_to_be_safe_that_is_not(steps in steps()) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
            let is_seen = world.seen == world.content;
            if world.edits.are_stored() && is_seen {
                prop_assert_eq!(world.at_server, world.content);
            }
            if world.edits.are_kept() && is_seen {
                prop_assert!(world.on_disk.max(world.at_server) >= world.content);
            }
            if !world.edits.say_synced() {
                prop_assert!(world.promised <= world.at_server.max(world.moved_out));
            }
        }
    }
}
