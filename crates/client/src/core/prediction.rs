//! Prediction: which files of a directory are opened next, by which were opened one after the other.
//!
//! Programs open files in the order of their names (`cat *`), in that of the listing (`grep -r`), or in the one of the
//! last time (a compiler its headers). Each of the three is believed of a program in a directory once it has held for
//! a few opens, and then so many files are fetched ahead as it has been right, doubled each time. Half of what an order
//! has shown goes with the program to the next directory. Programs that read one directory at a time do not disturb
//! each other, and each has its own last time.
//!
//! The cost is bounded by what is wanted: bytes that were fetched in vain, or that nobody has opened yet, are never
//! more than a quarter of those that programs have asked for, so at most a fifth of all. A scan of many files finds
//! itself fetched ahead in geometrically growing steps.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use mafs_proto::{Instant, VnodeId};
use serde::{Deserialize, Serialize};

/// Programs and directories of which it is known what was opened last.
const READERS_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// Programs and files of which it is known what was opened after them.
const SUCCESSORS_MAX: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");
/// The most files ahead of a reader.
pub(crate) const STEPS_MAX: usize = 64;
/// An open of one of the next few files is in order too: a program may leave out some.
const NEAR: usize = 4;
/// Time after which a file that nobody has opened was fetched in vain.
const PATIENCE: Duration = Duration::from_secs(600);
/// Wanted bytes for each one that may be fetched in vain.
const WANTED_PARTS: u64 = 4;
/// The most bytes that nobody has opened yet.
const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// Cost of a fetch besides the content.
const FETCH_BYTES: u64 = 512;

/// Report on what has been fetched ahead, and what of it was of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PrefetchReport {
    /// Files that were fetched before anybody opened them.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files fetched ahead that somebody has opened since.
    pub used_files: u64,
    /// Their bytes.
    pub used_bytes: u64,
    /// Files fetched ahead that nobody has opened within ten minutes, or before they had to go.
    pub wasted_files: u64,
    /// Their bytes.
    pub wasted_bytes: u64,
}

/// Program, by the name of its executable: that is the same the next time, and for each of the processes that a script
/// starts one after the other. Those whose name cannot be told are one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Program([u8; Self::NAME_BYTES_MAX]);

impl Program {
    /// More than Linux keeps of a name.
    pub const NAME_BYTES_MAX: usize = 16;

    /// Makes the program of a name, of which the first bytes count.
    #[must_use]
    pub fn named(name: &[u8]) -> Self {
        let mut program = Self::default();
        program.0.iter_mut().zip(name).for_each(|(byte, of_name)| *byte = *of_name);
        program
    }
}

/// Open of a file by a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) program: Program,
    pub(crate) directory: VnodeId,
    pub(crate) vnode: VnodeId,
    /// The size of its content.
    pub(crate) bytes: u64,
    /// Whether that is in the cache.
    pub(crate) here: bool,
}

/// Order in which files are opened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Order {
    Names,
    Listing,
    Learned,
}

impl Order {
    const ALL: [Self; 3] = [Self::Names, Self::Listing, Self::Learned];

    /// Returns after how many opens in this order it is believed: an order of an earlier time needs no other proof than
    /// one.
    fn proof(self) -> u32 {
        match self {
            Self::Names | Self::Listing => 2,
            Self::Learned => 1,
        }
    }
}

/// Files that follow a file in its directory, the next [`STEPS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Neighbours {
    /// In the order of names.
    pub(crate) names: Vec<VnodeId>,
    /// In the order of the listing.
    pub(crate) listing: Vec<VnodeId>,
}

/// A program that reads a directory.
struct Reader {
    last: VnodeId,
    /// Files that come next by each order, and how often in a row they did.
    orders: [(Vec<VnodeId>, u32); 3],
}

/// A file that was fetched ahead and that nobody has opened yet.
#[derive(Clone, Copy)]
struct Ahead {
    bytes: u64,
    since: Instant,
}

