//! Readers: programs that have a file open, or an inode in hand, while somebody else changes it or takes its name.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, OpenMode, Vfs, Writeback};
use mafs_durable::Disk;
use mafs_proto::{FsError, Mode, VnodeId};
use mafs_sim::World;

use crate::support::{
    CALLER, MAKE, READ, WRITE, configured, content, create, look, make_dir, open_as, overwrite, rename, simulate,
    write_and_close,
};

/// Two clients that send in the way of `policy`.
async fn two(policy: Writeback, passthrough: bool) -> World {
    let world = World::start_several(1, 2, Duration::from_millis(5), passthrough).await.expect("a world");
    configured(world, |machine| machine.set_writeback(policy)).await
}

fn both(world: &World) -> [Vfs; 2] {
    [0, 1].map(|number| world.machines()[number].client().clone())
}

/// Makes a file that others find.
async fn put(vfs: &Vfs, name: &'static str, content: Vec<u8>) -> VnodeId {
    let vnode = write_and_close(vfs, name, content).await;
    vfs.sync().await.expect("a sync");
    vnode
}

async fn append(vfs: &Vfs, name: &'static str, bytes: &[u8]) {
    let size = look(vfs, name).await.status.size;
    let file = open_as(vfs, name, WRITE).await;
    vfs.write(file, size, Bytes::copy_from_slice(bytes)).await.expect("a write");
    vfs.flush(file).await.expect("a close");
    vfs.release(file);
}

