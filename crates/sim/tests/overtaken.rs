//! Overtaken: the state that a client shows of a file that another has changed since, on top of its own version or in
//! conflict with it, while it waits to hear what has become of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Close, Error, Vfs, Writeback};
use mafs_proto::{FsError, Mode, RenameMode, VnodeId};
use mafs_sim::{Machine, Path, World};
use tokio::time::sleep;

use crate::support::{
    CALLER, MAKE, WRITE, clients, configured, content, look, make_dir, open_as, overwrite, rename, simulate,
    write_and_close,
};

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

/// Bytes of the file that is changed by both: more than is sent again without asking how much of it has arrived.
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

/// Otherwise the kernel keeps the size of its own for as long as the lease, and cuts what it reads.
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

/// Attributes that the kernel keeps must not outlast the verdict.
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

/// Three clients. The third has been promised to be told of changes, and is out of touch from then on: what the others
/// change is done at once, and answered when its lease has ended.
async fn unanswered() -> World {
    let paths = vec![Path::Delay(NEAR_DELAY), Path::Delay(NEAR_DELAY), Path::Delay(NEAR_DELAY)];
    let world = World::start_over(1, paths, false).await.expect("a world");
    let world = configured(world, |machine| machine.set_writeback(Writeback::Sirp)).await;
    let [one, _, third] = clients(&world);
    write_and_close(&one, "f", vec![1; 10]).await;
    let below = make_dir(&one, VnodeId::ROOT, "below").await.expect("a mkdir");
    make_dir(&one, below, "own").await.expect("a mkdir");
    one.sync().await.expect("a sync");
    assert_eq!(content(&third, "f").await, [1; 10]);
    for directory in [VnodeId::ROOT, look(&third, "below").await.fid.vnode] {
        third.read_dir(directory, 0, 100).await.expect("a listing");
    }
    world.machines()[2].isolate();
    world
}

/// Until what has been changed is at the server.
async fn settle() {
    sleep(Duration::from_secs(1)).await;
}

async fn names_in_root(vfs: &Vfs) -> Vec<Bytes> {
    let page = vfs.read_dir(VnodeId::ROOT, 0, 100).await.expect("a listing");
    let names = page.entries.into_iter().map(|entry| entry.name).filter(|name| !name.starts_with(b"."));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn a_name_means_what_others_have_made_of_it_since() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        write_and_close(&one, "f.new", vec![2; 20]).await;
        rename(&one, "f.new", "f").await.expect("a rename");
        settle().await;
        assert_eq!(content(&other, "f").await, [2; 20]);
        write_and_close(&other, "f.new", vec![3; 30]).await;
        rename(&other, "f.new", "f").await.expect("a rename");
        settle().await;
        assert!(one.status().unsent_changes > 0, "the answers have come");
        assert_eq!(look(&one, "f").await.status.size, 30);
        assert_eq!(content(&one, "f").await, [3; 30]);
        assert_eq!(names_in_root(&one).await, ["below", "f"]);
        write_and_close(&one, "f.new", vec![4; 40]).await;
        rename(&one, "f.new", "f").await.expect("a rename");
        settle().await;
        assert_eq!(content(&other, "f").await, [4; 40]);
        one.sync().await.expect("a sync");
        assert_eq!(content(&one, "f").await, [4; 40]);
        assert_eq!(names_in_root(&one).await, ["below", "f"]);
        assert!(one.status().refused.is_empty() && other.status().refused.is_empty());
    });
}

/// The objects asked about need not name all of them.
#[test]
fn what_a_record_builds_on_is_applied_with_it() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        let (below, mode, name) = (look(&one, "below").await.fid.vnode, Mode::from_bits(0o644), Bytes::from("c"));
        let (_, made) = one.create(below, name.clone(), mode, MAKE, CALLER).await.expect("a new file");
        one.release(made.file);
        settle().await;
        write_and_close(&one, "draft", vec![2; 20]).await;
        let (from, mode) = (Bytes::from("draft"), RenameMode::Replace);
        one.rename(VnodeId::ROOT, from, below, name.clone(), mode, CALLER).await.expect("a rename");
        settle().await;
        // Somebody changes the root, so that it is asked for.
        write_and_close(&other, "other", vec![3; 30]).await;
        settle().await;
        assert_eq!(names_in_root(&one).await, ["below", "f", "other"]);
        assert!(one.status().unsent_changes > 0, "the answers have come");
        assert_eq!(one.lookup(below, name).await.expect("a name").status.size, 20);
    });
}

