//! Restored: a cache that a backup or a snapshot of the machine has brought back, with a log whose records the server
//! has had since (consistency.md, "Objects").

use std::time::Duration;

use mafs_client::vfs::{Close, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::{Machine, World};

use crate::support::{
    clients, configured, content, look, overwrite, rename, simulate, until_all_is_sent, write_and_close,
};

const DELAY: Duration = Duration::from_millis(1);
const HERE: usize = 0;

async fn two() -> World {
    let world = World::start_several(1, 2, DELAY, false).await.expect("a world");
    let configure = |machine: &mut Machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_close(Close::Logged);
    };
    configured(world, configure).await
}

/// Restores the cache of one client as it was before what it and others did since. Returns how many
/// files it takes for unsent.
async fn restored_after(world: &mut World, since: impl AsyncFnOnce(&mut World)) -> u64 {
    let image = world.machines()[HERE].cache_image();
    since(world).await;
    let machine = &mut world.machines_mut()[HERE];
    machine.stop().await;
    machine.restore_cache(image);
    machine.start().await.expect("a client");
    let unsent = machine.client().status().unsent_files;
    tokio::time::sleep(Duration::from_secs(30)).await;
    unsent
}

#[test]
fn invariant_2_what_a_restored_log_holds_is_not_applied_again() {
    simulate(async {
        let mut world = two().await;
        let here = world.machines()[HERE].client().clone();
        write_and_close(&here, "file", b"first".to_vec()).await;
        until_all_is_sent(&here).await;
        world.machines()[HERE].isolate();
        overwrite(&here, "file", b"ours!".to_vec()).await;
        write_and_close(&here, "new", b"made".to_vec()).await;
        rename(&here, "new", "moved").await.expect("a rename");
        let unsent = restored_after(&mut world, async |world| {
            let [here, there] = clients(world);
            world.machines()[HERE].restore_link();
            until_all_is_sent(&here).await;
            look(&there, "file").await;
            overwrite(&there, "file", b"their".to_vec()).await;
            rename(&there, "moved", "again").await.expect("a rename");
            until_all_is_sent(&there).await;
        })
        .await;
        assert_eq!(unsent, 2);
        let [here, there] = clients(&world);
        assert_eq!(here.status().refused, [], "nothing is in conflict");
        assert_eq!(content(&here, "file").await, b"their");
        assert_eq!(content(&there, "file").await, b"their");
        assert_eq!(content(&there, "again").await, b"made");
        assert!(there.lookup(VnodeId::ROOT, "moved".into()).await.is_err(), "the rename was applied again");
        assert!(there.lookup(VnodeId::ROOT, "new".into()).await.is_err(), "the file was made again");
        assert_eq!(content(&here, "again").await, b"made");
        write_and_close(&here, "later", b"later".to_vec()).await;
        here.sync().await.expect("what is written after it");
        assert_eq!(content(&there, "later").await, b"later");
    });
}

#[test]
fn invariant_3_a_restored_cache_shows_what_the_server_has() {
    simulate(async {
        let mut world = two().await;
        let here = world.machines()[HERE].client().clone();
        write_and_close(&here, "file", b"first".to_vec()).await;
        until_all_is_sent(&here).await;
        let unsent = restored_after(&mut world, async |world| {
            let here = world.machines()[HERE].client().clone();
            overwrite(&here, "file", b"newer".to_vec()).await;
            write_and_close(&here, "new", b"made".to_vec()).await;
            until_all_is_sent(&here).await;
        })
        .await;
        assert_eq!(unsent, 0);
        let [here, there] = clients(&world);
        assert_eq!(content(&here, "file").await, b"newer");
        assert_eq!(content(&here, "new").await, b"made");
        write_and_close(&here, "later", b"later".to_vec()).await;
        here.sync().await.expect("what is written after it");
        assert_eq!(content(&there, "new").await, b"made");
        assert_eq!(content(&there, "later").await, b"later");
    });
}
