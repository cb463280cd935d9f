//! The plan of one writer and three readers with files they share: figure M4 (papers/003, section 5.4).
//!
//! The paper gives 20 sets of 8 files of 128 KB on average, 50 set operations by each participant, 8 to 20 accesses
//! every 2 to 10 s by the writer, reads and writes being equally likely, and 2 to 20 reads every 1 to 5 s by a reader;
//! 90 % of the operations go to the first five sets. Chosen here: which of a set's files an access is about (each
//! equally likely); that a write replaces the whole content by one of the same length, a file's length being from half
//! the mean to one and a half; that "every 2 to 10 s" is from the planned beginning of one operation to that of the
//! next, so that a participant that is late goes on at once until it has caught up.

use std::time::Duration;

use mafs_proto::Random;

use super::even_lengths;

const SETS: usize = 20;
const FILES_PER_SET: usize = 8;
const HOT_SETS: u64 = 5;
/// Operations on the hot sets, out of a hundred.
const TO_HOT_SETS: u64 = 90;
const LENGTH_MEAN: u64 = 128 << 10;
const OPERATIONS: usize = 50;

/// How many files there are.
pub const FILES: usize = SETS * FILES_PER_SET;
/// How many participants only read.
pub const READERS: usize = 3;

/// Operations of all participants, with their times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Bytes of each file.
    pub lengths: Vec<u64>,
    /// The participant that also writes.
    pub writer: Participant,
    /// The participants that only read.
    pub readers: Vec<Participant>,
}

/// One participant's operations, in order.
pub type Participant = Vec<SetOperation>;

/// Accesses to one set of files, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetOperation {
    /// Time since the beginning of all.
    pub at: Duration,
    /// Accesses to files of one set.
    pub accesses: Vec<Access>,
}

/// One access to one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The file's number, below [`FILES`].
    pub file: usize,
    /// Whether it writes; the others read.
    pub writes: bool,
}

/// How a kind of participant behaves: least and most.
struct Habits {
    accesses: [u64; 2],
    pause_ms: [u64; 2],
    writes: bool,
}

const WRITER: Habits = Habits { accesses: [8, 20], pause_ms: [2_000, 10_000], writes: true };
const READER: Habits = Habits { accesses: [2, 20], pause_ms: [1_000, 5_000], writes: false };

impl Plan {
    /// Makes the plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let lengths = even_lengths(&mut random, FILES, FILES as u64 * LENGTH_MEAN);
        let mut participant = |habits| participant(&mut Random::new(random.number()), habits);
        let writer = participant(&WRITER);
        Self { lengths, writer, readers: (0..READERS).map(|_| participant(&READER)).collect() }
    }

    /// Keeps only so many operations of each participant.
    #[must_use]
    pub fn truncated(mut self, operations: usize) -> Self {
        let all = std::iter::once(&mut self.writer).chain(&mut self.readers);
        all.for_each(|participant| participant.truncate(operations));
        self
    }
}

fn participant(random: &mut Random, habits: &Habits) -> Participant {
    let mut at = Duration::ZERO;
    let mut operation = || {
        at += Duration::from_millis(between(random, habits.pause_ms));
        let set = if random.below(100) < TO_HOT_SETS {
            random.below(HOT_SETS)
        } else {
            HOT_SETS + random.below(SETS as u64 - HOT_SETS)
        };
        let first = usize::try_from(set).unwrap_or(0) * FILES_PER_SET;
        let count = between(random, habits.accesses);
        let mut access =
            || Access { file: first + random.up_to(FILES_PER_SET - 1), writes: habits.writes && random.coin() };
        SetOperation { at, accesses: (0..count).map(|_| access()).collect() }
    };
    (0..OPERATIONS).map(|_| operation()).collect()
}

fn between(random: &mut Random, [least, most]: [u64; 2]) -> u64 {
    least + random.below(most - least + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses(participant: &Participant) -> impl Iterator<Item = &Access> {
        participant.iter().flat_map(|operation| &operation.accesses)
    }

    #[test]
    fn plans_are_as_the_paper_says_and_follow_from_the_seed() {
        let plans: Vec<Plan> = (1..=20).map(Plan::new).collect();
        assert_eq!(plans[0], Plan::new(1));
        assert_ne!(plans[0], plans[1]);
        for plan in &plans {
            assert_eq!(plan.lengths.iter().sum::<u64>(), (FILES as u64) << 17);
            assert_eq!((plan.lengths.len(), plan.writer.len(), plan.readers.len()), (FILES, 50, READERS));
            assert!(plan.writer.iter().all(|operation| (8..=20).contains(&operation.accesses.len())));
            for reader in &plan.readers {
                assert!(reader.iter().all(|operation| (2..=20).contains(&operation.accesses.len())));
                assert!(!accesses(reader).any(|access| access.writes));
            }
            let ends = plan.writer.last().map(|operation| operation.at);
            assert!(ends.is_some_and(|at| (200..400).contains(&at.as_secs())), "{ends:?}");
        }
    }

    #[test]
    fn half_of_the_accesses_write_and_most_operations_are_hot() {
        let writers: Vec<Participant> = (1..=20).map(|seed| Plan::new(seed).writer).collect();
        let all: Vec<&Access> = writers.iter().flat_map(accesses).collect();
        let writes = all.iter().filter(|access| access.writes).count();
        assert!((480..520).contains(&(writes * 1000 / all.len())), "{writes} of {}", all.len());
        let operations: Vec<&SetOperation> = writers.iter().flatten().collect();
        let hot = operations.iter().filter(|operation| operation.accesses[0].file < 40).count();
        assert!((880..920).contains(&(hot * 1000 / operations.len())), "{hot} of {}", operations.len());
        let one_set = |operation: &&SetOperation| {
            operation.accesses.iter().all(|access| access.file / 8 == operation.accesses[0].file / 8)
        };
        assert!(operations.iter().all(one_set));
    }
}