#[test]
fn what_was_made_here_and_removed_by_others_since_is_gone() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        write_and_close(&one, "made", vec![2; 20]).await;
        settle().await;
        assert_eq!(content(&other, "made").await, [2; 20]);
        other.unlink(VnodeId::ROOT, Bytes::from("made"), CALLER).await.expect("an unlink");
        settle().await;
        assert!(one.status().unsent_changes > 0, "the answers have come");
        let gone = one.lookup(VnodeId::ROOT, Bytes::from("made")).await;
        assert!(matches!(gone, Err(Error::Refused(FsError::NotFound))), "{gone:?}");
        assert_eq!(names_in_root(&one).await, ["below", "f"]);
        one.sync().await.expect("a sync");
        assert_eq!(names_in_root(&one).await, ["below", "f"]);
        assert!(one.status().refused.is_empty());
    });
}

#[test]
fn attributes_are_what_others_have_set_since() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        let vnode = look(&one, "f").await.fid.vnode;
        let mode = |bits| Attributes { mode: Some(Mode::from_bits(bits)), ..Attributes::default() };
        one.set_attributes(vnode, mode(0o600), None, CALLER).await.expect("a chmod");
        settle().await;
        assert_eq!(look(&other, "f").await.status.mode, Mode::from_bits(0o600));
        other.set_attributes(vnode, mode(0o640), None, CALLER).await.expect("a chmod");
        settle().await;
        assert!(one.status().unsent_changes > 0, "the answers have come");
        assert_eq!(look(&one, "f").await.status.mode, Mode::from_bits(0o640));
        one.sync().await.expect("a sync");
        assert_eq!(look(&one, "f").await.status.mode, Mode::from_bits(0o640));
    });
}

/// The object of a name is not known before the name is asked for, and so neither is what has been changed of it.
#[test]
fn a_file_has_as_many_names_as_are_left_whatever_it_is_seen_by() {
    simulate(async {
        let paths = vec![Path::Delay(NEAR_DELAY), Path::Delay(NEAR_DELAY), Path::Delay(FAR_RTT)];
        let world = World::start_over(1, paths, false).await.expect("a world");
        let world = configured(world, |machine| machine.set_writeback(Writeback::Sirp)).await;
        let [one, other, far] = clients(&world);
        for name in ["f", "f.new", "second.new"] {
            write_and_close(&one, name, vec![1; 10]).await;
        }
        one.make_dir(VnodeId::ROOT, Bytes::from("below"), Mode::from_bits(0o755), CALLER).await.expect("a mkdir");
        one.sync().await.expect("a sync");
        let (vnode, below) = (look(&other, "f").await.fid.vnode, look(&other, "below").await.fid.vnode);
        for (parent, name) in [(below, "second"), (VnodeId::ROOT, "third")] {
            other.link(vnode, parent, Bytes::from(name), CALLER).await.expect("a link");
        }
        other.sync().await.expect("a sync");
        assert_eq!(look(&one, "f").await.status.nlink, 3);
        // The answer waits until it has heard of the change.
        look(&far, "f").await;
        rename(&one, "f.new", "f").await.expect("a rename");
        sleep(10 * NEAR_DELAY).await;
        one.lookup(below, Bytes::from("second")).await.expect("a name");
        let (draft, over) = (Bytes::from("second.new"), Bytes::from("second"));
        one.rename(VnodeId::ROOT, draft, below, over, RenameMode::Replace, CALLER).await.expect("a rename");
        assert_eq!(one.status().unsent_changes, 2, "the answers have come");
        settle().await;
        let mode = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
        other.set_attributes(vnode, mode, None, CALLER).await.expect("a chmod");
        settle().await;
        let shown = one.get_attributes(vnode).await.expect("attributes").status;
        assert_eq!((shown.nlink, shown.mode), (1, Mode::from_bits(0o600)));
    });
}

