//! Names and inodes that the kernel is told to forget.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Caller, Error, Fsync, KernelCache, OpenMode, Vfs, Writeback};
use mafs_proto::{Mode, Name, RenameMode, VnodeId, XattrMode};
use mafs_sim::{Crash, World};

use crate::support::{CALLER, MAKE, WRITE, configured, look, open_as, simulate, world, write_and_close};

/// The names and inodes that the kernel was told to forget.
#[derive(Default)]
struct Forgotten {
    names: Mutex<HashSet<(VnodeId, Name)>>,
    inodes: Mutex<HashSet<VnodeId>>,
}

impl KernelCache for Forgotten {
    fn invalidate_inode(&self, vnode: VnodeId) {
        self.inodes.lock().expect("the inodes").insert(vnode);
    }

    fn invalidate_attributes(&self, _vnode: VnodeId) {}

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        self.names.lock().expect("the names").insert((parent, name.clone()));
    }
}

impl Forgotten {
    fn of(vfs: &Vfs) -> Arc<Self> {
        let forgotten = Arc::new(Self::default());
        vfs.set_kernel_cache(forgotten.clone());
        forgotten
    }

    fn contains(&self, name: &'static str) -> bool {
        self.names.lock().expect("the names").contains(&(VnodeId::ROOT, Name::new(name).expect("a name")))
    }

    fn contains_inode(&self, vnode: VnodeId) -> bool {
        self.inodes.lock().expect("the inodes").contains(&vnode)
    }
}

#[test]
fn invariant_3_a_name_that_was_absent_is_forgotten_before_its_making_is_acknowledged() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = &world.client().clone();
        let forgotten = Forgotten::of(vfs);
        let other = world.add_client().await.expect("another client");
        for (name, cut) in [("letter", false), ("parcel", true)] {
            let lookup = || vfs.lookup_remembered(VnodeId::ROOT, Bytes::from(name));
            assert_eq!(lookup().await.expect("an answer"), None);
            if cut {
                // The other is quicker than the 100 ms that this client waits before it connects again.
                world.machines()[0].cut_link();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(!forgotten.contains(name));
            write_and_close(&other, name, b"another client's".to_vec()).await;
            assert!(forgotten.contains(name));
            assert!(lookup().await.expect("an answer").is_some());
        }
    });
}

#[test]
fn a_name_whose_making_is_uncertain_is_forgotten() {
    simulate(async {
        let mut world = world(100).await;
        let vfs = world.client().clone();
        let forgotten = Forgotten::of(&vfs);
        assert_eq!(vfs.lookup_remembered(VnodeId::ROOT, Bytes::from("letter")).await.expect("an answer"), None);
        let creating = tokio::spawn(async move {
            vfs.create(VnodeId::ROOT, Bytes::from("letter"), Mode::from_bits(0o644), MAKE, CALLER).await
        });
        // On its way, or its answer is.
        tokio::time::sleep(Duration::from_millis(150)).await;
        world.crash_server(Crash::Kill);
        creating.await.expect("the task").expect_err("nobody answers");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(forgotten.contains("letter"));
    });
}

#[test]
fn what_an_uncertain_mutation_may_have_changed_is_forgotten() {
    for what in ["chmod", "link", "rename"] {
        simulate(async move {
            let mut world = world(100).await;
            let vfs = world.client().clone();
            let moved = write_and_close(&vfs, "moved", b"old".to_vec()).await;
            let replaced = write_and_close(&vfs, "replaced", b"older".to_vec()).await;
            let forgotten = Forgotten::of(&vfs);
            let changing = tokio::spawn(async move {
                let (root, from, to) = (VnodeId::ROOT, Bytes::from("moved"), Bytes::from("replaced"));
                match what {
                    "chmod" => {
                        let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
                        vfs.set_attributes(moved, set, None, CALLER).await.map(drop)
                    }
                    "link" => vfs.link(moved, root, Bytes::from("linked"), CALLER).await.map(drop),
                    _ => vfs.rename(root, from, root, to, RenameMode::Replace, CALLER).await,
                }
            });
            // On its way, or its answer is.
            tokio::time::sleep(Duration::from_millis(150)).await;
            world.crash_server(Crash::Kill);
            changing.await.expect("the task").expect_err("nobody answers");
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(forgotten.contains_inode(moved), "{what}");
            assert!(forgotten.contains_inode(replaced) == (what == "rename"), "{what}");
        });
    }
}

