//! A random program: processes in turn, of one client or more, and the model that says the result of each operation.
//! The steps are in `steps` and `idioms`.
//!
//! Operations are sent in batches, so that they follow each other as closely as in a program of its own. Between
//! batches, and at random within, there are pauses in which the server's answers come.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mafs_bench::content::Random;

use super::expected::Expected;
use super::hands::{Crew, Hands};
use super::model::{Model, OpenId};
use super::steps::{self, Mapping};
use crate::number_from_env;

/// Lines at most that are sent without an answer: no more than a socket holds.
const BATCH_MAX: usize = 24;
/// Steps of which one ends a batch.
const BATCH_STEPS: u64 = 5;
/// Steps of which one hands the turn to another process.
const TURN_STEPS: u64 = 8;
const PROCESSES_MAX: usize = 5;
const PAUSES_MICROSECONDS: [u32; 5] = [100, 200, 500, 1000, 3000];

/// Operations that a failure shows, unless `MAFS_SHOWN` says otherwise.
const SHOWN: usize = 16;

/// Names of a directory that may be renamed.
pub(super) const DIRECTORIES: [&str; 2] = ["sub", "moved"];

/// A way to the directory in which the program works.
pub(super) struct Place<'w> {
    pub(super) directory: PathBuf,
    /// Returns when the other places show all that has been closed here.
    pub(super) sync: Box<dyn Fn() -> io::Result<()> + 'w>,
}

pub(super) struct Program<'w> {
    pub(super) random: Random,
    pub(super) model: Model,
    pub(super) directory: &'static str,
    places: &'w [Place<'w>],
    crew: Crew,
    processes: Vec<Process>,
    turn: usize,
    numbers: u32,
    log: Vec<String>,
}

/// One process and what it has open, by the numbers that it was told.
struct Process {
    place: usize,
    hands: Hands,
    files: BTreeMap<u32, OpenId>,
    mappings: BTreeMap<u32, Mapping>,
    batch: Vec<(String, Expected)>,
}

