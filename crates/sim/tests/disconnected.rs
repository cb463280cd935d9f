//! The server is out of reach: what is cached is used all the same, changes wait in the log, and the rest fails at once
//! (consistency.md, "What a user may rely on"; cli.md, "Path dead").

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Close, Error, Vfs, Writeback};
use mafs_proto::{FsError, Mode, RenameMode, VnodeId, XattrMode};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    BLACK_HOLE, CALLER, EXCLUSIVE, READ, WRITE, clients, configured, content, create, look, make_dir, make_exclusively,
    name, names, overwrite, simulate, usable_apart, write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);
/// An operation that needs no server, or knows that there is none.
const INSTANT: Duration = Duration::from_millis(50);
/// How long a call waits.
const DEADLINE: Duration = Duration::from_secs(21);
/// State that the server has shown survives a loss of power after this time.
const KNOWN_DURABLY: Duration = Duration::from_secs(40);
/// Silence is taken for the end of the path after this long, counted from the first call without an answer.
const DEAD_AFTER: Duration = Duration::from_secs(8);

async fn two(policy: Writeback) -> World {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    usable_apart(world, policy).await
}

/// Two clients, the second of which has all of a small tree in its cache that the first has made.
async fn cached_tree(policy: Writeback) -> (World, [Vfs; 2]) {
    let world = two(policy).await;
    let [one, two] = clients(&world);
    write_and_close(&one, "a", vec![1; 3000]).await;
    write_and_close(&one, "b", vec![2; 3000]).await;
    write_and_close(&one, "unread", vec![3; 3000]).await;
    let dir = make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
    make_exclusively(&one, dir, "in-dir").await.expect("a file");
    let unseen = make_dir(&one, VnodeId::ROOT, "unseen").await.expect("a directory");
    make_exclusively(&one, unseen, "in-unseen").await.expect("a file");
    one.sync().await.expect("a sync");
    for dir in [VnodeId::ROOT, dir] {
        names(&two, dir).await.expect("its names");
    }
    assert_eq!((content(&two, "a").await.len(), content(&two, "b").await.len()), (3000, 3000));
    (world, [one, two])
}

/// The second client falls into a black hole, and has noticed that.
async fn unplug(world: &World, vfs: &Vfs) {
    world.machines()[1].fall_silent(BLACK_HOLE);
    assert!(vfs.lookup(VnodeId::ROOT, name("unread")).await.is_ok(), "it is under a promise");
    let opened = vfs.open(look(vfs, "unread").await.fid.vnode, WRITE, CALLER).await;
    let why = opened.expect_err("its content is not here").to_string();
    assert!(why.starts_with("the server is out of reach: "), "it was not the deadline that ended the wait: {why}");
    assert!(!vfs.status().connected);
}

async fn plug_in(world: &World, vfs: &Vfs) {
    world.machines()[1].break_silence();
    while !vfs.status().connected {
        sleep(NEAR).await;
    }
}

/// Each of these works on what is cached, at once.
async fn use_the_cache(vfs: &Vfs, round: &'static str) {
    let begun = Instant::now();
    assert_eq!(content(vfs, "b").await.len(), 3000);
    let dir = look(vfs, "dir").await.fid.vnode;
    assert!(!names(vfs, dir).await.expect("its names").is_empty());
    let missing = vfs.lookup(dir, name("missing")).await;
    assert!(matches!(missing, Err(Error::Refused(FsError::NotFound))), "all names are known: {missing:?}");
    overwrite(vfs, "a", round.as_bytes().to_vec()).await;
    let made = make_exclusively(vfs, dir, round).await.expect("a file");
    let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
    vfs.set_attributes(made, set, None, CALLER).await.expect("a chmod");
    vfs.link(made, dir, name("link"), CALLER).await.expect("a link");
    vfs.make_symlink(dir, name("symlink"), name("a"), CALLER).await.expect("a symlink");
    let below = make_dir(vfs, dir, "below").await.expect("a directory");
    let mode = RenameMode::NoReplace;
    vfs.rename(dir, name("symlink"), below, name("moved"), mode, CALLER).await.expect("a rename");
    vfs.unlink(dir, name("link"), CALLER).await.expect("an unlink");
    vfs.unlink(below, name("moved"), CALLER).await.expect("an unlink");
    vfs.remove_dir(dir, name("below"), CALLER).await.expect("a rmdir");
    vfs.space().await.expect("a statfs");
    assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
}

