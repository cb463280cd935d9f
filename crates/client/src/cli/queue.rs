//! `queue [list] [DIR] [--all] [--json]`, `queue pause|resume [DIR]` and `queue first ID...`.

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{LogReport, QueuePage, QueueReport, QueuedChange, RecordState};
use serde::Serialize;

use super::reach::{Reached, daemons_of};
use super::status_text::{brief, counted, log};
use super::{Exit, Failure, command_runtime, json_text};

/// Changes that are shown without `--all`.
const SHOWN: usize = 100;

/// Changes that are asked for at a time.
const PAGE: u32 = 1_000;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    command: Option<QueueCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Subcommand, Debug)]
enum QueueCommand {
    /// One line for each change that the server does not have, the oldest first; the same as `queue` alone.
    List(ListArgs),
    /// Send no contents in the background, until `resume` or the end of the mount. A content that a reader elsewhere,
    /// a lock, an fsync or `sync` waits for is sent, and so are names and attributes that depend on no content.
    Pause(DirArgs),
    /// Undo `pause`.
    Resume(DirArgs),
    /// Send these changes, with all that they depend on, before others and although the queue is paused.
    First(FirstArgs),
}

#[derive(clap::Args, Debug)]
struct DirArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct FirstArgs {
    /// The mount point, or anything below it; needed if this user has several mounts.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The ids of the changes, as `queue list` shows them.
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    ids: Vec<RecordId>,
}

/// The name of a change in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordId(u64, u64);

fn parse_id(text: &str) -> Result<RecordId, String> {
    let parts = text.split_once('-').and_then(|(life, seq)| Some(RecordId(life.parse().ok()?, seq.parse().ok()?)));
    parts.ok_or_else(|| "an id is two numbers, such as 2-7: see `queue list`".to_owned())
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// Every change, not only the first 100: there may be very many.
    #[arg(long)]
    all: bool,
    /// For programs: one JSON object per mount with DIR, an array without.
    #[arg(long)]
    json: bool,
}

/// The queue of one mount.
#[derive(Serialize)]
struct Listing {
    mount_point: String,
    target: String,
    changes: Vec<QueuedChange>,
    /// Whether there are more changes than these.
    more: bool,
    log: LogReport,
}

/// Shows the queue of one mount, or of all.
pub(super) fn run(args: QueueArgs) -> Result<Exit, Failure> {
    match args.command {
        Some(QueueCommand::List(args)) => list(&args),
        Some(QueueCommand::Pause(args)) => pause(&args, true),
        Some(QueueCommand::Resume(args)) => pause(&args, false),
        Some(QueueCommand::First(args)) => first(&args),
        None => list(&args.list),
    }
}

/// Pauses the queue of one mount, or of each, or ends that.
fn pause(args: &DirArgs, paused: bool) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        for mut daemon in daemons_of(&runtime_dir, args.dir.as_deref()).await? {
            let place = &daemon.status.mount_point;
            let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
            daemon.client.pause(paused).await.map_err(failed)?;
        }
        Ok(Exit::Ok)
    })
}

/// Has changes sent before others; tells which ids the log does not have.
fn first(args: &FirstArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut daemons = daemons_of(&runtime_dir, args.mount.as_deref()).await?;
        let [daemon] = daemons.as_mut_slice() else {
            let message = "there are several mounts, and ids are of one: say which with --mount DIR";
            return Err(Failure::new(Exit::Usage, message));
        };
        let place = &daemon.status.mount_point;
        let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
        let ids = args.ids.iter().map(|RecordId(life, seq)| (*life, *seq)).collect();
        let missing = daemon.client.send_first(ids).await.map_err(failed)?;
        for (life, seq) in &missing {
            eprintln!("mafs-client: {place}: {life}-{seq}: there is no such change, or the server has it by now");
        }
        Ok(if missing.is_empty() { Exit::Ok } else { Exit::NotFound })
    })
}

fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let daemons = daemons_of(&runtime_dir, args.dir.as_deref()).await?;
        let mut listings = Vec::new();
        for daemon in daemons {
            listings.push(look(daemon, args.all).await?);
        }
        let text = if args.json {
            json(&listings, args.dir.is_some())?
        } else {
            listings.iter().map(describe).collect::<Vec<_>>().join("\n")
        };
        // The reader may have seen enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(Exit::Ok)
    })
}

fn json(listings: &[Listing], only: bool) -> Result<String, Failure> {
    match listings {
        [one] if only => json_text(one),
        all => json_text(all),
    }
}

async fn look(mut daemon: Reached, all: bool) -> Result<Listing, Failure> {
    let (mount_point, target) = (daemon.status.mount_point, daemon.status.target);
    let mut changes: Vec<QueuedChange> = Vec::new();
    let mut after = None;
    loop {
        let left = if all { PAGE } else { u32::try_from(SHOWN + 1 - changes.len()).unwrap_or(PAGE) };
        let page = daemon.client.queue(QueuePage { after, count_max: left }).await;
        let QueueReport { changes: found, next, log } =
            page.map_err(|error| Failure::new(Exit::NoDaemon, format!("{mount_point}: {error}")))?;
        changes.extend(found);
        let more = !all && changes.len() > SHOWN;
        if more {
            changes.truncate(SHOWN);
        }
        if more || next.is_none() {
            return Ok(Listing { mount_point, target, changes, more, log });
        }
        after = next;
    }
}