impl<'w> Program<'w> {
    /// Makes the directory and starts one process in each of the first places; the others are looked at in the end.
    pub(super) fn start(seed: u64, places: &'w [Place<'w>], works_in: usize) -> io::Result<Self> {
        fs::create_dir_all(places[0].directory.join(DIRECTORIES[0]))?;
        (places[0].sync)()?;
        let (mut crew, mut processes) = (Crew::new()?, Vec::new());
        for (place, Place { directory, .. }) in places.iter().enumerate().take(works_in) {
            processes.push(Process::new(place, crew.start(directory)?));
        }
        Ok(Self {
            random: Random::new(seed),
            model: Model::default(),
            directory: DIRECTORIES[0],
            places,
            crew,
            processes,
            turn: 0,
            numbers: 0,
            log: Vec::new(),
        })
    }

    /// Takes so many steps, ends all processes, and looks at what is left, in every place.
    pub(super) fn run(&mut self, steps: u32) -> io::Result<()> {
        for _ in 0..steps {
            steps::take(self)?;
            if self.one_in(3) {
                let pause = self.choose(&PAUSES_MICROSECONDS);
                self.act(format!("pause {pause}"), Expected::text("ok"));
            }
            if self.one_in(BATCH_STEPS) || self.process().batch.len() > BATCH_MAX {
                self.settle()?;
            }
            if self.one_in(TURN_STEPS) {
                self.hand_over()?;
            }
        }
        self.settle()?;
        let last = self.process().place;
        while let Some(process) = self.processes.pop() {
            process.hands.end(self.random.below(2) == 0)?;
        }
        (self.places[last].sync)()?;
        let compare = |place: &Place<'_>| compare(&self.model, self.directory, &place.directory);
        self.places.iter().try_for_each(compare).map_err(|error| self.explain(&error, self.log.len()))
    }

    /// Returns how many operations there have been.
    pub(super) fn operations(&self) -> usize {
        self.log.len()
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap_or_default()
    }

    /// Returns a number that nothing has yet: of a write, a descriptor or a mapping.
    pub(super) fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Adds an operation of the process whose turn it is, with the answer that it must have.
    pub(super) fn act(&mut self, line: String, expected: Expected) {
        self.log.push(format!("process {}: {line}", self.turn));
        self.process().batch.push((line, expected));
    }

    pub(super) fn files(&mut self) -> &mut BTreeMap<u32, OpenId> {
        &mut self.process().files
    }

    pub(super) fn mappings(&mut self) -> &mut BTreeMap<u32, Mapping> {
        &mut self.process().mappings
    }

    fn process(&mut self) -> &mut Process {
        &mut self.processes[self.turn]
    }

    /// Does the operations that have been added, and compares.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let process = &mut self.processes[self.turn];
        let batch = std::mem::take(&mut process.batch);
        let lines: Vec<String> = batch.iter().map(|(line, _)| line.clone()).collect();
        process.hands.tell(&lines)?;
        let first = self.log.len() - batch.len();
        for (number, (_, expected)) in batch.iter().enumerate() {
            let answer = self.processes[self.turn].hands.answer();
            let checked = answer.and_then(|answer| expected.check(&answer));
            checked.map_err(|error| self.explain(&error, first + number + 1))?;
        }
        Ok(())
    }

    /// Forks the process whose turn it is: the child goes on beside its parent.
    pub(super) fn fork(&mut self) -> io::Result<()> {
        if self.processes.len() == PROCESSES_MAX {
            return Ok(());
        }
        self.settle()?;
        self.log.push(format!("process {} forks process {}", self.turn, self.processes.len()));
        let parent = &mut self.processes[self.turn];
        let child = Process {
            files: parent.files.clone(),
            mappings: parent.mappings.clone(),
            ..Process::new(parent.place, self.crew.fork(&mut parent.hands)?)
        };
        self.processes.push(child);
        Ok(())
    }

    /// Ends the process whose turn it is, if there is another in its place, without closing anything.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.settle()?;
        let place = self.process().place;
        if self.processes.iter().filter(|process| process.place == place).count() > 1 {
            let killed = self.one_in(2);
            self.log.push(format!("process {} ends, and the last takes its number", self.turn));
            self.processes.swap_remove(self.turn).hands.end(killed)?;
            self.turn = self.processes.iter().position(|process| process.place == place).unwrap_or_default();
        }
        Ok(())
    }

    /// Hands the turn to another process. Before one in another place goes on, this one closes all.
    fn hand_over(&mut self) -> io::Result<()> {
        self.settle()?;
        let place = self.process().place;
        let next = self.below(self.processes.len());
        if self.processes[next].place != place {
            for turn in 0..self.processes.len() {
                if self.processes[turn].place == place {
                    self.turn = turn;
                    self.close_all()?;
                }
            }
            (self.places[place].sync)()?;
        }
        self.turn = next;
        Ok(())
    }

    fn close_all(&mut self) -> io::Result<()> {
        for mapping in std::mem::take(self.mappings()).into_keys() {
            self.act(format!("msync {mapping}"), Expected::text("ok"));
            self.act(format!("unmap {mapping}"), Expected::text("ok"));
        }
        for file in std::mem::take(self.files()).into_keys() {
            self.act(format!("close {file}"), Expected::text("ok"));
        }
        self.settle()
    }

    /// Returns an error after so many operations, with the last of them.
    fn explain(&self, error: &io::Error, done: usize) -> io::Error {
        let last = self.log[done.saturating_sub(number_from_env("MAFS_SHOWN", SHOWN))..done].join("\n  ");
        io::Error::other(format!("{error}, after operation {done}:\n  {last}"))
    }
}

impl Process {
    fn new(place: usize, hands: Hands) -> Self {
        Self { place, hands, files: BTreeMap::new(), mappings: BTreeMap::new(), batch: Vec::new() }
    }
}

/// Compares the model with a directory: all names, the bytes of each, and the sizes that are shown.
fn compare(model: &Model, directory: &str, place: &Path) -> io::Result<()> {
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut found = list(place).and_then(|names| Ok((names, list(&place.join(directory))?)));
    if let Ok((above, below)) = &mut found {
        above.retain(|name| name != directory);
        above.extend(below.drain(..).map(|name| format!("{directory}/{name}")));
        above.sort();
    }
    let (found, _) = found.map_err(|error| named(place, error))?;
    let wanted: Vec<&str> = model.names().collect();
    if found != wanted {
        return Err(io::Error::other(format!("{} has {found:?} in place of {wanted:?}", place.display())));
    }
    for (name, file) in wanted.iter().filter_map(|name| Some((name, model.find(name)?))) {
        let path = place.join(name);
        let check = fs::metadata(&path).and_then(|metadata| {
            let bytes = fs::read(&path)?;
            Expected::data("", model.bytes(file).clone()).check_data(&bytes)?;
            let shown = metadata.len();
            if shown == bytes.len() as u64 {
                Ok(())
            } else {
                Err(io::Error::other(format!("stat shows {shown} bytes")))
            }
        });
        check.map_err(|error| named(&path, error))?;
    }
    Ok(())
}

fn list(directory: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}