#[test]
fn what_is_cached_is_used_without_the_server_however_long_it_is_gone() {
    for policy in [Writeback::Sirp, Writeback::Async] {
        simulate(async {
            let (world, [one, two]) = cached_tree(policy).await;
            unplug(&world, &two).await;
            use_the_cache(&two, "first").await;
            sleep(Duration::from_secs(600)).await;
            use_the_cache(&two, "second").await;
            plug_in(&world, &two).await;
            two.sync().await.expect("all of it is sent");
            let status = two.status();
            assert!(status.connected && status.refused.is_empty(), "{status:?}");
            assert_eq!(&content(&one, "a").await[..6], b"second");
            let dir = look(&one, "dir").await.fid.vnode;
            let mut shown = names(&one, dir).await.expect("its names");
            shown.sort();
            assert_eq!(shown, ["first", "in-dir", "second"]);
        });
    }
}

#[test]
fn what_is_not_cached_fails_at_once_when_the_path_is_known_to_be_dead() {
    simulate(async {
        let (world, [_, two]) = cached_tree(Writeback::Sirp).await;
        unplug(&world, &two).await;
        sleep(LEASE + LEASE_BIAS).await;
        let begun = Instant::now();
        let (unread, unseen) = (look(&two, "unread").await.fid.vnode, look(&two, "unseen").await.fid.vnode);
        let opened = two.open(unread, WRITE, CALLER).await.map(drop);
        let found = two.lookup(unseen, name("anything")).await.map(drop);
        let listed = names(&two, unseen).await.map(drop);
        for failed in [opened, found, listed] {
            assert!(matches!(failed, Err(Error::OutOfReach(_))), "could not ask is never does not exist: {failed:?}");
        }
        assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
    });
}

/// Before the path is known to be dead a call waits for as long as it takes to find that out.
#[test]
fn a_path_is_taken_for_dead_within_seconds() {
    simulate(async {
        let (world, [_, two]) = cached_tree(Writeback::Sirp).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        let begun = Instant::now();
        let dir = look(&two, "dir").await.fid.vnode;
        make_exclusively(&two, dir, "lock").await.expect("a name that is free as far as is known");
        assert!(begun.elapsed() < DEAD_AFTER, "it took {:?}", begun.elapsed());
        plug_in(&world, &two).await;
        two.sync().await.expect("a sync");
        assert!(two.status().refused.is_empty());
    });
}

/// The server is gone, but not the network: connections are refused. The server may be back soon, so it is waited for
/// as long as a call waits.
#[test]
fn a_server_that_refuses_connections_is_out_of_reach_after_the_deadline() {
    simulate(async {
        let (world, [_, two]) = cached_tree(Writeback::Sirp).await;
        world.machines()[1].isolate();
        let begun = Instant::now();
        assert!(two.open(look(&two, "unread").await.fid.vnode, WRITE, CALLER).await.is_err());
        assert!(begun.elapsed() > DEAD_AFTER && begun.elapsed() <= DEADLINE, "it took {:?}", begun.elapsed());
        sleep(2 * LEASE).await;
        use_the_cache(&two, "round").await;
    });
}

/// A change is done when it is in the log. Not being able to ask for the rest of its object is no failure.
#[test]
fn a_change_of_attributes_does_not_ask_the_server_what_others_have_changed() {
    simulate(async {
        let (world, [one, two]) = cached_tree(Writeback::Sirp).await;
        let file = look(&two, "a").await.fid.vnode;
        overwrite(&one, "a", vec![9; 4000]).await;
        one.sync().await.expect("a sync");
        sleep(2 * NEAR).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        let begun = Instant::now();
        let mode = Mode::from_bits(0o600);
        let set = Attributes { mode: Some(mode), ..Attributes::default() };
        let shown = two.set_attributes(file, set, None, CALLER).await.expect("a chmod");
        assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
        assert_eq!(shown.status.mode, mode);
        plug_in(&world, &two).await;
        two.sync().await.expect("a sync");
        let shown = look(&one, "a").await.status;
        assert_eq!((shown.mode, shown.size), (mode, 4000));
    });
}