/// Formats a queue: a heading, a line for each change, and a line about the log.
fn describe(listing: &Listing) -> String {
    let mut text = format!("{}  {}\n", listing.mount_point, listing.target);
    let mut line = |columns: [&str; 6]| {
        let [id, what, size, state, age, path] = columns;
        text += &format!("  {id:>8}  {what:<16}  {size:>10}  {state:<28}  {age:>7}  {path}\n");
    };
    if !listing.changes.is_empty() {
        line(["id", "what", "size", "state", "age", "path"]);
    }
    for change in &listing.changes {
        let size = change.size.map_or_else(String::new, |size| HumanBytes(size).to_string());
        let age = change.age_s.map_or_else(String::new, brief);
        let path = match &change.to {
            Some(to) => format!("{} -> {to}", change.path),
            None => change.path.clone(),
        };
        line([change.id.as_deref().unwrap_or("-"), &change.what, &size, &state(&change.state), &age, &path]);
    }
    if listing.more {
        text += &format!("  these are the first {SHOWN}; --all shows all\n");
    }
    if listing.log.records > 0 || listing.log.paused {
        text += &format!("  {}\n", log(&listing.log));
    } else if listing.changes.is_empty() {
        text += "  nothing waits: the server has everything\n";
    } else {
        text += &format!("  {}, none in the log\n", counted(listing.changes.len() as u64, "change"));
    }
    text
}

/// Tells how far a change is, in a few words.
pub(super) fn state(state: &RecordState) -> String {
    match state {
        RecordState::Open => "open: goes when closed".to_owned(),
        RecordState::Waiting => "waiting".to_owned(),
        RecordState::Announced => "announced".to_owned(),
        RecordState::Sending { acknowledged_bytes: 0 } => "sending".to_owned(),
        RecordState::Sending { acknowledged_bytes } => format!("sending, {} arrived", HumanBytes(*acknowledged_bytes)),
        RecordState::Refused { why } => format!("refused: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn change(what: &str, path: &str, state: RecordState) -> QueuedChange {
        let (what, path) = (what.to_owned(), path.to_owned());
        QueuedChange { id: Some("2-7".to_owned()), what, path, to: None, size: None, state, age_s: Some(4) }
    }

    fn listing() -> Listing {
        let sending = RecordState::Sending { acknowledged_bytes: 1024 };
        let store = QueuedChange { size: Some(4096), ..change("store", "docs/a", sending) };
        let rename = change("rename", "docs/a~", RecordState::Waiting);
        let rename = QueuedChange { to: Some("docs/a".to_owned()), age_s: Some(150), ..rename };
        let refused = change("make", "b", RecordState::Refused { why: "no space".to_owned() });
        let log = LogReport { records: 2, changes: 1, bytes: 3072, oldest_s: Some(150), ..LogReport::default() };
        let (mount_point, target) = ("/mnt".to_owned(), "host:/home".to_owned());
        Listing { mount_point, target, changes: vec![store, rename, refused], more: false, log }
    }

    #[test]
    fn a_change_takes_one_line() {
        assert_eq!(
            describe(&listing()),
            "/mnt  host:/home\n\
             \x20       id  what                    size  state                             age  path\n\
             \x20      2-7  store               4.00 KiB  sending, 1.00 KiB arrived         4 s  docs/a\n\
             \x20      2-7  rename                        waiting                         2 min  docs/a~ -> docs/a\n\
             \x20      2-7  make                          refused: no space                 4 s  b\n\
             \x20 2 records, 3.00 KiB to go, the oldest 2 min old\n"
        );
        let paused = Listing { log: LogReport { paused: true, ..listing().log }, ..listing() };
        assert!(describe(&paused).contains("  2 records, contents paused until `queue resume`, 3.00 KiB to go"));
        let more = Listing { more: true, ..listing() };
        assert!(describe(&more).contains("first 100; --all shows all\n"));
        let nothing = Listing { changes: Vec::new(), log: LogReport::default(), ..listing() };
        assert_eq!(describe(&nothing), "/mnt  host:/home\n  nothing waits: the server has everything\n");
    }

    #[test]
    fn programs_get_the_state_and_what_belongs_to_it() {
        let text = json(&[listing()], true).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let changes = &value["changes"];
        assert_eq!((&changes[0]["state"], &changes[0]["acknowledged_bytes"]), (&"sending".into(), &1024.into()));
        assert_eq!((&changes[1]["state"], &changes[1]["to"]), (&"waiting".into(), &"docs/a".into()));
        assert_eq!((&changes[2]["state"], &changes[2]["why"]), (&"refused".into(), &"no space".into()));
        assert_eq!((&value["log"]["records"], &value["more"]), (&2.into(), &false.into()));
        assert!(json(&[listing()], false).unwrap().starts_with('['));
        let back: Vec<QueuedChange> = serde_json::from_value(changes.clone()).unwrap();
        assert_eq!(back, listing().changes, "the control socket carries them so");
    }

    #[test]
    fn list_may_be_left_out() {
        let parse = |arguments: &[&str]| {
            let command = Cli::try_parse_from(["mafs-client", "queue"].iter().chain(arguments)).ok()?.command;
            match command {
                Command::Queue(QueueArgs { command: Some(QueueCommand::List(list)), .. }) => Some((list.dir, list.all)),
                Command::Queue(QueueArgs { command: None, list }) => Some((list.dir, list.all)),
                other => panic!("{other:?}"),
            }
        };
        for arguments in [&["/mnt", "--all"][..], &["list", "/mnt", "--all"]] {
            assert_eq!(parse(arguments), Some((Some("/mnt".into()), true)));
        }
        assert_eq!(parse(&[]), Some((None, false)));
        assert_eq!(parse(&["/mnt", "/other"]), None);
        assert_eq!((parse_id("2-7"), parse_id("7").is_err()), (Ok(RecordId(2, 7)), true));
    }
}