/// Knowledge of the order in which files are opened, and what came of believing in it.
pub(crate) struct Prediction {
    readers: LruCache<(Program, VnodeId), Reader>,
    successors: LruCache<(Program, VnodeId), VnodeId>,
    ahead: BTreeMap<VnodeId, Ahead>,
    /// Cost of these.
    ahead_cost: u64,
    /// Cost of what programs have asked for, be it fetched then or before.
    wanted_cost: u64,
    wasted_cost: u64,
    report: PrefetchReport,
}

impl Default for Prediction {
    fn default() -> Self {
        Self {
            readers: LruCache::new(READERS_MAX),
            successors: LruCache::new(SUCCESSORS_MAX),
            ahead: BTreeMap::new(),
            ahead_cost: 0,
            wanted_cost: 0,
            wasted_cost: 0,
            report: PrefetchReport::default(),
        }
    }
}

impl Prediction {
    /// Takes in that a program opens a file. Returns whether it is worth saying what comes next ([`Self::next`]): not
    /// if the file was here anyway.
    pub(crate) fn opened(&mut self, open: Open, now: Instant) -> bool {
        self.expire(now);
        let used = self.take_ahead(open.vnode);
        if let Some(used) = used {
            self.report.used_files += 1;
            self.report.used_bytes += used.bytes;
        }
        let is_wanted = used.is_some() || !open.here;
        if is_wanted {
            self.wanted_cost = self.wanted_cost.saturating_add(cost(open.bytes));
        }
        self.follow(open);
        is_wanted
    }

    /// Compares an open with what was expected.
    fn follow(&mut self, Open { program, directory, vnode, .. }: Open) {
        let Some(reader) = self.readers.get_mut(&(program, directory)) else {
            let orders = self.brought(program).map(|run| (Vec::new(), run));
            self.readers.put((program, directory), Reader { last: vnode, orders });
            return;
        };
        if reader.last == vnode {
            return;
        }
        for (expected, run) in &mut reader.orders {
            match expected.iter().take(NEAR).position(|next| *next == vnode) {
                Some(at) => {
                    expected.drain(..=at);
                    *run += 1;
                }
                None => (*expected, *run) = (Vec::new(), 0),
            }
        }
        self.successors.put((program, std::mem::replace(&mut reader.last, vnode)), vnode);
    }

    /// Returns half of what a program that comes to a directory has shown in the one before, by order. So `grep -r` is
    /// followed from the first file on in small directories too, and a program that has opened three files in a row is
    /// not.
    fn brought(&self, program: Program) -> [u32; 3] {
        let before = self.readers.iter().find(|((reader, _), _)| *reader == program);
        before.map_or([0; 3], |(_, reader)| Order::ALL.map(|order| reader.orders[order as usize].1 / 2))
    }

    /// Says which files will be opened after this one, which has just been: the next first, nothing if that cannot be
    /// told.
    pub(crate) fn next(&mut self, open: Open, neighbours: Neighbours) -> Vec<VnodeId> {
        let learned = self.learned(open.program, open.vnode);
        let reader = self.readers.get_mut(&(open.program, open.directory));
        let Some(reader) = reader.filter(|reader| reader.last == open.vnode) else { return Vec::new() };
        for (order, expected) in Order::ALL.into_iter().zip([neighbours.names, neighbours.listing, learned]) {
            reader.orders[order as usize].0 = expected;
        }
        let runs = Order::ALL.map(|order| (reader.orders[order as usize].1, order));
        let proven = runs.into_iter().filter(|(run, order)| *run >= order.proof()).max();
        let Some((run, order)) = proven else { return Vec::new() };
        let steps = 1usize.checked_shl(run).map_or(STEPS_MAX, |steps| steps.min(STEPS_MAX));
        let expected = reader.orders[order as usize].0.iter().take(steps);
        expected.copied().filter(|vnode| !self.ahead.contains_key(vnode)).collect()
    }

