//! The world: one server and one client with their disks, a link between them, one clock.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::carrier::grpc::ConnectError;
use mafs_arpc::carrier::memory::{Cut, pair_with_fault};
use mafs_client::cache::CacheStorage;
use mafs_client::remote::Connector;
use mafs_client::vfs::{Settings, StartError, Vfs};
use mafs_durable::{Disk, MemoryDisk, MemoryKv};
use mafs_proto::VolumeName;
use mafs_server::{MemoryStorage, Server, ServerConfig};

use crate::VirtualClock;

/// How a machine or program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// kill -9: what was written stays.
    Kill,
    /// The power goes: what was not synced goes too, wholly or in part.
    Power,
}

/// One server, one client.
pub struct World {
    clock: VirtualClock,
    delay: Duration,
    lives: u64,
    server_storage: MemoryStorage,
    server: Arc<Mutex<Option<Arc<Server>>>>,
    client_disk: MemoryDisk,
    client_kv: MemoryKv,
    client_boot: u64,
    passthrough: bool,
    client: Option<Vfs>,
    /// Void connectors belong to clients that have crashed.
    client_life: Arc<Mutex<u64>>,
    cuts: Arc<Mutex<Vec<Cut>>>,
}

/// How long an operation of the client waits for the server.
const DEADLINE: Duration = Duration::from_secs(21);

impl World {
    /// Both up, the client attached to an empty volume. Must be called in a paused, single-threaded tokio runtime.
    ///
    /// # Errors
    /// If either does not start.
    pub async fn start(seed: u64, delay: Duration) -> Result<Self, String> {
        Self::start_with(seed, delay, false).await
    }

    /// The same; with `passthrough` the kernel, which is the test here, writes to containers itself.
    ///
    /// # Errors
    /// If either does not start.
    pub async fn start_with(seed: u64, delay: Duration, passthrough: bool) -> Result<Self, String> {
        let client_disk = MemoryDisk::new();
        let mut world = Self {
            clock: VirtualClock::start(),
            delay,
            lives: seed,
            server_storage: MemoryStorage::new(seed),
            server: Arc::default(),
            client_kv: MemoryKv::new().on(&client_disk),
            client_disk,
            client_boot: 0,
            passthrough,
            client: None,
            client_life: Arc::default(),
            cuts: Arc::default(),
        };
        world.start_server()?;
        world.start_client().await?;
        Ok(world)
    }

    /// The client's file system.
    ///
    /// # Panics
    /// If the client is down.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test asks for a client that it has stopped")]
    pub fn client(&self) -> &Vfs {
        self.client.as_ref().expect("the client is up")
    }

    /// Cuts every connection; the client makes a new one by itself.
    pub fn cut_link(&self) {
        lock(&self.cuts).drain(..).for_each(|cut| cut.cut());
    }

    /// Ends the server without warning; it is down until [`Self::start_server`].
    pub fn crash_server(&mut self, crash: Crash) {
        self.lives += 1;
        self.server_storage = match crash {
            Crash::Kill => self.server_storage.kill(self.lives),
            Crash::Power => self.server_storage.crash_torn(self.lives),
        };
        *lock(&self.server) = None;
        self.cut_link();
    }

