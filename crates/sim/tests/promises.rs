//! The rules of promises and leases, each by the case that it is there for (consistency.md, "Promises and leases").

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Vfs};
use mafs_proto::{FsError, Mode, VnodeId};
use mafs_sim::{BREAK_TIMEOUT, Connecting, Crash, LEASE, LEASE_BIAS, Silence, Way, World};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{CALLER, MAKE, READ, WRITE, clients, content, simulate, write_and_close};

/// Far longer than some round trips, far shorter than a lease.
const SOON: Duration = Duration::from_secs(1);

async fn two_clients(delay_ms: u64) -> World {
    World::start_several(1, 2, Duration::from_millis(delay_ms), false).await.expect("a world")
}

async fn write_over(vfs: &Vfs, name: &'static str, content: impl Into<Bytes>) -> Result<(), Error> {
    let vnode = vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await?.fid.vnode;
    let file = vfs.open(vnode, WRITE, CALLER).await?.file;
    vfs.write(file, 0, content.into()).await?;
    let closed = vfs.flush(file).await;
    vfs.release(file);
    closed
}

async fn try_read(vfs: &Vfs, name: &'static str) -> Result<Bytes, Error> {
    let vnode = vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await?.fid.vnode;
    let file = vfs.open(vnode, READ, CALLER).await?.file;
    let bytes = vfs.read(file, 0, u32::MAX / 2).await;
    vfs.release(file);
    bytes
}

#[test]
fn an_unreachable_client_that_holds_promises_delays_a_writer_by_its_lease_at_most_and_once() {
    // How long ago the holder's lease was renewed is swept.
    for held_for_s in [0, 10, 30, 59] {
        simulate(async {
            let world = two_clients(5).await;
            let [holder, writer] = clients(&world);
            for name in ["one", "other"] {
                write_and_close(&writer, name, b"old".to_vec()).await;
                assert_eq!(content(&holder, name).await, b"old");
            }
            sleep(Duration::from_secs(held_for_s)).await;
            let cut_off = Instant::now();
            world.machines()[0].isolate();
            write_over(&writer, "one", "new").await.expect("a close");
            let waited = cut_off.elapsed();
            assert!(waited > LEASE / 2 && waited < LEASE + LEASE_BIAS + SOON, "waited {waited:?}");
            let again = Instant::now();
            write_over(&writer, "other", "new").await.expect("a close");
            write_over(&writer, "one", "newer").await.expect("a close");
            assert!(again.elapsed() < SOON, "waited {:?} once more", again.elapsed());
        });
    }
}

#[test]
fn a_change_of_names_waits_as_long_and_then_succeeds() {
    simulate(async {
        let world = two_clients(5).await;
        let [holder, writer] = clients(&world);
        write_and_close(&writer, "shown", b"".to_vec()).await;
        assert_eq!(content(&holder, "shown").await, b"");
        world.machines()[0].isolate();
        let cut_off = Instant::now();
        let made = writer.make_dir(VnodeId::ROOT, Bytes::from("directory"), Mode::from_bits(0o755), CALLER).await;
        made.expect("a directory");
        let waited = cut_off.elapsed();
        assert!(waited > LEASE / 2 && waited < LEASE + LEASE_BIAS + SOON, "waited {waited:?}");
    });
}

