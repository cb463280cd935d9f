//! Arrivals, in examples and against a model of the container.

use proptest::prelude::*;

use super::*;

const V1: DataVersion = DataVersion(1);
const V2: DataVersion = DataVersion(2);
const SIZE: u64 = 10 << 20;
const LARGE: u64 = NOTED_BYTES_MIN;

/// An arrival whose errors and handles are plain strings.
type Tested = Arrival<&'static str, &'static str>;

fn begun() -> (Tested, Fetch) {
    let mut arrival = Tested::missing();
    let fetch = arrival.begin((V1, SIZE), false, None);
    (arrival, fetch)
}

fn present(range: Range<u64>) -> RangeSet {
    let mut present = RangeSet::default();
    present.insert(range);
    present
}

fn part(version: DataVersion, range: Range<u64>) -> Part {
    Part { version, present: present(range) }
}

#[test]
fn a_fetch_brings_what_readers_wait_for() {
    let (mut arrival, fetch) = begun();
    assert_eq!(arrival.want(0..10), None);
    assert!(arrival.is_coming() && arrival.is_incomplete(fetch));
    arrival.came(fetch, 0..10);
    assert_eq!(arrival.want(0..10), Some(Ok(())));
    assert_eq!((arrival.want(5..11), arrival.wholly()), (None, None));
    arrival.came(fetch, 10..SIZE);
    assert!(!arrival.is_incomplete(fetch) && !arrival.is_whole(), "it is compared first");
    arrival.complete(fetch);
    assert_eq!((arrival.want(5..11), arrival.wholly()), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn nobody_waits_for_bytes_that_the_file_has_not() {
    let (mut arrival, _) = begun();
    assert_eq!(arrival.want(10..10), Some(Ok(())));
    #[allow(clippy::reversed_empty_ranges, reason = "a read behind the end")]
    let behind_the_end = 20..10;
    assert_eq!(arrival.want(behind_the_end), Some(Ok(())));
}

#[test]
fn who_asks_for_what_nobody_brings_is_told_why() {
    let mut arrival = Tested::missing();
    assert_eq!(arrival.want(0..1), Some(Err(NotHere::NotAsked)));
    assert_eq!((arrival.wholly(), arrival.begun()), (Some(Err(NotHere::NotAsked)), Some(Ok(()))));
    let fetch = arrival.begin((V1, SIZE), false, None);
    arrival.fail(fetch, "gone", true);
    assert_eq!(arrival.want(0..1), Some(Err(NotHere::Failed("gone"))));
    assert_eq!((arrival.wholly(), arrival.begun()), (Some(Err(NotHere::Failed("gone"))), Some(Err("gone"))));
    assert!(arrival.is_absent());
}

#[test]
fn an_open_waits_until_the_server_has_begun_to_send() {
    let (mut arrival, fetch) = begun();
    assert_eq!(arrival.begun(), None);
    assert!(arrival.answered(fetch));
    assert_eq!(arrival.begun(), Some(Ok(())));
    arrival.stall("out of reach", true);
    assert_eq!(arrival.begun(), None, "what has begun does not go on");
}

#[test]
fn who_waits_in_vain_gives_up_and_the_fetch_goes_on() {
    let (mut arrival, fetch) = begun();
    let before = arrival.stalls();
    arrival.stall("late", false);
    assert_eq!((arrival.stalled_since(before), arrival.stalled_since(arrival.stalls())), (Some("late"), None));
    assert!(arrival.goes_on(fetch) && !arrival.is_stalled());
    arrival.stall("out of reach", true);
    assert!(arrival.is_stalled() && arrival.is_in_vain());
    assert_eq!(arrival.stalled_since(arrival.stalls()), Some("out of reach"));
    arrival.came(fetch, 0..1);
    assert!(!arrival.is_in_vain(), "something of it is of use");
    arrival.asked(fetch, "again");
    assert!(!arrival.is_stalled(), "it is worth waiting again");
}

#[test]
fn a_new_fetch_is_worth_waiting_for() {
    let (mut arrival, fetch) = begun();
    arrival.stall("out of reach", true);
    arrival.fail(fetch, "out of reach", true);
    assert!(!arrival.is_stalled(), "nothing is on its way");
    arrival.begin((V1, SIZE), false, None);
    assert!(!arrival.is_stalled() && !arrival.is_in_vain());
}

#[test]
fn what_brings_a_content_can_be_urged_on_while_it_does() {
    let (mut arrival, fetch) = begun();
    assert_eq!(arrival.handle(), None);
    arrival.asked(fetch, "first");
    arrival.asked(fetch, "second");
    assert_eq!(arrival.handle(), Some(&mut "second"));
    arrival.complete(fetch);
    assert_eq!(arrival.handle(), None);
}

#[test]
fn a_reader_far_ahead_moves_the_fetch_to_its_place() {
    let (mut arrival, fetch) = begun();
    assert_eq!(arrival.next_gap(fetch), Some(0..SIZE));
    let far = JUMP_BYTES + 100;
    arrival.came(fetch, 0..10);
    assert_eq!(arrival.want(far..far + 10), None);
    assert!(arrival.leads_elsewhere(fetch, 10));
    assert_eq!(arrival.next_gap(fetch), Some(far..SIZE));
    arrival.came(fetch, far..far + 20);
    assert!(!arrival.leads_elsewhere(fetch, far + 20), "nobody waits elsewhere any more");
    arrival.came(fetch, far + 20..SIZE);
    assert_eq!(arrival.next_gap(fetch), Some(10..far), "what was left out comes last");
}

#[test]
fn a_reader_that_is_near_waits_for_the_fetch_to_come_by() {
    let (mut arrival, fetch) = begun();
    arrival.want(JUMP_BYTES..JUMP_BYTES + 1);
    assert!(!arrival.leads_elsewhere(fetch, 0));
    assert_eq!(arrival.next_gap(fetch), Some(0..SIZE), "the wish has been looked at");
}

#[test]
fn a_reader_behind_the_fetch_moves_it_back_unless_its_byte_has_come() {
    let (mut arrival, fetch) = begun();
    arrival.came(fetch, 1000..2000);
    arrival.want(0..10);
    assert!(arrival.leads_elsewhere(fetch, 2000));
    arrival.came(fetch, 0..10);
    assert!(!arrival.leads_elsewhere(fetch, 2000), "it has come, and the reader has not looked yet");
}

#[test]
fn a_void_fetch_is_told_so_and_changes_nothing() {
    type Replace = fn(&mut Tested);
    let others: [(&str, Replace); 5] = [
        ("begin", |arrival| {
            arrival.begin((V1, SIZE), false, None);
        }),
        ("cut", |arrival| arrival.cut()),
        ("turned over", |arrival| arrival.turned_over(None)),
        ("lose", |arrival| arrival.lose()),
        ("end", |arrival| arrival.end("the mount ends")),
    ];
    for (name, replace) in others {
        let (mut arrival, void) = begun();
        arrival.came(void, 0..LARGE);
        replace(&mut arrival);
        let before = arrival.presence(V1);
        let (whole, turn) = (arrival.is_whole(), arrival.turn());
        assert!(!arrival.goes_on(void) && !arrival.answered(void) && !arrival.is_incomplete(void), "{name}");
        assert!(arrival.leads_elsewhere(void, 0), "{name}");
        assert_eq!((arrival.next_gap(void), arrival.note(void)), (None, None), "{name}");
        arrival.came(void, 0..SIZE);
        arrival.asked(void, "void");
        assert!(!arrival.fail(void, "void", false), "{name}");
        arrival.complete(void);
        assert_eq!((arrival.presence(V1), arrival.handle()), (before, None), "{name}");
        assert_eq!((arrival.is_whole(), arrival.turn()), (whole, turn), "{name}");
    }
}

#[test]
fn what_the_container_holds_next_is_another_turn() {
    let mut arrival = Tested::whole();
    let mut seen = vec![arrival.turn()];
    arrival.cut();
    seen.push(arrival.turn());
    arrival.turned_over(None);
    seen.push(arrival.turn());
    let fetch = arrival.begin((V2, SIZE), false, None);
    seen.push(arrival.turn());
    assert!((1..seen.len()).all(|at| !seen[..at].contains(&seen[at])));
    arrival.complete(fetch);
    assert_eq!(seen.last(), Some(&arrival.turn()), "it is what has been on its way");
}

#[test]
fn a_version_that_could_not_be_turned_in_is_not_here() {
    let mut arrival = Tested::whole();
    arrival.turned_over(Some("the disk fails"));
    assert_eq!(arrival.wholly(), Some(Err(NotHere::Failed("the disk fails"))));
    assert_eq!(arrival.presence(V1), Presence::Absent);
}

#[test]
fn the_next_fetch_of_a_version_goes_on_where_the_last_has_ended() {
    let (mut arrival, fetch) = begun();
    arrival.came(fetch, 0..LARGE);
    assert!(!arrival.fail(fetch, "late", true), "something is left");
    assert_eq!(arrival.presence(V1), Presence::Partly(LARGE));
    assert_eq!(arrival.presence(V2), Presence::Absent);
    let left = arrival.take_part(V1);
    assert_eq!(left, Some(part(V1, 0..LARGE)));
    assert_eq!(arrival.take_part(V1), None, "once");
    let next = arrival.begin((V1, SIZE), false, left);
    assert_eq!(arrival.next_gap(next), Some(LARGE..SIZE));
}

#[test]
fn nothing_goes_on_from_another_version() {
    let mut arrival = Tested::left_before(part(V1, 0..LARGE));
    assert_eq!(arrival.take_part(V2), None);
    assert_eq!(arrival.presence(V1), Presence::Absent);
}

#[test]
fn what_goes_on_leaves_something_to_ask_for() {
    for (left, gap) in [(0..SIZE, SIZE - 1..SIZE), (5..SIZE, 0..5)] {
        let mut arrival = Tested::missing();
        let fetch = arrival.begin((V1, SIZE), false, Some(part(V1, left)));
        assert_eq!(arrival.next_gap(fetch), Some(gap));
    }
    let mut arrival = Tested::missing();
    let fetch = arrival.begin((V1, 0), false, Some(part(V1, 0..0)));
    assert_eq!(arrival.next_gap(fetch), None, "of a file without bytes nothing is asked");
}

#[test]
fn of_a_fetch_that_is_useless_or_in_place_nothing_is_left() {
    for (in_place, is_useful) in [(false, false), (true, true)] {
        let mut arrival = Tested::whole();
        let fetch = arrival.begin((V1, SIZE), in_place, None);
        arrival.came(fetch, 0..LARGE);
        assert!(arrival.fail(fetch, "ended", is_useful));
        assert_eq!((arrival.take_part(V1), arrival.presence(V1)), (None, Presence::Absent));
    }
}

#[test]
fn when_the_mount_ends_what_has_come_is_left() {
    let (mut arrival, fetch) = begun();
    arrival.came(fetch, 0..LARGE);
    arrival.end("the mount ends");
    assert_eq!(arrival.worth_keeping(V1), Some(part(V1, 0..LARGE)));
    let mut whole = Tested::whole();
    whole.end("the mount ends");
    assert!(whole.is_whole());
}

#[test]
fn the_index_is_told_of_what_is_sooner_noted_than_fetched_again() {
    let (mut arrival, fetch) = begun();
    arrival.came(fetch, 0..LARGE - 1);
    assert_eq!((arrival.note(fetch), arrival.is_noted()), (None, false));
    arrival.came(fetch, 0..LARGE);
    assert_eq!((arrival.note(fetch), arrival.is_noted()), (Some(part(V1, 0..LARGE)), true));
    arrival.fail(fetch, "late", true);
    assert_eq!((arrival.worth_keeping(V1), arrival.worth_keeping(V2)), (Some(part(V1, 0..LARGE)), None));
    assert!(arrival.forget_part() && !arrival.is_noted() && !arrival.forget_part());
    assert_eq!(arrival.worth_keeping(V1), None);
}

#[test]
fn the_index_is_not_told_of_bytes_that_come_over_another_version() {
    let mut arrival = Tested::whole();
    let fetch = arrival.begin((V1, SIZE), true, None);
    arrival.came(fetch, 0..LARGE);
    assert_eq!((arrival.note(fetch), arrival.is_noted()), (None, false));
}

#[test]
fn what_is_whole_is_no_part_any_more() {
    let (mut arrival, fetch) = begun();
    arrival.came(fetch, 0..SIZE);
    assert!(arrival.note(fetch).is_some());
    arrival.complete(fetch);
    assert!(!arrival.is_noted(), "the index names the whole instead");
    assert_eq!(arrival.presence(V1), Presence::Whole);
}

/// The model counts in blocks that are worth noting.
const BLOCK: u64 = NOTED_BYTES_MIN;
const BLOCKS: usize = 6;
/// Written by programs, or cut by them.
const OWN: u64 = u64::MAX;

/// A step of one of the fetches there have been, of programs, of the kernel, or of the disk.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin {
        version: u64,
        in_place: bool,
    },
    /// A fetch, be it void, asks for what it needs next, and writes what it has asked for before.
    Ask {
        fetch: usize,
    },
    Put {
        fetch: usize,
    },
    /// A fetch reads the whole content to compare it, and has it taken for complete if that was right.
    Compare {
        fetch: usize,
    },
    Complete {
        fetch: usize,
    },
    Note {
        fetch: usize,
    },
    Fail {
        fetch: usize,
        is_useful: bool,
    },
    Want {
        block: usize,
    },
    Cut,
    TurnOver {
        version: u64,
        fails: bool,
    },
    /// The kernel writes into a container that it has.
    Write {
        block: usize,
    },
    /// The client is killed, and starts with what the index says.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fetch = || 0_usize..4;
    let step = prop_oneof![
        3 => (1_u64..4, any::<bool>()).prop_map(|(version, in_place)| Step::Begin { version, in_place }),
        8 => fetch().prop_map(|fetch| Step::Ask { fetch }),
        8 => fetch().prop_map(|fetch| Step::Put { fetch }),
        2 => fetch().prop_map(|fetch| Step::Compare { fetch }),
        2 => fetch().prop_map(|fetch| Step::Complete { fetch }),
        2 => fetch().prop_map(|fetch| Step::Note { fetch }),
        2 => (fetch(), any::<bool>()).prop_map(|(fetch, is_useful)| Step::Fail { fetch, is_useful }),
        2 => (0..BLOCKS).prop_map(|block| Step::Want { block }),
        1 => Just(Step::Cut),
        1 => (1_u64..4, any::<bool>()).prop_map(|(version, fails)| Step::TurnOver { version, fails }),
        2 => (0..BLOCKS).prop_map(|block| Step::Write { block }),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..80)
}

