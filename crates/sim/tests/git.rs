//! `git commit` and `git gc` in the background: whatever the writer's end leaves at the server is a repository that
//! `git fsck` finds whole.
//!
//! The calls of git were recorded (`recordings/record-git`), here they are made again over a slow link. The image that
//! a crash of the server would leave after each of its transactions is kept; the server has that also when the writer
//! is lost at that moment. Each image is looked at by a client that has nothing else, after the writer's lease, and
//! the tree that this client sees is given to the real git.
//!
//! `MAFS_SIM_SEEDS=2 cargo test --release -p mafs-sim --test sim git:: -- --ignored` does it with `writeback=async`
//! too.

mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Vfs, Writeback};
use mafs_proto::{Kind, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, Path, ServerImage, World};
use recording::{Recording, Replayer};

use crate::support::{READ, configured, seeds, simulated};

/// Small files take long enough for the next ones to wait.
const RATE: u64 = 8_000;
const RTT: Duration = Duration::from_millis(40);

/// Shorter than any frame takes.
const LOOK_EVERY: Duration = Duration::from_micros(200);

const DEFAULTS: &str = include_str!("../recordings/git.txt");
const FSYNC_ALL: &str = include_str!("../recordings/git-fsync-all.txt");

/// Files and directories by path; directories have no content.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// Images that a crash of the server would have left at each moment, from the beginning of the recorded changes on.
struct Run {
    world: World,
    images: Vec<ServerImage>,
    last: ServerImage,
    syncs: u64,
}

impl Run {
    async fn start(recording: &Recording, writeback: Writeback) -> Self {
        let link = Profile::steady(RATE, RTT / 2);
        let world = World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world");
        let world = configured(world, |machine| machine.set_writeback(writeback)).await;
        Replayer::new(world.client().clone()).prepare(recording).await;
        world.client().sync().await.expect("a sync");
        let syncs = world.server_syncs();
        let last = world.server_image();
        Self { world, images: Vec::new(), last, syncs }
    }

    /// Keeps what a crash would leave, if that is another image than before.
    fn look(&mut self) {
        let syncs = self.world.server_syncs();
        if std::mem::replace(&mut self.syncs, syncs) != syncs {
            let image = self.world.server_image();
            self.images.extend(image.since(&self.last).expect("a journal"));
            self.images.push(image.clone());
            self.last = image;
        }
    }

    /// Does what was recorded, until it is sent.
    async fn replay(&mut self, recording: &Recording) {
        let vfs = self.world.client().clone();
        let replaying = tokio::spawn(Replayer::new(vfs.clone()).replay(recording.clone()));
        while !(replaying.is_finished() && is_sent(&vfs)) {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
        }
        replaying.await.expect("all that git did");
    }
}

fn is_sent(vfs: &Vfs) -> bool {
    let status = vfs.status();
    status.log.records == 0 && status.unsent_files == 0
}

/// Returns the tree that a client sees that has nothing else than the server, once nobody waits for the writer any
/// more.
async fn seen(image: ServerImage) -> Tree {
    let world = World::start_on(image, 7).await.expect("a world");
    tokio::time::sleep(LEASE + LEASE_BIAS + Duration::from_secs(1)).await;
    let (vfs, mut tree) = (world.client().clone(), Tree::new());
    let mut left = vec![(VnodeId::ROOT, String::new())];
    while let Some((directory, path)) = left.pop() {
        let page = vfs.read_dir(directory, 0, 10_000).await.expect("a listing");
        for entry in page.entries {
            let name = String::from_utf8(entry.name.to_vec()).expect("a name");
            if name == "." || name == ".." {
                continue;
            }
            let path = format!("{path}{name}");
            if entry.kind == Kind::Directory {
                left.push((entry.vnode, format!("{path}/")));
                tree.insert(path, None);
            } else {
                let file = vfs.open(entry.vnode, READ, crate::support::CALLER).await.expect("an open").file;
                let content = vfs.read(file, 0, u32::MAX / 2).await.expect("a read");
                vfs.release(file);
                tree.insert(path, Some(content.to_vec()));
            }
        }
    }
    tree
}

/// Looks at images, at each tree once.
struct Checker {
    directory: PathBuf,
    checked: BTreeSet<Tree>,
    /// Whether a branch must be there at every moment.
    branch: bool,
}

impl Checker {
    fn new(name: &str, branch: bool) -> Self {
        let directory = FilePath::new(env!("CARGO_TARGET_TMPDIR")).join(format!("git-{name}"));
        Self { directory, checked: BTreeSet::new(), branch }
    }

