//! `writeback=sirp`: from the announcement on every open gets the new version, wherever its bytes are by then; looking
//! waits for nothing.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Attributes, Cached, Close, Error, ObjectReport, OpenMode, RecordState, Stale, Vfs, Writeback};
use mafs_proto::{FsError, Mode, VnodeId};
use mafs_sim::{Crash, Path, Silence, Way, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    CALLER, MAKE, WRITE, clients, configured, content, create, look, open_as, overwrite, rename, simulate,
    with_empty_cache, write_and_close,
};

/// The writer's link: 64 KB/s, and its round trip.
const RATE: u64 = 64_000;
const WRITER_RTT: Duration = Duration::from_millis(100);
const READER_RTT: Duration = Duration::from_millis(10);
/// Bytes that the writer writes.
const FILE_BYTES: usize = 64 << 10;
/// Bytes that it has written before.
const QUEUE_BYTES: usize = 1 << 20;
/// The part of a rate in bytes on the wire that contents get.
const GOODPUT: f64 = 0.95;

/// A writer at the end of a slow link and a reader near the server.
async fn world(writeback: Writeback) -> World {
    let link = Profile::steady(RATE, WRITER_RTT);
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(READER_RTT / 2), Path::Delay(READER_RTT / 2)];
    let world = World::start_over(1, paths, false).await.expect("a world");
    configured(world, |machine| machine.set_writeback(writeback)).await
}

/// The two ways in which programs replace what a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    InPlace,
    ByRename,
}

async fn replace(vfs: &Vfs, how: How, bytes: Vec<u8>) {
    match how {
        How::InPlace => overwrite(vfs, "f", bytes).await,
        How::ByRename => {
            write_and_close(vfs, "f.new", bytes).await;
            rename(vfs, "f.new", "f").await.expect("a rename");
        }
    }
}

/// The reader has the first version in its cache, and the writer has logged much before it replaces that.
async fn prepared(world: &World) {
    let [writer, reader, _] = clients(world);
    write_and_close(&writer, "f", vec![1; FILE_BYTES]).await;
    writer.sync().await.expect("a sync");
    assert_eq!(content(&reader, "f").await, vec![1; FILE_BYTES]);
    for name in ["queued-1", "queued-2", "queued-3", "queued-4"] {
        write_and_close(&writer, name, vec![9; QUEUE_BYTES / 4]).await;
    }
    // The link is full of it by then.
    sleep(Duration::from_secs(1)).await;
}

fn state_of(vfs: &Vfs, vnode: VnodeId) -> ObjectReport {
    vfs.object_report(vnode).expect("a state")
}

async fn until_announced(vfs: &Vfs, name: &'static str) -> Duration {
    let begun = Instant::now();
    let vnode = look(vfs, name).await.fid.vnode;
    while state_of(vfs, vnode).unsent != Some(RecordState::Announced) {
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", state_of(vfs, vnode));
        sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

/// Returns the most that a pull takes: the content, the bytes on their way before it, three round trips and some
/// computing.
fn bound(writer: &Vfs) -> Duration {
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let sent = |bytes: u64, goodput: f64| Duration::from_secs_f64(bytes as f64 / (RATE as f64 * goodput));
    let window = sent(writer.status().window_bytes, 1.0);
    sent(FILE_BYTES as u64, GOODPUT) + window + 3 * WRITER_RTT + Duration::from_millis(100)
}

/// Part 5, line 3.
#[test]
fn a_reader_gets_what_was_announced_past_all_that_waits() {
    for how in [How::InPlace, How::ByRename] {
        simulate(async {
            let world = world(Writeback::Sirp).await;
            prepared(&world).await;
            let [writer, reader, _] = clients(&world);
            let begun = Instant::now();
            replace(&writer, how, vec![2; FILE_BYTES]).await;
            let closed = begun.elapsed();
            let announced = until_announced(&writer, "f").await;
            let begun = Instant::now();
            assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES], "{how:?}");
            let took = begun.elapsed();
            let limit = bound(&writer);
            println!("{how:?}: closed {closed:?}, announced {announced:?}, read after {took:?} (limit {limit:?})");
            assert!(took <= limit, "{how:?}: {took:?} of {limit:?}");
            assert!(closed < Duration::from_millis(1) + WRITER_RTT, "{closed:?}");
            let unsent = writer.status().unsent_bytes;
            assert!(unsent > QUEUE_BYTES as u64 / 2, "the queue was not sent first: {unsent} left");
            writer.sync().await.expect("a sync");
            assert_eq!(reader.status().stale_reads, 0);
        });
    }
}

