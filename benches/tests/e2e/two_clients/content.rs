//! Close to open: after close() on one client, open() on the other gives the new content, whoever has the old one.

use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mafs_bench::content::bytes;
use mafs_bench::measure::state;
use mafs_bench::process::{wait, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::held::Holder;
use super::{Mounts, Pair, on_two_clients};

/// Limit of the start or the end of a program.
const LIMIT: Duration = Duration::from_secs(30);

/// Files that the kernel gets pages of, and files that it reads in the container.
pub(super) const SIZES: [usize; 2] = [10_000, 200_000];

const APPENDED_BYTES: usize = 100;

/// Changes a file that holds the first content by means of the second, and returns its content then.
pub(super) type Change = fn(&Path, &[u8], &[u8]) -> io::Result<Vec<u8>>;

/// Waits until others see what has been changed by a path.
type Settle<'s> = &'s dyn Fn(&Path);

pub(super) const IN_PLACE: [(&str, Change); 4] =
    [("overwrite", overwrite), ("write anew", write_anew), ("append", append), ("truncate", truncate)];

/// Changes by name: the old file stays, without a name, as long as somebody has it open.
const BY_NAME: [(&str, Change); 2] = [("rename over", rename_over), ("unlink and create", unlink_and_create)];

#[test]
#[ignore = "needs: fuse"]
fn after_close_on_one_client_open_on_the_other_gives_the_new_content() {
    on_two_clients(nobody_holds);
}

pub(super) fn nobody_holds(mounts: &Mounts) {
    once_settled(mounts, &|_| ());
}

/// Checks that the other opens the new content once `settle` has returned for the path by which a file was changed.
pub(super) fn once_settled(mounts: &Mounts, settle: Settle<'_>) {
    let mut tally = Tally::default();
    for (name, change) in IN_PLACE.into_iter().chain(BY_NAME) {
        alternate(mounts, (name, change), settle, &mut tally, |_, change| change());
    }
    tally.assert_all_new();
}

#[test]
#[ignore = "needs: fuse, python3"]
fn open_gives_the_new_content_while_a_program_has_the_old_one_open() {
    on_two_clients(held_open);
}

pub(super) fn held_open(mounts: &Mounts) {
    held(mounts, "open");
}

#[test]
#[ignore = "needs: fuse, python3"]
fn open_gives_the_new_content_while_a_program_has_the_old_one_mapped() {
    on_two_clients(held_mapped);
}

pub(super) fn held_mapped(mounts: &Mounts) {
    held(mounts, "mapped");
}

/// Checks programs that hold a file. A file replaced by name stays whole for them; one changed in place may show the
/// change.
fn held(mounts: &Mounts, how: &str) {
    let mut holder = Holder::start(how).unwrap();
    let mut tally = Tally::default();
    for (name, change) in IN_PLACE {
        alternate(mounts, (name, change), &|_| (), &mut tally, |path, change| {
            holder.hold(path)?;
            let changed = change()?;
            holder.look_and_let_go()?;
            Ok(changed)
        });
    }
    for (name, change) in BY_NAME {
        alternate(mounts, (name, change), &|_| (), &mut tally, |path, change| {
            holder.hold(path)?;
            let changed = change()?;
            if holder.look_and_let_go()? {
                return Ok(changed);
            }
            Err(io::Error::other(format!("{name}: who had the file {how} does not have the old content any more")))
        });
    }
    tally.assert_all_new();
}

#[test]
#[ignore = "needs: fuse"]
fn open_gives_the_new_content_while_a_program_executes_the_old_one() {
    on_two_clients(executed);
}

pub(super) fn executed(mounts: &Mounts) {
    let mut tally = Tally::default();
    for (name, change) in BY_NAME {
        write_anew(&mounts.ways[0].join(name), &[], &program(0)).unwrap();
        for round in 0..mounts.rounds {
            let [writer, reader] = mounts.writer_and_reader(round).map(|mount| mount.join(name));
            let executed = execute(&reader);
            let content = change(&writer, &[], &program(round + 1)).unwrap();
            tally.count(name, &reader, &content);
            let ended = end(executed);
            assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{name}: the program that was executed: {ended}");
        }
    }
    tally.assert_all_new();
}

/// The kernel refuses the write with ETXTBSY on the machine that executes the file, and knows of no other.
#[test]
#[ignore = "needs: fuse"]
fn a_program_that_is_executed_elsewhere_can_be_overwritten() {
    let pair = Pair::start();
    let [writer, reader] = pair.mounts.writer_and_reader(0).map(|mount| mount.join("program"));
    write_anew(&writer, &[], &program(0)).unwrap();
    let executed = execute(&reader);
    let here = OpenOptions::new().write(true).open(&reader).unwrap_err();
    assert_eq!(here.kind(), io::ErrorKind::ExecutableFileBusy);
    let content = overwrite(&writer, &[], &program(1)).unwrap();
    assert!(read(&reader).unwrap() == content, "open() shows the old program");
    println!("the program that was overwritten from elsewhere, told to end: {}", end(executed));
    pair.stop();
}

/// Makes one change over and over, in both directions, of a small file and a large one. `around` is given the path
/// where the reader finds the file, and makes the change.
fn alternate(
    mounts: &Mounts,
    (name, change): (&'static str, Change),
    settle: Settle<'_>,
    tally: &mut Tally,
    mut around: impl FnMut(&Path, &dyn Fn() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>>,
) {
    let begun = Instant::now();
    let large = mounts.rounds / 2;
    for (size, rounds) in SIZES.into_iter().zip([mounts.rounds - large, large]) {
        let file = |mount: &Path| mount.join(format!("{name} {size}"));
        let mut content = bytes(0, size);
        fs::write(file(&mounts.ways[0]), &content).unwrap();
        settle(&file(&mounts.ways[0]));
        for round in 0..rounds {
            let [writer, reader] = mounts.writer_and_reader(round).map(|mount| file(&mount));
            // The check makes sure that there is something old to be shown.
            tally.check(name, &reader, &content);
            let changed = around(&reader, &|| change(&writer, &content, &bytes(u64::from(round) + 1, size)));
            content = changed.unwrap_or_else(|error| panic!("{name}, {size} bytes, round {round}: {error}"));
            settle(&writer);
            tally.count(name, &reader, &content);
        }
    }
    println!("{name}: {:.1} ms a round", begun.elapsed().as_secs_f64() * 1e3 / f64::from(mounts.rounds));
}

/// Count of the opens, and descriptions of those that did not give the new content.
#[derive(Default)]
pub(super) struct Tally {
    opens: u32,
    old: Vec<String>,
}

impl Tally {
    pub(super) fn count(&mut self, name: &str, path: &Path, content: &[u8]) {
        self.opens += 1;
        self.check(name, path, content);
    }

    fn check(&mut self, name: &str, path: &Path, content: &[u8]) {
        match read(path) {
            Ok(found) if found == content => {}
            Ok(found) => self.old.push(format!("{name}: {}", Difference(&found, content))),
            Err(error) => self.old.push(format!("{name}: {error}")),
        }
    }

    pub(super) fn assert_all_new(self) {
        self.assert_new_but_for(0);
    }

    /// Asserts that at most one open in `one_in` did not give the new content; none if that is 0.
    pub(super) fn assert_new_but_for(self, one_in: u32) {
        let (old, first) = (self.old.len(), &self.old[..self.old.len().min(10)]);
        println!("{} opens, {old} of them without the new content", self.opens);
        let allowed = self.opens.checked_div(one_in).unwrap_or_default() as usize;
        assert!(old <= allowed, "{old} times, first {first:#?}");
    }
}

struct Difference<'a>(&'a [u8], &'a [u8]);

impl Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(found, wanted) = self;
        let at = found.iter().zip(wanted.iter()).take_while(|(found, wanted)| found == wanted).count();
        write!(f, "{} bytes in place of {}, the first wrong one at {at}", found.len(), wanted.len())
    }
}

/// Reads a file, and checks that the size that it shows agrees with the content.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    if content.len() as u64 == size {
        return Ok(content);
    }
    Err(io::Error::other(format!("fstat shows {size} bytes, read gives {}", content.len())))
}

