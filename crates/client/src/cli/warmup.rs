//! `warmup PATH... [--check] [--json]`, `evict PATH...`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use mafs_client::control::{Client, ControlError, HoardRequest, HoardResponse};
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{Evicted, Warmed};
use serde::Serialize;

use super::hoard::{each, failure, unexpected};
use super::reach::place_of;
use super::status_text::counted;
use super::{Exit, Failure, command_runtime, json_text};

/// The time between two moves of the bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Missing objects that are listed; the rest is counted.
const MISSING_SHOWN: usize = 20;

#[derive(clap::Args, Debug)]
pub(super) struct WarmupArgs {
    /// Files and directories below mount points.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Fetch nothing, ask nobody: say what is missing, and end with exit code 1 if anything is.
    #[arg(long)]
    check: bool,
    /// For programs: an array with one object for each path, in their order.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(super) struct EvictArgs {
    /// Files and directories below mount points.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The state of one path: how much of it is here.
#[derive(Serialize)]
struct Shown {
    path: String,
    #[serde(flatten)]
    warmed: Warmed,
}

/// Brings everything below some paths here once, or says what is missing.
pub(super) fn run(args: &WarmupArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let (mut exit, mut all) = (Exit::Ok, Vec::new());
        for path in &args.paths {
            match warm(&runtime_dir, path, args.check).await {
                Ok(shown) => {
                    if shown.warmed.missing_objects > 0 {
                        exit = Exit::Failed;
                    }
                    if !args.json && std::io::stdout().write_all(describe(&shown).as_bytes()).is_err() {
                        return Ok(exit);
                    }
                    all.push(shown);
                }
                Err(failure) => {
                    eprintln!("mafs-client: {}", failure.message);
                    exit = failure.exit;
                }
            }
        }
        if args.json {
            let text = json_text(&all)?;
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
        Ok(exit)
    })
}

async fn warm(runtime_dir: &RuntimeDir, path: &Path, check: bool) -> Result<Shown, Failure> {
    let shown = printable_path(path);
    let (mut daemon, below) = place_of(runtime_dir, path).await?;
    let answered = if check {
        daemon.client.hoard(HoardRequest::Check(below)).await
    } else {
        let ticket = u64::from(std::process::id());
        let warming = daemon.client.hoard(HoardRequest::Warm { below, ticket });
        let missing = async |client: &mut Client| match client.hoard(HoardRequest::Warming(ticket)).await? {
            HoardResponse::Warming(progress) => Ok(progress.map_or(0, |progress| progress.missing_bytes)),
            _ => Err(unexpected()),
        };
        with_bar(&daemon.socket, &shown, warming, missing).await
    };
    match answered {
        Ok(HoardResponse::Warmed(warmed)) => Ok(Shown { path: shown, warmed }),
        Ok(_) => Err(failure(&shown, &unexpected())),
        Err(error) => Err(failure(&shown, &error)),
    }
}

/// Waits for `waiting`, and shows on a terminal how much is `missing`, as another connection tells.
pub(super) async fn with_bar<T>(
    socket: &Path,
    name: &str,
    waiting: impl Future<Output = Result<T, ControlError>>,
    missing: impl AsyncFn(&mut Client) -> Result<u64, ControlError>,
) -> Result<T, ControlError> {
    let mut watching = Client::connect(socket).await?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name.to_owned());
    let show = async {
        let mut most = 0;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match missing(&mut watching).await {
                Ok(left) => {
                    most = left.max(most);
                    bar.set_length(most);
                    bar.set_position(most - left);
                }
                Err(error) => return error,
            }
        }
    };
    let outcome = tokio::select! {
        outcome = waiting => outcome,
        error = show => Err(error),
    };
    bar.finish_and_clear();
    outcome
}

/// Formats one line, and one for each of the first missing objects.
fn describe(shown: &Shown) -> String {
    let Shown { path, warmed } = shown;
    let all = format!("{}, {}", counted(warmed.objects, "object"), HumanBytes(warmed.bytes));
    if warmed.missing_objects == 0 {
        return format!("{path}: {all}, all here\n");
    }
    let no_room = match warmed.left_out_objects {
        0 => String::new(),
        left_out => format!(", there is no room in the cache for {left_out}"),
    };
    let missing = format!("{}, {}", counted(warmed.missing_objects, "object"), HumanBytes(warmed.missing_bytes));
    let mut text = format!("{path}: {all}, missing {missing}{no_room}\n");
    let listed = warmed.missing.iter().take(MISSING_SHOWN);
    let count = listed.len() as u64;
    listed.for_each(|path| text += &format!("  {}\n", if path.is_empty() { "." } else { path }));
    match warmed.missing_objects - count {
        0 => text,
        more => text + &format!("  and {more} more\n"),
    }
}

/// Drops the cached contents below some paths.
pub(super) fn evict(args: &EvictArgs) -> Result<Exit, Failure> {
    each(&args.paths, async |client, below, shown| {
        let HoardResponse::Evicted(evicted) = client.hoard(HoardRequest::Evict(below)).await? else {
            return Err(unexpected());
        };
        let _ = writeln!(std::io::stdout(), "{shown}: {}", describe_evicted(evicted));
        Ok(Exit::Ok)
    })
}

fn describe_evicted(evicted: Evicted) -> String {
    let mut text = format!("{}, {} evicted", counted(evicted.files, "file"), HumanBytes(evicted.bytes));
    if evicted.pinned_files > 0 {
        text += &format!(", {} stay: pinned", evicted.pinned_files);
    }
    if evicted.busy_files > 0 {
        text += &format!(", {} stay: open, on their way or not at the server", evicted.busy_files);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let warmed = Warmed { objects: 4, bytes: 4096, ..Warmed::default() };
        let shown = |warmed: &Warmed| describe(&Shown { path: "/mnt/dir".to_owned(), warmed: warmed.clone() });
        assert_eq!(shown(&warmed), "/mnt/dir: 4 objects, 4.00 KiB, all here\n");
        let missing = (0..22).map(|number| format!("dir/{number}")).collect();
        let (missing_objects, missing_bytes) = (23, 1024);
        let lacking = Warmed { missing_objects, missing_bytes, left_out_objects: 1, missing, ..warmed };
        let text = shown(&lacking);
        let first = "missing 23 objects, 1.00 KiB, there is no room in the cache for 1\n  dir/0\n  dir/1\n";
        assert!(text.contains(first) && text.ends_with("  dir/19\n  and 3 more\n"), "{text}");
    }

    #[test]
    fn what_stays_is_told_with_why() {
        let evicted = Evicted { files: 1, bytes: 1024, ..Evicted::default() };
        assert_eq!(describe_evicted(evicted), "1 file, 1.00 KiB evicted");
        let kept = Evicted { pinned_files: 2, busy_files: 3, ..evicted };
        let expected = "1 file, 1.00 KiB evicted, 2 stay: pinned, 3 stay: open, on their way or not at the server";
        assert_eq!(describe_evicted(kept), expected);
    }
}
