//! A machine that runs one client: its disk, which outlives the program, and its link.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mafs_arpc::carrier::memory::Direction;
use mafs_arpc::{Config, Scheduling};
use mafs_client::cache::CacheStorage;
use mafs_client::network::UnwatchedNetwork;
use mafs_client::options::{FSYNC_WAIT_DEFAULT, PULL_TIMEOUT_DEFAULT};
use mafs_client::vfs::{Close, Fsync, Locking, Settings, Stale, StartError, Vfs, Writeback};
use mafs_durable::{Disk, MemoryDisk, MemoryKv, write_file_atomically};
use mafs_proto::{Classes, VolumeName};

use crate::clock::RIGHT_PPM;
use crate::kernel::{Kernel, Unmounted};
use crate::network::{Connecting, Harm, Link, Path, Silence, Way};
use crate::operation::Programs;

use crate::world::{Crash, damage_files};

/// How long an operation of a client waits for the server, by default.
const DEADLINE: Duration = Duration::from_secs(21);

/// Contents of a backup of a cache.
pub struct CacheImage {
    disk: MemoryDisk,
    kv: MemoryKv,
}

/// A client and what is its own.
pub struct Machine {
    name: String,
    link: Link,
    passthrough: bool,
    scheduling: Scheduling,
    writeback: Writeback,
    close: Close,
    stale: Stale,
    fsync: Fsync,
    cache_limit_bytes: u64,
    deadline: Duration,
    disconnected: bool,
    locking: Locking,
    prefetch: bool,
    clock_ppm: u32,
    wall_ahead_s: Arc<AtomicI64>,
    disk: MemoryDisk,
    kv: MemoryKv,
    boot: u64,
    starts: u64,
    kernel_seed: Option<u64>,
    kernel: Option<Kernel>,
    client: Option<Vfs>,
}

impl Machine {
    /// Makes a machine with an empty cache; the client is down. No two have the same number.
    ///
    /// # Errors
    /// The disk's error.
    pub(crate) fn new(number: usize, link: Link, passthrough: bool) -> io::Result<Self> {
        let disk = MemoryDisk::new();
        let kv = MemoryKv::new().on(&disk);
        // Clients are told of changes in the order of their identities: a random one would make runs differ.
        write_file_atomically(&disk, "identity", &(number as u128 + 1).to_be_bytes())?;
        let name = format!("client-{number}");
        let (scheduling, fsync) = (Scheduling::default(), Fsync::default());
        let cache_limit_bytes = 64 << 20;
        Ok(Self {
            name,
            link,
            passthrough,
            scheduling,
            writeback: Writeback::Sync,
            close: Close::default(),
            stale: Stale::default(),
            fsync,
            cache_limit_bytes,
            deadline: DEADLINE,
            disconnected: false,
            locking: Locking::default(),
            prefetch: false,
            clock_ppm: RIGHT_PPM,
            wall_ahead_s: Arc::default(),
            disk,
            kv,
            boot: 0,
            starts: 0,
            kernel_seed: None,
            kernel: None,
            client: None,
        })
    }

    /// Sets how much the cache holds from the next start on; 1 MB at first.
    pub fn set_cache_limit_bytes(&mut self, bytes: u64) {
        self.cache_limit_bytes = bytes;
    }

    /// Sets how long an operation waits for the server, from the next start on; 21 s at first.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Sets whether what is cached is used while the server is out of reach, from the next start on; not at first.
    pub fn set_disconnected(&mut self, disconnected: bool) {
        self.disconnected = disconnected;
    }

    /// Sets the side that grants locks while the server is out of reach, from the next start on.
    pub fn set_locking(&mut self, locking: Locking) {
        self.locking = locking;
    }

    /// Sets whether what will be opened next is fetched before that, from the next start on.
    pub fn set_prefetch(&mut self, prefetch: bool) {
        self.prefetch = prefetch;
    }

    /// Sets by how many millionths of the world's time the machine's clock goes on, from the next start on.
    pub fn set_clock_rate(&mut self, ppm: u32) {
        self.clock_ppm = ppm;
    }

