//! The world: one server and its clients with their disks, a link between it and each of them, one clock.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::carrier::Carrier;
use mafs_client::vfs::Vfs;
use mafs_durable::{Disk, MemoryDisk};
use mafs_server::{MemoryStorage, Server, ServerConfig};

use crate::VirtualClock;
use crate::image::ServerImage;
use crate::machine::Machine;
use crate::network::{Link, Network, Path};

/// How a machine or program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// kill -9: what was written stays.
    Kill,
    /// The power goes: what was not synced goes too, wholly or in part.
    Power,
}

/// How long promises hold without a word from their client: the server's default.
pub const LEASE: Duration = Duration::from_secs(60);

/// Time that the server adds to a lease before it takes promises for lapsed.
pub const LEASE_BIAS: Duration = Duration::from_secs(2);

/// How long a client may leave a break unanswered before its lease is renewed no more.
pub const BREAK_TIMEOUT: Duration = Duration::from_secs(15);

/// The number of the machine that looks at an image: none that was there before.
const OBSERVER: usize = 1000;

/// One server, any number of clients. The methods for *the* client are about the first.
pub struct World {
    lives: u64,
    server_config: ServerConfig,
    server_storage: MemoryStorage,
    network: Network,
    /// The path to clients to come.
    path: Path,
    passthrough: bool,
    machines: Vec<Machine>,
}

impl World {
    /// Starts the server and one client, attached to an empty volume. Must be called in a paused, single-threaded
    /// tokio runtime.
    ///
    /// # Errors
    /// If either does not start.
    pub async fn start(seed: u64, delay: Duration) -> Result<Self, String> {
        Self::start_with(seed, delay, false).await
    }

    /// Starts a world like [`Self::start`]; with `passthrough` the kernel, which is the test here, writes to
    /// containers itself.
    ///
    /// # Errors
    /// If either does not start.
    pub async fn start_with(seed: u64, delay: Duration, passthrough: bool) -> Result<Self, String> {
        Self::start_several(seed, 1, delay, passthrough).await
    }

