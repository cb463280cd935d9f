//! `sync [PATH...] [--timeout T]`.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mafs_client::control::{Client, ControlError, SyncRequest};
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::SyncProgress;
use tokio::time::Instant;

use super::reach::{all_daemons, object_at};
use super::status_text::{left, unsent};
use super::{Exit, Failure, command_runtime};

/// The time between two moves of the bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The patience without `--timeout`: longer than any process lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The time that the daemon gets beyond `--timeout`, to say that there was nothing to do, or how much there is.
const LAST_LOOK: Duration = Duration::from_millis(300);

#[derive(clap::Args, Debug)]
pub(super) struct SyncArgs {
    /// Mount points, or files and directories below them: sync waits only for what these hold. All mounts of this user
    /// if none is given.
    paths: Vec<PathBuf>,
    /// Give up after this long: 90, 90s, 5m or 1h; the exit code is 4 then, and what remains is told. 0 only looks.
    /// Without it sync waits for as long as the server can be reached.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
}

/// An object that a command is about.
pub(super) struct Target {
    /// Its name for people.
    pub(super) name: String,
    /// The daemon's socket.
    pub(super) socket: PathBuf,
    /// The path below the mount point; empty for everything.
    pub(super) below: Vec<u8>,
}

/// Outcome of waiting.
pub(super) enum Waited {
    /// The server has everything.
    Done,
    /// The server lacks something: the reason, and how much it lacks as far as that is known.
    Unsent { why: String, left: Option<String>, by_hand: bool },
    /// The daemon does not answer.
    Gone(String),
}

/// Waits for the targets one after the other.
pub(super) fn run(args: &SyncArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    let give_up = args.timeout.map(|patience| Instant::now() + patience);
    command_runtime()?.block_on(async {
        let targets = targets(&args.paths, &runtime_dir).await?;
        if targets.is_empty() {
            return Err(Failure::new(Exit::NoDaemon, "this user has mounted nothing"));
        }
        let mut exit = Exit::Ok;
        for target in targets {
            let patience = give_up.map(|give_up| give_up.saturating_duration_since(Instant::now()));
            let (failed, why) = match wait_for(&target, patience).await {
                Waited::Done => continue,
                Waited::Unsent { why, left, by_hand } => {
                    let exit = if by_hand { Exit::NoDaemon } else { Exit::Unsent };
                    (exit, left.map_or(why.clone(), |left| format!("{why}; unsent: {left}")))
                }
                Waited::Gone(why) => (Exit::NoDaemon, why),
            };
            eprintln!("mafs-client: {}: {why}", target.name);
            exit = failed;
        }
        Ok(exit)
    })
}

/// Finds all targets before the command waits for any, so that a mistake is told at once. Keeps no connection: a
/// daemon has few.
pub(super) async fn targets(paths: &[PathBuf], runtime_dir: &RuntimeDir) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for path in paths {
        let found = object_at(runtime_dir, path).await?;
        let mount = found.daemon.status.mount_point;
        let name = if found.below.is_empty() { mount } else { printable_path(path) };
        targets.push(Target { name, socket: found.daemon.socket, below: found.below });
    }
    if paths.is_empty() {
        let whole = |daemon: super::reach::Reached| Target {
            name: daemon.status.mount_point,
            socket: daemon.socket,
            below: Vec::new(),
        };
        targets.extend(all_daemons(runtime_dir).await?.into_iter().map(whole));
    }
    Ok(targets)
}

/// Waits until the server has everything, `patience` long at most, and shows the progress on a terminal.
pub(super) async fn wait_for(target: &Target, patience: Option<Duration>) -> Waited {
    match try_wait(target, patience).await {
        Ok(waited) => waited,
        Err(error) => Waited::Gone(error.to_string()),
    }
}

async fn try_wait(target: &Target, patience: Option<Duration>) -> Result<Waited, ControlError> {
    let mut waiting = Client::connect(&target.socket).await?;
    let mut watching = Client::connect(&target.socket).await?;
    let log = watching.status().await?.report.log;
    if log.paused && log.records > 0 {
        eprintln!("mafs-client: {}: the queue is paused; what this waits for is sent all the same", target.name);
    }
    let ticket = u64::from(std::process::id());
    let syncing = waiting.sync(SyncRequest { below: target.below.clone(), ticket });
    tokio::pin!(syncing);
    let bar = bar();
    let seen = Cell::new(None);
    let outcome = tokio::select! {
        outcome = &mut syncing => Some(outcome),
        () = tokio::time::sleep(patience.unwrap_or(FOR_EVER)) => None,
        error = show(&mut watching, ticket, (&bar, &target.name), &seen) => return Err(error),
    };
    bar.finish_and_clear();
    let outcome = match outcome {
        Some(outcome) => Some(outcome),
        None => tokio::time::timeout(LAST_LOOK, &mut syncing).await.ok(),
    };
    let (why, by_hand) = match outcome {
        Some(Ok(())) => return Ok(Waited::Done),
        Some(Err(ControlError::Failed(why))) => (why, false),
        Some(Err(ControlError::OutOfReach(why))) => (why, true),
        Some(Err(error)) => return Err(error),
        None => ("the time given is over".to_owned(), false),
    };
    // Another connection: the first may still owe an answer to a question that was given up.
    let mut asking = Client::connect(&target.socket).await?;
    let progress = asking.progress(ticket).await?.or(seen.get());
    let mut lacking = progress.filter(|progress| !progress.is_nothing()).map(|progress| left(&progress));
    if target.below.is_empty() {
        // Refused changes are in no queue, but they are unsent too.
        let report = asking.status().await?.report;
        lacking = (report.unsent_files + report.unsent_changes > 0).then(|| unsent(&report));
    }
    Ok(Waited::Unsent { why, left: lacking, by_hand })
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Moves the bar until the daemon does not answer any more, and notes the last progress in `seen`.
async fn show(
    client: &mut Client,
    ticket: u64,
    (bar, name): (&ProgressBar, &str),
    seen: &Cell<Option<SyncProgress>>,
) -> ControlError {
    let mut progress = Progress::default();
    loop {
        match client.progress(ticket).await {
            Ok(Some(now)) => {
                let (done, all) = progress.update(now.bytes);
                bar.set_length(all);
                bar.set_position(done);
                bar.set_message(format!("{name}: {}", left(&now)));
                seen.set(Some(now));
            }
            Ok(None) => {}
            Err(error) => return error,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The most unsent bytes so far. Makes a bar's position and length out of the unsent bytes, which shrink as files
/// arrive and grow as others are written.
#[derive(Default)]
struct Progress {
    most_unsent: u64,
}

impl Progress {
    /// Returns the bytes that have arrived, and the bytes in all.
    fn update(&mut self, unsent_bytes: u64) -> (u64, u64) {
        self.most_unsent = self.most_unsent.max(unsent_bytes);
        (self.most_unsent - unsent_bytes, self.most_unsent)
    }
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    match number.parse::<u32>() {
        Ok(number) if seconds > 0 => Ok(Duration::from_secs(u64::from(number) * seconds)),
        Ok(_) | Err(_) => Err("a time is a number of seconds, or a number with s, m or h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [("90", 90), ("0s", 0), ("5m", 300), ("1h", 3600)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "s", "-1", "1.5h", "1d", "99999999999"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn progress_never_exceeds_the_whole() {
        let mut progress = Progress::default();
        assert_eq!(progress.update(100), (0, 100));
        assert_eq!(progress.update(40), (60, 100));
        assert_eq!(progress.update(150), (0, 150), "more was written meanwhile");
        assert_eq!(progress.update(0), (150, 150));
    }
}