    /// Sets by how many seconds the machine's time of day is ahead of the world's, from now on.
    pub fn set_time_of_day(&self, ahead_s: i64) {
        self.wall_ahead_s.store(ahead_s, Ordering::Relaxed);
    }

    /// Sets the scheduling from the next start on, for comparison.
    pub fn set_scheduling(&mut self, scheduling: Scheduling) {
        self.scheduling = scheduling;
    }

    /// Sets when the server gets changes, from the next start on.
    pub fn set_writeback(&mut self, writeback: Writeback) {
        self.writeback = writeback;
    }

    /// Sets when close returns, from the next start on.
    pub fn set_close(&mut self, close: Close) {
        self.close = close;
    }

    /// Sets what an open gets if the newest version does not come, from the next start on.
    pub fn set_stale(&mut self, stale: Stale) {
        self.stale = stale;
    }

    /// Sets where fsync makes content durable, from the next start on.
    pub fn set_fsync(&mut self, fsync: Fsync) {
        self.fsync = fsync;
    }

    /// Puts a kernel between programs and the client, from the next start on. All that the kernel leaves open follows
    /// from the seed.
    pub fn set_kernel(&mut self, seed: u64) {
        self.kernel_seed = Some(seed);
    }

    /// The kernel that has its file system mounted.
    ///
    /// # Panics
    /// If there is none, or the client is down.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test asks for a kernel that it has not set")]
    pub fn kernel(&self) -> &Kernel {
        self.kernel.as_ref().expect("a kernel has mounted the client")
    }

    /// The programs on it, which call its kernel if it has one.
    ///
    /// # Panics
    /// If the client is down.
    pub(crate) fn programs(&self) -> Programs {
        self.kernel.clone().map_or_else(|| Programs::Bare(self.client().clone()), Programs::Above)
    }

    /// Whether the client runs.
    pub(crate) fn is_up(&self) -> bool {
        self.client.is_some()
    }

    /// Its file system.
    ///
    /// # Panics
    /// If the client is down.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test asks for a client that it has stopped")]
    pub fn client(&self) -> &Vfs {
        self.client.as_ref().expect("the client is up")
    }

