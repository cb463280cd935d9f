//! `pin|unpin PATH...`, `hoard add PATH [PRIO][:c|c+|d|d+]`, `hoard list|remove|walk|record`.

use std::io::Write;
use std::path::{Path, PathBuf};

use mafs_client::control::{Client, ControlError, HoardRequest, HoardResponse};
use mafs_client::hoard::HoardSpec;
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{HoardEntry, HoardReport};
use serde::Serialize;

use super::reach::{daemons_of, place_of};
use super::record::RecordArgs;
use super::status_text::{counted, hoard as totals};
use super::warmup::with_bar;
use super::{Exit, Failure, command_runtime, json_text, record};

#[derive(clap::Args, Debug)]
pub(super) struct PinArgs {
    /// Files and directories below mount points; a directory stands for all that is and will be below it.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(super) struct HoardArgs {
    #[command(subcommand)]
    command: HoardCommand,
}

#[derive(clap::Subcommand, Debug)]
enum HoardCommand {
    /// Have something here whatever becomes of the connection, in place of what is worth less to you. The path need
    /// not exist yet.
    Add {
        /// Below a mount point.
        path: PathBuf,
        /// The priority, from 1 to 1000, and the part of a directory that is meant: 500:d+. c: its entries now, d:
        /// everything below it now; c+ and d+: also what comes later.
        #[arg(value_name = "PRIO[:c|c+|d|d+]", default_value = "500")]
        spec: HoardSpec,
    },
    /// One line for each path that is pinned or hoarded: what is meant of it, and what of that is missing.
    List(ListArgs),
    /// End hoard entries, pins too: their files may go when there is no room.
    Remove {
        /// The paths as they were added.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Fetch now what is missing, and wait until that has ended.
    Walk {
        /// The mount point, or anything below it; all mounts of this user if it is not given.
        dir: Option<PathBuf>,
    },
    /// Run a command and hoard what it opens in a mount.
    Record(RecordArgs),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// For programs: one JSON object per mount with DIR, an array without.
    #[arg(long)]
    json: bool,
}

/// The hoard of one mount.
#[derive(Serialize)]
struct Listing {
    mount_point: String,
    target: String,
    entries: Vec<HoardEntry>,
    totals: HoardReport,
}

/// Pins paths: keeps them in the cache for ever.
pub(super) fn pin(args: &PinArgs) -> Result<Exit, Failure> {
    each(&args.paths, async |client, below, shown| add(client, below, HoardSpec::PIN, shown).await)
}

/// Ends pins of paths.
pub(super) fn unpin(args: &PinArgs) -> Result<Exit, Failure> {
    each(&args.paths, async |client, below, shown| remove(client, below, true, shown).await)
}

/// Runs a subcommand of `hoard`.
pub(super) fn run(args: &HoardArgs) -> Result<Exit, Failure> {
    match &args.command {
        HoardCommand::Add { path, spec } => {
            let paths = std::slice::from_ref(path);
            each(paths, async |client, below, shown| add(client, below, *spec, shown).await)
        }
        HoardCommand::List(args) => list(args),
        HoardCommand::Remove { paths } => {
            each(paths, async |client, below, shown| remove(client, below, false, shown).await)
        }
        HoardCommand::Walk { dir } => walk(dir.as_deref()),
        HoardCommand::Record(args) => record::run(args),
    }
}

/// Does something with one path after the other; the exit code is that of the last that failed.
pub(super) fn each(
    paths: &[PathBuf],
    act: impl AsyncFn(&mut Client, Vec<u8>, &str) -> Result<Exit, ControlError>,
) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut exit = Exit::Ok;
        for path in paths {
            let shown = printable_path(path);
            let done = match place_of(&runtime_dir, path).await {
                Ok((mut daemon, below)) => {
                    act(&mut daemon.client, below, &shown).await.map_err(|error| failure(&shown, &error))
                }
                Err(failure) => Err(failure),
            };
            match done {
                Ok(Exit::Ok) => {}
                Ok(other) => exit = other,
                Err(failure) => {
                    eprintln!("mafs-client: {}", failure.message);
                    exit = failure.exit;
                }
            }
        }
        Ok(exit)
    })
}

/// Turns an error of the control socket into the command's failure.
pub(super) fn failure(shown: &str, error: &ControlError) -> Failure {
    let exit = match error {
        ControlError::Unknown => Exit::NotFound,
        ControlError::Failed(_) => Exit::Failed,
        ControlError::NoDaemon | ControlError::OutOfReach(_) | ControlError::Broken(_) => Exit::NoDaemon,
    };
    Failure::new(exit, format!("{shown}: {error}"))
}

/// Makes the error of an answer that belongs to another question.
pub(super) fn unexpected() -> ControlError {
    ControlError::Broken(std::io::Error::other("its answer is for another question"))
}

async fn add(client: &mut Client, below: Vec<u8>, spec: HoardSpec, shown: &str) -> Result<Exit, ControlError> {
    let HoardResponse::Added { connected, known } = client.hoard(HoardRequest::Add { below, spec }).await? else {
        return Err(unexpected());
    };
    if !connected {
        eprintln!("mafs-client: {shown}: noted; what is not in the cache is fetched when the server can be reached");
    } else if !known {
        eprintln!(
            "mafs-client: {shown}: noted; there is no such path as far as is known here, it counts once there is"
        );
    }
    Ok(Exit::Ok)
}