    /// Starts the server on what is on its disk.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_server(&mut self) -> Result<(), String> {
        let storage = Arc::new(self.server_storage.clone());
        let server = Server::open(storage, Arc::new(self.clock), ServerConfig::default());
        *lock(&self.server) = Some(server.map_err(|error| format!("the server does not start: {error}"))?);
        Ok(())
    }

    /// Ends the client without warning; it is down until [`Self::start_client`].
    pub fn crash_client(&mut self, crash: Crash) {
        self.lives += 1;
        self.client_disk = match crash {
            Crash::Kill => self.client_disk.kill(),
            Crash::Power => self.client_disk.crash_torn(self.lives),
        };
        self.client_boot += u64::from(crash == Crash::Power);
        self.client_kv = self.client_kv.crash(self.lives).on(&self.client_disk);
        self.end_client_life();
    }

    /// Unmounts: the client ends in order.
    pub async fn stop_client(&mut self) {
        if let Some(client) = self.client.take() {
            client.shut_down().await;
        }
        self.end_client_life();
    }

    /// Replaces the client's cache with an empty one. The client must be down.
    pub fn empty_cache(&mut self) {
        self.client_disk = MemoryDisk::new();
        self.client_kv = MemoryKv::new().on(&self.client_disk);
    }

    /// The client's disk.
    #[must_use]
    pub fn client_disk(&self) -> &MemoryDisk {
        &self.client_disk
    }

    /// Leaves this many bytes free on the client's disk.
    ///
    /// # Errors
    /// What the disk says.
    pub fn limit_client_disk(&self, bytes_free: u64) -> io::Result<()> {
        let space = self.client_disk.space()?;
        self.client_disk.set_capacity(space.bytes_total - space.bytes_free + bytes_free);
        Ok(())
    }

    /// Flips a bit in each content of the cache, as a failing disk does: nobody has written, so no time changes. The
    /// client must be down.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn damage_cached_contents(&mut self) -> io::Result<()> {
        damage_files(&self.client_disk, "containers")
    }

    /// Flips a bit in each content file of the server.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn damage_stored_contents(&self) -> io::Result<()> {
        damage_files(self.server_storage.memory_disk(), "volumes/home/content")
    }

    /// Starts the client on what is on its disk.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_client(&mut self) -> Result<(), String> {
        let boot = format!("boot-{}", self.client_boot);
        let storage = CacheStorage::custom(Arc::new(self.client_disk.clone()), self.client_kv.opener(), boot);
        self.client = Some(self.attach(storage).await?);
        Ok(())
    }

    /// Starts another client, with a cache of its own.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_second_client(&self) -> Result<Vfs, String> {
        let disk = MemoryDisk::new();
        let kv = MemoryKv::new().on(&disk);
        self.attach(CacheStorage::custom(Arc::new(disk), kv.opener(), "boot-0".to_owned())).await
    }

    async fn attach(&self, storage: CacheStorage) -> Result<Vfs, String> {
        let settings = Settings {
            server: "simulated".to_owned(),
            volume: VolumeName::new("home").map_err(|error| error.to_string())?,
            client_name: "client".to_owned(),
            cache_limit_bytes: 1 << 20,
            min_free_bytes: 0,
            deadline: DEADLINE,
            read_only: false,
            passthrough: self.passthrough,
        };
        let started = Vfs::start(settings, storage, self.connector(), Arc::new(self.clock)).await;
        started.map_err(|error: StartError| format!("the client does not start: {error}"))
    }

    fn end_client_life(&mut self) {
        *lock(&self.client_life) += 1;
        self.client = None;
        self.cut_link();
    }

    /// Connects to whatever server is up, as long as the client it was made for lives.
    fn connector(&self) -> Connector {
        let (server, cuts, lives) = (Arc::clone(&self.server), Arc::clone(&self.cuts), Arc::clone(&self.client_life));
        let (delay, life) = (self.delay, *lock(&self.client_life));
        Arc::new(move || {
            let alive = *lock(&lives) == life;
            let server = lock(&server).clone().filter(|_| alive);
            let connected = match server {
                Some(server) => {
                    let (client_end, server_end, cut) = pair_with_fault(delay);
                    lock(&cuts).push(cut);
                    tokio::spawn(server.serve_connection(server_end));
                    Ok(client_end)
                }
                None => Err(ConnectError::Unreachable {
                    address: "simulated".to_owned(),
                    source: std::io::ErrorKind::ConnectionRefused.into(),
                }),
            };
            Box::pin(async move { connected })
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flips a bit in the middle of each file in the directories of `dir`.
fn damage_files(disk: &MemoryDisk, dir: &str) -> io::Result<()> {
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