async fn set(vfs: &Vfs, file: &'static str, attribute: &'static str, mode: XattrMode) -> Result<(), Error> {
    let vnode = look(vfs, file).await.fid.vnode;
    vfs.set_xattr(vnode, name(attribute), Bytes::from_static(b"value"), mode, CALLER).await
}

async fn attributes(vfs: &Vfs, file: &'static str) -> Vec<Vec<u8>> {
    let listed = vfs.list_xattrs(look(vfs, file).await.fid.vnode, CALLER).await.expect("its attributes");
    listed.iter().map(|attribute| attribute.as_bytes().to_vec()).collect()
}

/// Extended attributes are decided by what is known here, logged, there after a restart, and sent.
#[test]
fn extended_attributes_are_changed_without_the_server() {
    for policy in [Writeback::Sirp, Writeback::Async] {
        simulate(async {
            let (mut world, [one, two]) = cached_tree(policy).await;
            set(&one, "b", "user.old", XattrMode::Either).await.expect("an attribute");
            set(&one, "unread", "user.old", XattrMode::Either).await.expect("an attribute");
            one.sync().await.expect("a sync");
            assert_eq!(attributes(&two, "b").await, [b"user.old"]);
            look(&two, "unread").await;
            sleep(KNOWN_DURABLY).await;
            unplug(&world, &two).await;
            let begun = Instant::now();
            set(&two, "a", "user.new", XattrMode::Create).await.expect("a new attribute");
            let again = set(&two, "a", "user.new", XattrMode::Create).await;
            assert!(matches!(again, Err(Error::Refused(FsError::Exists))), "{again:?}");
            let missing = set(&two, "a", "user.missing", XattrMode::Replace).await;
            assert!(matches!(missing, Err(Error::Refused(FsError::NoXattr))), "{missing:?}");
            let b = look(&two, "b").await.fid.vnode;
            two.remove_xattr(b, name("user.old"), CALLER).await.expect("a removal");
            let gone = two.remove_xattr(b, name("user.old"), CALLER).await;
            assert!(matches!(gone, Err(Error::Refused(FsError::NoXattr))), "{gone:?}");
            set(&two, "b", "user.new", XattrMode::Either).await.expect("an attribute");
            let unknown = set(&two, "unread", "user.new", XattrMode::Either).await;
            assert!(matches!(unknown, Err(Error::OutOfReach(_))), "what is there is not known: {unknown:?}");
            assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
            sleep(Duration::from_secs(3)).await;
            drop(two);
            restart(&mut world, Some(Crash::Kill)).await;
            let [_, two] = clients(&world);
            for file in ["a", "b"] {
                assert_eq!(attributes(&two, file).await, [b"user.new"], "{file}");
            }
            // A removal that another client makes too is no conflict.
            one.remove_xattr(b, name("user.old"), CALLER).await.expect("a removal");
            one.sync().await.expect("a sync");
            plug_in(&world, &two).await;
            two.sync().await.expect("all of it is sent");
            assert!(two.status().refused.is_empty(), "{:?}", two.status().refused);
            for vfs in [&one, &two] {
                assert_eq!(
                    (attributes(vfs, "a").await, attributes(vfs, "b").await.len()),
                    (vec![b"user.new".to_vec()], 1)
                );
            }
        });
    }
}

/// Changes of another client are not known meanwhile, and count afterwards.
#[test]
fn what_others_have_changed_meanwhile_is_shown_after_the_reconnection() {
    simulate(async {
        let (world, [one, two]) = cached_tree(Writeback::Sirp).await;
        unplug(&world, &two).await;
        sleep(LEASE + LEASE_BIAS).await;
        overwrite(&one, "b", vec![9; 10]).await;
        write_and_close(&one, "new", vec![4; 10]).await;
        one.sync().await.expect("a sync");
        assert_eq!(content(&two, "b").await, vec![2; 3000]);
        let missing = two.lookup(VnodeId::ROOT, name("new")).await;
        assert!(matches!(missing, Err(Error::Refused(FsError::NotFound))), "{missing:?}");
        plug_in(&world, &two).await;
        assert_eq!(content(&two, "b").await[..10], [9; 10]);
        assert_eq!(content(&two, "new").await, vec![4; 10]);
    });
}