#[test]
fn a_client_that_hears_nothing_delays_a_writer_by_no_more_than_the_bound_and_once() {
    // Whether it can send, what becomes of its attempts to connect, and how long ago its lease was renewed are swept.
    let silences = [Way::ToClient, Way::ToServer, Way::Both]
        .into_iter()
        .flat_map(|way| [Connecting::Hangs, Connecting::Deceives].map(|connecting| Silence { way, connecting }));
    for (silence, held_for_s) in silences.flat_map(|silence| [0, 6, 12, 19, 59].map(|held_for_s| (silence, held_for_s)))
    {
        simulate(async {
            let world = two_clients(5).await;
            let [holder, writer] = clients(&world);
            write_and_close(&writer, "file", b"old".to_vec()).await;
            assert_eq!(content(&holder, "file").await, b"old");
            sleep(Duration::from_secs(held_for_s)).await;
            let silent = Instant::now();
            world.machines()[0].fall_silent(silence);
            // Names and contents: both wait for the holder.
            let name = Bytes::from("directory");
            let made = writer.make_dir(VnodeId::ROOT, name, Mode::from_bits(0o755), CALLER);
            let (made, closed) = tokio::join!(made, write_over(&writer, "file", "new"));
            made.expect("a directory");
            closed.expect("a close");
            let waited = silent.elapsed();
            let bound = BREAK_TIMEOUT + LEASE + LEASE_BIAS + SOON;
            assert!(waited > LEASE / 2 && waited < bound, "{silence:?} after {held_for_s} s: waited {waited:?}");
            let again = Instant::now();
            write_over(&writer, "file", "newer").await.expect("a close");
            assert!(again.elapsed() < SOON, "waited {:?} once more", again.elapsed());
            world.machines()[0].break_silence();
            sleep(5 * SOON).await;
            assert_eq!(content(&holder, "file").await, b"newer");
        });
    }
}

#[test]
fn a_client_that_comes_to_another_address_delays_a_writer_until_it_is_there() {
    simulate(async {
        let world = two_clients(5).await;
        let [holder, writer] = clients(&world);
        write_and_close(&writer, "file", b"old".to_vec()).await;
        assert_eq!(content(&holder, "file").await, b"old");
        let silent = Instant::now();
        world.machines()[0].fall_silent(Silence { way: Way::Both, connecting: Connecting::Works });
        let closed = timeout(2 * LEASE, write_over(&writer, "file", "new")).await;
        closed.expect("the holder is told over its next connection").expect("a close");
        let waited = silent.elapsed();
        // 20 s to the next renewal, 10 s without an answer to it.
        assert!(waited > SOON && waited < Duration::from_secs(32), "waited {waited:?}");
        assert_eq!(content(&holder, "file").await, b"new");
    });
}

#[test]
fn what_an_earlier_connection_has_held_back_is_not_done_after_a_new_attach() {
    for crash in [Crash::Kill, Crash::Power] {
        simulate(async {
            let mut world = two_clients(5).await;
            let [dying, other] = clients(&world);
            write_and_close(&other, "file", b"kept".to_vec()).await;
            assert_eq!(content(&dying, "file").await, b"kept");
            world.machines()[0].fall_silent(Silence { way: Way::ToServer, connecting: Connecting::Works });
            let removing = tokio::spawn(async move { dying.unlink(VnodeId::ROOT, Bytes::from("file"), CALLER).await });
            sleep(SOON).await;
            assert!(!removing.is_finished(), "the removal is on its way");
            world.crash_client(crash);
            removing.abort();
            world.start_client().await.expect("the client starts");
            assert_eq!(content(world.client(), "file").await, b"kept");
            world.machines()[0].break_silence();
            sleep(5 * SOON).await;
            for machine in world.machines() {
                assert_eq!(content(machine.client(), "file").await, b"kept");
            }
        });
    }
}

#[test]
fn a_client_that_is_cut_off_answers_from_its_cache_until_its_lease_lapses() {
    simulate(async {
        let world = two_clients(5).await;
        let vfs = world.client();
        write_and_close(vfs, "file", b"cached".to_vec()).await;
        let cut_off = Instant::now();
        world.machines()[0].isolate();
        assert_eq!(try_read(vfs, "file").await.expect("what is promised to be true"), "cached");
        sleep(LEASE - cut_off.elapsed()).await;
        let asked = Instant::now();
        try_read(vfs, "file").await.expect_err("nobody promises it any more");
        assert!(asked.elapsed() < Duration::from_secs(30), "an error after {:?}", asked.elapsed());
        world.machines()[0].restore_link();
        assert_eq!(try_read(vfs, "file").await.expect("the server is there"), "cached");
    });
}

