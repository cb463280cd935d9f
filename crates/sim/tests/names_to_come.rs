//! Names to come: a name shows at once what another client has announced it to mean. A client that changes it then
//! builds on what the server does not have yet.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Close, Error, Vfs, Writeback};
use mafs_proto::{FsError, VnodeId};
use mafs_sim::{Machine, Path, World};

use crate::support::{CALLER, all_is_sent, clients, configured, content, look, rename, simulate, write_and_close};

/// Four seconds of the writer's link.
const FILE_BYTES: usize = 256 << 10;
const RATE: u64 = 64_000;

/// A writer at the end of a slow link that has announced a file over `f`, and another client near the server that sees
/// it there.
async fn announced_over(writeback: Writeback) -> (World, [Vfs; 2]) {
    let link = Profile::steady(RATE, Duration::from_millis(100));
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(Duration::from_millis(5))];
    let world = World::start_over(1, paths, false).await.expect("a world");
    let configure = |machine: &mut Machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_close(Close::Announced);
    };
    let mut world = configured(world, configure).await;
    let other = &mut world.machines_mut()[1];
    other.stop().await;
    other.set_writeback(writeback);
    other.set_close(Close::Logged);
    other.start().await.expect("a client");
    let [writer, other] = clients(&world);
    write_and_close(&writer, "f", b"before".to_vec()).await;
    writer.sync().await.expect("a sync");
    assert_eq!(content(&other, "f").await, b"before");
    write_and_close(&writer, "f.new", vec![2; FILE_BYTES]).await;
    rename(&writer, "f.new", "f").await.expect("a rename");
    assert_eq!(look(&other, "f").await.fid, look(&writer, "f").await.fid);
    assert!(writer.status().unsent_bytes > 0, "nothing is to come");
    (world, [writer, other])
}

async fn means_nothing(vfs: &Vfs, name: &'static str) -> bool {
    matches!(vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await, Err(Error::Refused(FsError::NotFound)))
}

const POLICIES: [Writeback; 3] = [Writeback::Sync, Writeback::Async, Writeback::Sirp];

#[test]
fn what_is_to_come_can_be_moved() {
    for writeback in POLICIES {
        simulate(async {
            let (_world, clients) = announced_over(writeback).await;
            rename(&clients[1], "f", "moved").await.expect("a rename");
            all_is_sent(&clients).await;
            for vfs in &clients {
                assert!(means_nothing(vfs, "f").await, "{writeback:?}");
                assert_eq!(content(vfs, "moved").await, vec![2; FILE_BYTES], "{writeback:?}");
            }
        });
    }
}

#[test]
fn what_is_to_come_can_be_replaced() {
    for writeback in POLICIES {
        simulate(async {
            let (_world, clients) = announced_over(writeback).await;
            write_and_close(&clients[1], "mine", b"mine".to_vec()).await;
            rename(&clients[1], "mine", "f").await.expect("a rename");
            all_is_sent(&clients).await;
            for vfs in &clients {
                assert_eq!(content(vfs, "f").await, b"mine", "{writeback:?}");
            }
        });
    }
}

#[test]
fn what_is_to_come_can_be_removed() {
    for writeback in POLICIES {
        simulate(async {
            let (_world, clients) = announced_over(writeback).await;
            clients[1].unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await.expect("a removal");
            all_is_sent(&clients).await;
            for vfs in &clients {
                assert!(means_nothing(vfs, "f").await, "{writeback:?}");
            }
        });
    }
}
