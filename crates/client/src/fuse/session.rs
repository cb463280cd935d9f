//! A mount: made, watched, ended. Owns the session threads.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{Config, MountOption, SessionACL};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::answer::Answerer;
use super::awake::Awake;
use super::backings::Backings;
use super::caller::is_killed;
use super::edge::Edge;
use super::handlers::Handlers;
use super::kernel_cache::Invalidator;
use super::late::LateOpens;
use super::programs::Programs;
use crate::mount_point::{fusermount, mafs_mount_at};
use crate::options::KernelFlags;
use crate::vfs::Vfs;

const DEVICE: &str = "/dev/fuse";

/// The kernel's read-ahead for sequential readers, in KiB. FUSE's own limit is 128, which costs a request every 128
/// KiB.
const READ_AHEAD_KB: &str = "512";

/// The reason why FUSE cannot be used, with advice.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The kernel has no FUSE here.
    #[error("{DEVICE} does not exist: load the kernel's module (modprobe fuse), or give the container the device")]
    NoDevice,
    /// The device is for others.
    #[error(
        "{DEVICE} may not be opened by this user (mode {mode:04o}): let root do `chmod 666 {DEVICE}`, as the package \
         fuse3 does, or run as root"
    )]
    DeviceDenied {
        /// The permissions of the device.
        mode: u32,
    },
    /// Users cannot mount by themselves.
    #[error("fusermount3 is missing, and without it only root can mount: install the package fuse3")]
    NoHelper,
    /// The mount failed.
    #[error("{}: cannot mount: {error}", mount_point.display())]
    Mount {
        /// The mount point.
        mount_point: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// The users that may use a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Only the user who mounts.
    Owner,
    /// Everybody, as far as permissions go. Only root can offer this without being asked.
    Everybody,
}

/// The options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// The mount's name in the mount table.
    pub source: String,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// The users that may use the mount.
    pub access: Access,
    /// Flags of mount(8).
    pub flags: KernelFlags,
    /// Whether processors may be kept awake during bursts of requests.
    pub keep_awake: bool,
}

/// Whether this user can mount here; asked before anything that would have to be undone.
///
/// # Errors
/// [`FuseError`] says what is missing.
pub fn check_available() -> Result<(), FuseError> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    match device.map_err(|error| error.kind()) {
        Ok(_) => {}
        Err(ErrorKind::PermissionDenied) => return Err(FuseError::DeviceDenied { mode: mode_of(DEVICE) }),
        // Absent, or a file with no driver behind it.
        Err(_) => return Err(FuseError::NoDevice),
    }
    if !rustix::process::geteuid().is_root() && fusermount().is_none() {
        return Err(FuseError::NoHelper);
    }
    Ok(())
}

fn mode_of(path: &str) -> u32 {
    std::fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o7777)
}

/// A volume that the kernel shows at a directory.
#[derive(Debug)]
pub struct Session {
    mount_point: PathBuf,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Session {
    /// Mounts `vfs` at an absolute path. Blocks for a moment; must be called in a tokio runtime, which then runs the
    /// operations that have to wait.
    ///
    /// # Errors
    /// [`FuseError::Mount`].
    pub fn mount(vfs: Vfs, mount_point: &Path, options: &SessionOptions) -> Result<Self, FuseError> {
        // The helper's message ends with a line feed.
        let failed = |error: io::Error| FuseError::Mount {
            mount_point: mount_point.to_path_buf(),
            error: io::Error::new(error.kind(), error.to_string().trim().to_owned()),
        };
        let kernel = Arc::new(Invalidator::default());
        let awake = options.keep_awake.then(|| Awake::find(Handle::current())).flatten();
        let edge = Edge {
            vfs: vfs.clone(),
            kernel: Arc::clone(&kernel),
            answerer: Answerer::new(Handle::current(), Arc::new(is_killed)),
            backings: Backings::default(),
            programs: Programs::default(),
            late: LateOpens::default(),
            awake,
        };
        let session = fuser::Session::new(Handlers::new(edge), mount_point, &config(options)).map_err(failed)?;
        let device = session.as_fd().try_clone_to_owned().map_err(failed)?;
        kernel.connect(session.notifier(), device);
        vfs.set_kernel_cache(kernel);
        let (end, ended) = oneshot::channel();
        let run = move || {
            // Nobody listens if the daemon is on its way out already.
            let _ = end.send(session.run());
        };
        std::thread::Builder::new().name("fuse".to_owned()).spawn(run).map_err(failed)?;
        raise_read_ahead(mount_point);
        Ok(Self { mount_point: mount_point.to_path_buf(), ended })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Waits until the volume is unmounted, by any program. May be called again if it was not awaited to its end.
    ///
    /// # Errors
    /// If the connection to the kernel failed.
    pub async fn ended(&mut self) -> io::Result<()> {
        match (&mut self.ended).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("a session thread failed")),
        }
    }
}

fn config(options: &SessionOptions) -> Config {
    let KernelFlags { dev, suid, exec, atime, sync, dirsync } = options.flags;
    let choose = |yes: bool, option: MountOption, otherwise: MountOption| if yes { option } else { otherwise };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        // This is a custom option: fuser does not tell the kernel of `MountOption::Subtype` when it mounts without the
        // helper.
        MountOption::CUSTOM("subtype=mafs".to_owned()),
        MountOption::DefaultPermissions,
        choose(options.read_only, MountOption::RO, MountOption::RW),
        choose(dev, MountOption::Dev, MountOption::NoDev),
        choose(suid, MountOption::Suid, MountOption::NoSuid),
        choose(exec, MountOption::Exec, MountOption::NoExec),
        choose(atime, MountOption::Atime, MountOption::NoAtime),
        choose(sync, MountOption::Sync, MountOption::Async),
    ];
    if dirsync {
        config.mount_options.push(MountOption::DirSync);
    }
    config.acl = match options.access {
        Access::Owner => SessionACL::Owner,
        Access::Everybody => SessionACL::All,
    };
    config.n_threads = Some(session_threads());
    config.clone_fd = true;
    config
}

/// Returns the number of session threads. They never wait for the network; more of them than processors would only add
/// read buffers. But the disk may hold one up, and may itself wait for a request to another (a write from a mapped
/// file of the same mount), so there are three. On two processors an open takes 19 us by three, 30 by two or four.
fn session_threads() -> usize {
    std::thread::available_parallelism().map_or(3, |processors| processors.get().clamp(3, 4))
}

/// Raises the kernel's read-ahead. Only root may do this; for other users 128 KiB remain.
fn raise_read_ahead(mount_point: &Path) {
    let Ok(Some(mount)) = mafs_mount_at(mount_point) else { return };
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(error) = std::fs::write(&setting, READ_AHEAD_KB) {
        tracing::debug!(%setting, %error, "read-ahead stays at its default");
    }
}