/// A fetch, and what it has decided but not done yet.
#[derive(Clone, Copy)]
struct Task {
    fetch: Fetch,
    asked: Option<usize>,
    compared: bool,
}

/// A container, an index, and a shell that does as the machine says.
struct World {
    arrival: Tested,
    /// Which version each block is of.
    container: [u64; BLOCKS],
    /// The version that the container is to hold.
    version: u64,
    /// Whether the kernel has the container.
    is_lent: bool,
    index: Option<Part>,
    tasks: Vec<Task>,
}

impl World {
    fn new() -> Self {
        let arrival = Tested::missing();
        Self { arrival, container: [0; BLOCKS], version: 0, is_lent: false, index: None, tasks: Vec::new() }
    }

    fn task(&mut self, back: usize) -> Option<&mut Task> {
        let at = self.tasks.len().checked_sub(back + 1)?;
        self.tasks.get_mut(at)
    }

    fn forget_part(&mut self) {
        if self.arrival.forget_part() {
            self.index = None;
        }
    }

    fn begin(&mut self, version: u64, in_place: bool) {
        let data_version = DataVersion(version);
        let part = if in_place { None } else { self.arrival.take_part(data_version) };
        if part.is_none() {
            self.forget_part();
            if !in_place {
                self.container = [0; BLOCKS];
            }
        }
        let fetch = self.arrival.begin((data_version, BLOCK * BLOCKS as u64), in_place, part);
        (self.version, self.is_lent) = (version, in_place);
        self.tasks.push(Task { fetch, asked: None, compared: false });
    }