/// A client's clock may be slower than the server's by as much as the bias over a lease.
#[test]
fn invariant_3_a_client_whose_clock_is_slow_believes_in_nothing_that_the_server_has_let_go() {
    for held_for_s in [0, 7, 19] {
        simulate(async {
            let mut world = two_clients(5).await;
            let machine = &mut world.machines_mut()[0];
            machine.stop().await;
            machine.set_clock_rate(970_000);
            machine.start().await.expect("the client starts");
            let [reader, writer] = clients(&world);
            write_and_close(&writer, "file", b"old".to_vec()).await;
            assert_eq!(content(&reader, "file").await, b"old");
            sleep(Duration::from_secs(held_for_s)).await;
            world.machines()[0].isolate();
            let writing = tokio::spawn(async move { write_over(&writer, "file", "new").await });
            let mut from_cache = 0;
            // Until it believes in nothing any more.
            while let Ok(bytes) = try_read(&reader, "file").await {
                assert_eq!((bytes, writing.is_finished()), (Bytes::from_static(b"old"), false), "old data");
                from_cache += 1;
                sleep(Duration::from_millis(100)).await;
            }
            assert!(from_cache > 100, "it had no promise");
            writing.await.expect("the task").expect("the close");
        });
    }
}

#[test]
fn a_restarted_server_acknowledges_no_change_while_a_client_may_hold_promises_of_its_earlier_life() {
    for crash in [Crash::Kill, Crash::Power] {
        simulate(async {
            let mut world = two_clients(5).await;
            let [reader, writer] = clients(&world);
            write_and_close(&writer, "file", b"old".to_vec()).await;
            assert_eq!(content(&reader, "file").await, b"old");
            world.machines()[0].isolate();
            world.crash_server(crash);
            world.start_server().expect("the server starts");
            let writing = tokio::spawn(async move { write_over(&writer, "file", "new").await });
            let (mut from_cache, mut failed_after) = (0, 0);
            while failed_after < 2 {
                let closed = writing.is_finished();
                match try_read(&reader, "file").await {
                    Ok(bytes) => {
                        assert_eq!((bytes, closed), (Bytes::from_static(b"old"), false), "old data after the close");
                        from_cache += 1;
                    }
                    Err(_) => failed_after += u32::from(closed),
                }
                sleep(Duration::from_millis(100)).await;
            }
            assert!(from_cache > 0, "the reader had nothing that could be too old");
            writing.await.expect("the task").expect("the close");
            world.machines()[0].restore_link();
            assert_eq!(try_read(&reader, "file").await.expect("the server is there"), "new");
        });
    }
}

#[test]
fn a_grant_that_was_overtaken_by_a_break_is_no_promise() {
    const NAMES: usize = 200;
    const ROUNDS: usize = 8;
    const DELAY_MS: u64 = 100;
    simulate(async {
        let world = two_clients(DELAY_MS).await;
        let [reader, writer] = clients(&world);
        let mode = Mode::from_bits(0o755);
        let dir = writer.make_dir(VnodeId::ROOT, Bytes::from("d"), mode, CALLER).await.expect("a directory").fid.vnode;
        let make = |number: usize| {
            let (writer, name) = (writer.clone(), Bytes::from(format!("a-name-that-fills-a-page-{number}")));
            async move { writer.make_symlink(dir, name, Bytes::from_static(b"x"), CALLER).await.expect("a symlink") }
        };
        for number in 0..NAMES {
            make(number).await;
        }
        write_and_close(&writer, "big", b"small yet".to_vec()).await;
        reader.lookup(VnodeId::ROOT, Bytes::from("d")).await.expect("the directory");
        let mut overtaken = 0;
        for round in 0..ROUNDS {
            let names = NAMES + 2 * round + 1;
            make(names - 1).await;
            // The reader's link is full of a content, behind which the listing waits: a break does not.
            write_over(&writer, "big", vec![u8::try_from(round).expect("few") + 1; 3_000_000]).await.expect("a close");
            let filling = tokio::spawn({
                let reader = reader.clone();
                async move { try_read(&reader, "big").await }
            });
            sleep(Duration::from_millis(500)).await;
            let listing = tokio::spawn({
                let reader = reader.clone();
                async move { (count_names(&reader, dir).await, Instant::now()) }
            });
            // When the name is made is swept.
            sleep(Duration::from_millis(20 * round as u64)).await;
            make(names).await;
            // The reader's answer to the break went to the server, and the server's to the writer.
            let broken = Instant::now() - 2 * Duration::from_millis(DELAY_MS);
            let (seen, listed) = listing.await.expect("the task");
            assert_eq!(count_names(&reader, dir).await, names + 1, "round {round}");
            overtaken += usize::from(seen == names && listed > broken);
            filling.await.expect("the task").expect("a read");
        }
        assert!(overtaken > 0, "no break has overtaken a listing");
    });
}