#[test]
fn looking_shows_what_was_announced_and_waits_for_nothing() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        let vnode = look(&reader, "f").await.fid.vnode;
        overwrite(&writer, "f", vec![2; FILE_BYTES + 1000]).await;
        until_announced(&writer, "f").await;
        let begun = Instant::now();
        let shown = reader.get_attributes(vnode).await.expect("a status");
        let (stat, mine) = (begun.elapsed(), look(&writer, "f").await.status);
        assert_eq!((shown.status.size, shown.status.mtime), (FILE_BYTES as u64 + 1000, mine.mtime));
        assert_eq!(reader.time_to_live(&shown), Duration::ZERO);
        let begun = Instant::now();
        assert_eq!(look(&reader, "f").await.status.size, FILE_BYTES as u64 + 1000);
        let lookup = begun.elapsed();
        let begun = Instant::now();
        let page = reader.read_dir_plus(VnodeId::ROOT, 0, 100).await.expect("a listing");
        let listed = page.entries.iter().find(|entry| entry.entry.name == "f").and_then(|entry| entry.object.clone());
        assert_eq!(listed.expect("its entry").status.size, FILE_BYTES as u64 + 1000);
        let listing = begun.elapsed();
        println!("stat {stat:?}, lookup {lookup:?}, listing {listing:?}");
        let limit = 2 * READER_RTT + Duration::from_millis(1);
        assert!(stat <= limit && lookup <= limit, "{stat:?} {lookup:?}");
        // The first reads the names, too.
        assert!(listing <= limit + 2 * READER_RTT, "{listing:?}");
        // The content has not come for that.
        assert!(writer.status().unsent_bytes > QUEUE_BYTES as u64 / 2);
        writer.sync().await.expect("a sync");
        let arrived = reader.get_attributes(vnode).await.expect("a status");
        assert_eq!(arrived.status.size, FILE_BYTES as u64 + 1000);
        assert!(reader.time_to_live(&arrived) > Duration::ZERO);
    });
}

/// The name is to mean another object here: a client waits for the content only if it opens it.
#[test]
fn looking_at_a_name_shows_what_it_was_announced_to_mean() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        let before = look(&reader, "f").await;
        replace(&writer, How::ByRename, vec![2; FILE_BYTES + 1000]).await;
        until_announced(&writer, "f").await;
        let begun = Instant::now();
        let shown = look(&reader, "f").await;
        let (took, mine) = (begun.elapsed(), look(&writer, "f").await);
        assert_eq!((shown.fid, shown.status.size, shown.status.mtime), (mine.fid, mine.status.size, mine.status.mtime));
        assert_eq!(reader.entry_time_to_live(VnodeId::ROOT, &"f".into(), &shown), Duration::ZERO);
        assert!(took <= 2 * READER_RTT + Duration::from_millis(1), "{took:?}");
        assert!(writer.status().unsent_bytes > QUEUE_BYTES as u64 / 2);
        assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES + 1000]);
        writer.sync().await.expect("a sync");
        assert_eq!(look(&reader, "f").await.fid, shown.fid);
        assert_ne!(before.fid, shown.fid);
    });
}

/// A listing waits for every name in it that is announced: it is of one state of the directory.
#[test]
fn a_listing_shows_a_rename_that_was_announced() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        let before = look(&reader, "f").await.fid;
        reader.read_dir(VnodeId::ROOT, 0, 100).await.expect("a listing");
        replace(&writer, How::ByRename, vec![2; FILE_BYTES]).await;
        until_announced(&writer, "f").await;
        let page = reader.read_dir_plus(VnodeId::ROOT, 0, 100).await.expect("a listing");
        let names: Vec<_> = page.entries.iter().map(|entry| entry.entry.name.clone()).collect();
        assert!(!names.contains(&Bytes::from("f.new")), "{names:?}");
        let listed = page.entries.iter().find(|entry| entry.entry.name == "f").and_then(|entry| entry.object.clone());
        assert_ne!(listed.expect("its entry").fid, before);
        assert!(writer.status().unsent_bytes > QUEUE_BYTES as u64 / 2);
    });
}