/// Empties a file as another user than root, which fails because the server is not there. Returns whether the kernel
/// is told that what it knows of the file is out of date.
async fn is_forgotten_after_failing<T>(emptied: impl AsyncFnOnce(&Vfs, VnodeId) -> Result<T, Error>) -> bool {
    let mut world = world(5).await;
    let vfs = world.client().clone();
    let vnode = write_and_close(&vfs, "file", b"content".to_vec()).await;
    let set = Attributes { mode: Some(Mode::from_bits(0o6777)), ..Attributes::default() };
    vfs.set_attributes(vnode, set, None, CALLER).await.expect("a new mode");
    let forgotten = Forgotten::of(&vfs);
    world.crash_server(Crash::Kill);
    assert!(emptied(&vfs, vnode).await.is_err(), "the server is not there");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(vfs.status().unsent_files, 1, "it is empty on this machine");
    forgotten.contains_inode(vnode)
}

#[test]
fn a_size_that_was_set_in_vain_is_forgotten() {
    simulate(async {
        let set = Attributes { size: Some(0), ..Attributes::default() };
        assert!(
            is_forgotten_after_failing(async |vfs: &Vfs, vnode| vfs.set_attributes(vnode, set, None, CALLER).await)
                .await
        );
    });
}

#[test]
fn the_size_of_a_file_that_was_opened_in_vain_to_be_cut_is_forgotten() {
    simulate(async {
        let (mode, caller) = (OpenMode { truncate: true, ..WRITE }, Caller { uid: 1000, gid: 1000 });
        assert!(is_forgotten_after_failing(async |vfs: &Vfs, vnode| vfs.open(vnode, mode, caller).await).await);
    });
}

/// A kernel that holds an inode as long as an operation on it is under way, and cannot forget it before.
#[derive(Default)]
struct Holding(AtomicBool);

impl KernelCache for Holding {
    fn invalidate_inode(&self, _: VnodeId) {
        while self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn invalidate_attributes(&self, _: VnodeId) {}

    fn invalidate_entry(&self, parent: VnodeId, _: &Name) {
        self.invalidate_inode(parent);
    }
}

/// consistency.md, "Kernel deadlock": an operation that waits for the server's word about what is in the log must not
/// be waited for by what the server waits for.
#[test]
fn regression_an_operation_that_waits_behind_the_log_holds_up_no_new_session() {
    // Virtual time stands still while the kernel is told.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for what in ["mkdir", "fsync", "setxattr"] {
            let world = World::start(1, Duration::from_millis(1)).await.expect("a world");
            let mut world = configured(world, |machine| {
                machine.set_writeback(Writeback::Sirp);
                machine.set_fsync(Fsync::Server);
                machine.set_deadline(Duration::from_secs(5));
            })
            .await;
            let vfs = world.client().clone();
            let vnode = write_and_close(&vfs, "file", b"content".to_vec()).await;
            vfs.sync().await.expect("a sync");
            vfs.count_lookup(&look(&vfs, "file").await);
            let kernel = Arc::new(Holding::default());
            vfs.set_kernel_cache(kernel.clone());
            world.crash_server(Crash::Kill);
            kernel.0.store(true, Ordering::Relaxed);
            let operation = tokio::spawn({
                let (vfs, kernel) = (vfs.clone(), kernel.clone());
                async move {
                    let done = operate(&vfs, vnode, what).await;
                    kernel.0.store(false, Ordering::Relaxed);
                    done
                }
            });
            tokio::time::sleep(Duration::from_millis(50)).await;
            world.start_server().expect("the server starts");
            operation.await.expect("the task").expect(what);
        }
    });
}

async fn operate(vfs: &Vfs, vnode: VnodeId, what: &str) -> Result<(), Error> {
    match what {
        "mkdir" => vfs.make_dir(VnodeId::ROOT, Bytes::from("d"), Mode::from_bits(0o755), CALLER).await.map(drop),
        "fsync" => {
            let file = open_as(vfs, "file", WRITE).await;
            vfs.write(file, 0, Bytes::from("more")).await?;
            let done = vfs.fsync(file).await;
            vfs.release(file);
            done
        }
        _ => {
            let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
            vfs.set_attributes(vnode, set, None, CALLER).await?;
            let (name, value) = (Bytes::from("user.colour"), Bytes::from("blue"));
            vfs.set_xattr(vnode, name, value, XattrMode::Either, CALLER).await
        }
    }
}
