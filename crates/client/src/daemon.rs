//! The client of one mount: the parts put together, run, and taken apart in order.
//!
//! Order matters: everything that can be checked is checked before anything is changed; the volume is attached before
//! it appears at its mount point; and the control socket goes last, because `umount` waits for it.

mod answers;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::{Backoff, BootClock, blocking};
use mafs_proto::VolumeName;
use tokio::time::{Instant, timeout};

use crate::cache::{CacheError, CacheStorage, StorageError};
use crate::control::{Client, Server};
use crate::file_name;
use crate::fuse::{Access, FuseError, Session, SessionOptions, check_available};
use crate::mount_point::{MountPointError, UnmountError, prepare, unmount, unmount_lazily};
use crate::network::HostNetwork;
use crate::options::MountOptions;
use crate::printable::printable_path;
use crate::remote::{Connector, RECONNECT_MAX, RECONNECT_STEP, RemoteError};
use crate::runtime_dir::RuntimeDir;
use crate::vfs::{Settings, StartError, Vfs};
use answers::Answers;

/// The time an ending mount may take to put its cache in order and to send what it can.
const SHUT_DOWN_MAX: Duration = Duration::from_secs(10);

/// The time the client of the last mount may take to end, more than it gives itself.
const PREDECESSOR_MAX: Duration = Duration::from_secs(20);

/// The time to wait for a lock of the cache, and the rests between looks.
const LOCK_MAX: Duration = Duration::from_secs(1);
const LOCK_REST: Duration = Duration::from_millis(20);

/// The time the kernel may take to let go of a mount that nobody uses.
const UNMOUNT_MAX: Duration = Duration::from_secs(5);

/// The reason why a mount does not start, or ended badly. One line each.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The directory will not do.
    #[error(transparent)]
    MountPoint(#[from] MountPointError),
    /// FUSE cannot be used.
    #[error(transparent)]
    Fuse(#[from] FuseError),
    /// There is no place for the cache.
    #[error("there is no home directory to keep a cache in: choose one with -o cache=DIR")]
    NoCacheDirectory,
    /// The cache's directory cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The content of the cache cannot be used.
    #[error("the cache {}: {error}{}", printable_path(path), cache_advice(error))]
    Cache {
        /// Its directory.
        path: PathBuf,
        /// The reason.
        error: CacheError,
    },
    /// The server cannot be used.
    #[error("{target}: {error}")]
    Remote {
        /// The target that was to be mounted.
        target: String,
        /// The reason.
        error: RemoteError,
    },
    /// Commands could not reach the daemon.
    #[error("cannot offer the control socket: {0}")]
    Control(std::io::Error),
    /// The connection to the kernel broke.
    #[error("the kernel ended the mount: {0}")]
    Kernel(std::io::Error),
}

/// A mount to be made: the volume, its place and its options.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The server as people write it.
    pub server: String,
    /// Its volume.
    pub volume: VolumeName,
    /// The mount point.
    pub directory: PathBuf,
    /// The mount options.
    pub options: MountOptions,
}

impl Mount {
    /// Returns the name of the mount in the mount table and in `status`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{}:/{}", self.server, self.volume)
    }
}

/// A mounted volume and everything behind it.
pub struct Daemon {
    vfs: Vfs,
    session: Session,
    control: Server,
    answers: Arc<Answers>,
}

impl Daemon {
    /// Mounts the volume, which can be used when this returns. Must be called in a multi-threaded tokio runtime.
    /// `delayed` is called once, with the reason, if the mount has to be tried again.
    ///
    /// # Errors
    /// [`DaemonError`]; nothing is mounted then.
    pub async fn start(
        mount: &Mount,
        connector: Connector,
        runtime_dir: &RuntimeDir,
        delayed: impl FnOnce(&str),
    ) -> Result<Self, DaemonError> {
        let mount_point = blocking(|| prepare(&mount.directory, runtime_dir))?;
        check_available()?;
        outlast_predecessor(&runtime_dir.socket(&mount_point)).await;
        let vfs = start_vfs(mount, connector, delayed).await?;
        match Self::appear(mount, &mount_point, &vfs, runtime_dir) {
            Ok((session, control, answers)) => {
                tracing::info!(target = mount.source(), mount_point = %mount_point.display(), "mounted");
                Ok(Self { vfs, session, control, answers })
            }
            Err(error) => {
                vfs.shut_down().await;
                Err(error)
            }
        }
    }

