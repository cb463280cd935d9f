//! Helpers that tests use again and again.

pub(crate) mod locking;
pub(crate) mod logging;
pub(crate) mod worker;

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, FileHandle, Fsync, OpenMode, Vfs, Writeback};
use mafs_durable::Disk;
use mafs_proto::{FsError, Mode, Object, RenameMode, VnodeId};
pub(crate) use mafs_sim::workload::{CALLER, MAKE, READ, WRITE};
use mafs_sim::{Connecting, Machine, Silence, Way, World};

/// Packets vanish, nothing is refused.
pub(crate) const BLACK_HOLE: Silence = Silence { way: Way::Both, connecting: Connecting::Hangs };

/// Runs a test in a paused, single-threaded runtime.
pub(crate) fn simulate(test: impl Future<Output = ()>) {
    simulated(test);
}

/// Runs a test like [`simulate`] and returns its result.
pub(crate) fn simulated<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs what a reference judges, and returns its trace; a violation is a failure. `MAFS_LOG=debug` shows what clients
/// and server log.
pub(crate) fn judged<T>(run: impl Future<Output = Result<T, String>>) -> T {
    logging::start();
    simulated(run).unwrap_or_else(|violation| panic!("{violation}"))
}

/// How many seeds each test runs.
pub(crate) fn seeds(by_default: u64) -> u64 {
    std::env::var("MAFS_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(by_default)
}

/// Returns the first of these seeds, to repeat a run.
pub(crate) fn first_seed(by_default: u64) -> u64 {
    std::env::var("MAFS_SIM_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(by_default)
}

/// Returns so many seeds from this one on, or those that are asked for.
pub(crate) fn seeds_from(first: u64, count: u64) -> std::ops::Range<u64> {
    let first = first_seed(first);
    first..first + seeds(count)
}

/// Checks that two runs of a seed have left the same trace.
pub(crate) fn assert_same(one: &[String], other: &[String]) {
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!("line {at} of the trace is\n{}\nand\n{}", one[at], other[at]);
    }
    assert_eq!(one.len(), other.len());
}

pub(crate) async fn world(delay_ms: u64) -> World {
    World::start(1, Duration::from_millis(delay_ms)).await.expect("a world")
}

pub(crate) async fn create(vfs: &Vfs, name: &'static str) -> (VnodeId, FileHandle) {
    let mode = Mode::from_bits(0o644);
    let (object, opened) = vfs.create(VnodeId::ROOT, Bytes::from(name), mode, MAKE, CALLER).await.expect("a new file");
    (object.fid.vnode, opened.file)
}

pub(crate) async fn write_and_close(vfs: &Vfs, name: &'static str, content: Vec<u8>) -> VnodeId {
    let (vnode, file) = create(vfs, name).await;
    vfs.write(file, 0, content.into()).await.expect("a write");
    vfs.flush(file).await.expect("a close");
    vfs.release(file);
    vnode
}

pub(crate) async fn open_by_name(vfs: &Vfs, name: &'static str) -> FileHandle {
    open_as(vfs, name, READ).await
}

pub(crate) async fn open_as(vfs: &Vfs, name: &'static str, mode: OpenMode) -> FileHandle {
    let object = vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await.expect("a name");
    vfs.open(object.fid.vnode, mode, CALLER).await.expect("an open").file
}

/// Writes over what a file begins with.
pub(crate) async fn overwrite(vfs: &Vfs, name: &'static str, bytes: Vec<u8>) {
    let file = open_as(vfs, name, WRITE).await;
    vfs.write(file, 0, bytes.into()).await.expect("a write");
    vfs.flush(file).await.expect("a close");
    vfs.release(file);
}

/// Renames within the root, over what has the name.
pub(crate) async fn rename(vfs: &Vfs, from: &'static str, to: &'static str) -> Result<(), Error> {
    let (from, to) = (Bytes::from(from), Bytes::from(to));
    vfs.rename(VnodeId::ROOT, from, VnodeId::ROOT, to, RenameMode::Replace, CALLER).await
}

pub(crate) async fn content(vfs: &Vfs, name: &'static str) -> Vec<u8> {
    let file = open_by_name(vfs, name).await;
    let content = vfs.read(file, 0, u32::MAX / 2).await.expect("a read");
    vfs.release(file);
    content.to_vec()
}

/// Returns the content of the one name in the root beside `file`, which is a conflict copy of it.
pub(crate) async fn content_beside_file(vfs: &Vfs) -> Vec<u8> {
    let names = names(vfs, VnodeId::ROOT).await.expect("names");
    let [_, copy] = names.as_slice() else { panic!("{names:?}") };
    let copy: &'static str = String::from_utf8(copy.to_vec()).expect("a name").leak();
    assert!(copy.starts_with("file (conflict "), "{copy}");
    content(vfs, copy).await
}

/// Restarts the client so many times: what of unsynced writes survives a loss of power is another part in each life.
pub(crate) async fn restart_client(world: &mut World, times: usize) {
    for _ in 0..times {
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
    }
}

/// Waits until the server has all that these clients have done, and has refused none of it.
pub(crate) async fn all_is_sent(clients: &[Vfs]) {
    for vfs in clients {
        vfs.sync().await.expect("a sync");
        assert_eq!(vfs.status().refused, []);
    }
}

/// Waits until the server has everything that was closed.
pub(crate) async fn until_all_is_sent(vfs: &Vfs) {
    for _ in 0..1000 {
        if vfs.status().unsent_files == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}", vfs.status());
}

/// Returns where the one container of a file is on the client's disk.
pub(crate) fn container_path(world: &World, vnode: VnodeId) -> String {
    let directory = format!("containers/{:02x}", vnode.0 & 0xff);
    let names = world.client_disk().list(&directory).expect("containers");
    let name = names.iter().find(|name| name.starts_with(&format!("{:x}.", vnode.0))).expect("its container");
    format!("{directory}/{name}")
}

pub(crate) async fn with_empty_cache(world: &mut World) {
    world.stop_client().await;
    world.empty_cache();
    world.start_client().await.expect("the client starts");
}

/// Starts the clients again, configured so, with caches that hold everything and without fsyncs that wait.
pub(crate) async fn configured(mut world: World, mut configure: impl FnMut(&mut Machine)) -> World {
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_fsync(Fsync::Local);
        machine.set_cache_limit_bytes(1 << 30);
        configure(machine);
        machine.start().await.expect("a client");
    }
    world
}

