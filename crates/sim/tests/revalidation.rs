//! After a long outage a client asks about all that it knows by one question: what has changed since (consistency.md,
//! "Revalidation").

use std::time::Duration;

use mafs_client::vfs::{Attributes, Error, Vfs, Writeback};
use mafs_proto::{FsError, Mode, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    BLACK_HOLE, CALLER, clients, content, look, make_dir, make_exclusively, name, names, overwrite, rename, simulate,
    usable_apart, write_and_close,
};

const DELAY: Duration = Duration::from_millis(100);
const RTT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(600);
/// A lease is renewed by then, which says that nothing was missed.
const RENEWED: Duration = Duration::from_secs(25);

const DIRECTORIES: usize = 50;
const FILES: usize = 200;
const CHANGED: usize = 5;
/// The one entry of each directory that is a file; to make symlinks takes less of the test's time.
const THE_FILE: usize = 7;
/// Renewals of the lease, one of them in vain, a question for what has changed, and what is held.
const CALLS_MAX: u64 = 20;
/// Bytes of the attach, the changes and the statuses of what changed, beside any contents.
const BYTES_MAX: u64 = 16 << 10;

async fn two(policy: Writeback) -> World {
    let world = World::start_several(1, 2, DELAY, false).await.expect("a world");
    usable_apart(world, policy).await
}

fn traffic(vfs: &Vfs) -> (u64, u64) {
    let classes = vfs.statistics();
    (classes.iter().map(|class| class.calls).sum(), classes.iter().map(|class| class.received_bytes).sum())
}

/// Looks at everything in the directories, as `ls -lR` does.
async fn look_at_all(vfs: &Vfs, directories: &[VnodeId]) -> usize {
    let mut seen = 0;
    for directory in directories {
        vfs.get_attributes(*directory).await.expect("a directory");
        let page = vfs.read_dir_plus(*directory, 0, usize::MAX).await.expect("a listing");
        seen += page.entries.iter().filter(|entry| !entry.entry.name.starts_with(b".")).count();
    }
    seen
}

async fn chmod(vfs: &Vfs, file: VnodeId) {
    let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
    vfs.set_attributes(file, set, None, CALLER).await.expect("a chmod");
}

async fn until_connected(vfs: &Vfs) {
    while !vfs.status().connected {
        sleep(Duration::from_millis(1)).await;
    }
}

/// The second client is out of touch for so long that its session ends, while the first does something.
async fn apart<T>(world: &World, act: impl Future<Output = T>) -> T {
    sleep(RENEWED).await;
    world.machines()[1].fall_silent_for(BLACK_HOLE, LONG, true);
    sleep(LEASE + LEASE_BIAS).await;
    let done = act.await;
    sleep(LONG - LEASE - LEASE_BIAS).await;
    until_connected(world.machines()[1].client()).await;
    done
}

#[test]
fn ten_thousand_objects_of_which_five_changed_are_current_after_three_round_trips() {
    simulate(async {
        let world = two(Writeback::Async).await;
        let [one, two] = clients(&world);
        let mut directories = Vec::new();
        for number in 0..DIRECTORIES {
            let directory = make_dir(&one, VnodeId::ROOT, &format!("d{number}")).await.expect("a directory");
            for number in 0..FILES {
                let made = name(&format!("f{number}"));
                if number == THE_FILE {
                    make_exclusively(&one, directory, &format!("f{number}")).await.expect("a file");
                } else {
                    one.make_symlink(directory, made, name("target"), CALLER).await.expect("a symlink");
                }
            }
            directories.push(directory);
        }
        one.sync().await.expect("a sync");
        for number in 0..DIRECTORIES {
            two.lookup(VnodeId::ROOT, name(&format!("d{number}"))).await.expect("a name");
        }
        // A directory is cached whole from the second miss on.
        look_at_all(&two, &directories).await;
        assert_eq!(look_at_all(&two, &directories).await, DIRECTORIES * FILES);
        let before = apart(&world, async {
            for directory in &directories[..CHANGED] {
                let file = one.lookup(*directory, name("f7")).await.expect("a name").fid.vnode;
                chmod(&one, file).await;
            }
            one.sync().await.expect("a sync");
            traffic(&two)
        })
        .await;
        // The attach and asking what has changed were two round trips, a connection takes none here, and asking for
        // that takes another.
        sleep(RTT).await;
        let after = traffic(&two);
        assert!(after.0 - before.0 <= CALLS_MAX, "{} calls", after.0 - before.0);
        assert!(after.1 - before.1 < BYTES_MAX, "{} bytes", after.1 - before.1);
        let begun = Instant::now();
        assert_eq!(look_at_all(&two, &directories).await, DIRECTORIES * FILES);
        for directory in &directories[..CHANGED] {
            let file = two.lookup(*directory, name("f7")).await.expect("a name");
            assert_eq!(file.status.mode.bits(), 0o600);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "everything is current");
    });
}