    fn check(&mut self, images: Vec<ServerImage>, what: &str) {
        for (number, image) in images.into_iter().enumerate() {
            // In a runtime of its own, which ends all that still runs there.
            let tree = simulated(seen(image));
            if !self.checked.contains(&tree) {
                self.check_tree(&tree, &format!("{what}, image {number}"));
                self.checked.insert(tree);
            }
        }
    }

    fn check_tree(&self, tree: &Tree, what: &str) {
        let _ = fs::remove_dir_all(&self.directory);
        fs::create_dir_all(&self.directory).expect("a directory");
        for (path, content) in tree {
            let path = self.directory.join(path);
            match content {
                None => fs::create_dir(path).expect("a directory"),
                Some(content) => fs::write(path, content).expect("a file"),
            }
        }
        let fsck = self.git(&["fsck", "--full", "--strict"]);
        assert!(fsck.status.success(), "{what}: {fsck:?}; {:?}", tree.keys());
        let head = self.git(&["rev-parse", "--verify", "HEAD^{tree}"]);
        assert!(!self.branch || head.status.success(), "{what}: {head:?}; {:?}", tree.keys());
    }

    fn git(&self, arguments: &[&str]) -> Output {
        let mut git = Command::new("git");
        git.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        git.env("GIT_CEILING_DIRECTORIES", env!("CARGO_TARGET_TMPDIR")).env("GIT_CONFIG_NOSYSTEM", "1");
        git.env("HOME", &self.directory).args(arguments).current_dir(&self.directory).output().expect("git")
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            println!("{} trees were checked in {}", self.checked.len(), self.directory.display());
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

fn check_every_point(name: &str, recording: &str, branch: bool) {
    let recording = &Recording::parse(recording);
    let mut checker = Checker::new(name, branch);
    let policies = usize::try_from(seeds(1)).expect("a number");
    for writeback in [Writeback::Sirp, Writeback::Async].into_iter().take(policies) {
        let images = simulated(async move {
            let mut run = Run::start(recording, writeback).await;
            run.replay(recording).await;
            run.images
        });
        println!("{name}, {writeback:?}: {} images of the server", images.len());
        assert!(images.len() > 100, "{}", images.len());
        checker.check(images, &format!("{writeback:?}"));
    }
    let last = checker.git(&["log", "-1", "--format=%s"]);
    assert_eq!(String::from_utf8_lossy(&last.stdout), "third\n");
}

/// Ends the writer after so many steps. Returns what the server has when the next life has sent what was left.
async fn after_the_end_of_the_writer(recording: &Recording, steps: usize, crash: Crash) -> ServerImage {
    let Run { mut world, .. } = Run::start(recording, Writeback::Sirp).await;
    Replayer::new(world.client().clone()).replay(recording.first(steps)).await;
    world.crash_client(crash);
    world.start_client().await.expect("the client starts");
    world.client().sync().await.expect("a sync");
    world.server_image()
}

/// Ends the writer at some of its steps, or at all of them if there is more than one seed.
fn end_the_writer(name: &str, recording: &str, crash: Crash, branch: bool) {
    let recording = &Recording::parse(recording);
    let mut checker = Checker::new(name, branch);
    let every = if seeds(1) > 1 { 1 } else { 3 };
    for steps in (0..=recording.len()).step_by(every) {
        let image = simulated(after_the_end_of_the_writer(recording, steps, crash));
        checker.check(vec![image], &format!("{crash:?} after {steps} steps"));
    }
}

/// Closed files are kept, and sent in their order.
#[test]
#[ignore = "needs: git"]
fn git_fsck_passes_wherever_the_writer_is_killed() {
    end_the_writer("killed", DEFAULTS, Crash::Kill, false);
}

#[test]
#[ignore = "needs: git"]
fn with_all_fsynced_git_fsck_passes_wherever_the_writer_loses_its_power() {
    end_the_writer("powerless", FSYNC_ALL, Crash::Power, true);
}

#[test]
#[ignore = "needs: git"]
fn git_fsck_passes_at_every_point_of_a_commit_and_a_gc() {
    check_every_point("defaults", DEFAULTS, false);
}

/// The fsyncs of git are in order: a branch is packed before it is removed.
#[test]
#[ignore = "needs: git"]
fn with_all_fsynced_there_is_a_branch_at_every_point_of_a_commit_and_a_gc() {
    check_every_point("fsync-all", FSYNC_ALL, true);
}
