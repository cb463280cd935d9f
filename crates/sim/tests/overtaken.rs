//! Overtaken: what a client shows of a file that another has changed since, on top of its own version or in conflict
//! with it, while it waits to hear what has become of its own.

#![allow(clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod support;

use std::time::Duration;

use mafs_client::vfs::{Close, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::{Machine, Path, World};
use support::{WRITE, clients, configured, content, look, open_as, overwrite, simulate, write_and_close};
use tokio::time::sleep;

/// The round trip of the first client.
const FAR_RTT: Duration = Duration::from_millis(100);
const NEAR_DELAY: Duration = Duration::from_millis(1);

/// Two clients, the first far from the server, that send in the background.
async fn two(close: Close) -> World {
    let paths = vec![Path::Delay(FAR_RTT / 2), Path::Delay(NEAR_DELAY)];
    let world = World::start_over(1, paths, false).await.expect("a world");
    let configure = |machine: &mut Machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_close(close);
    };
    configured(world, configure).await
}

/// Of the file that is changed by both: more than is sent again without asking how much of it has arrived.
const SHARED_BYTES: usize = 512 << 10;

/// The version of the first client is at the server and that of the second, which is longer, on top of it; the answer
/// to its own has not reached the first.
async fn overtaken() -> World {
    let world = two(Close::Announced).await;
    let [far, near] = clients(&world);
    write_and_close(&far, "f", vec![1; SHARED_BYTES]).await;
    far.sync().await.expect("a sync");
    // Nobody is alone in the directory from now on, which costs a round trip to find out.
    assert!(content(&near, "f").await == vec![1; SHARED_BYTES]);
    overwrite(&far, "f", vec![2; SHARED_BYTES]).await;
    assert!(content(&near, "f").await == vec![2; SHARED_BYTES]);
    // The answer is on its way, and lost.
    world.machines()[0].cut_link();
    overwrite(&near, "f", vec![3; SHARED_BYTES + 1]).await;
    assert!(far.status().unsent_files > 0, "the answer has come");
    world
}

#[test]
fn who_has_not_heard_that_its_version_arrived_opens_the_one_on_top_of_it() {
    simulate(async {
        let world = overtaken().await;
        let [far, near] = clients(&world);
        assert!(content(&far, "f").await == vec![3; SHARED_BYTES + 1], "an older version");
        overwrite(&far, "f", vec![4; SHARED_BYTES + 1]).await;
        assert!(content(&near, "f").await == vec![4; SHARED_BYTES + 1], "an older version");
        assert!(far.status().refused.is_empty() && near.status().refused.is_empty());
    });
}

/// Or the kernel keeps the size of its own for as long as the lease, and cuts what it reads.
#[test]
fn who_has_not_heard_that_its_version_arrived_is_shown_the_size_of_the_one_on_top_of_it() {
    simulate(async {
        let world = overtaken().await;
        let [far] = clients(&world);
        let found = look(&far, "f").await;
        assert!(far.status().unsent_files > 0, "the answer has come");
        let vnode = found.fid.vnode;
        assert_eq!(found.status.size, SHARED_BYTES as u64 + 1, "kept for {:?}", far.time_to_live(&found));
        assert_eq!(far.get_attributes(vnode).await.expect("attributes").status, found.status);
        let page = far.read_dir_plus(VnodeId::ROOT, 0, 100).await.expect("a listing");
        let listed = page.entries.iter().find(|entry| entry.entry.name == "f").and_then(|entry| entry.object.clone());
        assert_eq!(listed.expect("its entry").status, found.status);
    });
}

/// What the kernel keeps must not outlast the verdict.
#[test]
fn what_was_written_here_after_that_is_shown_and_not_kept() {
    simulate(async {
        let world = two(Close::Announced).await;
        let [far, near] = clients(&world);
        write_and_close(&far, "f", vec![1; 10]).await;
        far.sync().await.expect("a sync");
        assert_eq!(content(&near, "f").await, [1; 10]);
        let mine = open_as(&far, "f", WRITE).await;
        far.write(mine, 0, vec![2; 20].into()).await.expect("a write");
        let shown = look(&far, "f").await;
        assert_eq!(shown.status.size, 20);
        assert!(far.time_to_live(&shown) > Duration::ZERO, "every stat comes to the daemon");
        overwrite(&near, "f", vec![3; 30]).await;
        near.sync().await.expect("a sync");
        let shown = look(&far, "f").await;
        assert_eq!(shown.status.size, 20);
        assert_eq!(far.time_to_live(&shown), Duration::ZERO);
        far.release(mine);
    });
}

#[test]
fn the_kernel_keeps_what_it_is_shown_of_what_is_not_sent_yet() {
    simulate(async {
        let world = two(Close::Logged).await;
        let [far] = clients(&world);
        write_and_close(&far, "f", vec![1; 1000]).await;
        far.sync().await.expect("a sync");
        overwrite(&far, "f", vec![2; 1000]).await;
        write_and_close(&far, "made", vec![3; 1000]).await;
        assert_eq!(far.status().unsent_files, 2);
        while far.status().unsent_files > 0 {
            for name in ["f", "made"] {
                let shown = look(&far, name).await;
                assert!(far.time_to_live(&shown) > Duration::ZERO, "{name}: {:?}", far.status());
            }
            sleep(FAR_RTT / 10).await;
        }
    });
}
