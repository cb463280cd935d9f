//! A user's limit stays, whatever becomes of the connection, and nothing else is limited.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::Vfs;
use mafs_sim::{Path, World};
use tokio::time::Instant;

use crate::support::{clients, content, create, simulate, write_and_close};

const CONTENT_BYTES: usize = 1 << 20;
const LIMIT: &str = "store=64k";
/// Time of a limited store by itself.
const LIMITED_TIME: Duration = Duration::from_secs(16);

async fn world() -> World {
    let link = Profile::steady(2_000_000, Duration::from_millis(20));
    World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world")
}

/// Returns how long a close takes; after `middle` of it `what` happens.
async fn store(world: &World, name: &'static str, middle: Duration, what: impl FnOnce(&Vfs)) -> Duration {
    let vfs = world.client().clone();
    let began = Instant::now();
    let closing = tokio::spawn(async move { write_and_close(&vfs, name, vec![1; CONTENT_BYTES]).await });
    tokio::time::sleep(middle).await;
    what(world.client());
    closing.await.expect("the close");
    began.elapsed()
}

fn limit(vfs: &Vfs, text: &str) {
    vfs.limit(text.parse().expect("a limit"));
}

#[test]
fn a_limit_counts_for_stores_at_once_and_on_the_next_connection() {
    simulate(async {
        let world = world().await;
        let tenth = LIMITED_TIME / 10;
        assert!(store(&world, "unlimited", Duration::ZERO, |_| ()).await < tenth);

        limit(world.client(), LIMIT);
        assert_eq!(world.client().status().limits_bytes_per_s, [None, None, None, None, Some(64 << 10)]);
        let took = store(&world, "limited", Duration::ZERO, |_| ()).await;
        assert!((LIMITED_TIME * 98 / 100..LIMITED_TIME * 105 / 100).contains(&took), "{took:?}");

        let took = store(&world, "cut", LIMITED_TIME / 2, |_| world.cut_link()).await;
        assert!((LIMITED_TIME * 98 / 100..LIMITED_TIME * 5 / 4).contains(&took), "{took:?}");

        let took = store(&world, "freed", LIMITED_TIME / 2, |vfs| limit(vfs, "store=off")).await;
        assert!((LIMITED_TIME / 2..LIMITED_TIME / 2 + tenth).contains(&took), "{took:?}");
    });
}

#[test]
fn names_do_not_wait_for_a_limited_store() {
    simulate(async {
        let world = world().await;
        limit(world.client(), LIMIT);
        let vfs = world.client().clone();
        let storing = tokio::spawn(async move { write_and_close(&vfs, "large", vec![1; CONTENT_BYTES]).await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        let began = Instant::now();
        let (_, file) = create(world.client(), "small").await;
        world.client().release(file);
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        assert!(!storing.is_finished());
    });
}

#[test]
fn a_limit_counts_for_what_the_server_sends_and_on_the_next_connection() {
    simulate(async {
        let link = || Path::Link(Box::new(Profile::steady(2_000_000, Duration::from_millis(20))));
        let world = World::start_over(1, vec![link(), link()], false).await.expect("a world");
        let [writer, reader] = clients(&world);
        limit(&reader, "fetch=64k");
        let half = LIMITED_TIME / 2;
        let cut = || world.machines()[1].cut_link();
        let free = || limit(&reader, "fetch=off");
        let cases: [(_, &dyn Fn(), _); 3] =
            [("limited", &|| (), 2 * half), ("cut", &cut, 2 * half), ("freed", &free, half)];
        for (name, what, expected) in cases {
            write_and_close(&writer, name, vec![1; CONTENT_BYTES]).await;
            let (began, reader) = (Instant::now(), reader.clone());
            let reading = tokio::spawn(async move { content(&reader, name).await });
            tokio::time::sleep(half).await;
            what();
            assert_eq!(reading.await.expect("the read").len(), CONTENT_BYTES);
            let took = began.elapsed();
            assert!((expected * 98 / 100..expected + LIMITED_TIME / 10).contains(&took), "{name}: {took:?}");
        }
    });
}
