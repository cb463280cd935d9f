//! A content on its way is as urgent as somebody waits for it: the rest of a file that nobody has open any more delays
//! nothing that is open, and is urgent again when somebody opens the file.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::Vfs;
use mafs_proto::{Class, VnodeId};
use mafs_sim::{Crash, Path, World};
use tokio::time::{Instant, sleep};

use crate::support::{CALLER, content, open_by_name, simulate, write_and_close};

const BYTES_PER_S: u64 = 64_000;
/// Nothing has to go.
const CACHE_BYTES: u64 = 1 << 30;
const LARGE_BYTES: usize = 640_000;
const SMALL_BYTES: usize = 64_000;
/// Takes longer than anybody waits for a server that does not answer.
const HUGE_BYTES: usize = 2_600_000;

/// Two machines: one beside the server that has made some files, and one at the end of a link.
async fn world() -> World {
    let link = Path::Link(Box::new(Profile::steady(BYTES_PER_S, Duration::from_millis(20))));
    let mut world = World::start_over(1, vec![Path::Delay(Duration::ZERO), link], false).await.expect("a world");
    let machine = &mut world.machines_mut()[1];
    machine.stop().await;
    machine.set_cache_limit_bytes(CACHE_BYTES);
    machine.start().await.expect("a client");
    let files = [("large", LARGE_BYTES), ("other", LARGE_BYTES), ("huge", HUGE_BYTES)];
    for (name, bytes) in files.into_iter().chain([("small", SMALL_BYTES), ("alone", SMALL_BYTES)]) {
        write_and_close(world.client(), name, vec![7; bytes]).await;
    }
    world
}

fn far(world: &World) -> &Vfs {
    world.machines()[1].client()
}

/// Reads the beginning of a file and closes it: the rest is on its way.
async fn look_into(vfs: &Vfs, name: &'static str) {
    let file = open_by_name(vfs, name).await;
    vfs.read(file, 0, 4096).await.expect("a read");
    vfs.release(file);
}

async fn time_of_reading(vfs: &Vfs, name: &'static str) -> Duration {
    let began = Instant::now();
    content(vfs, name).await;
    began.elapsed()
}

fn received_bytes(vfs: &Vfs, class: Class) -> u64 {
    vfs.statistics()[class.index()].received_bytes
}

#[test]
fn the_rest_of_a_closed_file_delays_no_open_one() {
    simulate(async {
        let world = world().await;
        let alone = time_of_reading(far(&world), "alone").await;
        look_into(far(&world), "large").await;
        let beside = time_of_reading(far(&world), "small").await;
        // A chunk for each of its two round trips may be on its way.
        assert!(beside < alone + Duration::from_millis(100), "beside the rest {beside:?}, alone {alone:?}");
        let arriving = LARGE_BYTES as u64 - received_bytes(far(&world), Class::Prefetch);
        sleep(Duration::from_millis(1100 * arriving / BYTES_PER_S)).await;
        let again = time_of_reading(far(&world), "large").await;
        assert!(again < Duration::from_millis(1), "it has come in the background: {again:?}");
    });
}

#[test]
fn a_file_that_is_opened_again_goes_first() {
    simulate(async {
        let world = world().await;
        look_into(far(&world), "large").await;
        look_into(far(&world), "other").await;
        sleep(Duration::from_secs(2)).await;
        let before = Class::ALL.map(|class| received_bytes(far(&world), class)).iter().sum::<u64>();
        let missing = LARGE_BYTES as u64 - before / 2;
        let took = time_of_reading(far(&world), "other").await;
        let alone = Duration::from_millis(missing * 1000 / BYTES_PER_S);
        assert!(took < alone * 115 / 100, "{took:?}, but its rest takes {alone:?} alone");
    });
}

#[test]
fn on_the_next_connection_it_is_as_urgent_as_before() {
    simulate(async {
        let world = world().await;
        look_into(far(&world), "large").await;
        sleep(Duration::from_secs(1)).await;
        world.machines()[1].cut_link();
        // The next attempt, and the rest of the chunks that were on their way.
        sleep(Duration::from_secs(3)).await;
        let fetched = received_bytes(far(&world), Class::Fetch);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(received_bytes(far(&world), Class::Fetch), fetched);
        assert!(received_bytes(far(&world), Class::Prefetch) > 3 * BYTES_PER_S);
    });
}