/// Starts the clients again like [`configured`], with what is cached used while the server is out of reach.
pub(crate) async fn usable_apart(world: World, policy: Writeback) -> World {
    configured(world, |machine| {
        machine.set_writeback(policy);
        machine.set_disconnected(true);
    })
    .await
}

/// Looks up a name in the root.
pub(crate) async fn look(vfs: &Vfs, name: &'static str) -> Object {
    vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await.expect("a name")
}

/// Returns the first clients of a world.
pub(crate) fn clients<const COUNT: usize>(world: &World) -> [Vfs; COUNT] {
    std::array::from_fn(|number| world.machines()[number].client().clone())
}

/// O_EXCL.
pub(crate) const EXCLUSIVE: OpenMode = OpenMode { exclusive: true, ..WRITE };

pub(crate) fn name(name: &str) -> Bytes {
    Bytes::from(name.to_owned())
}

/// Checks that a name means nothing: a kernel looks before it makes.
async fn must_be_free(vfs: &Vfs, parent: VnodeId, bytes: Bytes) -> Result<(), Error> {
    match vfs.lookup(parent, bytes).await {
        Err(Error::Refused(FsError::NotFound)) => Ok(()),
        Ok(_) => Err(Error::Refused(FsError::Exists)),
        Err(error) => Err(error),
    }
}

pub(crate) async fn make_dir(vfs: &Vfs, parent: VnodeId, dir: &str) -> Result<VnodeId, Error> {
    must_be_free(vfs, parent, name(dir)).await?;
    Ok(vfs.make_dir(parent, name(dir), Mode::from_bits(0o755), CALLER).await?.fid.vnode)
}

/// Makes an empty file that nobody else may have made.
pub(crate) async fn make_exclusively(vfs: &Vfs, parent: VnodeId, file: &str) -> Result<VnodeId, Error> {
    must_be_free(vfs, parent, name(file)).await?;
    let (object, opened) = vfs.create(parent, name(file), Mode::from_bits(0o644), EXCLUSIVE, CALLER).await?;
    vfs.flush(opened.file).await?;
    vfs.release(opened.file);
    Ok(object.fid.vnode)
}

/// Lists the names in a directory.
pub(crate) async fn names(vfs: &Vfs, dir: VnodeId) -> Result<Vec<Bytes>, Error> {
    let entries = vfs.read_dir(dir, 0, usize::MAX).await?.entries;
    Ok(entries.into_iter().map(|entry| entry.name).filter(|name| !name.starts_with(b".")).collect())
}