/// `mafs-client state` tells of a file on its way.
#[test]
fn an_update_is_logged_announced_sent_and_there() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer] = clients::<1>(&world);
        let vnode = look(&writer, "f").await.fid.vnode;
        let before = state_of(&writer, vnode);
        assert_eq!((before.cached, before.dirty, before.unsent, before.records), (Cached::Whole, false, None, 0));
        overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
        let mut seen = Vec::new();
        for _ in 0..100_000 {
            let state = state_of(&writer, vnode);
            assert_eq!((state.cached, state.size), (Cached::Whole, FILE_BYTES as u64), "{state:?}");
            assert_eq!((state.dirty, state.records), (state.unsent.is_some(), state.unsent.iter().count() as u64));
            let how = match &state.unsent {
                Some(RecordState::Sending { .. }) => Some(RecordState::Sending { acknowledged_bytes: 0 }),
                how => how.clone(),
            };
            if seen.last() != Some(&how) {
                seen.push(how);
            }
            if state.unsent.is_none() {
                assert!(state.version > before.version, "{state:?}");
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        let sending = RecordState::Sending { acknowledged_bytes: 0 };
        let all = [RecordState::Waiting, RecordState::Announced, sending];
        assert_eq!(seen, [all.map(Some).as_slice(), &[None]].concat());
    });
}

#[test]
fn announcing_costs_a_long_log_little() {
    let took = [Writeback::Async, Writeback::Sirp].map(|writeback| {
        let mut took = Duration::ZERO;
        simulate(async {
            let link = Profile::steady(1_000_000, Duration::from_millis(300));
            let world = World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world");
            let world = configured(world, |machine| machine.set_writeback(writeback)).await;
            let vfs = world.client().clone();
            let begun = Instant::now();
            for number in 0..300 {
                let (name, mode) = (Bytes::from(format!("f{number}")), Mode::from_bits(0o644));
                let made = vfs.create(VnodeId::ROOT, name, mode, MAKE, CALLER).await;
                let (_, opened) = made.expect("a file");
                vfs.write(opened.file, 0, vec![1; 4096].into()).await.expect("a write");
                vfs.flush(opened.file).await.expect("a close");
                vfs.release(opened.file);
            }
            vfs.sync().await.expect("a sync");
            took = begun.elapsed();
            println!("{writeback:?}: {took:?}, {} announcements", vfs.status().announced_changes);
        });
        took
    });
    assert!(took[1] < took[0] * 5 / 4, "{took:?}");
}

#[test]
fn attributes_that_wait_behind_a_content_are_shown() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
        let vnode = look(&writer, "f").await.fid.vnode;
        let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
        writer.set_attributes(vnode, set, None, CALLER).await.expect("a chmod");
        until_announced(&writer, "f").await;
        assert_eq!(look(&reader, "f").await.status.mode, Mode::from_bits(0o600));
        writer.sync().await.expect("a sync");
        assert_eq!(look(&reader, "f").await.status.mode, Mode::from_bits(0o600));
    });
}

/// consistency.md: "several writers: in the order of their announcements, each based on the one before".
#[test]
fn two_writers_follow_each_other() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [slow, quick, reader] = clients(&world);
        overwrite(&slow, "f", vec![2; FILE_BYTES]).await;
        until_announced(&slow, "f").await;
        let file = open_as(&quick, "f", WRITE).await;
        quick.write(file, 0, vec![3; 10].into()).await.expect("a write");
        quick.flush(file).await.expect("a close");
        quick.release(file);
        quick.sync().await.expect("a sync");
        let expected = [vec![3; 10], vec![2; FILE_BYTES - 10]].concat();
        assert_eq!(content(&reader, "f").await, expected);
        slow.sync().await.expect("a sync");
        assert_eq!(content(&slow, "f").await, expected);
        let refused: Vec<_> = [&slow, &quick].iter().flat_map(|vfs| vfs.status().refused).collect();
        assert!(refused.is_empty(), "{refused:?}");
    });
}

/// A client that has the version before open does not make the next one a conflict.
#[test]
fn regression_a_file_that_is_open_at_an_old_version_is_replaced_at_its_newest() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, other, reader] = clients(&world);
        let held = open_as(&other, "f", crate::support::READ).await;
        overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
        until_announced(&writer, "f").await;
        let file = open_as(&other, "f", OpenMode { truncate: true, ..WRITE }).await;
        other.write(file, 0, vec![3; 10].into()).await.expect("a write");
        other.flush(file).await.expect("a close");
        other.release(file);
        other.release(held);
        other.sync().await.expect("a sync");
        assert_eq!(content(&reader, "f").await, vec![3; 10]);
    });
}