    fn appear(
        mount: &Mount,
        mount_point: &Path,
        vfs: &Vfs,
        runtime_dir: &RuntimeDir,
    ) -> Result<(Session, Server, Arc<Answers>), DaemonError> {
        let socket = runtime_dir.socket(mount_point);
        let answers = Arc::new(Answers::new(vfs.clone(), mount.source(), mount_point.to_path_buf()));
        let answering = Arc::clone(&answers);
        let answer = move |request| {
            let answers = Arc::clone(&answering);
            async move { answers.answer(request).await }
        };
        let control = Server::start(&socket, answer).map_err(DaemonError::Control)?;
        let is_root = rustix::process::geteuid().is_root();
        let options = SessionOptions {
            source: mount.source(),
            read_only: mount.options.read_only,
            access: if is_root { Access::Everybody } else { Access::Owner },
            flags: mount.options.flags,
            keep_awake: mount.options.awake,
        };
        let session = blocking(|| Session::mount(vfs.clone(), mount_point, &options))?;
        Ok((session, control, answers))
    }

    /// Returns the mount point, an absolute path.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        self.session.mount_point()
    }

    /// Returns the file system, to look at while [`Self::run`] serves it.
    #[must_use]
    pub fn vfs(&self) -> &Vfs {
        &self.vfs
    }

    /// Serves until `stop` is ready, and then unmounts, or until another program has unmounted; then ends everything.
    ///
    /// # Errors
    /// [`DaemonError::Kernel`] if the mount ended by a fault.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let ended = tokio::select! {
            ended = self.session.ended() => {
                tracing::info!("unmounted");
                ended
            }
            () = stop => {
                self.disappear().await;
                Ok(())
            }
        };
        if timeout(SHUT_DOWN_MAX, self.vfs.shut_down()).await.is_err() {
            tracing::warn!("not everything could be put in order in {SHUT_DOWN_MAX:?}; the next mount will do it");
        }
        drop(self.vfs);
        self.answers.end();
        self.control.finish().await;
        ended.map_err(DaemonError::Kernel)
    }

    /// Unmounts. A mount in use goes out of sight now; its users lose it when this process ends.
    async fn disappear(&mut self) {
        let mount_point = self.session.mount_point().to_path_buf();
        let unmounting = tokio::task::spawn_blocking(move || match unmount(&mount_point) {
            Err(UnmountError::Busy) => {
                tracing::warn!(
                    "the mount is in use: programs lose the files that they have open there; what they have written \
                     stays in the cache and is sent at the next mount"
                );
                unmount_lazily(&mount_point)
            }
            other => other,
        });
        match timeout(UNMOUNT_MAX, unmounting).await {
            Ok(Ok(Ok(()))) => {
                // A mount that went out of sight while in use does not end before this process.
                let _ = timeout(UNMOUNT_MAX, self.session.ended()).await;
            }
            Ok(Ok(Err(error))) => tracing::warn!(%error, "cannot unmount"),
            Ok(Err(error)) => tracing::error!(%error, "unmounting failed"),
            Err(_) => tracing::warn!("unmounting takes too long"),
        }
    }
}

/// Waits for the end of the client of the last mount, which may still be putting its cache in order: umount(8) does
/// not wait for it.
async fn outlast_predecessor(socket: &Path) {
    if let Ok(client) = Client::connect(socket).await
        && timeout(PREDECESSOR_MAX, client.gone()).await.is_err()
    {
        tracing::warn!("the client of the last mount here does not end");
    }
}