/// Returns what a reader sees last; it looks twenty times a second for five seconds.
async fn watch(mut seen: impl AsyncFnMut() -> Vec<u8>, may_be: &[&[u8]]) -> Vec<u8> {
    let mut last = Vec::new();
    for _ in 0..100 {
        last = seen().await;
        assert!(may_be.contains(&last.as_slice()), "{} bytes, of which {:?}...", last.len(), last.get(..20));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    last
}

#[test]
fn who_has_a_file_open_goes_on_to_what_others_make_of_it() {
    let versions: [&[u8]; 4] = [b"first\n", b"first\nsecond\n", b"third\nwith more\n", b"fourth\n"];
    for policy in [Writeback::Sync, Writeback::Sirp] {
        simulate(async move {
            let world = two(policy, false).await;
            let [writer, reader] = both(&world);
            put(&writer, "file", versions[0].to_vec()).await;
            let vnode = look(&reader, "file").await.fid.vnode;
            let file = reader.open(vnode, READ, CALLER).await.expect("an open").file;
            for change in versions.windows(2) {
                let cut = OpenMode { truncate: true, ..WRITE };
                let made = open_as(&writer, "file", cut).await;
                writer.write(made, 0, Bytes::copy_from_slice(change[1])).await.expect("a write");
                writer.flush(made).await.expect("a close");
                writer.release(made);
                let read = async || {
                    let size = reader.get_attributes(vnode).await.expect("attributes").status.size;
                    let read = reader.read(file, 0, 100).await.expect("a read");
                    // The next version may have come between the two.
                    assert!(read.len() as u64 == size || read == change[1], "{size} bytes with {read:?}");
                    read.to_vec()
                };
                assert_eq!(watch(read, change).await, change[1], "{policy:?}");
            }
        });
    }
}

#[test]
fn the_container_that_the_kernel_has_grows_by_what_others_append() {
    simulate(async {
        let world = two(Writeback::Sirp, true).await;
        let [writer, reader] = both(&world);
        let before = vec![1; 100_000];
        put(&writer, "file", before.clone()).await;
        assert_eq!(content(&reader, "file").await, before);
        let vnode = look(&reader, "file").await.fid.vnode;
        let opened = reader.open(vnode, READ, CALLER).await.expect("an open");
        assert!(opened.passthrough);
        let container = reader.container(opened.file).expect("its container");
        append(&writer, "file", &[2; 50_000]).await;
        let after = [before.clone(), vec![2; 50_000]].concat();
        let read = async || {
            let mut bytes = vec![0; 200_000];
            let read = container.read_at(&mut bytes, 0).expect("a read");
            bytes.truncate(read);
            bytes
        };
        assert!(watch(read, &[&before, &after]).await == after);
        // A program that opens the file now reads the same, in one container with the others.
        overwrite(&writer, "file", vec![3; 10]).await;
        writer.sync().await.expect("a sync");
        let again = reader.open(vnode, READ, CALLER).await.expect("an open");
        assert!(again.passthrough);
        let mut bytes = [0; 20];
        container.read_at(&mut bytes, 0).expect("a read");
        assert_eq!(bytes, [[3; 10], [1; 10]].concat()[..]);
    });
}

#[test]
fn what_is_open_for_writing_or_executed_stays_what_it_is() {
    let execute = OpenMode { execute: true, ..READ };
    for (mode, written, passthrough) in
        [(WRITE, true, false), (WRITE, false, false), (WRITE, false, true), (execute, false, false)]
    {
        simulate(async move {
            let world = two(Writeback::Sirp, passthrough).await;
            let [writer, other] = both(&world);
            put(&writer, "file", b"first".to_vec()).await;
            assert_eq!(content(&other, "file").await, b"first");
            let file = open_as(&other, "file", mode).await;
            let bytes: &[u8] = if written { b"FIRST" } else { b"first" };
            if written {
                other.write(file, 0, Bytes::from_static(b"FIRST")).await.expect("a write");
            }
            append(&writer, "file", b" and more").await;
            let read = async || other.read(file, 0, 100).await.expect("a read").to_vec();
            watch(read, &[bytes]).await;
        });
    }
}

/// The containers on the disk of a client.
fn containers_of(world: &World, number: usize, vnode: VnodeId) -> usize {
    let names = world.machines()[number].disk().list(&format!("containers/{:02x}", vnode.0 & 0xff)).unwrap_or_default();
    names.iter().filter(|name| name.starts_with(&format!("{:x}.", vnode.0))).count()
}

#[test]
fn what_the_kernel_knows_can_be_opened_without_a_name() {
    for policy in [Writeback::Sync, Writeback::Sirp] {
        for (how, waits) in [("unlink", false), ("unlink", true), ("replace", false), ("elsewhere", true)] {
            simulate(async move {
                let world = two(policy, false).await;
                let [first, second] = both(&world);
                let vnode = write_and_close(&first, "file", vec![7; 16_000]).await;
                if waits {
                    first.sync().await.expect("a sync");
                }
                match how {
                    "unlink" => first.unlink(VnodeId::ROOT, Bytes::from("file"), CALLER).await.expect("a removal"),
                    "replace" => {
                        write_and_close(&first, "new", vec![8; 3]).await;
                        rename(&first, "new", "file").await.expect("a rename");
                    }
                    _ => second.unlink(VnodeId::ROOT, Bytes::from("file"), CALLER).await.expect("a removal"),
                }
                second.sync().await.expect("a sync");
                for _ in 0..2 {
                    let status = first.get_attributes(vnode).await.expect("attributes").status;
                    assert_eq!((status.size, status.nlink), (16_000, 0), "{how} {policy:?}");
                    let file = first.open(vnode, READ, CALLER).await.expect("an open").file;
                    let read = first.read(file, 0, 20_000).await.expect("a read");
                    assert!(read == vec![7; 16_000], "{how} {policy:?}");
                    first.release(file);
                }
                first.forget(vnode, 1);
                tokio::time::sleep(Duration::from_secs(5)).await;
                assert_eq!(containers_of(&world, 0, vnode), 0, "{how} {policy:?}");
            });
        }
    }
}

#[test]
fn what_is_written_without_a_name_is_there_for_the_next_who_opens_it() {
    simulate(async {
        let world = two(Writeback::Sirp, false).await;
        let [vfs, _] = both(&world);
        let (vnode, file) = create(&vfs, "file").await;
        vfs.unlink(VnodeId::ROOT, Bytes::from("file"), CALLER).await.expect("a removal");
        vfs.release(file);
        let file = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
        vfs.write(file, 0, Bytes::from("written")).await.expect("a write");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        assert_eq!(vfs.get_attributes(vnode).await.expect("attributes").status.size, 7);
        let file = vfs.open(vnode, READ, CALLER).await.expect("an open").file;
        assert_eq!(vfs.read(file, 0, 100).await.expect("a read"), "written");
    });
}

#[test]
fn a_name_that_is_looked_up_again_means_what_can_be_opened() {
    simulate(async {
        let world = two(Writeback::Sirp, false).await;
        let [writer, reader] = both(&world);
        let replace = async |byte: u8| {
            write_and_close(&writer, "new", vec![byte; 1000]).await;
            rename(&writer, "new", "file").await.expect("a rename");
            writer.sync().await.expect("a sync");
        };
        replace(0).await;
        let looked_up = look(&reader, "file").await.fid.vnode;
        replace(1).await;
        let gone = reader.open(looked_up, READ, CALLER).await;
        assert!(matches!(gone, Err(Error::Refused(FsError::Stale))), "the kernel looks what the name means now");
        let found = reader.lookup_again(VnodeId::ROOT, Bytes::from("file")).await.expect("a name").expect("a meaning");
        replace(2).await;
        let again = OpenMode { again: true, ..READ };
        let file = reader.open(found.fid.vnode, again, CALLER).await.expect("an open").file;
        assert_eq!(reader.read(file, 0, 2000).await.expect("a read"), vec![1; 1000]);
    });
}

#[test]
fn in_a_directory_that_is_gone_there_are_no_names() {
    for policy in [Writeback::Sync, Writeback::Sirp] {
        simulate(async move {
            let world = two(policy, false).await;
            let [first, second] = both(&world);
            let dir = make_dir(&first, VnodeId::ROOT, "dir").await.expect("a directory");
            first.sync().await.expect("a sync");
            look(&second, "dir").await;
            second.remove_dir(VnodeId::ROOT, Bytes::from("dir"), CALLER).await.expect("a removal");
            second.sync().await.expect("a sync");
            let is_absent = |error: &Error| matches!(error, Error::Refused(FsError::NotFound));
            let (file, mode) = (Bytes::from("file"), Mode::from_bits(0o644));
            for vfs in [&first, &second] {
                assert!(vfs.lookup(dir, file.clone()).await.is_err_and(|error| is_absent(&error)), "{policy:?}");
                let made = vfs.create(dir, file.clone(), mode, MAKE, CALLER).await;
                assert!(made.is_err_and(|error| is_absent(&error)), "{policy:?}");
                let removed = vfs.unlink(dir, file.clone(), CALLER).await;
                assert!(removed.is_err_and(|error| is_absent(&error)), "{policy:?}");
            }
        });
    }
}
