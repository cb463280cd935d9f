//! A world of its own: one server, one mount or more, their directories; nothing outside is touched and nothing is left
//! behind.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::{DAEMON_LIMIT, Daemon};
use crate::link::EmulatedLink;
use crate::measure::Usage;
use crate::process;
use crate::programs::Programs;

/// Lock that allows one world at a time in a process: several tests measure time and memory.
static ALONE: Mutex<()> = Mutex::new(());

/// Port on which the server of a world over a link listens: that host has no other.
const PORT_ON_LINK: u16 = 6237;

/// A server and a client with a mount, as processes of their own; more clients if they are asked for.
#[derive(Debug)]
pub struct World {
    first: Client,
    server: Option<Daemon>,
    server_options: Vec<String>,
    programs: Programs,
    address: SocketAddr,
    link: Option<Arc<EmulatedLink>>,
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

    /// Starts a world like [`Self::start`], mounted with options, separated by commas; with `writeback=sync` unless
    /// they say otherwise.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(options: &str) -> io::Result<Self> {
        let mut world = Self::new()?;
        world.first.set_options(options);
        world.start_server()?;
        world.start_client()?;
        Ok(world)
    }

    /// Starts a world like [`Self::start_with`], with server and client at the ends of a link.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_over(link: EmulatedLink, options: &str) -> io::Result<Self> {
        let mut world = Self::over(link)?;
        world.first.set_options(options);
        world.start_server()?;
        world.start_client()?;
        Ok(world)
    }

    /// Makes a world over a link in which nothing runs yet.
    ///
    /// # Errors
    /// If the programs cannot be built.
    pub fn over(link: EmulatedLink) -> io::Result<Self> {
        let mut world = Self::at((EmulatedLink::SERVER, PORT_ON_LINK).into())?;
        let link = Arc::new(link);
        world.first.put_on(Arc::clone(&link));
        world.link = Some(link);
        Ok(world)
    }

    /// Makes a world in which nothing runs yet.
    ///
    /// # Errors
    /// If the programs cannot be built.
    pub fn new() -> io::Result<Self> {
        Self::at(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
    }

    fn at(address: SocketAddr) -> io::Result<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = Programs::build()?;
        // The directory is beside the build: a disk with room, where the temporary directory may be memory.
        let directory = tempfile::Builder::new().prefix("world-").tempdir_in(programs.target_directory())?;
        // The path of a socket has at most 107 bytes.
        let runtime = tempfile::Builder::new().prefix("mafs-").tempdir_in("/tmp")?;
        fs::create_dir(directory.path().join("local"))?;
        let target = format!("{address}:/home");
        let first = Client::new(programs.client(), target, directory.path(), &runtime.path().join("run"))?;
        let (server, server_options, link) = (None, Vec::new(), None);
        Ok(Self { first, server, server_options, programs, address, link, directory, runtime, _alone: alone })
    }

    /// Mounts the volume once more, by a client with everything of its own, and with the options of this world. The
    /// client must be dropped before the world.
    ///
    /// # Errors
    /// If the mount does not appear in time.
    pub fn another_client(&self, name: &str) -> io::Result<Client> {
        let mut client = self.make_client(name)?;
        client.start()?;
        Ok(client)
    }

    /// Mounts like [`Self::another_client`], at the server's end of the world's link.
    ///
    /// # Errors
    /// If the mount does not appear in time.
    pub fn another_client_beside_server(&self, name: &str) -> io::Result<Client> {
        let mut client = self.make_client(name)?;
        client.put_beside_server();
        client.start()?;
        Ok(client)
    }

    fn make_client(&self, name: &str) -> io::Result<Client> {
        let directory = self.directory.path().join(name);
        fs::create_dir(&directory)?;
        self.first.another(&directory, &self.runtime.path().join(name))
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.first.mount()
    }

    /// Returns the data directory of the server.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Returns a plain directory on the disk that holds cache and store.
    #[must_use]
    pub fn local(&self) -> PathBuf {
        self.directory.path().join("local")
    }

    /// Returns the directory of everything that is built, for results that stay.
    #[must_use]
    pub fn target_directory(&self) -> &Path {
        self.programs.target_directory()
    }

    /// Returns the address on which the server of this world listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the link between server and client, if they have one.
    #[must_use]
    pub fn link(&self) -> Option<&EmulatedLink> {
        self.link.as_deref()
    }

    /// Returns the target that the client mounts.
    #[must_use]
    pub fn target(&self) -> String {
        self.first.target().to_owned()
    }

    /// Returns the running server.
    ///
    /// # Errors
    /// If no server runs.
    pub fn server(&self) -> io::Result<&Daemon> {
        self.server.as_ref().ok_or_else(|| io::Error::other("no server runs"))
    }

    /// Returns the running client.
    ///
    /// # Errors
    /// If no client runs.
    pub fn client(&self) -> io::Result<&Daemon> {
        self.first.daemon()
    }

    /// Returns `mafs-server`, to be given arguments, in the environment of this world.
    #[must_use]
    pub fn server_command(&self) -> Command {
        self.first.in_environment(self.at_server(&self.programs.server()))
    }

    /// Returns `mafs-client`, to be given arguments, in the environment of this world.
    #[must_use]
    pub fn client_command(&self) -> Command {
        self.first.command()
    }

    /// Sets further options of the server, from its next start on.
    pub fn set_server_options(&mut self, options: &[&str]) {
        self.server_options = options.iter().map(ToString::to_string).collect();
    }

    /// Starts the server on the store of this world.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn start_server(&mut self) -> io::Result<()> {
        let mut command = self.server_command();
        command.arg("run").arg("--data").arg(self.store());
        command.args(["--listen", &self.address()]).args(&self.server_options);
        if self.link.is_some() {
            // The network has no other hosts.
            command.arg("--insecure");
        }
        let mut server = Daemon::start("mafs-server", &mut command, &self.directory.path().join("server.log"))?;
        server.wait_ready(DAEMON_LIMIT, || self.listens())?;
        self.server = Some(server);
        Ok(())
    }

    fn at_server(&self, program: &Path) -> Command {
        match &self.link {
            Some(link) => link.server_command(program),
            None => Command::new(program),
        }
    }

    /// Tells whether the server takes connections, asked on its own host.
    fn listens(&self) -> io::Result<bool> {
        if self.link.is_none() {
            return Ok(TcpStream::connect(self.address).is_ok());
        }
        let connect = format!(": < /dev/tcp/{}/{}", self.address.ip(), self.address.port());
        let tried = process::finish(self.at_server(Path::new("bash")).args(["-c", &connect]), DAEMON_LIMIT)?;
        Ok(tried.status.success())
    }

    /// Mounts, with the cache and the options of this world.
    ///
    /// # Errors
    /// If the mount does not appear in time.
    pub fn start_client(&mut self) -> io::Result<()> {
        self.first.start()
    }

    /// Limits the descriptors that the client may have, from its next start on. Not over a link.
    pub fn limit_client_descriptors(&mut self, count: u64) {
        self.first.limit_descriptors(count);
    }

    /// Sets the address where the client, and those that are made later, find the server from their next start on.
    pub fn set_client_address(&mut self, address: SocketAddr) {
        self.first.set_target(&format!("{address}:/home"));
    }

    /// Sets the mount options from the client's next start on.
    pub fn set_client_options(&mut self, options: &str) {
        self.first.set_options(options);
    }

    /// Unmounts by the client's own command and waits until the client has ended.
    ///
    /// # Errors
    /// If the command fails, the mount stays, or the client does not end well.
    pub fn stop_client(&mut self) -> io::Result<()> {
        self.first.stop()
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
    /// If no client runs.
    pub fn kill_client(&mut self) -> io::Result<()> {
        self.first.kill()
    }

    /// Kills the server as `kill -9` does.
    ///
    /// # Errors
    /// If no server runs.
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
        self.first.forget_cache()
    }

    /// Measures what both daemons together use during `window`.
    ///
    /// # Errors
    /// If one of them does not run.
    pub fn usage(&self, window: Duration) -> io::Result<Usage> {
        Usage::during(window, &[self.server()?.pid(), self.client()?.pid()])
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(server) = &self.server
        {
            eprintln!("{}", server.log_end());
        }
        // The client ends first, because /proc does not answer about a process that waits for a page of a mount that
        // hangs.
        self.first.end();
        // Daemons that went to the background are no children: they are killed here too.
        process::kill_all_naming(self.directory.path());
    }
}
