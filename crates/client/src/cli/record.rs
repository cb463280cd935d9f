//! `hoard record [--priority PRIO] [--mount DIR] -- CMD`.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use mafs_client::control::{Client, HoardRequest, HoardResponse};
use mafs_client::hoard::{HoardSpec, RECORDING_VARIABLE, Rank};
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::Recorded;

use super::hoard::{failure, unexpected};
use super::reach::{Reached, all_daemons, daemon_of};
use super::{Exit, Failure, command_runtime};

/// The time a daemon may take to begin a recording, and the rests between looks.
const BEGIN_LIMIT: Duration = Duration::from_secs(5);
const BEGIN_LOOK: Duration = Duration::from_millis(5);

#[derive(clap::Args, Debug)]
pub(super) struct RecordArgs {
    /// The priority of the hoarded files, from 1 to 1000.
    #[arg(long, value_name = "PRIO", default_value = "500", value_parser = priority)]
    priority: Rank,
    /// Only what it opens in this mount; in all mounts of this user if it is not given.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The command, with its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

fn priority(text: &str) -> Result<Rank, String> {
    let spec: HoardSpec = text.parse().map_err(|error| format!("{error}"))?;
    if text.contains(':') { Err("a priority alone is wanted".to_owned()) } else { Ok(spec.rank) }
}

/// A mount with a recording under way, which ends when the connection that asked for it closes.
struct Recording {
    place: String,
    recording: tokio::task::JoinHandle<()>,
    client: Client,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recording.abort();
    }
}

/// Runs the command and hoards the files that it has opened, even if it fails; fails if the command does.
pub(super) fn run(args: &RecordArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    let runtime = command_runtime()?;
    let ticket = u64::from(std::process::id());
    let recordings = runtime.block_on(async {
        let daemons = match &args.mount {
            Some(dir) => vec![daemon_of(&runtime_dir, dir).await?],
            None => all_daemons(&runtime_dir).await?,
        };
        let mut recordings = Vec::new();
        for daemon in daemons {
            recordings.push(begin(daemon, ticket).await?);
        }
        match recordings.is_empty() {
            true => Err(Failure::new(Exit::NoDaemon, "this user has mounted nothing")),
            false => Ok(recordings),
        }
    })?;
    let command = args.command.clone();
    runtime.block_on(async {
        let ended = tokio::task::spawn_blocking(move || run_command(&command, ticket)).await;
        let ended = ended.map_err(|error| Failure::new(Exit::Failed, error))?;
        for mut recording in recordings {
            let recorded = end(&mut recording, ticket, args.priority).await?;
            eprintln!("mafs-client: {}: {}", recording.place, describe(recorded));
        }
        exit_of(ended?)
    })
}

fn run_command(command: &[std::ffi::OsString], ticket: u64) -> Result<ExitStatus, Failure> {
    let [program, arguments @ ..] = command else {
        return Err(Failure::new(Exit::Usage, "there is no command"));
    };
    let status = Command::new(program).args(arguments).env(RECORDING_VARIABLE, ticket.to_string()).status();
    status.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", program.display())))
}

async fn begin(daemon: Reached, ticket: u64) -> Result<Recording, Failure> {
    let Reached { mut client, status, socket } = daemon;
    let place = status.mount_point;
    let mut second = Client::connect(&socket).await.map_err(|error| failure(&place, &error))?;
    let recording = tokio::spawn(async move {
        // The daemon answers only if there are too many recordings.
        let _ = client.hoard(HoardRequest::Record(ticket)).await;
    });
    let begun = async {
        loop {
            match second.hoard(HoardRequest::Recording(ticket)).await {
                Ok(HoardResponse::Recording(true)) => return Ok(()),
                Ok(HoardResponse::Recording(false)) if !recording.is_finished() => {
                    tokio::time::sleep(BEGIN_LOOK).await;
                }
                Ok(HoardResponse::Recording(false)) => {
                    return Err(Failure::new(Exit::Failed, format!("{place}: too many recordings are under way")));
                }
                Ok(_) => return Err(failure(&place, &unexpected())),
                Err(error) => return Err(failure(&place, &error)),
            }
        }
    };
    let late = |_| Failure::new(Exit::NoDaemon, format!("{place}: the client does not answer"));
    tokio::time::timeout(BEGIN_LIMIT, begun).await.map_err(late)??;
    Ok(Recording { place, recording, client: second })
}

async fn end(recording: &mut Recording, ticket: u64, rank: Rank) -> Result<Recorded, Failure> {
    match recording.client.hoard(HoardRequest::EndRecord { ticket, rank }).await {
        Ok(HoardResponse::Recorded(recorded)) => Ok(recorded.unwrap_or_default()),
        Ok(_) => Err(failure(&recording.place, &unexpected())),
        Err(error) => Err(failure(&recording.place, &error)),
    }
}

/// Tells of a command that has failed: files that it would have opened later are not recorded.
fn exit_of(status: ExitStatus) -> Result<Exit, Failure> {
    match status.success() {
        true => Ok(Exit::Ok),
        false => {
            Err(Failure::new(Exit::Failed, format!("the command ended with {status}; what it had opened is hoarded")))
        }
    }
}

fn describe(recorded: Recorded) -> String {
    let hoarded = match recorded.objects {
        1 => "1 file or directory hoarded".to_owned(),
        objects => format!("{objects} files and directories hoarded"),
    };
    match recorded.gone {
        0 => hoarded,
        gone => format!("{hoarded}, {gone} more have no name any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_has_no_scope() {
        assert_eq!(priority("7").map(u16::from), Ok(7));
        assert!(priority("7:d").is_err() && priority("0").is_err());
    }

    #[test]
    fn what_was_recorded_is_counted() {
        assert_eq!(describe(Recorded { objects: 1, gone: 0 }), "1 file or directory hoarded");
        let more = Recorded { objects: 2, gone: 3 };
        assert_eq!(describe(more), "2 files and directories hoarded, 3 more have no name any more");
    }
}
