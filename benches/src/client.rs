//! A client under test: a mount point, a cache and a runtime directory of its own, and the daemon while it runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::mount::{UnmountFlags, unmount};

use crate::daemon::{DAEMON_LIMIT, Daemon};
use crate::link::EmulatedLink;
use crate::mounted::is_mounted;
use crate::process;

/// Shorter than [`DAEMON_LIMIT`].
const FLUSH: &str = "--flush=20s";

/// One client: its program, its mount, its cache and, while it runs, its daemon.
#[derive(Debug)]
pub struct Client {
    daemon: Option<Daemon>,
    program: PathBuf,
    target: String,
    options: String,
    /// Limit of the descriptors of the client's programs, if there is one.
    descriptors_max: Option<u64>,
    directory: PathBuf,
    runtime: PathBuf,
    /// The link at whose far end the client's server is, if it has one.
    link: Option<Arc<EmulatedLink>>,
    /// Whether the client runs at the server's end of the link.
    beside_server: bool,
    caches: u32,
}

impl Client {
    /// Makes a client that does not run yet, with its mount point and its cache in `directory` and its sockets in
    /// `runtime`: the path of a socket has at most 107 bytes.
    ///
    /// # Errors
    /// If the directories cannot be made.
    pub(crate) fn new(program: PathBuf, target: String, directory: &Path, runtime: &Path) -> io::Result<Self> {
        for name in ["mnt", "cache-0"] {
            fs::create_dir(directory.join(name))?;
        }
        let (directory, runtime) = (directory.to_path_buf(), runtime.to_path_buf());
        Ok(Self {
            daemon: None,
            program,
            target,
            options: String::new(),
            descriptors_max: None,
            directory,
            runtime,
            link: None,
            beside_server: false,
            caches: 0,
        })
    }

    /// Makes a client of the same volume with the same options, and nothing else in common.
    pub(crate) fn another(&self, directory: &Path, runtime: &Path) -> io::Result<Self> {
        let mut another = Self::new(self.program.clone(), self.target.clone(), directory, runtime)?;
        another.set_options(&self.options);
        another.link.clone_from(&self.link);
        Ok(another)
    }

    /// Puts the client at the client's end of a link, from now on.
    pub(crate) fn put_on(&mut self, link: Arc<EmulatedLink>) {
        self.link = Some(link);
    }

    /// Puts the client at the server's end of its link, where everything is near, from now on.
    pub(crate) fn put_beside_server(&mut self) {
        self.beside_server = true;
    }

    pub(crate) fn set_options(&mut self, options: &str) {
        options.clone_into(&mut self.options);
    }

    pub(crate) fn set_target(&mut self, target: &str) {
        target.clone_into(&mut self.target);
    }

