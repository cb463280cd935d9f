//! A kernel twin: it stands between programs and [`Vfs`] on a machine, as fs/fuse of Linux 6.18 does.
//!
//! Programs call the twin as they call Linux: by paths and descriptors. The twin keeps attributes, names and pages as
//! long as it may, and asks the daemon for the rest; it takes containers and writes into them itself, also inside the
//! daemon's steps (`backing`); it flushes at each close of a descriptor and releases some time later; its mappings
//! outlive their descriptors. Requests wait before the daemon sees them, and answers before the kernel does, so that
//! notifications overtake them. All that is left open so follows from a seed.
//!
//! Left out is what the client does not ask the kernel for (a writeback cache, automatic invalidation), and what no
//! program here does: O_DIRECT, splice, fallocate, locks, symlinks in paths. Directories are listed anew each time.

mod backing;
mod data;
mod errno;
mod inode;
mod mapping;
mod names;
mod notify;
mod open;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::fuse::backings::Backings as Given;
use mafs_client::vfs::{Caller, Error, FileHandle, OpenMode, Vfs};
use mafs_durable::{Disk, MemoryDisk};
use mafs_proto::{Object, Random, VnodeId};
use tokio::sync::watch;
use tokio::time::Instant;

use backing::{Backing, Backings};
pub use errno::Errno;
pub use inode::Attributes;
use inode::{Inode, Version};
use mapping::Mapping;
pub use mapping::MappingId;
use notify::Notified;
pub use open::Descriptor;

/// Programs are root's: nothing is refused, and no set-id bits go.
const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// The longest that a request or an answer is on its way.
const WAY_MAX_MS: u64 = 4;

/// How long a release takes at most.
const RELEASE_MAX_MS: u64 = 40;

/// A kernel before its file system is mounted.
pub(crate) struct Unmounted {
    shared: Arc<Mutex<State>>,
    backings: Backings,
}

/// The kernel of a machine, with the file system mounted. Clones are the same.
#[derive(Clone)]
pub struct Kernel {
    vfs: Vfs,
    shared: Arc<Mutex<State>>,
    backings: Backings,
    /// Containers that the daemon has given out: its own part of the edge.
    given: Arc<Given<Backing>>,
}

/// State of the kernel.
struct State {
    random: Random,
    /// Whether requests and answers take any time at all.
    hurried: bool,
    version: Version,
    inodes: BTreeMap<VnodeId, Inode>,
    entries: BTreeMap<(VnodeId, Bytes), Entry>,
    files: BTreeMap<FileId, OpenFile>,
    descriptors: BTreeMap<Descriptor, FileId>,
    mappings: BTreeMap<MappingId, Mapping>,
    /// Notifications about directories in which names are being asked for or changed: they wait for the end of that.
    late: Vec<Notified>,
    /// Requests about names under way, by directory.
    naming: BTreeMap<VnodeId, u32>,
    /// Releases on their way.
    releasing: u32,
    /// Whether the daemon is gone.
    ended: watch::Sender<bool>,
    next: u64,
}

/// The meaning of a name.
struct Entry {
    /// `None`: nothing.
    vnode: Option<VnodeId>,
    until: Option<Instant>,
}

/// Names an open file: what descriptors share after dup and fork.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct FileId(u64);

#[derive(Clone)]
struct OpenFile {
    vnode: VnodeId,
    handle: FileHandle,
    mode: OpenMode,
    backing: Option<Backing>,
    /// Whether reads go to the daemon, past the pages.
    direct: bool,
    /// Descriptors, and mappings of files whose pages the kernel keeps.
    users: u32,
}

impl Unmounted {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let state = State {
            hurried: random.once_in(4),
            random,
            version: Version(1),
            inodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            files: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            mappings: BTreeMap::new(),
            late: Vec::new(),
            naming: BTreeMap::new(),
            releasing: 0,
            ended: watch::Sender::new(false),
            next: 1,
        };
        Self { shared: Arc::new(Mutex::new(state)), backings: Backings::new(seed ^ 1) }
    }

    /// Returns the disk for the daemon, whose containers programs change by way of the kernel.
    pub(crate) fn disk(&self, disk: MemoryDisk) -> Arc<dyn Disk> {
        self.backings.watch(disk)
    }

    /// Mounts the file system: the daemon answers.
    pub(crate) fn mount(self, vfs: Vfs) -> Kernel {
        vfs.set_kernel_cache(Arc::new(notify::Edge::new(Arc::clone(&self.shared))));
        Kernel { vfs, shared: self.shared, backings: self.backings, given: Arc::default() }
    }
}

impl Kernel {
    /// Returns the daemon behind the kernel.
    #[must_use]
    pub fn vfs(&self) -> &Vfs {
        &self.vfs
    }

