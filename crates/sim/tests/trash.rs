//! `rm -rf` without a connection: removed files are in the trash when the client is back if they were most of all that
//! others have made, whatever ends in the middle; fewer are gone, as is what the client made itself.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Vfs, Writeback};
use mafs_proto::{ConflictKind, FsError, Kind, Mode, RenameMode, VnodeId};
use mafs_sim::{Crash, World};
use tokio::time::sleep;

use crate::support::{BLACK_HOLE, CALLER, MAKE, READ, clients, look, make_dir, name, simulate, usable_apart};

const DIRS: [&str; 2] = ["photos", "work"];

/// A file whose content tells which one it is.
async fn make_file(vfs: &Vfs, dir: VnodeId, file: &str) {
    let mode = Mode::from_bits(0o644);
    let (_, opened) = vfs.create(dir, name(file), mode, MAKE, CALLER).await.expect("a new file");
    vfs.write(opened.file, 0, Bytes::from(file.to_owned())).await.expect("a write");
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
}

async fn read(vfs: &Vfs, vnode: VnodeId) -> Vec<u8> {
    let file = vfs.open(vnode, READ, CALLER).await.expect("an open").file;
    let content = vfs.read(file, 0, 4096).await.expect("a read");
    vfs.release(file);
    content.to_vec()
}

/// Two clients. The first has made two directories of so many files, which the second has seen.
async fn tree(files: [usize; 2]) -> World {
    let world = World::start_several(1, 2, Duration::from_millis(5), false).await.expect("a world");
    let world = usable_apart(world, Writeback::Sirp).await;
    let [one, two] = clients(&world);
    for (dir, files) in DIRS.into_iter().zip(files) {
        let made = make_dir(&one, VnodeId::ROOT, dir).await.expect("a directory");
        for number in 0..files {
            make_file(&one, made, &format!("{dir}-{number}")).await;
        }
        one.sync().await.expect("a sync");
        assert_eq!(look(&two, dir).await.fid.vnode, made);
        for (entry, _) in list(&two, made).await.expect("its names") {
            two.lookup(made, entry).await.expect("a status");
        }
    }
    for dir in DIRS {
        look(&two, dir).await;
    }
    world
}

async fn unplug(world: &World, vfs: &Vfs) {
    world.machines()[1].fall_silent(BLACK_HOLE);
    assert!(vfs.lookup(VnodeId::ROOT, name("nobody-knows")).await.is_err());
    sleep(Duration::from_secs(30)).await;
    assert!(!vfs.status().connected);
}

async fn list(vfs: &Vfs, dir: VnodeId) -> Result<Vec<(Bytes, Kind)>, Error> {
    let entries = vfs.read_dir(dir, 0, usize::MAX).await?.entries;
    let entries = entries.into_iter().map(|entry| (entry.name, entry.kind));
    Ok(entries.filter(|(name, _)| name != "." && name != "..").collect())
}

async fn remove_all(vfs: &Vfs, dir: &'static str) {
    let object = look(vfs, dir).await;
    for (entry, _) in list(vfs, object.fid.vnode).await.expect("its names") {
        vfs.unlink(object.fid.vnode, entry, CALLER).await.expect("an unlink");
    }
    vfs.remove_dir(VnodeId::ROOT, name(dir), CALLER).await.expect("a rmdir");
}

