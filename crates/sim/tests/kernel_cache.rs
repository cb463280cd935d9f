//! What the kernel is told to forget.

#![allow(clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{KernelCache, Vfs};
use mafs_proto::{Mode, Name, VnodeId};
use mafs_sim::Crash;
use support::{CALLER, WRITE, simulate, world, write_and_close};

/// The names that the kernel was told to forget.
#[derive(Default)]
struct Forgotten(Mutex<HashSet<(VnodeId, Name)>>);

impl KernelCache for Forgotten {
    fn invalidate_inode(&self, _vnode: VnodeId) {}

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        self.0.lock().expect("the names").insert((parent, name.clone()));
    }
}

impl Forgotten {
    fn of(vfs: &Vfs) -> Arc<Self> {
        let forgotten = Arc::new(Self::default());
        vfs.set_kernel_cache(forgotten.clone());
        forgotten
    }

    fn contains(&self, name: &'static str) -> bool {
        self.0.lock().expect("the names").contains(&(VnodeId::ROOT, Name::new(name).expect("a name")))
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
            vfs.create(VnodeId::ROOT, Bytes::from("letter"), Mode::from_bits(0o644), WRITE, CALLER).await
        });
        // On its way, or its answer is.
        tokio::time::sleep(Duration::from_millis(150)).await;
        world.crash_server(Crash::Kill);
        creating.await.expect("the task").expect_err("nobody answers");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(forgotten.contains("letter"));
    });
}