/// The records that have been applied are told with whatever is asked for, be it another file's status.
#[test]
fn a_file_that_was_given_a_name_is_there_when_it_has_lost_the_one_before() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        let (file, below) = (look(&one, "f").await.fid.vnode, look(&one, "below").await.fid.vnode);
        let own = one.lookup(below, Bytes::from("own")).await.expect("a name").fid.vnode;
        one.link(file, own, Bytes::from("second"), CALLER).await.expect("a link");
        settle().await;
        // The directory is asked for, and while the answer is under way the file loses its first name.
        let mode = Attributes { mode: Some(Mode::from_bits(0o700)), ..Attributes::default() };
        let below = look(&other, "below").await.fid.vnode;
        other.lookup(below, Bytes::from("own")).await.expect("a name");
        other.set_attributes(own, mode, None, CALLER).await.expect("a chmod");
        settle().await;
        let removed = async {
            sleep(NEAR_DELAY / 2).await;
            one.unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await
        };
        let (asked, removed) = tokio::join!(one.get_attributes(own), removed);
        assert_eq!(asked.expect("attributes").status.mode, Mode::from_bits(0o700));
        removed.expect("a removal");
        assert_eq!(one.status().unsent_changes, 2, "the answers have come");
        assert_eq!(one.get_attributes(file).await.expect("attributes").status.nlink, 1);
    });
}

/// A removal does not wait until a content has arrived, and is done before it. Only the removal's answer is late.
#[test]
fn a_file_that_is_stored_while_it_loses_a_name_has_the_other() {
    simulate(async {
        let paths = vec![Path::Delay(NEAR_DELAY), Path::Delay(NEAR_DELAY)];
        let world = World::start_over(1, paths, false).await.expect("a world");
        let world = configured(world, |machine| machine.set_writeback(Writeback::Sirp)).await;
        let [one, other] = clients(&world);
        let file = write_and_close(&one, "f", vec![1; 10]).await;
        one.link(file, VnodeId::ROOT, Bytes::from("second"), CALLER).await.expect("a link");
        one.sync().await.expect("a sync");
        // The client has been promised to be told of names, and not of the file.
        other.lookup(VnodeId::ROOT, Bytes::from("none")).await.expect_err("a name");
        world.machines()[1].isolate();
        overwrite(&one, "second", vec![2; SHARED_BYTES]).await;
        one.unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await.expect("an unlink");
        settle().await;
        let status = one.status();
        assert_eq!((status.unsent_files, status.unsent_changes), (0, 1), "the store is answered, and not the removal");
        assert_eq!(one.get_attributes(file).await.expect("attributes").status.nlink, 1);
        assert_eq!(look(&one, "second").await.status.size, SHARED_BYTES as u64);
    });
}

/// A program keeps its log open, which another machine rotates.
#[test]
fn who_has_a_file_open_that_others_have_removed_since_keeps_it() {
    simulate(async {
        let world = unanswered().await;
        let [one, other] = clients(&world);
        let file = open_as(&one, "f", WRITE).await;
        let vnode = look(&one, "f").await.fid.vnode;
        one.write(file, 0, vec![2; 20].into()).await.expect("a write");
        one.flush(file).await.expect("a close of a copy");
        settle().await;
        assert_eq!(content(&other, "f").await, [2; 20]);
        other.unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await.expect("an unlink");
        settle().await;
        assert!(one.status().unsent_files > 0, "the answer has come");
        assert!(one.lookup(VnodeId::ROOT, Bytes::from("f")).await.is_err());
        let status = one.get_attributes(vnode).await.expect("attributes of what is open").status;
        assert_eq!((status.nlink, status.size), (0, 20));
        assert_eq!(one.read(file, 0, 100).await.expect("a read"), vec![2; 20]);
        one.release(file);
        one.sync().await.expect("a sync");
        assert!(one.status().refused.is_empty());
    });
}
