//! `status [DIR] [--json] [--watch]`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use mafs_client::control::MountStatus;
use mafs_client::runtime_dir::RuntimeDir;

use super::reach::{all_daemons, daemon_of, dead_mounts};
use super::status_text::describe;
use super::{Exit, Failure, command_runtime, json_text};

/// The time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Moves to the top of the terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(clap::Args, Debug)]
pub(super) struct StatusArgs {
    /// The mount point; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// For programs: one JSON object per mount with DIR, an array without.
    #[arg(long)]
    json: bool,
    /// Show the status again every second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
}

/// Shows one mount or all.
pub(super) fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        loop {
            let text = look(args, &runtime_dir).await?;
            let repaint = args.watch && !args.json && std::io::stdout().is_terminal();
            let mut stdout = std::io::stdout().lock();
            let written = write!(stdout, "{}{text}", if repaint { CLEAR } else { "" }).and_then(|()| stdout.flush());
            drop(stdout);
            // The reader has seen enough.
            if written.is_err() || !args.watch {
                return Ok(Exit::Ok);
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    })
}

async fn look(args: &StatusArgs, runtime_dir: &RuntimeDir) -> Result<String, Failure> {
    if let Some(dir) = &args.dir {
        let status = daemon_of(runtime_dir, dir).await?.status;
        return if args.json { json_text(&status) } else { Ok(describe(&status)) };
    }
    let all: Vec<MountStatus> = all_daemons(runtime_dir).await?.into_iter().map(|daemon| daemon.status).collect();
    if args.json {
        return json_text(&all);
    }
    let dead = dead_mounts(runtime_dir);
    if all.is_empty() {
        let why = if dead.is_empty() { "this user has mounted nothing".to_owned() } else { dead.join("\n") };
        return Err(Failure::new(Exit::NoDaemon, why));
    }
    for line in &dead {
        eprintln!("mafs-client: {line}");
    }
    Ok(all.iter().map(describe).collect::<Vec<_>>().join("\n"))
}
