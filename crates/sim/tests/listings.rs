//! Directories that are read while they change, while others are read, and while the link breaks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{KernelCache, Vfs};
use mafs_proto::{Kind, Mode, Name, RenameMode, VnodeId};
use mafs_sim::{Path, World};

use crate::support::{CALLER, simulate, with_empty_cache, world};

/// Keeps nothing, but listings are shown to it.
struct Kernel;

impl KernelCache for Kernel {
    fn invalidate_inode(&self, _vnode: VnodeId) {}
    fn invalidate_attributes(&self, _vnode: VnodeId) {}
    fn invalidate_entry(&self, _parent: VnodeId, _name: &Name) {}
}

fn name(number: u32) -> Bytes {
    Bytes::from(format!("f{number}"))
}

async fn make(vfs: &Vfs, parent: VnodeId, name: Bytes) {
    vfs.make_node(parent, name, Kind::File, Mode::from_bits(0o644), 0, CALLER).await.expect("a file");
}

async fn make_dir(vfs: &Vfs, name: &'static str, files: u32) -> VnodeId {
    let made = vfs.make_dir(VnodeId::ROOT, Bytes::from(name), Mode::from_bits(0o755), CALLER).await;
    let vnode = made.expect("a directory").fid.vnode;
    for number in 0..files {
        make(vfs, vnode, self::name(number)).await;
    }
    vnode
}

async fn vnode_of(vfs: &Vfs, name: &'static str) -> VnodeId {
    vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await.expect("a directory").fid.vnode
}

/// A link so slow that a page of names takes more than a second.
async fn slow_world() -> World {
    let link = Path::Link(Box::new(Profile::steady(64 << 10, Duration::from_millis(20))));
    World::start_over(1, vec![link], false).await.expect("a world")
}

#[test]
fn who_reads_a_directory_half_way_goes_on_at_the_right_name_whatever_has_changed() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        for number in 0..100 {
            make(vfs, VnodeId::ROOT, name(number)).await;
        }
        let mut seen = Vec::new();
        let mut offset = 0;
        loop {
            let page = vfs.read_dir(VnodeId::ROOT, offset, 10).await.expect("a page").entries;
            let Some(last) = page.last() else { break };
            offset = last.next_offset;
            seen.extend(page.into_iter().map(|entry| entry.name));
            if seen.len() == 50 {
                // Names before and behind the reader go, others come, and others begin to read.
                for number in (0..100).step_by(3) {
                    vfs.unlink(VnodeId::ROOT, name(number), CALLER).await.expect("a removal");
                    make(vfs, VnodeId::ROOT, name(100 + number)).await;
                }
                assert_eq!(vfs.read_dir(VnodeId::ROOT, 0, 1000).await.expect("all").entries.len(), 102);
            }
        }
        for number in (0..100).filter(|number| number % 3 != 0) {
            assert_eq!(seen.iter().filter(|seen| **seen == name(number)).count(), 1, "f{number}");
        }
    });
}

#[test]
fn a_name_that_is_replaced_while_its_directory_is_read_is_listed() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        for number in 0..50 {
            make(vfs, VnodeId::ROOT, name(number)).await;
        }
        let mut seen = HashSet::new();
        let mut offset = 0;
        loop {
            let page = vfs.read_dir_plus(VnodeId::ROOT, offset, 10).await.expect("a page").entries;
            let Some(last) = page.last() else { break };
            if offset == 0 {
                for number in 0..50 {
                    make(vfs, VnodeId::ROOT, Bytes::from("new")).await;
                    let (new, old) = (Bytes::from("new"), name(number));
                    let renamed = vfs.rename(VnodeId::ROOT, new, VnodeId::ROOT, old, RenameMode::Replace, CALLER);
                    renamed.await.expect("a rename");
                }
            }
            offset = last.entry.next_offset;
            for listed in page {
                assert!(listed.object.is_none_or(|object| object.fid.vnode == listed.entry.vnode));
                seen.insert(listed.entry.name);
            }
        }
        assert!((0..50).all(|number| seen.contains(&name(number))), "{seen:?}");
    });
}

#[test]
fn who_reads_a_long_directory_that_changes_goes_on_with_what_was_fetched() {
    simulate(async {
        let mut world = world(5).await;
        let directory = make_dir(world.client(), "long", 5000).await;
        let other = world.add_client().await.expect("another client");
        let vfs = world.client();
        vfs.set_kernel_cache(Arc::new(Kernel));
        let first = vfs.read_dir(directory, 0, 100).await.expect("a page").entries;
        make(&other, vnode_of(&other, "long").await, Bytes::from("one more")).await;
        let before = vfs.status().calls;
        let mut offset = first.last().expect("an entry").next_offset;
        for _ in 0..3 {
            // Longer than listings that are not current any more are shown.
            tokio::time::sleep(Duration::from_secs(7)).await;
            let page = vfs.read_dir(directory, offset, 100).await.expect("a page").entries;
            offset = page.last().expect("an entry").next_offset;
        }
        let made = vfs.status().calls - before;
        // The lease is renewed meanwhile.
        assert!(made <= 2, "{made} calls");
    });
}

#[test]
fn a_listing_goes_on_over_the_next_connection() {
    simulate(async {
        let mut world = slow_world().await;
        make_dir(world.client(), "large", 2000).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client().clone();
        let directory = vnode_of(&vfs, "large").await;
        let reading = tokio::spawn(async move { vfs.read_dir(directory, 0, 3000).await });
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            assert!(!reading.is_finished());
            world.machines()[0].cut_link();
        }
        let entries = reading.await.expect("the task").expect("a listing").entries;
        assert_eq!(entries.len(), 2002);
    });
}

#[test]
fn who_waits_for_a_listing_is_not_disturbed_by_those_of_others() {
    simulate(async {
        const SMALL: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let mut world = slow_world().await;
        make_dir(world.client(), "large", 2000).await;
        for name in SMALL {
            make_dir(world.client(), name, 1).await;
        }
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let large = vnode_of(vfs, "large").await;
        let mut small = Vec::new();
        for name in SMALL {
            small.push(vnode_of(vfs, name).await);
        }
        let readers = [(); 2].map(|()| {
            let vfs = vfs.clone();
            tokio::spawn(async move { vfs.read_dir(large, 0, 3000).await })
        });
        for vnode in small {
            vfs.read_dir(vnode, 0, 10).await.expect("a small listing");
        }
        assert!(!readers[0].is_finished(), "the large one came too soon to show anything");
        for reader in readers {
            assert_eq!(reader.await.expect("the task").expect("a listing").entries.len(), 2002);
        }
    });
}

#[test]
fn a_path_is_found_though_this_client_knows_none_of_its_names() {
    simulate(async {
        let mut world = world(5).await;
        let docs = make_dir(world.client(), "docs", 1).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        assert!(vfs.find(b"docs/f0").await.is_some());
        assert_eq!(vfs.find(b"docs").await, Some(docs));
        assert_eq!(vfs.find(b"docs/f1").await, None);
        world.machines()[0].isolate();
        assert_eq!(vfs.find(b"other/f0").await, None);
    });
}
