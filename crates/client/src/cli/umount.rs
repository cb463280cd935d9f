//! `umount [--flush[=TIME]] DIR`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mafs_client::control::{Client, ControlError, MountStatus};
use mafs_client::mount_point::{self, UnmountError};
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;

use super::status_text::left_behind;
use super::sync::{Target, Waited, parse_time, wait_for};
use super::{Exit, Failure, command_runtime};

/// The time a client may take to end: the time it gives itself, and some more.
const END_MAX: Duration = Duration::from_secs(20);

#[derive(clap::Args, Debug)]
pub(super) struct UmountArgs {
    /// Unmount only if the server has everything, and wait up to this long for that (30 s if no time is given): 90,
    /// 90s, 5m or 1h. Else it stays mounted and the exit code is 4, so that a user about to switch the machine off
    /// knows. Without this option unsent changes stay in the cache and are sent at the next mount.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        value_parser = parse_time
    )]
    flush: Option<Duration>,
    /// The mount point.
    dir: PathBuf,
}

/// Unmounts and waits for the end of the client, so that it can be started again at once.
pub(super) fn run(args: &UmountArgs) -> Result<Exit, Failure> {
    let directory = args.dir.as_path();
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::MountFailed, format!("{}: {error}", printable_path(directory)))
    };
    let path = mount_point::resolve(directory).map_err(|error| failed(&error))?;
    let runtime_dir = RuntimeDir::open().map_err(|error| failed(&error))?;
    let mount = mount_point::mafs_mount_at(&path).map_err(|error| failed(&error))?;
    if mount.is_none() {
        return Err(failed(&UnmountError::NotMounted));
    }
    if !mount_point::is_alive(&path, &runtime_dir) {
        mount_point::unmount_lazily(&path).map_err(|error| failed(&error))?;
        return Ok(Exit::Ok);
    }
    command_runtime()?.block_on(async {
        // Connected before, because the socket goes with the client.
        if let Some(patience) = args.flush {
            flush(&path, &runtime_dir, patience).await?;
        }
        let client = match connect(&runtime_dir.socket(&path)).await {
            Ok(client) => Some(client),
            Err(ControlError::NoDaemon) => None,
            Err(error) => return Err(failed(&error)),
        };
        mount_point::unmount(&path).map_err(|error| failed(&error))?;
        let Some(client) = client else { return Ok(Exit::Ok) };
        match tokio::time::timeout(END_MAX, end(client)).await {
            Ok(Ok(last)) => match left_behind(&last.report) {
                Some(left) => {
                    let by_hand = if last.report.by_hand { " while disconnected by hand" } else { "" };
                    let message = format!("{}: unmounted{by_hand}, {left}", printable_path(&path));
                    Err(Failure::new(Exit::Unsent, message))
                }
                None => Ok(Exit::Ok),
            },
            Ok(Err(error)) => Err(failed(&format!("unmounted, but whether everything was sent is not known: {error}"))),
            Err(_) => Err(failed(&format!(
                "unmounted here, but its client has not ended within {} s: a container, or another mount namespace, \
                 may still have it mounted",
                END_MAX.as_secs()
            ))),
        }
    })
}

/// Waits until the server has everything, or fails with what it lacks.
async fn flush(path: &Path, runtime_dir: &RuntimeDir, patience: Duration) -> Result<(), Failure> {
    let place = printable_path(path);
    let target = Target { name: place.clone(), socket: runtime_dir.socket(path), below: Vec::new() };
    match wait_for(&target, Some(patience)).await {
        Waited::Done => Ok(()),
        Waited::Unsent { why, left, .. } => {
            let left = left.map_or_else(String::new, |left| format!("; unsent: {left}"));
            let message = format!(
                "{place}: not unmounted: {why}{left}; without --flush it stays in the cache and is sent at the next \
                 mount"
            );
            Err(Failure::new(Exit::Unsent, message))
        }
        Waited::Gone(why) => Err(Failure::new(Exit::MountFailed, format!("{place}: not unmounted: {why}"))),
    }
}

/// Connects to the daemon of the mount and asks for its last status.
async fn connect(socket: &Path) -> Result<Client, ControlError> {
    let mut client = Client::connect(socket).await?;
    client.ask_end().await?;
    Ok(client)
}

/// Waits for the end of the daemon: a mount that follows finds its cache free.
async fn end(mut client: Client) -> Result<MountStatus, ControlError> {
    let last = client.ended().await;
    client.gone().await;
    last
}
