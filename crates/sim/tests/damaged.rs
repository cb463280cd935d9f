//! Bytes that change between a client and the server, or in the memory of one of them: they are never stored nor shown.

use std::time::Duration;

use mafs_client::vfs::{StatusReport, Writeback};
use mafs_proto::Random;
use mafs_sim::{Direction, Harm, World};

use crate::support::{configured, content, seeds_from, simulate, with_empty_cache, write_and_close};

const DELAY: Duration = Duration::from_millis(5);
const SIZES: [u64; 4] = [100, 9_000, 60_000, 700_000];
const POLICIES: [Writeback; 2] = [Writeback::Sync, Writeback::Sirp];

async fn world(seed: u64, writeback: Writeback) -> World {
    configured(World::start(seed, DELAY).await.expect("a world"), |machine| machine.set_writeback(writeback)).await
}

fn bytes(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at / 7).to_le_bytes()[0] | 1).collect()
}

/// Stores a content while a byte changes, and finds it whole at the server. Returns what the client says of that.
async fn store_harmed(world: &mut World, size: u64, (harm, to, at): (Harm, Direction, u64)) -> StatusReport {
    world.machines()[0].harm(harm, to, at);
    write_and_close(world.client(), "file", bytes(size)).await;
    world.client().sync().await.expect("all is sent");
    let status = world.client().status();
    assert!(content(world.client(), "file").await == bytes(size), "{size} bytes, {harm:?} {to:?} at {at}: here");
    with_empty_cache(world).await;
    assert!(content(world.client(), "file").await == bytes(size), "{size} bytes, {harm:?} {to:?} at {at}: there");
    status
}

#[test]
fn a_content_that_was_damaged_where_no_check_sees_it_is_not_stored_but_sent_again() {
    for (writeback, size) in POLICIES.into_iter().flat_map(|policy| SIZES.map(|size| (policy, size))) {
        simulate(async {
            let mut world = world(1, writeback).await;
            // Behind the header of the first segment.
            let harm = (Harm::InMemory, Direction::ToAcceptor, 40);
            let status = store_harmed(&mut world, size, harm).await;
            assert_eq!((status.damaged_contents, status.damaged_connections), (1, 0), "{writeback:?}, {size} bytes");
        });
    }
}

#[test]
fn a_byte_that_changes_on_its_way_ends_its_connection_and_nothing_else() {
    let mut noticed = 0;
    for seed in seeds_from(0, 40) {
        simulate(async {
            let mut random = Random::new(seed);
            let writeback = POLICIES[usize::from(random.below(2) == 1)];
            let size = SIZES[usize::try_from(random.below(4)).expect("small")];
            let to = Direction::ALL[usize::from(random.below(3) == 0)];
            let mut world = world(seed, writeback).await;
            let harm = (Harm::OnItsWay, to, random.below(200));
            let status = store_harmed(&mut world, size, harm).await;
            assert_eq!(status.damaged_contents, 0, "seed {seed}");
            noticed += status.damaged_connections;
            // And on the way back, to a reader whose cache is empty.
            with_empty_cache(&mut world).await;
            world.machines()[0].harm(Harm::OnItsWay, Direction::ToConnector, random.below(size.min(1_000)));
            assert!(content(world.client(), "file").await == bytes(size), "seed {seed}");
            noticed += world.client().status().damaged_connections;
        });
    }
    assert!(noticed > 0);
}

#[test]
fn verify_drops_what_the_disk_has_damaged_and_leaves_what_the_server_lacks() {
    simulate(async {
        let mut world = world(1, Writeback::Sirp).await;
        write_and_close(world.client(), "file", bytes(60_000)).await;
        world.client().sync().await.expect("all is sent");
        world.stop_client().await;
        world.damage_cached_contents().expect("damage");
        world.start_client().await.expect("the client starts");
        world.machines()[0].isolate();
        write_and_close(world.client(), "unsent", bytes(9_000)).await;
        let found = world.client().verify(b"").await.expect("a look").expect("the root");
        assert_eq!((found.files, found.damaged_files), (1, 1), "{found:?}");
        assert_eq!((found.damaged[0].path.as_str(), found.damaged[0].dropped), ("file", true));
        assert!(content(world.client(), "unsent").await == bytes(9_000));
        world.machines()[0].restore_link();
        world.client().sync().await.expect("all is sent");
        assert!(content(world.client(), "file").await == bytes(60_000), "it is fetched again");
        for (below, files) in [(&b""[..], 2), (b"file", 1)] {
            let found = world.client().verify(below).await.expect("a look").expect("an object");
            assert_eq!((found.files, found.damaged_files), (files, 0), "{found:?}");
        }
        assert!(world.client().verify(b"nothing").await.expect("a look").is_none());
    });
}
