//! `disconnect [DIR]` and `reconnect [DIR]`.

use std::path::PathBuf;

use mafs_client::control::{ControlError, MountStatus};
use mafs_client::runtime_dir::RuntimeDir;

use super::reach::daemons_of;
use super::status_text::unsent;
use super::{Exit, Failure, command_runtime};

#[derive(clap::Args, Debug)]
pub(super) struct ConnectionArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
}

/// Ends the connection of one mount, or of each. Unsent changes stay unsent, and are told.
pub(super) fn disconnect(args: &ConnectionArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        for mut daemon in daemons_of(&runtime_dir, args.dir.as_deref()).await? {
            let place = &daemon.status.mount_point;
            let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
            let status = daemon.client.disconnect().await.map_err(failed)?;
            println!("{}", describe(&status));
        }
        Ok(Exit::Ok)
    })
}

fn describe(status: &MountStatus) -> String {
    let MountStatus { mount_point, report, .. } = status;
    format!("{mount_point}: disconnected until `mafs-client reconnect` or the next mount, unsent: {}", unsent(report))
}

/// Connects one mount, or each, again, and waits for the connection.
pub(super) fn reconnect(args: &ConnectionArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut exit = Exit::Ok;
        for mut daemon in daemons_of(&runtime_dir, args.dir.as_deref()).await? {
            let place = &daemon.status.mount_point;
            match daemon.client.reconnect().await {
                Ok(()) => {}
                Err(ControlError::OutOfReach(why)) => {
                    eprintln!("mafs-client: {place}: not connected yet, and tried again and again: {why}");
                    exit = Exit::NoDaemon;
                }
                Err(error) => return Err(Failure::new(Exit::NoDaemon, format!("{place}: {error}"))),
            }
        }
        Ok(exit)
    })
}
