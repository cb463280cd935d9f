//! The time of day of a client is set, back or forward: files show it, and nothing depends on it (leases and waits go
//! by a clock that nobody sets).

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Vfs, Writeback};
use mafs_proto::{Timestamp, VnodeId};
use mafs_sim::{Crash, LEASE, Path, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    BLACK_HOLE, clients, content, look, make_dir, names, overwrite, rename, simulate, usable_apart, write_and_close,
};

const DAY_S: i64 = 86_400;
const NEAR: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_secs(1);
/// A change that has been written is in the log for good by then.
const LOGGED_DURABLY: Duration = Duration::from_secs(3);
const OUTAGE: Duration = Duration::from_secs(300);

async fn two() -> World {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    usable_apart(world, Writeback::Sirp).await
}

async fn modified_s(vfs: &Vfs, file: &'static str) -> i64 {
    look(vfs, file).await.status.mtime.seconds()
}

/// While both are connected each sees what the other does, and asks nobody for what it knows.
async fn set_while_connected(world: &World, ahead_s: i64) {
    let [one, two] = clients(world);
    let before_s = modified_s(&two, "a").await;
    world.machines()[1].set_time_of_day(ahead_s);
    overwrite(&two, "a", vec![2; 3000]).await;
    sleep(SOON).await;
    assert!(content(&one, "a").await == vec![2; 3000], "another content");
    let moved_s = modified_s(&one, "a").await - before_s;
    assert!((moved_s - ahead_s).abs() < 600, "the file shows a time {moved_s} s later");
    overwrite(&one, "a", vec![3; 3000]).await;
    sleep(SOON).await;
    assert!(content(&two, "a").await == vec![3; 3000], "another content");
    sleep(2 * LEASE).await;
    let begun = Instant::now();
    assert!(content(&two, "a").await == vec![3; 3000], "another content");
    assert_eq!(begun.elapsed(), Duration::ZERO, "the lease goes on");
}

/// Changes made while the link is away, across a restart, arrive.
async fn set_while_disconnected(world: &mut World, ahead_s: i64, crash: Option<Crash>) {
    let [_, two] = clients(world);
    world.machines()[1].fall_silent_for(BLACK_HOLE, OUTAGE, true);
    sleep(LEASE).await;
    overwrite(&two, "a", vec![4; 3000]).await;
    sleep(LOGGED_DURABLY).await;
    world.machines()[1].set_time_of_day(ahead_s);
    rename(&two, "a", "moved").await.expect("a rename");
    overwrite(&two, "b", vec![5; 3000]).await;
    sleep(LOGGED_DURABLY).await;
    match crash {
        None => world.machines_mut()[1].stop().await,
        Some(crash) => world.crash_machine(1, crash),
    }
    world.machines_mut()[1].start().await.expect("a client");
    let [one, two] = clients(world);
    overwrite(&two, "b", vec![6; 3000]).await;
    assert!(content(&two, "moved").await == vec![4; 3000], "another content");
    sleep(OUTAGE).await;
    two.sync().await.expect("a sync");
    for client in [&one, &two] {
        assert!(content(client, "moved").await == vec![4; 3000], "another content");
        assert!(content(client, "b").await == vec![6; 3000], "another content");
    }
    let status = two.status();
    assert!(status.refused.is_empty() && status.conflicts == 0, "{status:?}");
}

#[test]
fn a_day_back_or_forward_breaks_nothing() {
    for ahead_s in [-DAY_S, DAY_S] {
        for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
            simulate(async {
                let mut world = two().await;
                let [one, two] = clients(&world);
                for file in ["a", "b"] {
                    write_and_close(&one, file, vec![1; 3000]).await;
                    sleep(SOON).await;
                    assert!(content(&two, file).await == vec![1; 3000], "another content");
                }
                set_while_connected(&world, ahead_s).await;
                set_while_disconnected(&mut world, -ahead_s, crash).await;
            });
        }
    }
}

async fn root_modified(vfs: &Vfs) -> Timestamp {
    vfs.get_attributes(VnodeId::ROOT).await.expect("attributes").status.mtime
}

/// A rename waits for what the file holds, and a name that is given later comes first.
#[test]
fn a_directory_keeps_the_time_of_its_newest_change_in_whatever_order_changes_arrive() {
    simulate(async {
        let link = Profile::steady(100_000, Duration::from_millis(20));
        let paths = vec![Path::Link(Box::new(link)), Path::Delay(NEAR)];
        let world = World::start_over(1, paths, false).await.expect("a world");
        let world = usable_apart(world, Writeback::Async).await;
        let [writer, reader] = clients(&world);
        write_and_close(&writer, "draft", vec![1; 300_000]).await;
        rename(&writer, "draft", "f").await.expect("a rename");
        sleep(SOON).await;
        make_dir(&writer, VnodeId::ROOT, "later").await.expect("a mkdir");
        let newest = root_modified(&writer).await;
        let mut overtaken = 0;
        while writer.status().unsent_files > 0 {
            assert_eq!(root_modified(&writer).await, newest);
            let there = names(&reader, VnodeId::ROOT).await.expect("a listing");
            overtaken += u64::from(there.iter().any(|name| name == "later") && !there.iter().any(|name| name == "f"));
            sleep(SOON / 10).await;
        }
        assert!(overtaken > 5, "the rename came first");
        writer.sync().await.expect("a sync");
        assert_eq!(root_modified(&writer).await, newest);
        assert_eq!(root_modified(&reader).await, newest);
    });
}