    #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
    fn ask(&mut self, back: usize) {
        let Some(&mut Task { fetch, .. }) = self.task(back) else { return };
        let gap = self.arrival.next_gap(fetch);
        if let Some(task) = self.task(back) {
            task.asked = gap.map(|gap| (gap.start / BLOCK) as usize);
        }
    }

    fn put(&mut self, back: usize) {
        let Some(task) = self.task(back) else { return };
        let (fetch, asked) = (task.fetch, task.asked.take());
        // Under one lock with the write.
        if let Some(block) = asked.filter(|_| self.arrival.goes_on(fetch)) {
            self.container[block] = fetch.version().0;
            let start = block as u64 * BLOCK;
            self.arrival.came(fetch, start..start + BLOCK);
        }
    }

    fn compare(&mut self, back: usize) {
        let container = self.container;
        if let Some(task) = self.task(back) {
            let version = task.fetch.version().0;
            task.compared = container.iter().all(|block| *block == version || *block == OWN);
        }
    }

    fn complete(&mut self, back: usize) {
        let Some(&mut Task { fetch, compared, .. }) = self.task(back) else { return };
        if compared && !self.arrival.is_incomplete(fetch) && self.arrival.goes_on(fetch) {
            self.arrival.complete(fetch);
            self.index = None;
        }
    }

