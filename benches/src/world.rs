//! A world of its own: one server, one mount, their directories; nothing outside is touched and nothing is left behind.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::measure::cpu_time;
use crate::process;
use crate::programs::Programs;

/// How long a daemon may take to start or to stop.
const DAEMON_LIMIT: Duration = Duration::from_secs(60);

/// One world at a time in a process: several tests measure time and memory.
static ALONE: Mutex<()> = Mutex::new(());

/// A server and a client with a mount, as processes of their own.
#[derive(Debug)]
pub struct World {
    client: Option<Daemon>,
    server: Option<Daemon>,
    programs: Programs,
    options: String,
    port: u16,
    caches: u32,
    directory: TempDir,
    runtime: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    /// Starts a server with an empty store and mounts its volume `home`.
    ///
    /// # Errors
    /// If a program cannot be built or does not start; with the end of its log.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// The same, mounted with options, separated by commas.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(options: &str) -> io::Result<Self> {
        let mut world = Self::new()?;
        options.clone_into(&mut world.options);
        world.start_server()?;
        world.start_client()?;
        Ok(world)
    }

    /// A world in which nothing runs yet.
    ///
    /// # Errors
    /// If the programs cannot be built.
    pub fn new() -> io::Result<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = Programs::build()?;
        // Beside the build: a disk with room, where the temporary directory may be memory.
        let directory = tempfile::Builder::new().prefix("world-").tempdir_in(programs.target_directory())?;
        // The path of a socket has at most 107 bytes.
        let runtime = tempfile::Builder::new().prefix("mafs-").tempdir_in("/tmp")?;
        for name in ["mnt", "local", "cache-0"] {
            fs::create_dir(directory.path().join(name))?;
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let options = String::new();
        Ok(Self { client: None, server: None, programs, options, port, caches: 0, directory, runtime, _alone: alone })
    }

    /// The mount point.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// The data directory of the server.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// A plain directory on the disk that holds cache and store.
    #[must_use]
    pub fn local(&self) -> PathBuf {
        self.directory.path().join("local")
    }

    /// The directory of everything that is built, for results that stay.
    #[must_use]
    pub fn target_directory(&self) -> &Path {
        self.programs.target_directory()
    }

    /// Where the server of this world listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What the client mounts.
    #[must_use]
    pub fn target(&self) -> String {
        format!("{}:/home", self.address())
    }

    /// The running server.
    ///
    /// # Errors
    /// If there is none.
    pub fn server(&self) -> io::Result<&Daemon> {
        self.server.as_ref().ok_or_else(|| io::Error::other("no server runs"))
    }

    /// The running client.
    ///
    /// # Errors
    /// If there is none.
    pub fn client(&self) -> io::Result<&Daemon> {
        self.client.as_ref().ok_or_else(|| io::Error::other("no client runs"))
    }

    /// `mafs-server`, to be given arguments, in the environment of this world.
    #[must_use]
    pub fn server_command(&self) -> Command {
        self.in_environment(&self.programs.server())
    }

    /// `mafs-client`, to be given arguments, in the environment of this world.
    #[must_use]
    pub fn client_command(&self) -> Command {
        self.in_environment(&self.programs.client())
    }

    /// Starts the server on the store of this world.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn start_server(&mut self) -> io::Result<()> {
        let mut command = self.server_command();
        command.arg("run").arg("--data").arg(self.store());
        command.args(["--listen", &self.address()]);
        let mut server = Daemon::start("mafs-server", &mut command, &self.log("server"))?;
        server.wait_ready(DAEMON_LIMIT, || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()))?;
        self.server = Some(server);
        Ok(())
    }

    /// Mounts, with the cache and the options of this world.
    ///
    /// # Errors
    /// If the mount does not appear in time.
    pub fn start_client(&mut self) -> io::Result<()> {
        let cache = self.directory.path().join(format!("cache-{}", self.caches));
        let mut command = self.client_command();
        command.args(["mount", &self.target()]).arg(self.mount());
        command.arg("-o").arg(format!("cache={},{}", cache.display(), self.options)).arg("-f");
        let mut client = Daemon::start("mafs-client", &mut command, &self.log("client"))?;
        let mount = self.mount();
        // A dead mount may be there before, which does not answer, and then for a moment none, where the bare directory
        // answers: so first the answer, then the mount.
        let list = || process::finish(Command::new("ls").arg(&mount), DAEMON_LIMIT);
        let ready = client.wait_ready(DAEMON_LIMIT, || Ok(list()?.status.success() && is_mounted(&mount)?));
        self.client = Some(client);
        ready
    }

    /// Unmounts by the client's own command and waits until the client has ended.
    ///
    /// # Errors
    /// If the command fails, the mount stays, or the client does not end well.
    pub fn stop_client(&mut self) -> io::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        process::run(self.client_command().arg("umount").arg(self.mount()), DAEMON_LIMIT)?;
        let status = client.wait_end(DAEMON_LIMIT)?;
        if !status.success() || is_mounted(&self.mount())? {
            return Err(io::Error::other(format!("after umount: client {status}")));
        }
        Ok(())
    }

    /// Ends the server as an init system does, and waits for it.
    ///
    /// # Errors
    /// If it does not end well in time.
    pub fn stop_server(&mut self) -> io::Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        server.signal(Signal::TERM)?;
        let status = server.wait_end(DAEMON_LIMIT)?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("after TERM: server {status}"))) }
    }

    /// Kills the client as `kill -9` does. The mount stays, dead.
    ///
    /// # Errors
    /// If there is none.
    pub fn kill_client(&mut self) -> io::Result<()> {
        self.client.take().ok_or_else(|| io::Error::other("no client runs"))?.kill()
    }

    /// Kills the server as `kill -9` does.
    ///
    /// # Errors
    /// If there is none.
    pub fn kill_server(&mut self) -> io::Result<()> {
        self.server.take().ok_or_else(|| io::Error::other("no server runs"))?.kill()
    }

    /// Stops both daemons in good order and starts them again, with the same store and the same cache.
    ///
    /// # Errors
    /// If one does not stop or start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop_client()?;
        self.stop_server()?;
        self.start_server()?;
        self.start_client()
    }

    /// Mounts again with an empty cache, and removes the old one.
    ///
    /// # Errors
    /// If the client does not stop or start.
    pub fn forget_cache(&mut self) -> io::Result<()> {
        self.stop_client()?;
        let old = self.directory.path().join(format!("cache-{}", self.caches));
        fs::remove_dir_all(old)?;
        self.caches += 1;
        fs::create_dir(self.directory.path().join(format!("cache-{}", self.caches)))?;
        self.start_client()
    }

    /// The share of one processor that both daemons together use during `window`, to 10 ms.
    ///
    /// # Errors
    /// If one of them does not run.
    pub fn cpu_share(&self, window: Duration) -> io::Result<f64> {
        let pids = [self.server()?.pid(), self.client()?.pid()];
        let used = || pids.iter().map(|pid| cpu_time(*pid)).sum::<io::Result<Duration>>();
        let (start, before) = (Instant::now(), used()?);
        thread::sleep(window);
        Ok(used()?.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64())
    }

    fn in_environment(&self, program: &Path) -> Command {
        let home = self.directory.path();
        let mut command = Command::new(program);
        command.env("HOME", home).env("MAFS_RUNTIME_DIR", self.runtime.path().join("run"));
        for (variable, name) in [("XDG_DATA_HOME", "data"), ("XDG_CACHE_HOME", "cache"), ("XDG_CONFIG_HOME", "config")]
        {
            command.env(variable, home.join(name));
        }
        command
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            for daemon in [&self.server, &self.client].into_iter().flatten() {
                eprintln!("{}", daemon.log_end());
            }
        }
        // Also those that went to the background and are no children.
        process::kill_all_naming(self.directory.path());
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

/// Whether something is mounted at `path`, read from the kernel's list so that a dead mount cannot block the question.
///
/// # Errors
/// If the list cannot be read.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let path = path.to_str().ok_or_else(|| io::Error::other("the path is no UTF-8"))?.replace(' ', "\\040");
    Ok(mounts.lines().any(|line| line.split(' ').nth(4) == Some(&path)))
}
