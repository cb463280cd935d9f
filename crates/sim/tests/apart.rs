//! Clients that change one tree while nobody can reach the server, and come back one after the other: whatever one of
//! them had in the end is there, all see the same, and who did not touch what another has changed has no conflict.
//!
//! `MAFS_SIM_SEEDS=2000 cargo test --release -p mafs-sim --test apart` is the long run.

#![allow(clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Vfs, Writeback};
use mafs_proto::{FsError, Kind, Mode, Random, RenameMode, VnodeId};
use mafs_sim::{Connecting, Crash, Silence, Way, World};
use support::{CALLER, READ, WRITE, configured, first_seed, names, seeds, simulate};
use tokio::time::sleep;

const CLIENTS: usize = 3;
const BLACK_HOLE: Silence = Silence { way: Way::Both, connecting: Connecting::Hangs };
const DIRS: [&str; 3] = ["d0", "d1", "d2"];
const FILES: u64 = 5;
const STEPS: u64 = 25;

/// Files by their paths with what they hold, and directories with nothing.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

async fn tree(vfs: &Vfs) -> Result<Tree, Error> {
    let mut found = Tree::new();
    let mut left = vec![(String::new(), VnodeId::ROOT)];
    while let Some((path, dir)) = left.pop() {
        for name in names(vfs, dir).await? {
            let text = format!("{path}/{}", String::from_utf8_lossy(&name));
            add(vfs, &mut found, &mut left, (dir, name, text)).await?;
        }
        if path.is_empty()
            && let Ok(lost) = vfs.lookup(dir, Bytes::from_static(b".mafs-conflicts")).await
        {
            left.push(("/.mafs-conflicts".to_owned(), lost.fid.vnode));
        }
    }
    Ok(found)
}

async fn add(
    vfs: &Vfs,
    found: &mut Tree,
    left: &mut Vec<(String, VnodeId)>,
    (dir, name, path): (VnodeId, Bytes, String),
) -> Result<(), Error> {
    let object = vfs.lookup(dir, name).await?;
    if object.status.kind == Kind::Directory {
        found.insert(path.clone(), None);
        left.push((path, object.fid.vnode));
    } else {
        let file = vfs.open(object.fid.vnode, READ, CALLER).await?.file;
        let content = vfs.read(file, 0, u32::MAX / 2).await;
        vfs.release(file);
        found.insert(path, Some(content?.to_vec()));
    }
    Ok(())
}

/// One client's work while it is alone.
struct Worker {
    vfs: Vfs,
    number: usize,
    random: Random,
    /// Files that are only this client's to touch.
    own: bool,
    written: u64,
}

impl Worker {
    fn file_name(&mut self) -> Bytes {
        let file = self.random.below(FILES);
        Bytes::from(if self.own { format!("f{file}-of-{}", self.number) } else { format!("f{file}") })
    }

    async fn dir(&mut self) -> Result<VnodeId, Error> {
        let dir = DIRS[usize::try_from(self.random.below(3)).expect("small")];
        Ok(self.vfs.lookup(VnodeId::ROOT, Bytes::from(dir)).await?.fid.vnode)
    }

    /// A content that nobody else writes, and nobody twice; now and then one that needs a file of its own.
    fn content(&mut self) -> Vec<u8> {
        self.written += 1;
        let mut content = format!("{} of {}", self.written, self.number).into_bytes();
        if self.random.below(4) == 0 {
            content.resize(20_000 + content.len(), b'.');
        }
        content
    }

    async fn write(&mut self, dir: VnodeId, name: Bytes) -> Result<(), Error> {
        let content = self.content();
        let file = match self.vfs.lookup(dir, name.clone()).await {
            Ok(object) => {
                let mode = mafs_client::vfs::OpenMode { truncate: true, ..WRITE };
                self.vfs.open(object.fid.vnode, mode, CALLER).await?.file
            }
            Err(Error::Refused(FsError::NotFound)) => {
                self.vfs.create(dir, name, Mode::from_bits(0o644), WRITE, CALLER).await?.1.file
            }
            Err(error) => return Err(error),
        };
        let written = self.vfs.write(file, 0, content.into()).await;
        let closed = self.vfs.flush(file).await;
        self.vfs.release(file);
        written.and(closed)
    }

    async fn step(&mut self) -> Result<(), Error> {
        let dir = self.dir().await?;
        let (name, other) = (self.file_name(), self.file_name());
        match self.random.below(10) {
            0..=3 => self.write(dir, name).await,
            4 | 5 => {
                // As editors save.
                let temp = Bytes::from(format!("temp-{}-{}", self.number, self.written));
                self.write(dir, temp.clone()).await?;
                self.vfs.rename(dir, temp, dir, name, RenameMode::Replace, CALLER).await
            }
            6 => {
                let to = self.dir().await?;
                self.vfs.rename(dir, name, to, other, RenameMode::Replace, CALLER).await
            }
            7 => self.vfs.unlink(dir, name, CALLER).await,
            8 => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                self.vfs.lookup(dir, Bytes::from(sub.clone())).await.err();
                let sub = self.vfs.make_dir(dir, Bytes::from(sub), Mode::from_bits(0o755), CALLER).await?;
                self.write(sub.fid.vnode, name).await
            }
            _ => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                let object = self.vfs.lookup(dir, Bytes::from(sub.clone())).await?;
                for name in names(&self.vfs, object.fid.vnode).await? {
                    self.vfs.unlink(object.fid.vnode, name, CALLER).await?;
                }
                self.vfs.remove_dir(dir, Bytes::from(sub), CALLER).await
            }
        }
    }
}