    /// Returns the file that a program opened after a file the last time, the one after that, and so on.
    fn learned(&self, program: Program, from: VnodeId) -> Vec<VnodeId> {
        let mut chain = Vec::new();
        let mut at = from;
        while let Some(next) = self.successors.peek(&(program, at)).filter(|_| chain.len() < STEPS_MAX) {
            if *next == from || chain.contains(next) {
                break;
            }
            chain.push(*next);
            at = *next;
        }
        chain
    }

    /// Whether a file may be fetched that nobody has asked for; then it counts as fetched.
    pub(crate) fn begin(&mut self, vnode: VnodeId, bytes: u64, now: Instant) -> bool {
        let ahead_cost = self.ahead_cost.saturating_add(cost(bytes));
        let bound = (self.wanted_cost / WANTED_PARTS).saturating_sub(self.wasted_cost).min(AHEAD_BYTES_MAX);
        if ahead_cost > bound || self.ahead.contains_key(&vnode) {
            return false;
        }
        self.ahead.insert(vnode, Ahead { bytes, since: now });
        self.ahead_cost = ahead_cost;
        self.report.files += 1;
        self.report.bytes += bytes;
        true
    }

    /// Notes that a file fetched ahead did not come.
    pub(crate) fn failed(&mut self, vnode: VnodeId) {
        if let Some(ahead) = self.take_ahead(vnode) {
            self.report.files -= 1;
            self.report.bytes -= ahead.bytes;
        }
    }

    /// Notes that a file fetched ahead had to go.
    pub(crate) fn evicted(&mut self, vnode: VnodeId) {
        if let Some(ahead) = self.take_ahead(vnode) {
            self.waste(ahead);
        }
    }

    /// Reports what has been fetched, and what of it was of use.
    pub(crate) fn report(&mut self, now: Instant) -> PrefetchReport {
        self.expire(now);
        self.report
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |ahead: &Ahead| now.since(ahead.since) > PATIENCE;
        let old: Vec<VnodeId> = self.ahead.iter().filter(|(_, ahead)| is_old(ahead)).map(|(vnode, _)| *vnode).collect();
        old.into_iter().for_each(|vnode| self.evicted(vnode));
    }

    fn waste(&mut self, ahead: Ahead) {
        self.wasted_cost = self.wasted_cost.saturating_add(cost(ahead.bytes));
        self.report.wasted_files += 1;
        self.report.wasted_bytes += ahead.bytes;
    }

    fn take_ahead(&mut self, vnode: VnodeId) -> Option<Ahead> {
        let ahead = self.ahead.remove(&vnode)?;
        self.ahead_cost -= cost(ahead.bytes);
        Some(ahead)
    }
}

fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(FETCH_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIRECTORY: VnodeId = VnodeId(1);
    const NOW: Instant = Instant(1_000_000_000);

    fn after(vnode: u64, last: u64, step: impl Fn(u64) -> u64) -> Vec<VnodeId> {
        (vnode + 1..=last).take(STEPS_MAX).map(|next| VnodeId(step(next))).collect()
    }

    fn open(vnode: u64, bytes: u64, here: bool) -> Open {
        Open { program: Program::default(), directory: DIRECTORY, vnode: VnodeId(vnode), bytes, here }
    }

    /// Opens files one after the other, of which those fetched ahead have come. Returns how many had to be waited for.
    fn read_all(prediction: &mut Prediction, files: &[u64], neighbours: impl Fn(u64) -> Neighbours) -> usize {
        let opens: Vec<_> = files.iter().map(|file| (Program::default(), *file)).collect();
        read_all_by(prediction, &opens, neighbours)
    }

    /// Opens files like [`read_all`], by several programs.
    fn read_all_by(
        prediction: &mut Prediction,
        opens: &[(Program, u64)],
        neighbours: impl Fn(u64) -> Neighbours,
    ) -> usize {
        let mut here = std::collections::BTreeSet::new();
        let mut waits = 0;
        for (program, file) in opens {
            let is_here = !here.insert(*file);
            waits += usize::from(!is_here);
            let open = Open { program: *program, ..open(*file, 1000, is_here) };
            if prediction.opened(open, NOW) {
                for next in prediction.next(open, neighbours(*file)) {
                    if !here.contains(&next.0) && prediction.begin(next, 1000, NOW) {
                        here.insert(next.0);
                    }
                }
            }
        }
        waits
    }

    #[test]
    fn a_scan_of_many_files_waits_for_few() {
        let files: Vec<u64> = (100..300).collect();
        for by_names in [false, true] {
            let mut prediction = Prediction::default();
            let neighbours = |file| {
                let (next, other) = (after(file, 299, |next| next), after(file, 299, |next| 1000 - next));
                let [names, listing] = if by_names { [next, other] } else { [other, next] };
                Neighbours { names, listing }
            };
            let waits = read_all(&mut prediction, &files, neighbours);
            assert!(waits < 20, "{waits} of {}", files.len());
            let report = prediction.report(NOW);
            assert_eq!((report.used_files, report.wasted_files), (report.files, 0), "{report:?}");
        }
    }

    #[test]
    fn what_was_opened_once_in_an_order_of_its_own_is_known_the_second_time() {
        let files: Vec<u64> = (0..100).map(|number| 100 + number * 37 % 100).collect();
        let nothing = |_| Neighbours::default();
        let mut prediction = Prediction::default();
        assert_eq!(read_all(&mut prediction, &files, nothing), 100);
        assert!(read_all(&mut prediction, &files, nothing) < 5);
    }

    fn programs() -> [Program; 2] {
        [Program::named(b"cat"), Program::named(b"tar")]
    }

    /// Lists what two programs open, each in its own order and in turn.
    fn in_turn(orders: [&[u64]; 2]) -> Vec<(Program, u64)> {
        let [one, other] = programs();
        let both = orders[0].iter().zip(orders[1]);
        both.flat_map(|(file, other_file)| [(one, *file), (other, *other_file)]).collect()
    }

    #[test]
    fn each_of_two_programs_in_one_directory_is_followed() {
        let (up, down): (Vec<u64>, Vec<u64>) = ((100..200).collect(), (200..300).rev().collect());
        let neighbours = |file| Neighbours {
            names: after(file, 299, |next| next),
            listing: (200..file).rev().take(STEPS_MAX).map(VnodeId).collect(),
        };
        let mut prediction = Prediction::default();
        let waits = read_all_by(&mut prediction, &in_turn([&up, &down]), neighbours);
        assert!(waits < 30, "{waits} of 200");
        let report = prediction.report(NOW);
        assert_eq!((report.used_files, report.wasted_files), (report.files, 0), "{report:?}");
        // As one program they have no order.
        let as_one: Vec<_> = in_turn([&up, &down]).into_iter().map(|(_, file)| file).collect();
        assert_eq!(read_all(&mut Prediction::default(), &as_one, neighbours), 200);
    }

    #[test]
    fn each_program_has_an_order_of_its_own_that_is_known_the_second_time() {
        let nothing = |_| Neighbours::default();
        let order = |stride: u64| -> Vec<u64> { (0..101).map(|number| 100 + number * stride % 101).collect() };
        let opens = in_turn([&order(37), &order(23)]);
        let mut prediction = Prediction::default();
        assert_eq!(read_all_by(&mut prediction, &opens, nothing), 101, "each is fetched by the first who opens it");
        let waits = read_all_by(&mut prediction, &opens, nothing);
        assert!(waits < 15, "{waits} of 101");
    }

    #[test]
    fn what_one_program_has_opened_is_no_order_of_another() {
        let [one, other] = programs().map(|program| {
            move |prediction: &mut Prediction| {
                let opens: Vec<_> = (0..100).map(|number| (program, 100 + number * 37 % 100)).collect();
                read_all_by(prediction, &opens, |_| Neighbours::default())
            }
        });
        let mut prediction = Prediction::default();
        assert_eq!(one(&mut prediction), 100);
        assert_eq!(other(&mut prediction), 100);
        assert!(one(&mut prediction) < 5 && other(&mut prediction) < 5);
    }

    /// Opens all files of small directories, one after the other. Returns how many had to be waited for.
    fn read_tree(prediction: &mut Prediction, directories: u64, files: u64) -> usize {
        let mut waits = 0;
        let mut here = std::collections::BTreeSet::new();
        for directory in 0..directories {
            let [first, last] = [directory * 100, directory * 100 + files - 1];
            for file in first..=last {
                let is_here = !here.insert(file);
                waits += usize::from(!is_here);
                let open = Open { directory: VnodeId(1_000_000 + directory), ..open(file, 1000, is_here) };
                if prediction.opened(open, NOW) {
                    let names = after(file, last, |next| next);
                    for next in prediction.next(open, Neighbours { names, listing: Vec::new() }) {
                        if prediction.begin(next, 1000, NOW) {
                            here.insert(next.0);
                        }
                    }
                }
            }
        }
        waits
    }

    #[test]
    fn who_reads_a_tree_of_small_directories_waits_for_one_file_of_each() {
        let waits = read_tree(&mut Prediction::default(), 30, 5);
        assert!(waits < 30 + 10, "{waits} of 150");
        // There is nothing to learn of two files, and nothing to gain.
        assert_eq!(read_tree(&mut Prediction::default(), 30, 2), 60);
    }

    #[test]
    fn who_opens_a_file_or_two_is_not_followed() {
        let mut prediction = Prediction::default();
        let neighbours = |file| Neighbours { names: after(file, 400, |next| next), listing: Vec::new() };
        assert_eq!(read_all(&mut prediction, &[100, 101, 300, 301, 200, 120], neighbours), 6);
        assert_eq!(prediction.report(NOW), PrefetchReport::default());
    }

    #[test]
    fn what_nobody_opens_is_wasted_and_ends_it() {
        let mut prediction = Prediction::default();
        let neighbours = |file| Neighbours { names: after(file, 400, |next| next), listing: Vec::new() };
        let read: Vec<u64> = (100..140).collect();
        read_all(&mut prediction, &read, neighbours);
        let report = prediction.report(Instant(NOW.0 + 601_000_000_000));
        assert!(report.wasted_files > 0 && report.used_files + report.wasted_files == report.files, "{report:?}");
        let wanted = 40 * cost(1000);
        assert!(report.wasted_bytes + FETCH_BYTES * report.wasted_files <= wanted / 4, "{report:?}");
    }

    proptest! {
        #[test]
        fn proptest_what_is_fetched_in_vain_is_at_most_a_quarter_of_what_was_wanted(
            acts in proptest::collection::vec((0u8..6, 1u64..40, 0u64..100_000, 0u64..300, 0usize..2), 0..300),
        ) {
            let mut prediction = Prediction::default();
            let (mut now, mut wanted) = (NOW, 0u64);
            for (act, vnode, bytes, seconds, program) in acts {
                match act {
                    0 => prediction.failed(VnodeId(vnode)),
                    1 => prediction.evicted(VnodeId(vnode)),
                    2 => now = Instant(now.0 + seconds * 1_000_000_000),
                    _ => {
                        let open = Open { program: programs()[program], ..open(vnode, bytes, act == 3) };
                        if prediction.opened(open, now) {
                            wanted += cost(bytes);
                            let around = after(vnode, 40, |next| next);
                            let listing = around.iter().rev().copied().collect();
                            let neighbours = Neighbours { names: around, listing };
                            for next in prediction.next(open, neighbours) {
                                prop_assert!(!prediction.ahead.contains_key(&next));
                                prediction.begin(next, bytes / 2, now);
                            }
                        } else {
                            prop_assert_eq!(act, 3, "what is not here is wanted");
                        }
                    }
                }
                let ahead: u64 = prediction.ahead.values().map(|ahead| cost(ahead.bytes)).sum();
                prop_assert_eq!(ahead, prediction.ahead_cost);
                let report = prediction.report;
                let open_files = prediction.ahead.len() as u64;
                prop_assert_eq!(report.files, report.used_files + report.wasted_files + open_files);
                prop_assert!(prediction.wasted_cost <= wanted / WANTED_PARTS);
            }
        }
    }
}