    /// Starts a world like [`Self::start_with`], with any number of clients.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_several(seed: u64, clients: usize, delay: Duration, passthrough: bool) -> Result<Self, String> {
        Self::start_with_delays(seed, &vec![delay; clients], passthrough).await
    }

    /// Starts a world like [`Self::start_with`], with a client for each of these delays.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_with_delays(seed: u64, delays: &[Duration], passthrough: bool) -> Result<Self, String> {
        let paths = delays.iter().map(|delay| Path::Delay(*delay)).collect();
        Self::start_over(seed, paths, passthrough).await
    }

    /// Starts a world like [`Self::start_with`], with a client at the end of each of these paths.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_over(seed: u64, paths: Vec<Path>, passthrough: bool) -> Result<Self, String> {
        Self::start_configured(seed, ServerConfig::default(), paths, passthrough).await
    }

    /// Starts a world like [`Self::start_over`], with a server that is configured so, in all its lives.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_configured(
        seed: u64,
        server_config: ServerConfig,
        paths: Vec<Path>,
        passthrough: bool,
    ) -> Result<Self, String> {
        let mut world = Self::empty(seed, server_config, MemoryStorage::new(seed), passthrough);
        world.start_server()?;
        for path in paths {
            world.path = path;
            world.add_client().await?;
        }
        Ok(world)
    }

    /// Returns what kill -9 of the server would leave now; the server goes on.
    #[must_use]
    pub fn server_image(&self) -> ServerImage {
        ServerImage(self.server_storage.kill(self.lives))
    }

    /// Returns how often the server has made something durable.
    #[must_use]
    pub fn server_syncs(&self) -> u64 {
        self.server_storage.memory_disk().syncs()
    }

    /// Starts the server on an image in a world of its own, with one client, for which nothing takes time.
    ///
    /// # Errors
    /// If either does not start.
    pub async fn start_on(image: ServerImage, seed: u64) -> Result<Self, String> {
        let mut world = Self::empty(seed, ServerConfig::default(), image.0, false);
        world.start_server()?;
        // No client of the other world has this number.
        let link = Link::new(world.network.clone(), world.path.clone());
        let mut machine = Machine::new(OBSERVER, link, false).map_err(|error| error.to_string())?;
        machine.start().await?;
        world.machines.push(machine);
        Ok(world)
    }

    fn empty(seed: u64, server_config: ServerConfig, server_storage: MemoryStorage, passthrough: bool) -> Self {
        Self {
            lives: seed,
            server_config,
            server_storage,
            network: Network::new(VirtualClock::start()),
            path: Path::Delay(Duration::ZERO),
            passthrough,
            machines: Vec::new(),
        }
    }

    /// Starts another client, with a cache and a link of its own.
    ///
    /// # Errors
    /// If it does not start; then it is not there.
    pub async fn add_client(&mut self) -> Result<Vfs, String> {
        let link = Link::new(self.network.clone(), self.path.clone());
        let mut machine =
            Machine::new(self.machines.len(), link, self.passthrough).map_err(|error| error.to_string())?;
        machine.start().await?;
        let client = machine.client().clone();
        self.machines.push(machine);
        Ok(client)
    }

    /// The clients' machines, in the order they were added.
    #[must_use]
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Returns the machines like [`Self::machines`], to be changed.
    pub fn machines_mut(&mut self) -> &mut [Machine] {
        &mut self.machines
    }

    /// The client's file system.
    ///
    /// # Panics
    /// If the client is down.
    #[must_use]
    pub fn client(&self) -> &Vfs {
        self.machines[0].client()
    }

    /// Cuts every connection; the clients make new ones by themselves.
    pub fn cut_link(&self) {
        self.machines.iter().for_each(Machine::cut_link);
    }

    /// Ends the server without warning; it is down until [`Self::start_server`].
    pub fn crash_server(&mut self, crash: Crash) {
        self.lives += 1;
        self.server_storage = match crash {
            Crash::Kill => self.server_storage.kill(self.lives),
            Crash::Power => self.server_storage.crash_torn(self.lives),
        };
        self.network.set_server(None);
        self.machines.iter().for_each(Machine::end_server);
    }

    /// Puts an older copy of the server's disk in its place, and starts the server on that.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restore_server(&mut self, image: ServerImage) -> Result<(), String> {
        self.crash_server(Crash::Kill);
        self.server_storage = image.0;
        self.start_server()
    }

    /// Starts the server on what is on its disk.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_server(&mut self) -> Result<(), String> {
        let storage = Arc::new(self.server_storage.clone());
        let server = Server::open(storage, Arc::new(self.network.clock), self.server_config);
        self.network.set_server(Some(server.map_err(|error| format!("the server does not start: {error}"))?));
        Ok(())
    }

    /// Makes a connection to the server for somebody that is no client.
    ///
    /// # Errors
    /// If the server is down.
    pub(crate) fn connect_stranger(&self) -> Result<Carrier, String> {
        self.network.connect_stranger().ok_or_else(|| "the server is down".to_owned())
    }

    /// The world's time.
    pub(crate) fn clock(&self) -> Arc<VirtualClock> {
        Arc::new(self.network.clock)
    }

    /// Ends the client without warning; it is down until [`Self::start_client`].
    pub fn crash_client(&mut self, crash: Crash) {
        self.crash_machine(0, crash);
    }

    /// Ends one of the clients without warning; it is down until [`Machine::start`].
    pub fn crash_machine(&mut self, number: usize, crash: Crash) {
        self.lives += 1;
        self.machines[number].crash(crash, self.lives);
    }

    /// Unmounts: the client ends in order.
    pub async fn stop_client(&mut self) {
        self.machines[0].stop().await;
    }

    /// Starts the client on what is on its disk.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_client(&mut self) -> Result<(), String> {
        self.machines[0].start().await
    }

    /// Replaces the client's cache with an empty one. The client must be down.
    pub fn empty_cache(&mut self) {
        self.machines[0].empty_cache();
    }

    /// The client's disk.
    #[must_use]
    pub fn client_disk(&self) -> &MemoryDisk {
        self.machines[0].disk()
    }

    /// Leaves this many bytes free on the client's disk.
    ///
    /// # Errors
    /// The disk's error.
    pub fn limit_client_disk(&self, bytes_free: u64) -> io::Result<()> {
        self.machines[0].limit_disk(bytes_free)
    }

    /// Leaves this many bytes free on the server's disk.
    ///
    /// # Errors
    /// The disk's error.
    pub fn limit_server_disk(&self, bytes_free: u64) -> io::Result<()> {
        let disk = self.server_storage.memory_disk();
        let space = disk.space()?;
        disk.set_capacity(space.bytes_total - space.bytes_free + bytes_free);
        Ok(())
    }

    /// Flips a bit in each content of the client's cache, which must be down: see [`Machine::damage_cached_contents`].
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn damage_cached_contents(&mut self) -> io::Result<()> {
        self.machines[0].damage_cached_contents()
    }

    /// Flips a bit in each content file of the server.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn damage_stored_contents(&self) -> io::Result<()> {
        damage_files(self.server_storage.memory_disk(), "volumes/home/content")
    }
}

/// Flips a bit in the middle of each file in the directories of `dir`.
pub(crate) fn damage_files(disk: &MemoryDisk, dir: &str) -> io::Result<()> {
    for shard in disk.list(dir)? {
        for name in disk.list(&format!("{dir}/{shard}"))? {
            let file = disk.open(&format!("{dir}/{shard}/{name}"))?;
            let (modified, middle, mut byte) = (file.modified()?, file.len()? / 2, [0]);
            file.read_at(&mut byte, middle)?;
            file.write_all_at(&[byte[0] ^ 1], middle)?;
            file.set_modified(modified)?;
        }
    }
    Ok(())
}