#[test]
fn the_rest_of_a_closed_file_waits_as_long_as_others_need_the_link() {
    simulate(async {
        let world = world().await;
        look_into(far(&world), "large").await;
        assert!(time_of_reading(far(&world), "huge").await > Duration::from_secs(40));
        sleep(Duration::from_secs(12)).await;
        let again = time_of_reading(far(&world), "large").await;
        assert!(again < Duration::from_millis(1), "it has come afterwards: {again:?}");
    });
}

#[test]
fn who_opens_a_file_that_has_waited_long_has_all_his_patience() {
    simulate(async {
        for late_ms in [21_000, 21_240, 21_260, 21_280, 21_500] {
            let world = world().await;
            look_into(far(&world), "large").await;
            let vfs = far(&world).clone();
            let reading = tokio::spawn(async move { content(&vfs, "huge").await });
            sleep(Duration::from_millis(late_ms)).await;
            // Half of the link, and a second that may be missing.
            assert!(time_of_reading(far(&world), "large").await < Duration::from_secs(22), "{late_ms} ms");
            reading.await.expect("the other file");
        }
    });
}

#[test]
fn who_waits_for_a_silent_server_gives_up_and_the_rest_of_a_closed_file_does_not() {
    simulate(async {
        let mut world = world().await;
        look_into(far(&world), "large").await;
        let file = open_by_name(far(&world), "other").await;
        world.crash_server(Crash::Kill);
        let began = Instant::now();
        assert!(far(&world).read(file, LARGE_BYTES as u64 - 1, 1).await.is_err());
        assert!((Duration::from_secs(20)..Duration::from_secs(30)).contains(&began.elapsed()), "{:?}", began.elapsed());
        far(&world).release(file);
        sleep(Duration::from_secs(60)).await;
        world.start_server().expect("a server");
        // Also what has been read in vain goes on.
        sleep(Duration::from_secs(35)).await;
        let again = time_of_reading(far(&world), "large").await;
        assert!(again < Duration::from_millis(100), "it has come when the server was back: {again:?}");
    });
}

#[test]
fn many_rests_leave_room_for_who_waits() {
    const FILES: [&str; 20] = [
        "f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12", "f13", "f14", "f15", "f16",
        "f17", "f18", "f19",
    ];
    simulate(async {
        let world = world().await;
        for name in FILES {
            write_and_close(world.client(), name, vec![7; 2 * LARGE_BYTES]).await;
            look_into(far(&world), name).await;
        }
        let vfs = far(&world).clone();
        let reading = tokio::spawn(async move { content(&vfs, "huge").await });
        sleep(Duration::from_secs(1)).await;
        let took = time_of_reading(far(&world), "small").await;
        // Half of the link.
        assert!(took < Duration::from_secs(3), "{took:?}");
        reading.await.expect("the other file");
        // All of them come in the end.
        let missing = (FILES.len() * 2 * LARGE_BYTES) as u64;
        sleep(Duration::from_millis(1100 * missing / BYTES_PER_S)).await;
        for name in FILES {
            let again = time_of_reading(far(&world), name).await;
            assert!(again < Duration::from_millis(100), "{name} {again:?}");
        }
    });
}

#[test]
fn a_removal_waits_for_the_content_of_a_file_only_while_it_is_open() {
    simulate(async {
        let world = world().await;
        let file = open_by_name(far(&world), "large").await;
        let vfs = far(&world).clone();
        let began = Instant::now();
        let removal = tokio::spawn(async move { vfs.unlink(VnodeId::ROOT, Bytes::from("large"), CALLER).await });
        sleep(Duration::from_secs(1)).await;
        assert!(!removal.is_finished(), "who has it open needs all of it");
        far(&world).release(file);
        removal.await.expect("a task").expect("an unlink");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    });
}