/// Contents, names that came and went, and a directory that was listed whole.
#[test]
fn what_others_have_done_meanwhile_is_seen_and_what_they_have_not_is_not_asked_for() {
    for policy in [Writeback::Sync, Writeback::Sirp] {
        simulate(async {
            let world = two(policy).await;
            let [one, two] = clients(&world);
            for file in ["changed", "removed", "moved", "same"] {
                write_and_close(&one, file, vec![1; 3000]).await;
            }
            one.sync().await.expect("a sync");
            names(&two, VnodeId::ROOT).await.expect("its names");
            for file in ["changed", "removed", "same"] {
                assert!(content(&two, file).await == vec![1; 3000], "another content");
            }
            apart(&world, async {
                overwrite(&one, "changed", vec![2; 3000]).await;
                one.unlink(VnodeId::ROOT, name("removed"), CALLER).await.expect("an unlink");
                rename(&one, "moved", "elsewhere").await.expect("a rename");
                write_and_close(&one, "new", vec![3; 10]).await;
                one.sync().await.expect("a sync");
            })
            .await;
            assert!(content(&two, "same").await == vec![1; 3000], "another content");
            assert!(content(&two, "changed").await == vec![2; 3000], "another content");
            for gone in ["removed", "moved"] {
                let gone = two.lookup(VnodeId::ROOT, name(gone)).await;
                assert!(matches!(gone, Err(Error::Refused(FsError::NotFound))), "{gone:?}");
            }
            assert!(content(&two, "elsewhere").await == vec![1; 3000], "another content");
            assert!(content(&two, "new").await == vec![3; 10], "another content");
        });
    }
}

/// The client hears of every change at first, and then of changes to what it has named.
#[test]
fn what_is_kept_is_promised_again_and_of_the_rest_nothing_is_heard() {
    for named in [false, true] {
        simulate(async {
            let world = two(Writeback::Sync).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "a", vec![1; 3000]).await;
            let directory = make_dir(&one, VnodeId::ROOT, "d").await.expect("a directory");
            make_exclusively(&one, directory, "unseen").await.expect("a file");
            let unseen = one.lookup(directory, name("unseen")).await.expect("a name").fid.vnode;
            names(&two, VnodeId::ROOT).await.expect("its names");
            assert!(content(&two, "a").await == vec![1; 3000], "another content");
            apart(&world, async {}).await;
            if named {
                sleep(Duration::from_secs(10)).await;
            }
            let begun = Instant::now();
            assert!(content(&two, "a").await == vec![1; 3000], "another content");
            assert_eq!(begun.elapsed(), Duration::ZERO, "nobody was asked");
            chmod(&one, unseen).await;
            assert!(!named || begun.elapsed() < 2 * RTT, "somebody was told of what it was never shown");
            for round in 2..4 {
                overwrite(&one, "a", vec![round; 3000]).await;
                assert!(content(&two, "a").await == vec![round; 3000], "another content");
            }
        });
    }
}

/// A version that has been announced and not sent counts as changed.
#[test]
fn what_others_have_announced_meanwhile_is_waited_for() {
    simulate(async {
        let world = two(Writeback::Sirp).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "a", vec![1; 3000]).await;
        one.sync().await.expect("a sync");
        assert!(content(&two, "a").await == vec![1; 3000], "another content");
        apart(&world, async {
            sleep(LONG - 2 * (LEASE + LEASE_BIAS)).await;
            overwrite(&one, "a", vec![2; 3000]).await;
        })
        .await;
        assert!(content(&two, "a").await == vec![2; 3000], "another content");
    });
}

/// The client asks as after an outage, by what the index on its disk says.
#[test]
fn a_client_that_was_restarted_asks_only_for_what_has_changed() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
        simulate(async {
            let mut world = two(Writeback::Sirp).await;
            let [one, two] = clients(&world);
            for file in ["a", "b"] {
                write_and_close(&one, file, vec![1; 3000]).await;
            }
            one.sync().await.expect("a sync");
            names(&two, VnodeId::ROOT).await.expect("its names");
            assert!(content(&two, "a").await == vec![1; 3000], "another content");
            assert!(content(&two, "b").await == vec![1; 3000], "another content");
            sleep(2 * LEASE).await;
            match crash {
                None => world.machines_mut()[1].stop().await,
                Some(crash) => world.crash_machine(1, crash),
            }
            overwrite(&one, "a", vec![2; 3000]).await;
            one.sync().await.expect("a sync");
            world.machines_mut()[1].start().await.expect("a client");
            let [_, two] = clients(&world);
            let begun = Instant::now();
            assert_eq!(look(&two, "b").await.status.size, 3000);
            assert_eq!(begun.elapsed(), Duration::ZERO, "nobody was asked after {crash:?}");
            assert!(content(&two, "a").await == vec![2; 3000], "another content");
        });
    }
}

/// The server has lost the end of its journal: numbers begin anew, and mean other changes.
#[test]
fn after_another_history_everything_is_asked_for() {
    simulate(async {
        let mut world = two(Writeback::Sync).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "a", vec![1; 3000]).await;
        let image = world.server_image();
        overwrite(&one, "a", vec![2; 3000]).await;
        assert!(content(&two, "a").await == vec![2; 3000], "another content");
        sleep(RENEWED).await;
        world.restore_server(image).expect("a server");
        sleep(LEASE + LEASE_BIAS).await;
        overwrite(&one, "a", vec![3; 4000]).await;
        assert_eq!(look(&two, "a").await.status.size, 4000);
    });
}