    /// Starts the client on what is on its disk.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(&mut self) -> Result<(), String> {
        let boot = format!("boot-{}", self.boot);
        self.starts += 1;
        let unmounted = self.kernel_seed.map(|seed| Unmounted::new(seed.wrapping_add(self.starts)));
        let disk = match &unmounted {
            Some(kernel) => kernel.disk(self.disk.clone()),
            None => Arc::new(self.disk.clone()),
        };
        let run = self.starts << 32;
        let storage = CacheStorage::custom(disk, self.kv.opener(), boot, run);
        let settings = Settings {
            server: "simulated".to_owned(),
            volume: VolumeName::new("home").map_err(|error| error.to_string())?,
            client_name: self.name.clone(),
            cache_limit_bytes: self.cache_limit_bytes,
            min_free_bytes: 0,
            deadline: self.deadline,
            writeback: self.writeback,
            close: self.close,
            stale: self.stale,
            pull_timeout: PULL_TIMEOUT_DEFAULT,
            fsync: self.fsync,
            fsync_wait: FSYNC_WAIT_DEFAULT,
            classes: Classes::default(),
            arpc: Config { scheduling: self.scheduling, ..Config::default() },
            disconnected: self.disconnected,
            locking: self.locking,
            read_only: false,
            passthrough: self.passthrough,
            prefetch: self.prefetch,
            profile: None,
            network: Arc::new(UnwatchedNetwork::default()),
        };
        let clock = Arc::new(self.link.clock().of_machine(self.clock_ppm, Arc::clone(&self.wall_ahead_s)));
        let started = Vfs::start(settings, storage, self.link.connector(), clock).await;
        let client = started.map_err(|error: StartError| format!("{} does not start: {error}", self.name))?;
        self.kernel = unmounted.map(|kernel| kernel.mount(client.clone()));
        self.client = Some(client);
        Ok(())
    }

    /// Unmounts: the client ends in order.
    pub async fn stop(&mut self) {
        if let Some(kernel) = self.kernel.take() {
            kernel.released().await;
            kernel.end();
        }
        if let Some(client) = self.client.take() {
            client.shut_down().await;
        }
        self.link.end_life();
    }

    /// Ends the client without warning; `seed` chooses what a loss of power leaves.
    pub(crate) fn crash(&mut self, crash: Crash, seed: u64) {
        let kernel = self.kernel.take();
        if let (Some(kernel), Crash::Kill) = (&kernel, crash) {
            kernel.end_writes();
        }
        self.disk = match crash {
            Crash::Kill => self.disk.kill(),
            Crash::Power => self.disk.crash_torn(seed),
        };
        self.boot += u64::from(crash == Crash::Power);
        self.kv = self.kv.crash(seed).on(&self.disk);
        self.link.end_life();
        match (kernel, crash) {
            (Some(kernel), Crash::Kill) => kernel.outlive(&self.disk),
            (Some(kernel), Crash::Power) => kernel.end(),
            (None, _) => {}
        }
        self.client = None;
    }

    /// The cache as a copy of its disk would have it now.
    #[must_use]
    pub fn cache_image(&self) -> CacheImage {
        let disk = self.disk.kill();
        CacheImage { kv: self.kv.crash(0).on(&disk), disk }
    }

    /// Puts an image of the cache in its place. The client must be down.
    pub fn restore_cache(&mut self, image: CacheImage) {
        (self.disk, self.kv) = (image.disk, image.kv);
    }

    /// Replaces the cache with an empty one. The client must be down.
    pub fn empty_cache(&mut self) {
        self.disk = MemoryDisk::new();
        self.kv = MemoryKv::new().on(&self.disk);
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self) -> &MemoryDisk {
        &self.disk
    }

    /// Leaves this many bytes free on the disk.
    ///
    /// # Errors
    /// The disk's error.
    pub fn limit_disk(&self, bytes_free: u64) -> io::Result<()> {
        let space = self.disk.space()?;
        self.disk.set_capacity(space.bytes_total - space.bytes_free + bytes_free);
        Ok(())
    }

    /// Flips a bit in each content of the cache, as a failing disk does: nobody has written, so no time changes. The
    /// client must be down.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn damage_cached_contents(&mut self) -> io::Result<()> {
        damage_files(&self.disk, "containers")
    }

    /// Cuts the connection; the client makes a new one by itself.
    pub fn cut_link(&self) {
        self.link.cut();
    }

    /// Moves the machine to another network: new connections go this way. The one it has breaks, or is never heard of
    /// again, as when an address has changed; if so, that ends after `silence`.
    pub(crate) fn move_to(&self, path: Path, silence: Option<Duration>) {
        self.link.set_path(path);
        match silence {
            None => self.link.cut(),
            Some(time) => {
                let silence = Silence { way: Way::Both, connecting: Connecting::Works };
                self.link.fall_silent_for(silence, time, true);
            }
        }
    }

    /// Cuts the connection, and none can be made until [`Self::restore_link`].
    pub fn isolate(&self) {
        self.link.set_open(false);
    }

    /// Ends [`Self::isolate`].
    pub fn restore_link(&self) {
        self.link.set_open(true);
    }

    /// Whether the server can be reached, or seems to.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.link.is_open()
    }

    /// Lets nothing arrive any more, and tells nobody, until [`Self::break_silence`].
    pub fn fall_silent(&self, silence: Silence) {
        self.link.fall_silent(silence);
    }

    /// Falls silent like [`Self::fall_silent`], for some time; if it is `lost`, what has waited never arrives.
    pub fn fall_silent_for(&self, silence: Silence, time: Duration, lost: bool) {
        self.link.fall_silent_for(silence, time, lost);
    }

    /// Changes a byte of the next frame, or payload, that has so many.
    pub fn harm(&self, harm: Harm, to: Direction, at: u64) {
        self.link.harm(harm, to, at);
    }

    /// Ends [`Self::fall_silent`]: what has waited arrives.
    pub fn break_silence(&self) {
        self.link.break_silence();
    }

    /// Whether a client that is started now reaches the server.
    pub(crate) fn can_attach(&self) -> bool {
        self.link.is_open() && self.link.silence().is_none_or(|silence| silence.connecting == Connecting::Works)
    }

    /// Notes that the server has died.
    pub(crate) fn end_server(&self) {
        self.link.end_server();
    }
}