/// Nobody can be told, so close waits for nobody.
#[test]
fn a_close_that_waits_for_the_announcement_does_not_wait_without_a_server() {
    simulate(async {
        let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
        let world = configured(world, |machine| {
            machine.set_writeback(Writeback::Sirp);
            machine.set_close(Close::Announced);
            machine.set_disconnected(true);
        })
        .await;
        let [_, two] = clients(&world);
        write_and_close(&two, "a", vec![1; 3000]).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        let begun = Instant::now();
        overwrite(&two, "a", vec![2; 10]).await;
        assert!(begun.elapsed() < DEAD_AFTER, "it took {:?}", begun.elapsed());
        sleep(LEASE).await;
        let begun = Instant::now();
        overwrite(&two, "a", vec![3; 10]).await;
        assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
    });
}

/// With `disconnected=off` what may be old is not shown, and changes that need the server's word fail.
#[test]
fn without_disconnected_operation_what_may_be_old_is_not_shown() {
    simulate(async {
        let (mut world, _) = cached_tree(Writeback::Sirp).await;
        world.machines_mut()[1].stop().await;
        world.machines_mut()[1].set_disconnected(false);
        world.machines_mut()[1].start().await.expect("a client");
        let [_, two] = clients(&world);
        assert_eq!(content(&two, "a").await.len(), 3000);
        world.machines()[1].fall_silent(BLACK_HOLE);
        assert_eq!(content(&two, "a").await.len(), 3000);
        sleep(LEASE + LEASE_BIAS).await;
        assert!(two.lookup(VnodeId::ROOT, name("a")).await.is_err());
    });
}

/// A content that was being read when the path died.
#[test]
fn a_file_that_has_not_come_whole_fails_and_comes_again_after_the_reconnection() {
    simulate(async {
        let (world, [_, two]) = cached_tree(Writeback::Sirp).await;
        unplug(&world, &two).await;
        let (_, file) = create(&two, "made").await;
        two.write(file, 0, Bytes::from_static(b"made")).await.expect("a write");
        two.flush(file).await.expect("a close");
        two.release(file);
        plug_in(&world, &two).await;
        two.sync().await.expect("a sync");
        assert_eq!(content(&two, "unread").await.len(), 3000);
        assert_eq!(content(&two, "made").await, b"made");
    });
}

/// The files that it has made, however many, are there after a restart, at once, and at the server in the end.
#[test]
fn a_client_is_started_again_without_its_server() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
        simulate(async {
            let (mut world, [one, two]) = cached_tree(Writeback::Sirp).await;
            sleep(KNOWN_DURABLY).await;
            unplug(&world, &two).await;
            let dir = look(&two, "dir").await.fid.vnode;
            for number in 0..200 {
                make_file(&two, dir, &format!("first-{number}")).await;
            }
            for life in ["second", "third"] {
                // A change younger than a second is not durable.
                sleep(Duration::from_secs(3)).await;
                restart(&mut world, crash).await;
                let [_, two] = clients(&world);
                let status = two.status();
                assert!(status.disconnected && !status.connected && status.refused.is_empty(), "{status:?}");
                let begun = Instant::now();
                assert_eq!(content(&two, "b").await.len(), 3000, "{life} after {crash:?}");
                make_file(&two, dir, life).await;
                assert_eq!(names(&two, dir).await.expect("its names").len(), if life == "second" { 202 } else { 203 });
                assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
            }
            let [_, two] = clients(&world);
            plug_in(&world, &two).await;
            two.sync().await.expect("all of it is sent");
            assert!(two.status().refused.is_empty(), "{:?}", two.status().refused);
            let dir = look(&one, "dir").await.fid.vnode;
            assert_eq!(names(&one, dir).await.expect("its names").len(), 203);
            let first = one.lookup(dir, name("first-199")).await.expect("a name").fid.vnode;
            let file = one.open(first, READ, CALLER).await.expect("an open").file;
            assert_eq!(one.read(file, 0, 100).await.expect("a read"), name("first-199"));
        });
    }
}

