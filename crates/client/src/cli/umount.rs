//! `umount DIR`.

use std::path::Path;
use std::time::Duration;

use mafs_client::control::{Client, ControlError};
use mafs_client::mount_point::{self, UnmountError};
use mafs_client::runtime_dir::RuntimeDir;

use super::{Exit, Failure, command_runtime};

/// How long a client may take to end: what it gives itself, and some more.
const END_MAX: Duration = Duration::from_secs(20);

/// Unmounts and waits for the end of the client, so that it can be started again at once.
pub(super) fn run(directory: &Path) -> Result<Exit, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(Exit::MountFailed, format!("{}: {error}", directory.display()));
    let path = mount_point::resolve(directory).map_err(|error| failed(&error))?;
    let runtime_dir = RuntimeDir::open().map_err(|error| failed(&error))?;
    let mount = mount_point::mafs_mount_at(&path).map_err(|error| failed(&error))?;
    if mount.is_none() {
        return Err(failed(&UnmountError::NotMounted));
    }
    if !mount_point::is_alive(&path) {
        mount_point::unmount_lazily(&path).map_err(|error| failed(&error))?;
        return Ok(Exit::Ok);
    }
    command_runtime()?.block_on(async {
        // Connected before, because the socket goes with the client.
        let client = match Client::connect(&runtime_dir.socket(&path)).await {
            Ok(client) => Some(client),
            Err(ControlError::NoDaemon) => None,
            Err(error) => return Err(failed(&error)),
        };
        mount_point::unmount(&path).map_err(|error| failed(&error))?;
        if let Some(mut client) = client
            && tokio::time::timeout(END_MAX, client.closed()).await.is_err()
        {
            return Err(failed(&format!("unmounted, but its client has not ended within {} s", END_MAX.as_secs())));
        }
        Ok(Exit::Ok)
    })
}