    /// Waits until the daemon has been told of every file that was closed.
    pub async fn released(&self) {
        while self.state().releasing > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends all requests: the daemon is gone, or will be, and is told nothing more.
    pub(crate) fn end(&self) {
        self.state().ended.send_replace(true);
    }

    /// Ends what programs have begun to write: that goes on when the daemon is killed.
    pub(crate) fn end_writes(&self) {
        self.backings.end_all();
    }

    /// Goes on without the daemon, which has been killed and has left this disk. Programs outlive it, and go on with
    /// the containers that they have; everything else is ENOTCONN.
    pub(crate) fn outlive(&self, disk: &MemoryDisk) {
        let mut state = self.state();
        for file in state.files.values_mut() {
            file.backing = file.backing.take().map(|backing| backing::left_on(disk, backing));
        }
        for mapping in state.mappings.values_mut() {
            mapping.adopt(disk);
        }
        drop(state);
        self.end();
    }

    fn has_ended(&self) -> bool {
        *self.state().ended.borrow()
    }

    /// Drops some names that nothing uses, as for want of memory, and the inodes that have none then.
    pub fn shrink(&self) {
        let mut state = self.state();
        let parents: BTreeSet<_> = state.entries.keys().map(|(parent, _)| *parent).collect();
        let State { entries, inodes, random, .. } = &mut *state;
        let is_used =
            |vnode: &VnodeId| parents.contains(vnode) || inodes.get(vnode).is_some_and(|inode| inode.opened > 0);
        entries.retain(|_, entry| entry.vnode.as_ref().is_some_and(is_used) || random.coin());
        self.forget_unused(&mut state, |_| true);
    }

    /// Drops inodes without a name that nothing uses, of those that `are`.
    fn forget_unused(&self, state: &mut State, are: impl Fn(&Inode) -> bool) {
        let named: BTreeSet<_> = state.entries.values().filter_map(|entry| entry.vnode).collect();
        let parents: BTreeSet<_> = state.entries.keys().map(|(parent, _)| *parent).collect();
        let is_used = |vnode: &VnodeId, inode: &Inode| {
            let is_held = inode.opened > 0 || Arc::strong_count(&inode.lock) + Arc::strong_count(&inode.names) > 2;
            is_held || *vnode == VnodeId::ROOT || named.contains(vnode) || parents.contains(vnode)
        };
        let unused = state.inodes.iter().filter(|(vnode, inode)| are(inode) && !is_used(vnode, inode));
        let gone: Vec<_> = unused.map(|(vnode, _)| *vnode).collect();
        for vnode in gone {
            let lookups = state.inodes.remove(&vnode).map_or(0, |inode| inode.lookups);
            if !*state.ended.borrow() {
                self.vfs.forget(vnode, lookups);
            }
        }
    }

    /// Drops inodes whose last name was removed, once nothing uses them.
    fn forget_removed(&self) {
        self.forget_unused(&mut self.state(), |inode| inode.attributes().links == 0);
    }

    /// Sends a request to the daemon. The request waits before the daemon sees it, and the answer before the kernel
    /// does.
    async fn ask<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Errno> {
        self.pause().await;
        let answer = self.hear(request).await?;
        self.pause().await;
        Ok(answer?)
    }

    /// Sends a request like [`Self::ask`], whose answer the kernel keeps. `keep` takes the answer in; the daemon tells
    /// again what has changed meanwhile, before or after that.
    async fn ask_and_keep<T, R>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
        keep: impl FnOnce(&mut State, T) -> R,
    ) -> Result<R, Errno> {
        self.pause().await;
        let breaks = self.vfs.breaks();
        let answer = self.hear(request).await?;
        let told_first = self.state().random.coin();
        if told_first {
            self.vfs.tell_again(breaks);
            self.pause().await;
        }
        let kept = answer.map(|answer| keep(&mut self.state(), answer));
        if !told_first {
            self.vfs.tell_again(breaks);
        }
        Ok(kept?)
    }

    /// Waits for the answer of the daemon, if that lives so long.
    async fn hear<T>(&self, request: impl Future<Output = T>) -> Result<T, Errno> {
        let mut ended = self.state().ended.subscribe();
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => Err(Errno::NOTCONN),
            answer = request => Ok(answer),
        }
    }

    /// Pauses in a write, now and then for longer: programs wait for a processor, and for pages.
    async fn linger(&self) {
        self.pause().await;
        let (yields, ms) = {
            let mut state = self.state();
            (state.random.below(30), state.random.below(3 * WAY_MAX_MS))
        };
        match yields % 4 {
            0 => yield_times(yields).await,
            1 => tokio::time::sleep(Duration::from_millis(ms)).await,
            _ => {}
        }
    }

    /// Lets some time pass, or none, or only others.
    async fn pause(&self) {
        let (hurried, chance, ms) = {
            let mut state = self.state();
            (state.hurried, state.random.below(8), 1 + state.random.below(WAY_MAX_MS))
        };
        match chance {
            0..=3 => {}
            4..=6 => yield_times(chance - 3).await,
            _ if hurried => {}
            _ => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }
}

impl State {
    /// Returns a number that nothing else has.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn next_version(&mut self) -> Version {
        self.version.0 += 1;
        self.version
    }

    fn inode(&mut self, vnode: VnodeId) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&vnode).ok_or(Errno::STALE)
    }

    /// Changes what is known of an inode, in a new version.
    fn change(&mut self, vnode: VnodeId, change: impl FnOnce(&mut Inode, Version)) {
        let next = self.next_version();
        if let Some(inode) = self.inodes.get_mut(&vnode) {
            change(inode, next);
        }
    }

    /// Takes what the daemon has told of an object. The attributes count if they were asked for after the last change.
    fn tell(&mut self, object: &Object, keep: Duration, asked: Option<Version>) {
        let told = Attributes::of(object);
        self.change(object.fid.vnode, |inode, next| inode.tell(told, until(keep), asked, next));
    }

    /// Takes what the daemon has told of an object that it has counted as looked up.
    fn look_up(&mut self, object: &Object, keep: Duration, asked: Option<Version>) {
        self.inodes.entry(object.fid.vnode).or_insert_with(|| Inode::new(object)).lookups += 1;
        self.tell(object, keep, asked);
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when something told now is to be asked for again. There is no such time if it may not be kept at all.
fn until(keep: Duration) -> Option<Instant> {
    (keep > Duration::ZERO).then(|| Instant::now() + keep)
}

async fn yield_times(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}