/// consistency.md: "A writer is gone when its lease ends".
#[test]
fn without_its_writer_the_version_before_is_shown_and_counted() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
        until_announced(&writer, "f").await;
        world.machines()[0].isolate();
        sleep(Duration::from_secs(45)).await;
        // The reader opens before the lease has ended, and is answered when it has.
        let begun = Instant::now();
        assert_eq!(content(&reader, "f").await, vec![1; FILE_BYTES]);
        println!("the version before after {:?}", begun.elapsed());
        assert!((1..25).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(reader.status().stale_reads, 1);
        world.machines()[0].restore_link();
        sleep(Duration::from_secs(5)).await;
        let begun = Instant::now();
        assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES], "its writer is back");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(reader.status().stale_reads, 1);
    });
}

#[test]
fn a_writer_that_brings_nothing_is_waited_for_as_long_as_the_user_likes() {
    for stale in [Stale::Error, Stale::Serve] {
        simulate(async {
            let world = configured(world(Writeback::Sirp).await, |machine| machine.set_stale(stale)).await;
            prepared(&world).await;
            let [writer, reader, _] = clients(&world);
            overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
            until_announced(&writer, "f").await;
            let vnode = look(&reader, "f").await.fid.vnode;
            let silence = Silence { way: Way::Both, connecting: mafs_sim::Connecting::Hangs };
            world.machines()[0].fall_silent(silence);
            let begun = Instant::now();
            let opened = reader.open(vnode, crate::support::READ, CALLER).await;
            let took = begun.elapsed();
            println!("{stale:?}: {took:?}");
            assert!((30..45).contains(&took.as_secs()), "{took:?}");
            match (stale, opened) {
                (Stale::Error, Err(Error::TimedOut(_))) => {}
                (Stale::Serve, Ok(opened)) => {
                    assert_eq!(reader.read(opened.file, 0, 9).await.expect("a read"), vec![1; 9]);
                    assert_eq!(reader.status().stale_reads, 1);
                }
                (stale, opened) => panic!("{stale:?}: {opened:?}"),
            }
            world.machines()[0].break_silence();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES]);
        });
    }
}

/// consistency.md: "`-o close=announced` makes close() wait for it".
#[test]
fn a_close_that_waits_for_the_announcement_is_seen_by_every_later_open() {
    for queued in [false, true] {
        simulate(async {
            let world = configured(world(Writeback::Sirp).await, |machine| machine.set_close(Close::Announced)).await;
            let [writer, reader, _] = clients(&world);
            if queued {
                prepared(&world).await;
            } else {
                write_and_close(&writer, "f", vec![1; FILE_BYTES]).await;
                assert_eq!(content(&reader, "f").await, vec![1; FILE_BYTES]);
                writer.sync().await.expect("a sync");
            }
            let begun = Instant::now();
            overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
            let closed = begun.elapsed();
            println!("closed after {closed:?}");
            assert!((WRITER_RTT..Duration::from_millis(700)).contains(&closed), "{closed:?}");
            assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES]);
            let file = create(&writer, "g").await.1;
            world.machines()[0].isolate();
            writer.write(file, 0, vec![3; 10].into()).await.expect("a write");
            let closed = writer.flush(file).await;
            assert!(matches!(closed, Err(Error::TimedOut(_))), "nobody can be told: {closed:?}");
        });
    }
}

