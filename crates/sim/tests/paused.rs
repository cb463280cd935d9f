//! The user pauses the queue: contents that nobody has asked for wait (docs/semantics.md, "A queue that is paused").

use std::time::Duration;

use mafs_client::vfs::{Fsync, QueuePage, Vfs, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::World;
use tokio::time::sleep;

use crate::support::{
    WRITE, clients, configured, content, make_dir, names, open_as, overwrite, simulate, write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);
/// Longer than anything takes that is sent.
const A_WHILE: Duration = Duration::from_secs(60);

async fn two(policy: Writeback, fsync: Fsync) -> (World, [Vfs; 2]) {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(policy);
        machine.set_fsync(fsync);
    })
    .await;
    let clients = clients(&world);
    (world, clients)
}

/// The files that wait, by their ids.
fn waiting(vfs: &Vfs) -> Vec<(u64, u64)> {
    let report = vfs.queue(&QueuePage { after: None, count_max: 100 });
    let stores = report.changes.iter().filter(|change| change.what == "store");
    let id =
        |id: &str| id.split_once('-').map(|(life, seq)| (life.parse().expect("a number"), seq.parse().expect("one")));
    stores.filter_map(|change| id(change.id.as_deref()?)).collect()
}

#[test]
fn contents_wait_until_the_queue_is_resumed() {
    for policy in [Writeback::Async, Writeback::Sirp] {
        simulate(async {
            let (_world, [one, _]) = two(policy, Fsync::Auto).await;
            one.set_paused(true);
            write_and_close(&one, "a", vec![1; 3000]).await;
            make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
            let file = open_as(&one, "a", WRITE).await;
            one.fsync(file).await.expect("an fsync that nobody has told to go to the server");
            one.release(file);
            sleep(A_WHILE).await;
            let status = one.status();
            assert!(status.log.paused && status.connected, "{status:?}");
            assert_eq!((waiting(&one).len(), status.log.changes), (1, 0), "names are sent");
            one.set_paused(false);
            sleep(A_WHILE).await;
            assert_eq!(one.status().log.records, 0);
        });
    }
}

#[test]
fn what_somebody_waits_for_is_sent_from_a_paused_queue() {
    simulate(async {
        let (_world, [one, two]) = two(Writeback::Sirp, Fsync::Server).await;
        one.set_paused(true);
        write_and_close(&one, "a", vec![1; 3000]).await;
        write_and_close(&one, "b", vec![2; 3000]).await;
        write_and_close(&one, "c", vec![3; 3000]).await;
        // They are announced.
        sleep(A_WHILE).await;
        assert_eq!(waiting(&one).len(), 3);
        assert_eq!(content(&two, "a").await, vec![1; 3000], "a reader has pulled it");
        assert_eq!(waiting(&one).len(), 2);
        let file = open_as(&one, "b", WRITE).await;
        one.write(file, 0, vec![4; 10].into()).await.expect("a write");
        one.fsync(file).await.expect("an fsync at the server");
        one.release(file);
        sleep(A_WHILE).await;
        assert_eq!(waiting(&one).len(), 1);
        one.sync_below(VnodeId::ROOT, 1).await.expect("a sync");
        assert_eq!(waiting(&one).len(), 0);
        overwrite(&one, "c", vec![5; 3000]).await;
        sleep(A_WHILE).await;
        assert_eq!(waiting(&one).len(), 1, "it is paused all the same");
    });
}

/// With `async` nothing is pulled; `fsync=server` is what the user has asked for.
#[test]
fn an_fsync_at_the_server_does_not_wait_for_a_paused_queue() {
    simulate(async {
        let (_world, [one, two]) = two(Writeback::Async, Fsync::Server).await;
        write_and_close(&one, "a", vec![1; 3000]).await;
        one.sync().await.expect("a sync");
        one.set_paused(true);
        let file = open_as(&one, "a", WRITE).await;
        one.write(file, 0, vec![2; 3000].into()).await.expect("a write");
        one.fsync(file).await.expect("an fsync");
        assert_eq!(content(&two, "a").await, vec![2; 3000]);
    });
}

#[test]
fn a_sync_that_ends_early_leaves_the_rest_paused() {
    simulate(async {
        let (world, [one, _]) = two(Writeback::Sirp, Fsync::Auto).await;
        one.set_paused(true);
        for name in ["a", "b", "c"] {
            write_and_close(&one, name, vec![1; 3000]).await;
        }
        world.machines()[0].isolate();
        sleep(NEAR).await;
        assert!(tokio::time::timeout(NEAR, one.sync_below(VnodeId::ROOT, 1)).await.is_err());
        world.machines()[0].restore_link();
        sleep(A_WHILE).await;
        assert_eq!(waiting(&one).len(), 3);
    });
}

#[test]
fn what_the_user_wants_first_is_sent_from_a_paused_queue() {
    simulate(async {
        let (_world, [one, two]) = two(Writeback::Async, Fsync::Auto).await;
        one.set_paused(true);
        for name in ["a", "b", "c"] {
            write_and_close(&one, name, vec![1; 3000]).await;
        }
        let ids = waiting(&one);
        assert_eq!(one.send_first(&[ids[1], (999, 1)]), [(999, 1)]);
        sleep(A_WHILE).await;
        assert_eq!(waiting(&one), [ids[0], ids[2]]);
        assert_eq!(names(&two, VnodeId::ROOT).await.expect("its names").len(), 3);
        assert_eq!((content(&two, "b").await.len(), content(&two, "a").await.len()), (3000, 0));
    });
}

/// Nobody has asked for what an unmount sends; a user that mounts again has said nothing.
#[test]
fn an_unmount_sends_nothing_of_a_paused_queue_and_ends_the_pause() {
    simulate(async {
        let (mut world, [one, two]) = two(Writeback::Async, Fsync::Auto).await;
        write_and_close(&one, "a", vec![1; 3000]).await;
        one.sync().await.expect("a sync");
        one.set_paused(true);
        overwrite(&one, "a", vec![2; 3000]).await;
        drop(one);
        world.machines_mut()[0].stop().await;
        assert_eq!(content(&two, "a").await, vec![1; 3000]);
        world.machines_mut()[0].start().await.expect("a client");
        sleep(A_WHILE).await;
        assert_eq!(content(&two, "a").await, vec![2; 3000]);
    });
}
