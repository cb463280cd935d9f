//! Aside: content that one client stores into a file while another one replaces or removes that, and neither has heard
//! of the other, is kept beside, and what the other did is done.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Vfs, Writeback};
use mafs_proto::{ConflictKind, RenameMode, VnodeId};
use mafs_sim::{Path, World};

use crate::support::{
    CALLER, all_is_sent, clients, configured, content, names, overwrite, rename, simulate, write_and_close,
};

const NEAR: Duration = Duration::from_millis(5);
/// A change of the far one is under way for so long when the near one stores.
const FAR: Duration = Duration::from_millis(300);

/// A client near the server and one far from it, that both have `f`.
async fn near_and_far(writeback: Writeback) -> (World, [Vfs; 2]) {
    let world = World::start_over(1, vec![Path::Delay(NEAR), Path::Delay(FAR)], false).await.expect("a world");
    let world = configured(world, |machine| machine.set_writeback(writeback)).await;
    let both = clients(&world);
    let [near, far] = &both;
    write_and_close(near, "f", b"first".to_vec()).await;
    write_and_close(far, "f.new", b"by the far one".to_vec()).await;
    all_is_sent(&both).await;
    assert_eq!(content(far, "f").await, b"first");
    assert_eq!(content(near, "f").await, b"first");
    (world, both)
}

/// Returns the one name beside `f`, which everybody is shown, with what the near one stored.
async fn kept(clients: &[Vfs; 2], others: &[&str], kind: ConflictKind) -> Bytes {
    let mut listed = clients[0].conflicts().await.expect("the conflicts");
    let conflict = listed.pop().expect("a conflict");
    assert_eq!((listed, conflict.kind, conflict.base.map(|version| version.0)), (Vec::new(), kind, Some(2)));
    let place = Bytes::copy_from_slice(conflict.place.name.as_bytes());
    for vfs in clients {
        let mut shown = names(vfs, VnodeId::ROOT).await.expect("names");
        shown.retain(|name| *name != place);
        assert_eq!(shown, others, "{place:?}");
        let object = vfs.lookup(VnodeId::ROOT, place.clone()).await.expect("what is kept");
        assert_eq!(object.status.size, 5);
    }
    assert_eq!(clients[1].status().conflicts, 1);
    place
}

#[test]
fn what_is_replaced_meanwhile_is_kept_beside() {
    for writeback in [Writeback::Async, Writeback::Sirp] {
        simulate(async {
            let (_world, both) = near_and_far(writeback).await;
            let [near, far] = &both;
            rename(far, "f.new", "f").await.expect("a rename");
            overwrite(near, "f", b"after".to_vec()).await;
            all_is_sent(&both).await;
            kept(&both, &["f"], ConflictKind::Update).await;
            for vfs in &both {
                assert_eq!(content(vfs, "f").await, b"by the far one", "{writeback:?}");
            }
        });
    }
}

#[test]
fn what_is_removed_meanwhile_is_kept_beside_and_can_be_taken_back() {
    for writeback in [Writeback::Async, Writeback::Sirp] {
        simulate(async {
            let (_world, both) = near_and_far(writeback).await;
            let [near, far] = &both;
            far.unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await.expect("a removal");
            overwrite(near, "f", b"after".to_vec()).await;
            all_is_sent(&both).await;
            let place = kept(&both, &["f.new"], ConflictKind::Removed).await;
            let (root, back) = (VnodeId::ROOT, Bytes::from("f"));
            near.rename(root, place, root, back, RenameMode::NoReplace, CALLER).await.expect("it is taken back");
            all_is_sent(&both).await;
            assert_eq!(content(far, "f").await, b"after");
            assert_eq!(far.conflicts().await.expect("the conflicts"), []);
        });
    }
}