    pub(crate) fn limit_descriptors(&mut self, count: u64) {
        self.descriptors_max = Some(count);
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    /// Returns the target that the client mounts.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the running daemon.
    ///
    /// # Errors
    /// If no client runs.
    pub fn daemon(&self) -> io::Result<&Daemon> {
        self.daemon.as_ref().ok_or_else(|| io::Error::other("no client runs"))
    }

    /// Returns `mafs-client`, to be given arguments, in the environment of this client.
    #[must_use]
    pub fn command(&self) -> Command {
        let command = match &self.link {
            Some(link) if self.beside_server => link.server_command(&self.program),
            Some(link) => link.client_command(&self.program),
            None => self.limited(),
        };
        self.in_environment(command)
    }

    fn limited(&self) -> Command {
        let Some(count) = self.descriptors_max else { return Command::new(&self.program) };
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={count}:{count}")).arg(&self.program);
        command
    }

    pub(crate) fn in_environment(&self, mut command: Command) -> Command {
        let home = &self.directory;
        command.env("HOME", home).env("MAFS_RUNTIME_DIR", &self.runtime);
        for (variable, name) in [("XDG_DATA_HOME", "data"), ("XDG_CACHE_HOME", "cache"), ("XDG_CONFIG_HOME", "config")]
        {
            command.env(variable, home.join(name));
        }
        command
    }

    /// Mounts, with the options in `MAFS_MOUNT_OPTIONS` besides the client's own: so that all tests can be run with
    /// any.
    ///
    /// # Errors
    /// If the mount does not appear in time.
    pub fn start(&mut self) -> io::Result<()> {
        let mount = self.mount();
        let mut command = self.command();
        command.args(["mount", &self.target]).arg(&mount);
        let everywhere = std::env::var("MAFS_MOUNT_OPTIONS").unwrap_or_default();
        // Most tests look at what a call has done when it returns.
        let options = format!("cache={},writeback=sync,{everywhere},{}", self.cache().display(), self.options);
        command.arg("-o").arg(options).arg("-f");
        let mut daemon = Daemon::start("mafs-client", &mut command, &self.directory.join("client.log"))?;
        // A dead mount may be there before, which does not answer, and then for a moment none, where the bare directory
        // answers: so first the answer, then the mount.
        let list = || process::finish(Command::new("ls").arg(&mount), DAEMON_LIMIT);
        let ready = daemon.wait_ready(DAEMON_LIMIT, || Ok(list()?.status.success() && is_mounted(&mount)?));
        self.daemon = Some(daemon);
        ready
    }

    /// Unmounts by the client's own command and waits until the client has ended.
    ///
    /// # Errors
    /// If the command fails, the mount stays, or the client does not end well.
    pub fn stop(&mut self) -> io::Result<()> {
        self.stop_by(&["umount"])
    }

    fn stop_by(&mut self, command: &[&str]) -> io::Result<()> {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        process::run(self.command().args(command).arg(self.mount()), DAEMON_LIMIT)?;
        let status = daemon.wait_end(DAEMON_LIMIT)?;
        if !status.success() || is_mounted(&self.mount())? {
            return Err(io::Error::other(format!("after umount: client {status}")));
        }
        Ok(())
    }

    /// Kills the client as `kill -9` does. The mount stays, dead.
    ///
    /// A thread that tells the kernel to forget a name may wait there for a program that holds the directory and waits
    /// for an answer of this client. Then none of the two ends before the mount is aborted, as by `umount -f`.
    ///
    /// # Errors
    /// If no client runs.
    pub fn kill(&mut self) -> io::Result<()> {
        let daemon = self.daemon.take().ok_or_else(|| io::Error::other("no client runs"))?;
        let mount = self.mount();
        daemon.kill_helped(|| {
            eprintln!("the killed client hangs in the kernel: {} is aborted", mount.display());
            // The mount may be busy: the abort counts.
            let _ = unmount(&mount, UnmountFlags::FORCE);
        })
    }

    /// Mounts again with an empty cache, and removes the old one, once the server has everything.
    ///
    /// # Errors
    /// If the client does not stop or start.
    pub fn forget_cache(&mut self) -> io::Result<()> {
        self.stop_by(&["umount", FLUSH])?;
        fs::remove_dir_all(self.cache())?;
        self.caches += 1;
        fs::create_dir(self.cache())?;
        self.start()
    }

    /// Ends the daemon if it runs. The mount may stay, dead.
    pub(crate) fn end(&mut self) {
        if let Some(daemon) = self.daemon.take()
            && thread::panicking()
        {
            eprintln!("{}", daemon.log_end());
        }
    }

    fn cache(&self) -> PathBuf {
        self.directory.join(format!("cache-{}", self.caches))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
        let mount = self.mount();
        // A daemon that was stopped or killed leaves its mount; several may lie on each other.
        while is_mounted(&mount).unwrap_or(false) {
            if unmount(&mount, UnmountFlags::DETACH).is_err()
                && process::run(Command::new("fusermount3").args(["-u", "-z"]).arg(&mount), DAEMON_LIMIT).is_err()
            {
                eprintln!("cannot unmount {}: do it by hand", mount.display());
                break;
            }
        }
    }
}