fn overwrite(path: &Path, _: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    OpenOptions::new().write(true).open(path)?.write_all(fresh)?;
    Ok(fresh.to_vec())
}

fn write_anew(path: &Path, _: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o755).open(path)?.write_all(fresh)?;
    Ok(fresh.to_vec())
}

fn append(path: &Path, old: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    let more = &fresh[..APPENDED_BYTES];
    OpenOptions::new().append(true).open(path)?.write_all(more)?;
    Ok([old, more].concat())
}

/// Truncates to tenths of the first size, up to twice that, and never to nothing, which cannot be mapped.
fn truncate(path: &Path, old: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    let mut content = old.to_vec();
    content.resize(fresh.len() / 10 * (1 + usize::from(fresh[0]) % 20), 0);
    OpenOptions::new().write(true).open(path)?.set_len(content.len() as u64)?;
    Ok(content)
}

fn rename_over(path: &Path, old: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    let new = path.with_extension("new");
    write_anew(&new, old, fresh)?;
    fs::rename(new, path)?;
    Ok(fresh.to_vec())
}

fn unlink_and_create(path: &Path, old: &[u8], fresh: &[u8]) -> io::Result<Vec<u8>> {
    fs::remove_file(path)?;
    write_anew(path, old, fresh)
}

/// Makes a program that runs until it is ended, with a content that no other number has.
fn program(number: u32) -> Vec<u8> {
    let mut program = fs::read("/bin/sleep").unwrap();
    program.extend(bytes(u64::from(number), SIZES[1]));
    program
}

fn execute(path: &Path) -> Child {
    let mut command = Command::new(path);
    let child = command.arg("600").stdin(Stdio::null()).spawn().unwrap();
    wait_until(LIMIT, "the program sleeps", || Ok(state(child.id()) == Some('S'))).unwrap();
    child
}

/// Ends a program, which takes some of its code, and returns how it ended.
fn end(mut program: Child) -> ExitStatus {
    let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw).unwrap();
    // The program may have ended before.
    let _ = kill_process(pid, Signal::TERM);
    wait(&mut program, LIMIT).unwrap()
}