async fn count_names(vfs: &Vfs, dir: VnodeId) -> usize {
    let dots = 2;
    vfs.read_dir(dir, 0, usize::MAX).await.expect("its names").entries.len() - dots
}

#[test]
fn a_session_that_is_resumed_keeps_the_cache_and_a_new_one_validates_it() {
    simulate(async {
        let mut world = two_clients(5).await;
        let vfs = world.client().clone();
        write_and_close(&vfs, "file", vec![7; 100_000]).await;
        world.machines()[0].cut_link();
        sleep(SOON).await;
        let (calls, session) = (vfs.status().calls, vfs.status().session);
        assert!(vfs.status().connected);
        assert_eq!(content(&vfs, "file").await, vec![7; 100_000]);
        assert_eq!(vfs.status().calls, calls, "the session was resumed: nothing needed to be asked");

        world.machines()[0].isolate();
        sleep(LEASE + LEASE_BIAS + SOON).await;
        world.machines()[0].restore_link();
        sleep(5 * SOON).await;
        assert_ne!(vfs.status().session, session);
        let calls = vfs.status().calls;
        assert_eq!(content(&vfs, "file").await, vec![7; 100_000]);
        assert_eq!(vfs.status().calls, calls, "it was asked once what has changed, and nothing has");

        world.crash_server(Crash::Kill);
        world.start_server().expect("the server starts");
        sleep(5 * SOON).await;
        let calls = vfs.status().calls;
        assert_eq!(content(&vfs, "file").await, vec![7; 100_000]);
        assert_eq!(vfs.status().calls, calls, "it was asked once what has changed, and nothing has");
    });
}

/// The caller of a slow creation is killed, and the next one finds the name.
#[test]
fn what_is_written_to_a_file_before_its_creation_is_answered_stays_unsent_and_is_sent() {
    for passthrough in [false, true] {
        simulate(async {
            let world = World::start_several(1, 2, Duration::from_millis(5), passthrough).await.expect("a world");
            let [holder, writer] = clients(&world);
            write_and_close(&writer, "shown", b"".to_vec()).await;
            assert_eq!(content(&holder, "shown").await, b"");
            world.machines()[0].isolate();
            let make = || {
                let writer = writer.clone();
                let mode = Mode::from_bits(0o644);
                async move { writer.create(VnodeId::ROOT, Bytes::from("file"), mode, MAKE, CALLER).await }
            };
            let creating = tokio::spawn(make());
            sleep(SOON).await;
            assert!(matches!(make().await, Err(Error::Refused(FsError::Exists))));
            let vnode = writer.lookup(VnodeId::ROOT, Bytes::from("file")).await.expect("a name").fid.vnode;
            let file = writer.open(vnode, WRITE, CALLER).await.expect("an open").file;
            writer.write(file, 0, Bytes::from("written")).await.expect("a write");
            assert!(!creating.is_finished());
            let (_, late) = creating.await.expect("the task").expect("a file");
            writer.release(late.file);
            assert_eq!(writer.status().unsent_files, 1);
            writer.flush(file).await.expect("a close");
            writer.release(file);
            assert_eq!(content(&writer, "file").await, b"written");
        });
    }
}