/// Opens the cache and attaches the volume. Tries again, as long as `retry` says, if the server cannot be reached.
async fn start_vfs(mount: &Mount, connector: Connector, delayed: impl FnOnce(&str)) -> Result<Vfs, DaemonError> {
    let directory = cache_directory(mount)?;
    let settings = Settings {
        server: mount.server.clone(),
        volume: mount.volume.clone(),
        client_name: client_name(),
        cache_limit_bytes: mount.options.cache_limit_bytes,
        min_free_bytes: mount.options.min_free_bytes,
        deadline: mount.options.deadline(),
        writeback: mount.options.writeback,
        close: mount.options.close,
        stale: mount.options.stale,
        disconnected: mount.options.disconnected,
        locking: mount.options.locking,
        pull_timeout: mount.options.pull_timeout,
        fsync: mount.options.fsync,
        fsync_wait: mount.options.fsync_wait,
        classes: mount.options.classes,
        arpc: mount.options.connection(),
        read_only: mount.options.read_only,
        // `sync` asks for each write to be durable, which the kernel cannot do with a container alone.
        passthrough: mount.options.passthrough && !mount.options.flags.sync,
        prefetch: mount.options.prefetch,
        profile: mount.options.profile,
        network: Arc::new(HostNetwork::start()),
    };
    let give_up = Instant::now() + mount.options.retry_for();
    let mut delayed = Some(delayed);
    let mut backoff = Backoff::new(RECONNECT_STEP, RECONNECT_MAX);
    loop {
        let rest = backoff.next_delay();
        let storage = lock_cache(&directory).await?;
        match Vfs::start(settings.clone(), storage, connector.clone(), Arc::new(BootClock)).await {
            Ok(vfs) => return Ok(vfs),
            Err(error) if is_passing(&error) && Instant::now() + rest < give_up => {
                tracing::warn!(%error, "cannot mount yet");
                if let Some(delayed) = delayed.take() {
                    delayed(&error.to_string());
                }
                tokio::time::sleep(rest).await;
            }
            Err(StartError::Cache(error)) => return Err(DaemonError::Cache { path: directory, error }),
            Err(StartError::Remote(error)) => return Err(DaemonError::Remote { target: mount.source(), error }),
        }
    }
}

/// Locks the cache; a client that has just ended may hold it for a moment more.
async fn lock_cache(directory: &Path) -> Result<CacheStorage, StorageError> {
    let give_up = Instant::now() + LOCK_MAX;
    loop {
        match blocking(|| CacheStorage::directory(directory)) {
            Err(StorageError::InUse { .. }) if Instant::now() < give_up => tokio::time::sleep(LOCK_REST).await,
            other => return other,
        }
    }
}

/// Returns advice about a cache that cannot be used, if its error does not give any itself.
fn cache_advice(error: &CacheError) -> &'static str {
    if error.is_full() { "; free some space on its disk, or choose another with -o cache=DIR" } else { "" }
}

/// Whether another attempt may succeed without any repair.
fn is_passing(error: &StartError) -> bool {
    match error {
        StartError::Remote(error) => error.may_pass(),
        StartError::Cache(_) => false,
    }
}

/// Returns the directory of this mount's cache: each target has one of its own.
///
/// # Errors
/// `NoCacheDirectory` if none is given and this user has none.
pub fn cache_directory(mount: &Mount) -> Result<PathBuf, DaemonError> {
    let base = match &mount.options.cache {
        Some(directory) => directory.clone(),
        None => default_cache_directory().ok_or(DaemonError::NoCacheDirectory)?,
    };
    let source = mount.source();
    Ok(base.join(file_name::for_identity(&source, source.as_bytes())))
}

/// `/var/cache/mafs` for root, `$XDG_CACHE_HOME/mafs` for others.
fn default_cache_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/cache/mafs"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("mafs"))
}

/// The host name: Linux bounds it to 64 bytes, the protocol to 255.
fn client_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
