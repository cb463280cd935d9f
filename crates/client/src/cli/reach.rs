//! Finding the daemons that commands talk to.

use std::path::{Path, PathBuf};

use mafs_client::control::{Client, ControlError, MountStatus};
use mafs_client::mount_point::{self, MountEntry};
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;

use super::{Exit, Failure};

/// A daemon that answers.
pub(super) struct Reached {
    pub(super) client: Client,
    pub(super) status: MountStatus,
    /// Its socket, for a second connection.
    pub(super) socket: PathBuf,
}

/// The daemon of the mount that `directory` is, or lies in.
pub(super) async fn daemon_of(runtime_dir: &RuntimeDir, directory: &Path) -> Result<Reached, Failure> {
    let named =
        |exit, error: &dyn std::fmt::Display| Failure::new(exit, format!("{}: {error}", printable_path(directory)));
    let path = mount_point::resolve(directory).map_err(|error| named(Exit::Failed, &error))?;
    for ancestor in path.ancestors() {
        match reach(runtime_dir.socket(ancestor)).await {
            Err(ControlError::NoDaemon) => {}
            other => return other.map_err(|error| named(Exit::Failed, &error)),
        }
        let mount = mount_point::mafs_mount_at(ancestor).map_err(|error| named(Exit::Failed, &error))?;
        if let Some(mount) = mount
            && !mount_point::is_alive(ancestor, runtime_dir)
        {
            return Err(Failure::new(Exit::NoDaemon, died(&mount)));
        }
    }
    Err(named(Exit::NoDaemon, &ControlError::NoDaemon))
}

/// The mounts whose daemon has died, each in a line that says what to do.
pub(super) fn dead_mounts(runtime_dir: &RuntimeDir) -> Vec<String> {
    let mounts = mount_point::mafs_mounts().unwrap_or_default();
    let dead = mounts.into_iter().filter(|mount| !mount_point::is_alive(&mount.mount_point, runtime_dir));
    dead.map(|mount| died(&mount)).collect()
}

fn died(mount: &MountEntry) -> String {
    let (place, source) = (printable_path(&mount.mount_point), &mount.source);
    format!("{place}: the client of this mount ({source}) has died: mount it again, or `mafs-client umount {place}`")
}

/// The daemons of all mounts of this user.
pub(super) async fn all_daemons(runtime_dir: &RuntimeDir) -> Result<Vec<Reached>, Failure> {
    let sockets = runtime_dir.sockets().map_err(|error| Failure::new(Exit::Failed, error))?;
    let mut daemons = Vec::new();
    for socket in sockets {
        match reach(socket).await {
            Ok(reached) => daemons.push(reached),
            // What a client left that was killed.
            Err(ControlError::NoDaemon) => {}
            Err(error) => eprintln!("mafs-client: {error}"),
        }
    }
    Ok(daemons)
}

async fn reach(socket: PathBuf) -> Result<Reached, ControlError> {
    let mut client = Client::connect(&socket).await?;
    let status = client.status().await?;
    Ok(Reached { client, status, socket })
}