/// A tree that all clients have in their caches, and what it holds.
async fn everybody_has_the_tree(world: &World, own: bool) -> Tree {
    let first = world.machines()[0].client();
    for dir in DIRS {
        let name = Bytes::from(dir);
        first.make_dir(VnodeId::ROOT, name, Mode::from_bits(0o755), CALLER).await.expect("a directory");
    }
    for number in 0..CLIENTS {
        let (vfs, random) = (first.clone(), Random::new(7 + number as u64));
        let mut worker = Worker { vfs, number, random, own, written: 1000 };
        for _ in 0..8 {
            let dir = worker.dir().await.expect("a directory");
            let name = worker.file_name();
            worker.write(dir, name).await.expect("a file");
        }
    }
    first.sync().await.expect("a sync");
    let mut all = Tree::new();
    for machine in world.machines() {
        // Twice, for directories are cached whole from the second miss on.
        for _ in 0..2 {
            all = tree(machine.client()).await.expect("the tree");
        }
    }
    all
}

async fn part(world: &World) {
    for machine in world.machines() {
        machine.fall_silent(BLACK_HOLE);
        let asked = machine.client().lookup(VnodeId::ROOT, Bytes::from_static(b"nobody-knows")).await;
        assert!(asked.is_err());
    }
    sleep(Duration::from_secs(30)).await;
    assert!(world.machines().iter().all(|machine| !machine.client().status().connected));
}

async fn plug_in(world: &World, number: usize) {
    let machine = &world.machines()[number];
    machine.break_silence();
    while !machine.client().status().connected {
        sleep(Duration::from_millis(100)).await;
    }
    let synced = machine.client().sync().await;
    assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "{synced:?}");
}

/// What was written while apart, by whoever it was.
fn contents(tree: &Tree) -> BTreeSet<Vec<u8>> {
    tree.values().flatten().cloned().collect()
}

async fn work_apart(seed: u64, own: bool) {
    let world = World::start_several(seed, CLIENTS, Duration::from_millis(10), false).await.expect("a world");
    let mut world = configured(world, |machine| {
        machine.set_writeback(if seed.is_multiple_of(3) { Writeback::Async } else { Writeback::Sirp });
        machine.set_disconnected(true);
    })
    .await;
    let before = everybody_has_the_tree(&world, own).await;
    part(&world).await;
    let mut random = Random::new(seed);
    let mut had = Vec::new();
    for number in 0..CLIENTS {
        let vfs = world.machines()[number].client().clone();
        let mut worker = Worker { vfs, number, random: Random::new(random.below(u64::MAX)), own, written: 0 };
        for _ in 0..STEPS {
            match worker.step().await {
                Ok(()) | Err(Error::Refused(FsError::NotFound | FsError::Exists | FsError::NotEmpty)) => {}
                Err(error) => panic!("seed {seed}, client {number}: {error}"),
            }
        }
        had.push(tree(&worker.vfs).await.expect("what a client has"));
    }
    if random.below(3) == 0 {
        let victim = usize::try_from(random.below(CLIENTS as u64)).expect("small");
        world.crash_machine(victim, Crash::Kill);
        world.machines_mut()[victim].start().await.expect("it starts without the server");
    }
    let first = usize::try_from(random.below(CLIENTS as u64)).expect("small");
    for number in (0..CLIENTS).map(|number| (first + number) % CLIENTS) {
        plug_in(&world, number).await;
    }
    if random.below(2) == 0 {
        // What it finds on its disk that nobody names it removes.
        world.crash_server(Crash::Kill);
        world.start_server().expect("the server starts");
        sleep(Duration::from_secs(5)).await;
    }
    let late = world.add_client().await.expect("another client");
    let now = tree(&late).await.expect("the tree");
    let (known, there) = (contents(&before), contents(&now));
    for (number, had) in had.iter().enumerate() {
        let is_lost = |(_, content): &(&String, &Option<Vec<u8>>)| {
            content.as_ref().is_some_and(|content| !known.contains(content) && !there.contains(content))
        };
        let lost: Vec<_> = had.iter().filter(is_lost).map(|(path, _)| path).collect();
        assert!(lost.is_empty(), "seed {seed}: client {number} has lost {lost:?}; {:?}", now.keys());
        let shown = tree(world.machines()[number].client()).await.expect("the tree");
        assert_eq!(shown, now, "seed {seed}: client {number} shows something else");
    }
    if own {
        let conflicts = late.conflicts().await.expect("the conflicts");
        assert!(conflicts.is_empty(), "seed {seed}: {conflicts:?}");
        for (number, machine) in world.machines().iter().take(CLIENTS).enumerate() {
            assert_eq!(machine.client().status().refused, vec![], "seed {seed}: client {number}");
            let is_own = |path: &String| path.ends_with(&format!("-of-{number}"));
            let of = |tree: &Tree| -> Tree { tree.clone().into_iter().filter(|(path, _)| is_own(path)).collect() };
            assert_eq!(of(&now), of(&had[number]), "seed {seed}: client {number}");
        }
    }
}

#[test]
fn invariant_9_nothing_is_lost_that_clients_have_done_to_the_same_files_while_apart() {
    let first = first_seed(0);
    for seed in first..first + seeds(8) {
        simulate(work_apart(seed, false));
    }
}

#[test]
fn who_works_on_other_files_while_apart_has_no_conflict() {
    let first = first_seed(0);
    for seed in first..first + seeds(4) {
        simulate(work_apart(seed, true));
    }
}
