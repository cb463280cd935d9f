//! Ranges of contents: reserved, punched, sought and copied, also while they are being fetched and sent.

use mafs_client::vfs::{Error, Fallocate, SeekTarget};
use mafs_proto::VnodeId;
use mafs_sim::Crash;

use crate::support::{
    CALLER, READ, WRITE, content, create, open_by_name, simulate, with_empty_cache, world, write_and_close,
};

#[test]
fn changed_ranges_are_stored_and_fetched_like_any_content() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, vec![1; 30_000].into()).await.expect("a write");
        vfs.allocate(file, Fallocate::Punch, 5_000, 10_000).await.expect("a hole");
        vfs.allocate(file, Fallocate::Zero, 29_000, 5_000).await.expect("zeros");
        vfs.allocate(file, Fallocate::Reserve, 34_000, 1_000).await.expect("room");
        vfs.allocate(file, Fallocate::ReserveKeepingSize, 90_000, 1_000).await.expect("room behind the end");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        let mut wanted = vec![1; 35_000];
        wanted[5_000..15_000].fill(0);
        wanted[29_000..].fill(0);
        assert!(content(&vfs, "file").await == wanted);
        with_empty_cache(&mut world).await;
        assert!(content(world.client(), "file").await == wanted);
    });
}

#[test]
fn a_range_changed_during_a_store_is_not_in_what_is_stored() {
    simulate(async {
        let mut world = world(50).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, vec![1; 5_000_000].into()).await.expect("the first version");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(file).await }
        });
        tokio::time::sleep(std::time::Duration::from_millis(180)).await;
        assert!(!closing.is_finished(), "the store should still be under way");
        vfs.allocate(file, Fallocate::Punch, 0, 5_000_000).await.expect("a hole");
        closing.await.expect("the task").expect("the close");
        assert_eq!(vfs.status().unsent_files, 1, "the hole is a change of its own");
        world.crash_client(Crash::Power);
        world.start_client().await.expect("the client starts");
        assert!(content(world.client(), "file").await == vec![1; 5_000_000]);
    });
}

#[test]
fn a_full_cache_disk_refuses_to_reserve() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"kept".to_vec()).await;
        let file = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
        world.limit_client_disk(10_000).expect("a disk");
        let failed = vfs.allocate(file, Fallocate::Reserve, 0, 50_000).await;
        assert!(matches!(failed, Err(Error::CacheFull)), "{failed:?}");
        assert_eq!(vfs.status().unsent_files, 0, "an unchanged file is sent");
        let reader = vfs.open(vnode, READ, CALLER).await.expect("an open").file;
        let refused = vfs.allocate(reader, Fallocate::Reserve, 0, 10).await;
        assert!(matches!(refused, Err(Error::BadHandle)), "{refused:?}");
    });
}

#[test]
fn a_seek_waits_for_what_decides_it_and_no_longer() {
    simulate(async {
        let mut world = world(50).await;
        let mut bytes = vec![0; 12_000_000];
        bytes[1_000_000..1_100_000].fill(1);
        bytes[11_000_000..].fill(2);
        write_and_close(world.client(), "file", bytes).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let file = open_by_name(vfs, "file").await;
        let block = |offset: u64| offset / 4_096 * 4_096;
        assert_eq!(vfs.seek(file, SeekTarget::Data, 0).await.expect("data"), block(1_000_000));
        let hole = vfs.seek(file, SeekTarget::Hole, 1_000_000).await.expect("a hole");
        assert_eq!(hole, block(1_100_000) + 4_096);
        assert_eq!(vfs.seek(file, SeekTarget::Hole, 11_500_000).await.expect("the end"), 12_000_000);
        assert_eq!(vfs.seek(file, SeekTarget::Data, 2_000_000).await.expect("data"), block(11_000_000));
        for target in [SeekTarget::Data, SeekTarget::Hole] {
            let beyond = vfs.seek(file, target, 12_000_000).await;
            assert!(matches!(beyond, Err(Error::NoSuchOffset)), "{beyond:?}");
        }
    });
}

#[test]
fn a_copy_takes_the_bytes_that_have_still_to_arrive() {
    simulate(async {
        let mut world = world(50).await;
        let source: Vec<u8> = (0..3_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
        write_and_close(world.client(), "source", source.clone()).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client().clone();
        let from = open_by_name(&vfs, "source").await;
        let (_, to) = create(&vfs, "target").await;
        let copied = vfs.copy_range((from, 2_000_000), (to, 10), 5_000_000).await.expect("a copy");
        assert_eq!(copied, 1_000_000);
        let overlapping = vfs.copy_range((to, 0), (to, 5), 10).await;
        assert!(matches!(overlapping, Err(Error::Invalid(_)) | Err(Error::BadHandle)), "{overlapping:?}");
        vfs.flush(to).await.expect("a close");
        vfs.release(to);
        let mut wanted = vec![0; 10];
        wanted.extend_from_slice(&source[2_000_000..]);
        with_empty_cache(&mut world).await;
        assert!(content(world.client(), "target").await == wanted);
    });
}

#[test]
fn room_is_told_without_the_holes_and_a_large_file_that_is_not_here_may_have_some() {
    simulate(async {
        let mut world = world(5).await;
        let mut bytes = vec![0; 12_000_000];
        bytes[5_000_000..5_004_096].fill(1);
        write_and_close(world.client(), "large", bytes).await;
        write_and_close(world.client(), "small", vec![1; 5_000]).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client().clone();
        let room =
            async |name: &'static str| vfs.room_of(&vfs.lookup(VnodeId::ROOT, name.into()).await.expect("a name"));
        assert_eq!(room("small").await, 5_000);
        let unknown = room("large").await;
        assert!((11_000_000..12_000_000).contains(&unknown), "{unknown}");
        assert_eq!(content(&vfs, "large").await.len(), 12_000_000);
        let known = room("large").await;
        assert!((4_096..20_000).contains(&known), "{known}");
    });
}
