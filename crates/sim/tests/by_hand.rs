//! The user ends the connection by hand, and later wants it again (docs/semantics.md, "Disconnected by hand").

use std::time::Duration;

use mafs_client::vfs::{Error, LockStop, Locking, RangeLock, Vfs, Writeback};
use mafs_proto::{LockKind, LockOwner, LockRange, VnodeId};
use mafs_sim::{Connecting, Silence, Way, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    CALLER, READ, WRITE, clients, configured, content, look, make_dir, names, open_as, overwrite, simulate,
    write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);
/// An operation that asks nobody.
const INSTANT: Duration = Duration::from_millis(50);
/// A goodbye takes a round trip.
const GOODBYE: Duration = Duration::from_millis(200);
/// The server's answer to a goodbye is waited for no longer.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// Much longer than the pause between two attempts to connect.
const LONG: Duration = Duration::from_secs(600);

async fn two(policy: Writeback, disconnected: bool) -> (World, [Vfs; 2]) {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(policy);
        machine.set_disconnected(disconnected);
        machine.set_locking(Locking::Local);
    })
    .await;
    let [one, two] = clients(&world);
    write_and_close(&one, "a", vec![1; 3000]).await;
    write_and_close(&one, "unread", vec![3; 3000]).await;
    one.sync().await.expect("a sync");
    names(&two, VnodeId::ROOT).await.expect("its names");
    assert_eq!(content(&two, "a").await.len(), 3000);
    (world, [one, two])
}

async fn open_unread(vfs: &Vfs) -> Result<(), Error> {
    vfs.open(look(vfs, "unread").await.fid.vnode, READ, CALLER).await.map(drop)
}

#[test]
fn what_is_cached_is_used_and_the_rest_fails_at_once_until_the_user_reconnects() {
    for policy in [Writeback::Sirp, Writeback::Async] {
        simulate(async {
            let (_world, [one, two]) = two(policy, true).await;
            let begun = Instant::now();
            two.disconnect().await;
            assert!(begun.elapsed() < GOODBYE, "it took {:?}", begun.elapsed());
            for _ in 0..2 {
                let begun = Instant::now();
                let status = two.status();
                assert!(status.by_hand && status.disconnected && !status.connected, "{status:?}");
                assert_eq!(content(&two, "a").await.len(), 3000);
                overwrite(&two, "a", b"apart".to_vec()).await;
                assert!(matches!(open_unread(&two).await, Err(Error::ByHand)));
                assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
                let synced = two.sync_below(VnodeId::ROOT, 1).await;
                assert!(matches!(synced, Err(Error::ByHand)), "{synced:?}");
                // No attempt to connect is made, however long that takes.
                sleep(LONG).await;
            }
            let calls = two.status().calls;
            assert_eq!(content(&one, "a").await, vec![1; 3000], "nothing is sent");
            let begun = Instant::now();
            two.reconnect().await.expect("a connection");
            assert!(begun.elapsed() < GOODBYE, "it took {:?}", begun.elapsed());
            let status = two.status();
            assert!(status.connected && !status.by_hand && !status.disconnected, "{status:?}");
            open_unread(&two).await.expect("an open");
            two.sync().await.expect("a sync");
            assert!(two.status().calls > calls);
            assert_eq!(&content(&one, "a").await[..5], b"apart");
        });
    }
}

/// Nobody waits for the lease of a client that has said goodbye, neither for its promises nor for its locks.
#[test]
fn who_is_disconnected_by_hand_holds_nobody_up() {
    simulate(async {
        let (_world, [one, two]) = two(Writeback::Sync, true).await;
        two.disconnect().await;
        let begun = Instant::now();
        overwrite(&one, "a", vec![2; 10]).await;
        assert!(begun.elapsed() < GOODBYE, "it took {:?}", begun.elapsed());
        assert_eq!(content(&two, "a").await.len(), 3000);
        two.reconnect().await.expect("a connection");
        assert_eq!(content(&two, "a").await[..10], [2; 10]);
    });
}

/// The lock of a client that has said goodbye goes to the client that asks next; the first has lost it for good.
#[test]
fn locks_go_to_others_at_once() {
    simulate(async {
        let (_world, [one, two]) = two(Writeback::Sirp, true).await;
        let take = async |vfs: &Vfs, number| {
            let file = open_as(vfs, "a", WRITE).await;
            let owner = LockOwner { id: number, process: 1, file: file.0 };
            let lock = RangeLock { owner, range: LockRange::ALL, kind: LockKind::Exclusive };
            vfs.lock(file, lock, true, LockStop::default()).await.expect("a lock");
            file
        };
        let held = take(&two, 1).await;
        two.disconnect().await;
        two.fsync(held).await.expect("it is held as far as is known here");
        let begun = Instant::now();
        take(&one, 2).await;
        assert!(begun.elapsed() < GOODBYE, "it took {:?}", begun.elapsed());
        two.reconnect().await.expect("a connection");
        let lost = two.fsync(held).await;
        assert!(matches!(lost, Err(Error::LockLost)), "{lost:?}");
    });
}

/// The client is in the middle of a fetch over a path that has just died.
#[test]
fn calls_under_way_end_soon() {
    simulate(async {
        let (world, [_, two]) = two(Writeback::Sirp, true).await;
        world.machines()[1].fall_silent(Silence { way: Way::Both, connecting: Connecting::Hangs });
        let opening = tokio::spawn({
            let two = two.clone();
            async move { open_unread(&two).await }
        });
        sleep(NEAR).await;
        let begun = Instant::now();
        two.disconnect().await;
        let opened = opening.await.expect("an answer");
        assert!(matches!(opened, Err(Error::ByHand)), "{opened:?}");
        assert!(begun.elapsed() < GOODBYE_MAX, "it took {:?}", begun.elapsed());
        let begun = Instant::now();
        let connected = two.reconnect().await;
        assert!(matches!(connected, Err(Error::OutOfReach(_))), "the path is dead: {connected:?}");
        assert!(begun.elapsed() <= Duration::from_secs(10), "it took {:?}", begun.elapsed());
        world.machines()[1].break_silence();
        two.reconnect().await.expect("a connection");
        assert_eq!(content(&two, "unread").await.len(), 3000);
    });
}

/// The lease has been given back, so nothing that may be old is shown.
#[test]
fn without_disconnected_operation_everything_fails() {
    simulate(async {
        let (_world, [_, two]) = two(Writeback::Sync, false).await;
        two.disconnect().await;
        let found = two.lookup(VnodeId::ROOT, crate::support::name("a")).await;
        assert!(matches!(found, Err(Error::ByHand)), "{found:?}");
        let begun = Instant::now();
        let made = make_dir(&two, VnodeId::ROOT, "dir").await;
        assert!(matches!(made, Err(Error::ByHand)), "{made:?}");
        assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
        two.reconnect().await.expect("a connection");
        assert_eq!(content(&two, "a").await.len(), 3000);
    });
}

/// A user that mounts wants a connection.
#[test]
fn it_ends_with_the_mount() {
    simulate(async {
        let (mut world, [one, two]) = two(Writeback::Sirp, true).await;
        two.disconnect().await;
        overwrite(&two, "a", b"apart".to_vec()).await;
        drop(two);
        world.machines_mut()[1].stop().await;
        assert_eq!(content(&one, "a").await.len(), 3000, "an unmount sends nothing either");
        world.machines_mut()[1].start().await.expect("a client");
        let two = world.machines()[1].client().clone();
        assert!(two.status().connected);
        two.sync().await.expect("a sync");
        assert_eq!(&content(&one, "a").await[..5], b"apart");
    });
}