async fn plug_in(world: &World) {
    let machine = &world.machines()[1];
    machine.break_silence();
    for _ in 0..6000 {
        if machine.client().status().connected {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not connect");
}

/// The directory in the trash that stands for the root.
async fn trash_of(vfs: &Vfs) -> Option<VnodeId> {
    let trash = match vfs.lookup(VnodeId::ROOT, name(".mafs-trash")).await {
        Ok(trash) => trash.fid.vnode,
        Err(Error::Refused(FsError::NotFound)) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut at = trash;
    for _ in 0..2 {
        let below = list(vfs, at).await.expect("a listing");
        assert_eq!(below.len(), 1, "{below:?}");
        at = vfs.lookup(at, below[0].0.clone()).await.expect("a name").fid.vnode;
    }
    Some(at)
}

/// All that was in a directory is in the trash, with what it held, and can be moved back.
async fn restore(vfs: &Vfs, dir: &'static str, files: usize) {
    let trash = trash_of(vfs).await.expect("a trash");
    let stand_in = vfs.lookup(trash, name(dir)).await.expect("the directory").fid.vnode;
    let found = list(vfs, stand_in).await.expect("its names");
    assert_eq!(found.len(), files);
    assert!(matches!(vfs.lookup(VnodeId::ROOT, name(dir)).await, Err(Error::Refused(FsError::NotFound))));
    vfs.rename(trash, name(dir), VnodeId::ROOT, name(dir), RenameMode::NoReplace, CALLER).await.expect("a mv");
    for (entry, _) in found.into_iter().step_by(7) {
        let file = vfs.lookup(stand_in, entry.clone()).await.expect("a file").fid.vnode;
        assert_eq!(read(vfs, file).await, entry, "it is what it was");
    }
}

async fn delete_apart(world: &World, dirs: &[&'static str]) {
    let [_, two] = clients(world);
    unplug(world, &two).await;
    for dir in dirs {
        remove_all(&two, dir).await;
    }
    plug_in(world).await;
}

#[test]
fn invariant_9_what_was_most_of_what_others_made_is_in_the_trash() {
    simulate(async {
        let world = tree([1500, 500]).await;
        let [one, two] = clients(&world);
        delete_apart(&world, &["photos"]).await;
        two.sync().await.expect("all of it is sent");
        assert_eq!(two.status().refused, vec![]);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(two.status().conflicts, 1, "people are told");
        let [conflict] = &one.conflicts().await.expect("the conflicts")[..] else { panic!("one conflict") };
        assert_eq!(conflict.kind, ConflictKind::Trash);
        // The trash is an ordinary directory to both.
        let trash = trash_of(&two).await.expect("a trash");
        assert_eq!(list(&two, trash).await.expect("its names"), [(name("photos"), Kind::Directory)]);
        restore(&one, "photos", 1500).await;
        assert_eq!(list(&one, look(&one, "work").await.fid.vnode).await.expect("its names").len(), 500);
        // A client that empties the trash while connected has it empty, and nobody is told of it any more.
        remove_all(&two, "photos").await;
        let above = one.lookup(VnodeId::ROOT, name(".mafs-trash")).await.expect("the trash").fid.vnode;
        let (client, _) = list(&one, above).await.expect("its names").remove(0);
        let client = one.lookup(above, client).await.expect("a directory").fid.vnode;
        let (minute, _) = list(&one, client).await.expect("its names").remove(0);
        one.remove_dir(client, minute, CALLER).await.expect("a rmdir");
        one.sync().await.expect("a sync");
        two.sync().await.expect("a sync");
        assert!(list(&one, client).await.expect("its names").is_empty());
        assert!(one.conflicts().await.expect("the conflicts").is_empty());
    });
}

#[test]
fn so_few_are_removed_and_so_is_what_the_client_has_made_itself() {
    simulate(async {
        let world = tree([900, 100]).await;
        let [one, two] = clients(&world);
        let own = make_dir(&two, VnodeId::ROOT, "own").await.expect("a directory");
        for number in 0..50 {
            make_file(&two, own, &format!("own-{number}")).await;
        }
        two.sync().await.expect("a sync");
        delete_apart(&world, &["photos", "own"]).await;
        two.sync().await.expect("all of it is sent");
        assert_eq!(trash_of(&one).await, None);
        for dir in ["photos", "own"] {
            assert!(matches!(one.lookup(VnodeId::ROOT, name(dir)).await, Err(Error::Refused(FsError::NotFound))));
        }
        assert!(two.conflicts().await.expect("the conflicts").is_empty());
    });
}

#[test]
fn who_removes_all_while_connected_has_it_removed() {
    simulate(async {
        let world = tree([1200, 100]).await;
        let [one, two] = clients(&world);
        remove_all(&two, "photos").await;
        two.sync().await.expect("all of it is sent");
        assert_eq!(trash_of(&one).await, None);
    });
}

#[test]
fn invariant_1_nothing_is_lost_if_both_sides_are_killed_in_the_middle() {
    simulate(async {
        let mut world = tree([1100, 200]).await;
        delete_apart(&world, &["photos"]).await;
        // Some of it has been sent, and some of that was answered.
        sleep(Duration::from_millis(60)).await;
        let (waiting, _) = left(&world);
        assert!((100..1101).contains(&waiting), "{waiting}");
        world.crash_machine(1, Crash::Kill);
        world.crash_server(Crash::Kill);
        world.start_server().expect("the server starts");
        world.machines_mut()[1].start().await.expect("the client starts");
        sleep(Duration::from_millis(60)).await;
        world.crash_server(Crash::Kill);
        world.start_server().expect("the server starts");
        sleep(Duration::from_secs(70)).await;
        let [one, two] = clients(&world);
        two.sync().await.expect("all of it is sent");
        assert_eq!((left(&world).0, two.status().refused), (0, vec![]));
        assert_eq!(one.conflicts().await.expect("the conflicts").len(), 1, "it is one trash");
        restore(&one, "photos", 1100).await;
    });
}

/// Returns the changes and bytes that the second client has not sent.
fn left(world: &World) -> (usize, u64) {
    let status = world.machines()[1].client().status();
    (usize::try_from(status.unsent_changes).expect("small"), status.unsent_bytes)
}
