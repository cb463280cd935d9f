//! Looking up names: own changes are laid over what the server answers, and the kernel keeps no name that the index
//! lacks.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Attributes, Writeback};
use mafs_proto::{Mode, VnodeId};
use mafs_sim::{Path, World};

use crate::support::{CALLER, clients, configured, look, overwrite, simulate, write_and_close};

/// A writer over a link of 100 KB/s, and another client near the server, in the background.
async fn slow_and_near() -> World {
    let link = Profile::steady(100_000, Duration::from_millis(20));
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(Duration::from_millis(5))];
    let world = World::start_over(1, paths, false).await.expect("a world");
    configured(world, |machine| machine.set_writeback(Writeback::Async)).await
}

/// The lookup showed the mode that the server has, because the names of the directory were not known any more.
#[test]
fn a_name_that_the_server_is_asked_for_shows_what_was_changed_here_and_not_sent() {
    simulate(async {
        let world = slow_and_near().await;
        let [slow, near] = clients(&world);
        let vnode = write_and_close(&slow, "f", vec![1; 1000]).await;
        slow.sync().await.expect("a sync");
        look(&near, "f").await;
        overwrite(&slow, "f", vec![2; 500_000]).await;
        let mode = Mode::from_bits(0o600);
        let set = Attributes { mode: Some(mode), ..Attributes::default() };
        slow.set_attributes(vnode, set, None, CALLER).await.expect("a chmod");
        write_and_close(&near, "other", vec![3; 1000]).await;
        near.sync().await.expect("a sync");
        let shown = look(&slow, "f").await;
        assert!(slow.status().unsent_changes > 0, "the chmod waits behind the content");
        assert_eq!((shown.status.mode, shown.status.size), (mode, 500_000));
    });
}

/// A directory that is broken is told to the kernel name by name, as the index has them: others would stay there for as
/// long as the lease.
#[test]
fn the_kernel_keeps_a_name_only_if_the_index_has_it() {
    simulate(async {
        let world = slow_and_near().await;
        let [slow, _] = clients(&world);
        write_and_close(&slow, "f", vec![1; 1000]).await;
        slow.sync().await.expect("a sync");
        let object = look(&slow, "f").await;
        let kept = |name: &'static str| slow.entry_time_to_live(VnodeId::ROOT, &Bytes::from(name), &object);
        assert!(kept("f") > Duration::ZERO);
        assert_eq!(kept("another"), Duration::ZERO);
    });
}