async fn remove(client: &mut Client, below: Vec<u8>, pin: bool, shown: &str) -> Result<Exit, ControlError> {
    match client.hoard(HoardRequest::Remove { below, pin }).await? {
        HoardResponse::Removed(true) => Ok(Exit::Ok),
        HoardResponse::Removed(false) => {
            let what = if pin { "pinned" } else { "hoarded" };
            eprintln!("mafs-client: {shown}: is not {what} by this path; `hoard list` shows what is");
            Ok(Exit::NotFound)
        }
        _ => Err(unexpected()),
    }
}

fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut listings = Vec::new();
        for mut daemon in daemons_of(&runtime_dir, args.dir.as_deref()).await? {
            let (mount_point, target) = (daemon.status.mount_point, daemon.status.target);
            let entries = match daemon.client.hoard(HoardRequest::List).await {
                Ok(HoardResponse::List(entries)) => entries,
                Ok(_) => return Err(failure(&mount_point, &unexpected())),
                Err(error) => return Err(failure(&mount_point, &error)),
            };
            listings.push(Listing { mount_point, target, entries, totals: daemon.status.report.hoard });
        }
        let text = if args.json {
            let text = match &listings[..] {
                [one] if args.dir.is_some() => json_text(one),
                all => json_text(all),
            };
            text?
        } else {
            listings.iter().map(describe).collect::<Vec<_>>().join("\n")
        };
        // The reader may have seen enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(Exit::Ok)
    })
}

/// Formats a listing: a heading, a line for each entry, and a line with the totals.
fn describe(listing: &Listing) -> String {
    let mut text = format!("{}  {}\n", listing.mount_point, listing.target);
    for entry in &listing.entries {
        let state = match (entry.exists, entry.missing) {
            (None, _) => "not looked at yet".to_owned(),
            (Some(false), _) => "does not exist".to_owned(),
            (Some(true), 0) => format!("{}, all here", counted(entry.objects, "object")),
            (Some(true), missing) => format!("{}, missing {missing}", counted(entry.objects, "object")),
        };
        let path = if entry.path.is_empty() { "." } else { &entry.path };
        text += &format!("  {:<9} {path}: {state}\n", entry.spec);
    }
    let all = match listing.entries.is_empty() {
        true => "nothing is hoarded".to_owned(),
        false => totals(&listing.totals),
    };
    text + "  " + &all + "\n"
}

fn walk(dir: Option<&Path>) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut exit = Exit::Ok;
        for mut daemon in daemons_of(&runtime_dir, dir).await? {
            let place = daemon.status.mount_point;
            let missing = async |client: &mut Client| Ok(client.status().await?.report.hoard.missing_bytes);
            let walking = daemon.client.hoard(HoardRequest::Walk);
            let report = match with_bar(&daemon.socket, &place, walking, missing).await {
                Ok(HoardResponse::Walked(report)) => report,
                Ok(_) => return Err(failure(&place, &unexpected())),
                Err(error) => return Err(failure(&place, &error)),
            };
            // Nobody may be reading.
            let _ = writeln!(std::io::stdout(), "{place}: {}", totals(&report));
            if report.missing_objects > 0 {
                exit = Exit::Failed;
            }
        }
        Ok(exit)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(arguments: &[&str]) -> Option<HoardCommand> {
        match Cli::try_parse_from(["mafs-client", "hoard"].iter().chain(arguments)).ok()?.command {
            Command::Hoard(args) => Some(args.command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_added_may_go_without_a_priority() {
        for (arguments, expected) in
            [(&["add", "x"][..], "500"), (&["add", "x", "7:c+"], "7:c+"), (&["add", "x", ":d"], "500:d")]
        {
            let Some(HoardCommand::Add { spec, .. }) = parse(arguments) else { panic!("{arguments:?}") };
            assert_eq!(spec.to_string(), expected);
        }
        for arguments in [&["add"][..], &["add", "x", "d"], &["add", "x", "0"], &["remove"], &["record"], &[]] {
            assert!(parse(arguments).is_none(), "{arguments:?}");
        }
    }

    #[test]
    fn a_line_says_what_is_missing_of_an_entry() {
        let entry = HoardEntry {
            path: "dir/a".to_owned(),
            priority: Some(500),
            pinned: false,
            spec: "500:d+".to_owned(),
            exists: Some(true),
            objects: 3,
            missing: 0,
        };
        let entries = vec![
            entry.clone(),
            HoardEntry { missing: 1, ..entry.clone() },
            HoardEntry { exists: Some(false), ..entry.clone() },
            HoardEntry { exists: None, path: String::new(), spec: "pinned".to_owned(), ..entry },
        ];
        let (mount_point, target) = ("/mnt".to_owned(), "host:/home".to_owned());
        let totals = HoardReport { entries: 4, walked_s: Some(0), ..HoardReport::default() };
        let listing = Listing { mount_point, target, entries, totals };
        assert_eq!(
            describe(&listing),
            "/mnt  host:/home\n  500:d+    dir/a: 3 objects, all here\n  500:d+    dir/a: 3 objects, missing 1\n  \
             500:d+    dir/a: does not exist\n  pinned    .: not looked at yet\n  \
             4 hoarded paths: 0 objects, 0 B, all here\n"
        );
        let empty = Listing { entries: Vec::new(), ..listing };
        assert_eq!(describe(&empty), "/mnt  host:/home\n  nothing is hoarded\n");
    }
}