#[test]
fn what_is_taken_back_holds_up_nobody() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        write_and_close(&writer, "temporary", vec![5; FILE_BYTES]).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(look(&reader, "temporary").await.status.size, FILE_BYTES as u64);
        writer.unlink(VnodeId::ROOT, Bytes::from("temporary"), CALLER).await.expect("an unlink");
        sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        let gone = reader.lookup(VnodeId::ROOT, Bytes::from("temporary")).await;
        assert!(matches!(gone, Err(Error::Refused(FsError::NotFound))), "{gone:?}");
        assert_eq!(content(&reader, "f").await, vec![1; FILE_BYTES]);
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_version_that_changes_while_it_waits_comes_as_it_is_last() {
    simulate(async {
        let world = world(Writeback::Sirp).await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        for byte in 2..6 {
            overwrite(&writer, "f", vec![byte; FILE_BYTES]).await;
            sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(content(&reader, "f").await, vec![5; FILE_BYTES]);
        writer.sync().await.expect("a sync");
        assert_eq!(content(&reader, "f").await, vec![5; FILE_BYTES]);
    });
}

#[test]
fn announcements_outlive_both_ends() {
    for (what, crash) in [("client", Crash::Kill), ("server", Crash::Kill), ("server", Crash::Power)] {
        simulate(async {
            let mut world = world(Writeback::Sirp).await;
            prepared(&world).await;
            let [writer, reader, _] = clients(&world);
            overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
            until_announced(&writer, "f").await;
            sleep(Duration::from_millis(1500)).await;
            match what {
                "client" => {
                    world.crash_machine(0, crash);
                    world.start_client().await.expect("the client starts");
                }
                _ => {
                    world.crash_server(crash);
                    world.start_server().expect("the server starts");
                }
            }
            assert_eq!(content(&reader, "f").await, vec![2; FILE_BYTES], "{what} {crash:?}");
            world.client().sync().await.expect("a sync");
            assert_eq!(reader.status().stale_reads, 0);
            with_empty_cache(&mut world).await;
            assert_eq!(content(world.client(), "f").await, vec![2; FILE_BYTES]);
        });
    }
}

/// The policies of the paper, beside ours: when a close returns, and when a reader that asks all the time has what was
/// written.
#[test]
fn announcing_makes_close_quick_and_reading_current() {
    let mut seen = Vec::new();
    for writeback in [Writeback::Sync, Writeback::Async, Writeback::SirpC, Writeback::Sirp] {
        simulate(async {
            let world = world(writeback).await;
            prepared(&world).await;
            let [writer, reader, _] = clients(&world);
            let begun = Instant::now();
            overwrite(&writer, "f", vec![2; FILE_BYTES]).await;
            let closed = begun.elapsed();
            while content(&reader, "f").await != vec![2; FILE_BYTES] {
                sleep(Duration::from_millis(10)).await;
            }
            seen.push((writeback, closed, begun.elapsed()));
        });
    }
    for (writeback, closed, read) in &seen {
        println!("{writeback:?}: closed after {closed:?}, read after {read:?}");
    }
    let [sync, asynchronous, compulsory, selective] = [0, 1, 2, 3].map(|at| seen[at]);
    assert!(sync.1 > Duration::from_secs(1) && asynchronous.1 < Duration::from_millis(1));
    assert!(selective.1 < Duration::from_millis(1) && compulsory.1 < Duration::from_millis(1));
    // The content shares the link with all that waits.
    assert!(asynchronous.2 > Duration::from_secs(4), "{asynchronous:?}");
    let limit = Duration::from_secs(2);
    assert!(selective.2 < limit && compulsory.2 < limit, "{compulsory:?} {selective:?}");
}

/// A change of names or attributes of one client is what the others see when the call returns.
#[test]
fn with_close_announced_changes_of_names_and_attributes_wait_as_close_does() {
    simulate(async {
        let link = Profile::steady(RATE, WRITER_RTT);
        let paths = vec![Path::Link(Box::new(link)), Path::Delay(READER_RTT / 2), Path::Delay(READER_RTT / 2)];
        let world = World::start_over(1, paths, false).await.expect("a world");
        let world = configured(world, |machine| {
            machine.set_writeback(Writeback::Sirp);
            machine.set_close(Close::Announced);
        });
        let world = world.await;
        prepared(&world).await;
        let [writer, reader, _] = clients(&world);
        let vnode = look(&reader, "f").await.fid.vnode;
        let mode = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
        writer.set_attributes(vnode, mode, None, CALLER).await.expect("a chmod");
        assert_eq!(look(&reader, "f").await.status.mode, Mode::from_bits(0o600));
        write_and_close(&writer, "f.new", vec![2; FILE_BYTES]).await;
        rename(&writer, "f.new", "f").await.expect("a rename");
        assert!(content(&reader, "f").await == vec![2; FILE_BYTES], "what the name meant before");
        writer.unlink(VnodeId::ROOT, Bytes::from("f"), CALLER).await.expect("an unlink");
        let gone = reader.lookup(VnodeId::ROOT, Bytes::from("f")).await;
        assert!(matches!(gone, Err(Error::Refused(FsError::NotFound))), "{gone:?}");
        world.machines()[0].isolate();
        let begun = Instant::now();
        let late = writer.set_attributes(VnodeId::ROOT, mode, None, CALLER).await;
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        assert!(begun.elapsed() < Duration::from_secs(22), "{:?}", begun.elapsed());
        world.machines()[0].restore_link();
        writer.sync().await.expect("a sync");
        assert_eq!(look_at_root(&reader).await, Mode::from_bits(0o600), "it stays in the log");
    });
}

async fn look_at_root(vfs: &Vfs) -> Mode {
    vfs.get_attributes(VnodeId::ROOT).await.expect("a root").status.mode
}