    fn fail(&mut self, back: usize, is_useful: bool) {
        let Some(&mut Task { fetch, .. }) = self.task(back) else { return };
        if !is_useful && self.arrival.goes_on(fetch) {
            self.forget_part();
        }
        self.arrival.fail(fetch, "failed", is_useful);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin { version, in_place } => self.begin(version, in_place),
            Step::Ask { fetch } => self.ask(fetch),
            Step::Put { fetch } => self.put(fetch),
            Step::Compare { fetch } => self.compare(fetch),
            Step::Complete { fetch } => self.complete(fetch),
            Step::Note { fetch } => {
                let Some(&mut Task { fetch, .. }) = self.task(fetch) else { return };
                self.index = self.arrival.note(fetch).or(self.index.take());
            }
            Step::Fail { fetch, is_useful } => self.fail(fetch, is_useful),
            Step::Want { block } => drop(self.arrival.want(block as u64 * BLOCK..(block as u64 + 1) * BLOCK)),
            Step::Cut => {
                self.forget_part();
                (self.container, self.version, self.is_lent) = ([OWN; BLOCKS], OWN, false);
                self.arrival.cut();
            }
            Step::TurnOver { version, fails } if self.arrival.is_whole() => {
                self.container = [version; BLOCKS];
                self.version = version;
                self.arrival.turned_over(fails.then_some("the disk fails"));
            }
            Step::TurnOver { .. } => {}
            Step::Write { block } if self.is_lent => self.container[block] = OWN,
            Step::Write { .. } => {}
            Step::Restart => {
                self.arrival = self.index.clone().map_or_else(Tested::missing, Tested::left_before);
                (self.is_lent, self.tasks) = (false, Vec::new());
                self.version = self.index.as_ref().map_or(0, |part| part.version.0);
            }
        }
    }

    /// Whether the container holds this version, or what programs have written over it, in a range of blocks.
    fn holds(&self, version: u64, range: Range<usize>) -> bool {
        self.container[range].iter().all(|block| *block == version || *block == OWN)
    }

    #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
    fn holds_part(&self, part: &Part) -> bool {
        let in_blocks = |range: Range<u64>| (range.start / BLOCK) as usize..range.end.div_ceil(BLOCK) as usize;
        part.present.iter().all(|range| self.holds(part.version.0, in_blocks(range)))
    }
}

proptest! {
    /// The container holds what the machine says is here, whichever fetches go on late.
    #[test]
    fn proptest_what_is_said_to_be_here_is_of_one_version(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            let version = world.version;
            if world.arrival.is_whole() {
                prop_assert!(world.holds(version, 0..BLOCKS), "{:?}", world.container);
            }
            for block in 0..BLOCKS {
                let start = block as u64 * BLOCK;
                if world.arrival.want(start..start + BLOCK) == Some(Ok(())) {
                    prop_assert!(world.holds(version, block..block + 1), "{:?}", world.container);
                }
            }
            prop_assert!(world.index.as_ref().is_none_or(|part| world.holds_part(part)), "{:?}", world.index);
            let kept = world.arrival.worth_keeping(DataVersion(version));
            prop_assert!(kept.is_none_or(|part| world.holds_part(&part)));
        }
    }
}
