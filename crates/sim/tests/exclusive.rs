//! Directories that one client has to itself, and the end of that when another asks for them (consistency.md,
//! "Promises and leases").

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Vfs, Writeback};
use mafs_proto::{FsError, Mode, RenameMode, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{CALLER, configured, make_dir, make_exclusively, name, names, simulate};

/// The delay one way.
const FAR: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(3);
const POLICIES: [Writeback; 2] = [Writeback::Async, Writeback::Sirp];

async fn clients(count: usize, delay: Duration, policy: Writeback) -> World {
    let world = World::start_several(1, count, delay, false).await.expect("a world");
    configured(world, |machine| machine.set_writeback(policy)).await
}

fn vfs(world: &World, number: usize) -> Vfs {
    world.machines()[number].client().clone()
}

/// A directory that client 0 has made, and that both know the name of.
async fn shared_dir(world: &World) -> VnodeId {
    let dir = make_dir(&vfs(world, 0), VnodeId::ROOT, "dir").await.expect("a directory");
    vfs(world, 0).sync().await.expect("a sync");
    dir
}

#[test]
fn a_fresh_tree_is_made_without_a_round_trip_for_each_name() {
    for policy in POLICIES {
        simulate(async {
            let world = clients(2, FAR, policy).await;
            let maker = vfs(&world, 0);
            let tree = make_dir(&maker, VnodeId::ROOT, "tree").await.expect("a directory");
            let begun = Instant::now();
            for number in 0..100 {
                let dir = make_dir(&maker, tree, &format!("dir-{number}")).await.expect("a directory");
                for file in 0..10 {
                    make_exclusively(&maker, dir, &format!("file-{file}")).await.expect("a file");
                }
                let mode = RenameMode::NoReplace;
                maker.rename(dir, name("file-0"), dir, name("renamed"), mode, CALLER).await.expect("a rename");
                let target = Bytes::from_static(b"renamed");
                maker.make_symlink(dir, name("symlink"), target, CALLER).await.expect("a symlink");
            }
            assert!(begun.elapsed() < FAR, "it took {:?}", begun.elapsed());
            maker.sync().await.expect("a sync");
            assert!(begun.elapsed() < Duration::from_secs(60), "it was sent after {:?}", begun.elapsed());
            assert!(maker.status().refused.is_empty());
            let other = vfs(&world, 1);
            let tree = other.lookup(VnodeId::ROOT, name("tree")).await.expect("the tree").fid.vnode;
            assert_eq!(names(&other, tree).await.expect("its names").len(), 100);
            let dir = other.lookup(tree, name("dir-99")).await.expect("a directory").fid.vnode;
            assert_eq!(names(&other, dir).await.expect("its names").len(), 11);
        });
    }
}

#[test]
fn only_the_first_name_in_a_directory_that_was_there_costs_a_round_trip() {
    for policy in POLICIES {
        simulate(async {
            let world = clients(2, FAR, policy).await;
            let maker = vfs(&world, 0);
            make_exclusively(&maker, VnodeId::ROOT, "first").await.expect("a file");
            let begun = Instant::now();
            for number in 0..100 {
                make_exclusively(&maker, VnodeId::ROOT, &format!("file-{number}")).await.expect("a file");
            }
            assert!(begun.elapsed() < FAR, "it took {:?}", begun.elapsed());
        });
    }
}

#[test]
fn whoever_asks_for_a_directory_sees_every_name_that_was_decided_there() {
    for (policy, ask) in POLICIES.into_iter().flat_map(|policy| (0..4).map(move |ask| (policy, ask))) {
        simulate(async {
            let world = clients(2, FAR, policy).await;
            let (maker, other) = (vfs(&world, 0), vfs(&world, 1));
            let dir = shared_dir(&world).await;
            assert_eq!(other.lookup(VnodeId::ROOT, name("dir")).await.expect("the directory").fid.vnode, dir);
            // So that a log is being sent in which the names are last.
            for number in 0..500 {
                make_exclusively(&maker, dir, &format!("file-{number}")).await.expect("a file");
            }
            let below = make_dir(&maker, dir, "below").await.expect("a directory");
            make_exclusively(&maker, below, "deep").await.expect("a file");
            let asked = Instant::now();
            match ask {
                0 => assert_eq!(names(&other, dir).await.expect("its names").len(), 501),
                1 => drop(other.lookup(dir, name("file-499")).await.expect("a file")),
                2 => {
                    let made = other.make_dir(dir, name("file-499"), Mode::from_bits(0o755), CALLER).await;
                    assert!(matches!(made, Err(Error::Refused(FsError::Exists))), "{made:?}");
                }
                _ => {
                    let removed = other.remove_dir(VnodeId::ROOT, name("dir"), CALLER).await;
                    assert!(matches!(removed, Err(Error::Refused(FsError::NotEmpty))), "{removed:?}");
                }
            }
            assert!(asked.elapsed() < Duration::from_secs(30), "{policy:?} {ask}: {:?}", asked.elapsed());
            let below = other.lookup(dir, name("below")).await.expect("a directory").fid.vnode;
            assert_eq!(names(&other, below).await.expect("its names"), ["deep"]);
            maker.sync().await.expect("a sync");
            assert!(maker.status().refused.is_empty() && other.status().refused.is_empty());
        });
    }
}

#[test]
fn a_directory_that_another_has_asked_for_is_shared_until_nobody_does() {
    simulate(async {
        let world = clients(2, FAR, Writeback::Sirp).await;
        let (maker, other) = (vfs(&world, 0), vfs(&world, 1));
        let dir = shared_dir(&world).await;
        other.lookup(VnodeId::ROOT, name("dir")).await.expect("the directory");
        other.lookup(dir, name("nothing")).await.expect_err("no name");
        let shared = Instant::now();
        make_exclusively(&maker, dir, "asked-for").await.expect("a file");
        assert!(shared.elapsed() >= FAR * 2, "it was decided here after {:?}", shared.elapsed());
        sleep(Duration::from_secs(10)).await;
        make_exclusively(&maker, dir, "alone-again").await.expect("a file");
        let alone = Instant::now();
        make_exclusively(&maker, dir, "at-once").await.expect("a file");
        assert!(alone.elapsed() < FAR, "it took {:?}", alone.elapsed());
    });
}

#[test]
fn who_cannot_be_reached_delays_by_its_lease_at_most_and_its_names_are_kept_beside_others() {
    for policy in POLICIES {
        simulate(async {
            let world = clients(2, Duration::from_millis(5), policy).await;
            let (maker, other) = (vfs(&world, 0), vfs(&world, 1));
            let dir = shared_dir(&world).await;
            other.lookup(VnodeId::ROOT, name("dir")).await.expect("the directory");
            world.machines()[0].isolate();
            let cut_off = Instant::now();
            make_exclusively(&maker, dir, "name").await.expect("the lease holds");
            make_dir(&other, dir, "name").await.expect("the name is free as far as anybody knows");
            let waited = cut_off.elapsed();
            assert!(waited > LEASE / 2 && waited < LEASE + LEASE_BIAS + SOON, "waited {waited:?}");
            let lapsed = make_exclusively(&maker, dir, "later").await;
            assert!(lapsed.is_err(), "names were decided without a lease");
            world.machines()[0].restore_link();
            sleep(Duration::from_secs(30)).await;
            let conflicts = maker.conflicts().await.expect("the conflicts");
            assert_eq!((conflicts.len(), maker.status().refused.len()), (1, 0), "{conflicts:?}");
        });
    }
}

#[test]
fn a_recall_waits_for_no_operation_and_no_operation_for_a_recall() {
    // Both make names in the directory of the other, so each recall meets operations that wait for the other.
    for (policy, seed) in POLICIES.into_iter().flat_map(|policy| (0..4).map(move |seed| (policy, seed))) {
        simulate(async {
            let world = clients(2, Duration::from_millis(100), policy).await;
            let makers = [vfs(&world, 0), vfs(&world, 1)];
            let mut dirs = Vec::new();
            for (number, maker) in makers.iter().enumerate() {
                dirs.push(make_dir(maker, VnodeId::ROOT, &format!("dir-{number}")).await.expect("a directory"));
                make_exclusively(maker, dirs[number], "own").await.expect("a file");
            }
            sleep(SOON).await;
            for (number, maker) in makers.iter().enumerate() {
                let there = maker.lookup(VnodeId::ROOT, name(&format!("dir-{}", 1 - number))).await;
                assert_eq!(there.expect("the other's directory").fid.vnode, dirs[1 - number]);
            }
            let work = makers.iter().enumerate().map(|(number, maker)| {
                let (maker, dirs) = (maker.clone(), dirs.clone());
                tokio::spawn(async move {
                    for round in 0..20 {
                        let dir = dirs[(number + round + seed) % 2];
                        let file = format!("file-{}", round / 2);
                        match make_exclusively(&maker, dir, &file).await {
                            Ok(_) | Err(Error::Refused(FsError::Exists)) => {}
                            Err(error) => panic!("{file}: {error}"),
                        }
                    }
                })
            });
            for done in work.collect::<Vec<_>>() {
                timeout(Duration::from_secs(60), done).await.expect("no deadlock").expect("the task");
            }
            for maker in &makers {
                maker.sync().await.expect("a sync");
                assert!(maker.status().refused.is_empty(), "{policy:?}: {:?}", maker.status().refused);
            }
        });
    }
}

#[test]
fn names_that_were_decided_before_a_crash_have_their_one_winner() {
    // The side that crashes, and how long before another asks.
    for (policy, server, crash) in POLICIES
        .into_iter()
        .flat_map(|policy| [false, true].map(|server| (policy, server)))
        .flat_map(|(policy, server)| [Crash::Kill, Crash::Power].map(|crash| (policy, server, crash)))
    {
        simulate(async {
            let mut world = clients(2, FAR, policy).await;
            let (maker, other) = (vfs(&world, 0), vfs(&world, 1));
            let dir = shared_dir(&world).await;
            other.lookup(VnodeId::ROOT, name("dir")).await.expect("the directory");
            for number in 0..300 {
                make_exclusively(&maker, dir, &format!("file-{number}")).await.expect("a file");
            }
            sleep(if crash == Crash::Power { Duration::from_millis(1500) } else { Duration::ZERO }).await;
            if server {
                world.crash_server(crash);
                world.start_server().expect("the server starts");
            } else {
                world.crash_client(crash);
            }
            let made = tokio::spawn(async move {
                let mode = Mode::from_bits(0o755);
                other.make_dir(dir, name("file-299"), mode, CALLER).await
            });
            if !server {
                sleep(SOON).await;
                world.start_client().await.expect("the client starts");
            }
            let made = made.await.expect("the task");
            assert!(matches!(made, Err(Error::Refused(FsError::Exists))), "{policy:?} {server} {crash:?}: {made:?}");
            world.client().sync().await.expect("a sync");
            assert!(world.client().status().refused.is_empty(), "{:?}", world.client().status().refused);
        });
    }
}