/// Makes a file with its name for a content.
async fn make_file(vfs: &Vfs, dir: VnodeId, file: &str) {
    let bytes = Bytes::from(file.to_owned());
    let made = vfs.create(dir, bytes.clone(), Mode::from_bits(0o644), EXCLUSIVE, CALLER).await;
    let (_, opened) = made.expect("a new file");
    vfs.write(opened.file, 0, bytes).await.expect("a write");
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
}

/// Restarts the second client; it is there within a second.
async fn restart(world: &mut World, crash: Option<Crash>) {
    match crash {
        None => world.machines_mut()[1].stop().await,
        Some(crash) => world.crash_machine(1, crash),
    }
    let begun = Instant::now();
    world.machines_mut()[1].start().await.expect("a client that has a cache starts");
    assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
}

#[test]
fn a_client_without_a_cache_does_not_start_without_its_server() {
    simulate(async {
        let (mut world, _) = cached_tree(Writeback::Sirp).await;
        world.machines_mut()[1].stop().await;
        world.machines_mut()[1].empty_cache();
        world.machines()[1].fall_silent(BLACK_HOLE);
        assert!(world.machines_mut()[1].start().await.is_err());
        world.machines()[1].break_silence();
        world.machines_mut()[1].start().await.expect("a client");
    });
}

/// More objects than one grant of fids names, over several lives.
#[test]
fn invariant_2_no_fid_is_used_twice_over_lives_without_the_server() {
    simulate(async {
        let (mut world, [_, two]) = cached_tree(Writeback::Sirp).await;
        sleep(KNOWN_DURABLY).await;
        unplug(&world, &two).await;
        let dir = look(&two, "dir").await.fid.vnode;
        let mut made = BTreeSet::new();
        for life in 0..4 {
            let [_, two] = clients(&world);
            for number in 0..700 {
                let target = Bytes::from_static(b"target");
                let link = Bytes::from(format!("{life}-{number}"));
                let object = two.make_symlink(dir, link, target, CALLER).await.expect("a symlink");
                assert!(made.insert(object.fid.vnode), "{life}, {number}: {}", object.fid);
            }
            // Without a sync of the log: a loss of power takes some of it.
            restart(&mut world, Some(Crash::Power)).await;
        }
        let [_, two] = clients(&world);
        plug_in(&world, &two).await;
        two.sync().await.expect("all of it is sent");
        assert!(two.status().refused.is_empty(), "{:?}", two.status().refused);
    });
}

/// The daemon took it for removed as long as the kernel knew it.
#[test]
fn regression_a_directory_that_others_have_put_something_into_is_not_empty_when_its_removal_is_refused() {
    simulate(async {
        let (world, [one, two]) = cached_tree(Writeback::Sirp).await;
        let dir = look(&two, "dir").await.fid.vnode;
        unplug(&world, &two).await;
        two.unlink(dir, name("in-dir"), CALLER).await.expect("an unlink");
        two.remove_dir(VnodeId::ROOT, name("dir"), CALLER).await.expect("a rmdir");
        assert!(names(&two, dir).await.expect("of a removed directory").is_empty());
        make_exclusively(&one, dir, "new").await.expect("a file");
        one.sync().await.expect("a sync");
        plug_in(&world, &two).await;
        let synced = two.sync().await;
        assert!(matches!(synced, Err(Error::Refused(FsError::NotEmpty))), "{synced:?}");
        assert_eq!(names(&two, dir).await.expect("its names"), ["new"]);
        assert_eq!(look(&two, "dir").await.fid.vnode, dir);
    });
}

/// The bytes were durable and the names of their containers were not.
#[test]
fn regression_contents_that_have_been_here_for_a_while_survive_a_loss_of_power() {
    const FILES: [&str; 12] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11"];
    simulate(async {
        let mut world = two(Writeback::Sirp).await;
        let [one, two] = clients(&world);
        for file in FILES {
            write_and_close(&one, file, vec![1; 3000]).await;
        }
        one.sync().await.expect("a sync");
        for file in FILES {
            assert_eq!(content(&two, file).await.len(), 3000);
        }
        sleep(KNOWN_DURABLY).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        world.crash_machine(1, Crash::Power);
        world.machines_mut()[1].start().await.expect("it starts without the server");
        let [_, two] = clients(&world);
        for file in FILES {
            assert_eq!(content(&two, file).await.len(), 3000);
        }
    });
}
