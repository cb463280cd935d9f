//! Finding the daemons that commands talk to.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use mafs_client::control::{Client, ControlError, MountStatus};
use mafs_client::mount_point::{self, MountEntry};
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::ObjectReport;

use super::{Exit, Failure};

/// A daemon that answers.
pub(super) struct Reached {
    pub(super) client: Client,
    pub(super) status: MountStatus,
    /// Its socket, for a second connection.
    pub(super) socket: PathBuf,
}

/// Finds the daemon of the mount that `directory` is, or lies in.
pub(super) async fn daemon_of(runtime_dir: &RuntimeDir, directory: &Path) -> Result<Reached, Failure> {
    let path = mount_point::resolve(directory).map_err(|error| named(directory, Exit::Failed, &error))?;
    Ok(daemon_above(runtime_dir, directory, &path).await?.0)
}

/// An object in a mount.
pub(super) struct Found {
    pub(super) daemon: Reached,
    /// Its path below the mount point; empty for the mount point itself.
    pub(super) below: Vec<u8>,
    pub(super) state: ObjectReport,
}

/// Finds the object at a path. The path is first taken as it is written, which asks only the daemon. Links are
/// followed only if the daemon knows no such object: for them the kernel may have to ask the server.
pub(super) async fn object_at(runtime_dir: &RuntimeDir, path: &Path) -> Result<Found, Failure> {
    let written = std::path::absolute(path).ok();
    let is_plain = |path: &PathBuf| !path.components().any(|part| part == Component::ParentDir);
    if let Some(written) = written.filter(is_plain)
        && let Ok((mut daemon, below)) = daemon_above(runtime_dir, path, &written).await
        && let Ok(state) = daemon.client.state(below.clone()).await
    {
        return Ok(Found { daemon, below, state });
    }
    let resolved = mount_point::resolve(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => named(path, Exit::NotFound, &"there is no such file"),
        _ => named(path, Exit::Failed, &error),
    })?;
    let (mut daemon, below) = daemon_above(runtime_dir, path, &resolved).await?;
    match daemon.client.state(below.clone()).await {
        Ok(state) => Ok(Found { daemon, below, state }),
        Err(error @ ControlError::Unknown) => Err(named(path, Exit::NotFound, &error)),
        Err(error) => Err(named(path, Exit::NoDaemon, &error)),
    }
}

/// Finds the mount that a path lies in, and the path below its mount point; the path need not exist. The path is taken
/// as it is written, which asks only the daemon; links on the way to a mount are followed.
pub(super) async fn place_of(runtime_dir: &RuntimeDir, path: &Path) -> Result<(Reached, Vec<u8>), Failure> {
    let written = std::path::absolute(path).ok();
    let is_plain = |path: &PathBuf| !path.components().any(|part| part == Component::ParentDir);
    if let Some(written) = written.filter(is_plain)
        && let Ok(found) = daemon_above(runtime_dir, path, &written).await
    {
        return Ok(found);
    }
    let resolved = mount_point::resolve(path).map_err(|error| named(path, Exit::NotFound, &error))?;
    daemon_above(runtime_dir, path, &resolved).await
}

/// Finds the daemon of the mount that an absolute path lies in, and the path below the mount point. Errors name
/// `shown`.
pub(super) async fn daemon_above(
    runtime_dir: &RuntimeDir,
    shown: &Path,
    path: &Path,
) -> Result<(Reached, Vec<u8>), Failure> {
    for ancestor in path.ancestors() {
        match reach(runtime_dir.socket(ancestor)).await {
            Err(ControlError::NoDaemon) => {}
            Err(error) => return Err(named(shown, Exit::Failed, &error)),
            Ok(reached) => {
                let below = path.strip_prefix(ancestor).unwrap_or(path);
                return Ok((reached, below.as_os_str().as_bytes().to_vec()));
            }
        }
        let mount = mount_point::mafs_mount_at(ancestor).map_err(|error| named(shown, Exit::Failed, &error))?;
        if let Some(mount) = mount
            && !mount_point::is_alive(ancestor, runtime_dir)
        {
            return Err(Failure::new(Exit::NoDaemon, died(&mount)));
        }
    }
    Err(named(shown, Exit::NoDaemon, &ControlError::NoDaemon))
}

fn named(path: &Path, exit: Exit, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(exit, format!("{}: {error}", printable_path(path)))
}

/// Lists the mounts whose daemon has died, each in a line that says what to do.
pub(super) fn dead_mounts(runtime_dir: &RuntimeDir) -> Vec<String> {
    let mounts = mount_point::mafs_mounts().unwrap_or_default();
    let dead = mounts.into_iter().filter(|mount| !mount_point::is_alive(&mount.mount_point, runtime_dir));
    dead.map(|mount| died(&mount)).collect()
}

fn died(mount: &MountEntry) -> String {
    let (place, source) = (printable_path(&mount.mount_point), &mount.source);
    format!("{place}: the client of this mount ({source}) has died: mount it again, or `mafs-client umount {place}`")
}

/// Finds the daemon of the mount that `dir` is, or lies in; without `dir`, those of all mounts of this user, at least
/// one.
pub(super) async fn daemons_of(runtime_dir: &RuntimeDir, dir: Option<&Path>) -> Result<Vec<Reached>, Failure> {
    let daemons = match dir {
        Some(dir) => vec![daemon_of(runtime_dir, dir).await?],
        None => all_daemons(runtime_dir).await?,
    };
    match daemons.is_empty() {
        true => Err(Failure::new(Exit::NoDaemon, "this user has mounted nothing")),
        false => Ok(daemons),
    }
}

/// Finds the daemons of all mounts of this user.
pub(super) async fn all_daemons(runtime_dir: &RuntimeDir) -> Result<Vec<Reached>, Failure> {
    let sockets = runtime_dir.sockets().map_err(|error| Failure::new(Exit::Failed, error))?;
    let mut daemons = Vec::new();
    for socket in sockets {
        match reach(socket).await {
            Ok(reached) => daemons.push(reached),
            // A killed client leaves its socket.
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
