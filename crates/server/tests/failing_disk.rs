//! Tests of a disk that fails at every point while several clients call: what was acknowledged or shown by then is on
//! it, nothing is shown that is not, and the volume is served again from what it has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_durable::MemoryDisk;
use mafs_proto::call::FetchRequest;
use mafs_proto::{ClientId, FsError, Kind, Object};
use mafs_server::{MemoryStorage, Server};
use support::lanes::{Expected, futures_join, on_runtime, see, try_send, undisturbed_by};
use support::{ALICE, BOB, Client, Refused, create, open};

const READER: ClientId = ClientId([3; 16]);

/// Client of each lane, and the number of its records.
const LANES: [(ClientId, usize); 3] = [(ALICE, 16), (BOB, 16), (ALICE, 16)];

/// The way in which the disk fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// One sync fails; the bytes that it was to make durable can be read all the same.
    Sync,
    /// One write fails.
    Write,
    /// Everything fails after a sync that says that all is well.
    Dies,
}

impl Fault {
    fn strike(self, disk: &MemoryDisk, after: u64) {
        match self {
            Self::Sync => disk.fail_sync(disk.syncs() + after),
            Self::Write => disk.fail_write(disk.writes() + after),
            Self::Dies => disk.die_at_sync(disk.syncs() + after),
        }
    }
}

/// Knowledge of clients about the lanes.
struct Known<'e> {
    expected: &'e Expected,
    /// Number of records of each lane that were acknowledged, or shown to be applied.
    least: RefCell<Vec<usize>>,
    /// Writers that have not ended.
    working: Cell<usize>,
}

impl Known<'_> {
    fn note(&self, lane: usize, applied: usize) {
        let least = &mut self.least.borrow_mut()[lane];
        *least = applied.max(*least);
    }

    /// Notes that a lane has been shown to hold an object, perhaps with its content.
    fn note_shown(&self, lane: usize, object: &Object, content: Option<&Bytes>) {
        let is_it =
            |(shown, bytes): (&Object, Option<&Bytes>)| shown == object && content.is_none_or(|_| content == bytes);
        let states = &self.expected.states[lane];
        let holds =
            |state: &support::lanes::Seen| state.values().any(|(object, bytes, _)| is_it((object, bytes.as_ref())));
        let first = states.iter().position(holds);
        self.note(lane, first.unwrap_or_else(|| panic!("lane {lane} never holds {object:?} {content:?}")));
    }
}

/// Remains of a run: the storage, and of each lane how much must be there.
type Left = (MemoryStorage, Vec<usize>);

#[test]
fn invariant_1_what_was_acknowledged_or_shown_is_on_a_disk_that_fails_at_any_point() {
    let expected = undisturbed_by(&LANES);
    at_every_point(&expected, false, |point, (storage, least)| {
        for (image, name) in [(storage.crash(1), "crash"), (storage.crash_torn(1), "torn"), (storage.kill(1), "kill")] {
            on_runtime(async {
                let client = Client::attached(&open(&image), READER).await;
                for (lane, states) in expected.states.iter().enumerate() {
                    let found = see(&client, lane).await;
                    let is_there = states.iter().skip(least[lane]).any(|state| *state == found);
                    assert!(is_there, "{point}, {name}, lane {lane}, {} must be there: {found:?}", least[lane]);
                }
            });
        }
    });
}

#[test]
fn invariant_2_what_is_sent_again_after_a_disk_has_failed_is_applied_once_and_durable() {
    let expected = undisturbed_by(&LANES);
    at_every_point(&expected, true, |point, (storage, _)| {
        on_runtime(async {
            let client = Client::attached(&open(&storage.crash(1)), READER).await;
            for (lane, states) in expected.states.iter().enumerate() {
                assert_eq!(see(&client, lane).await, *states.last().unwrap(), "{point}, lane {lane}");
            }
        });
    });
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_disk_fails_is_refused_until_the_disk_works_again() {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, epoch) = (alice.root(), alice.attached.as_ref().unwrap().epoch);
    alice.create(root, "before").await;
    let disk = storage.memory_disk();
    disk.fail_syncs_from(disk.syncs());
    let fid = alice.next_fid();
    let ended = alice.apply(create(root, "lost", fid)).await.unwrap_err();
    assert_eq!(ended.error, FsError::Unknown(0), "not answered, but with the connection ended: {ended:?}");
    for _ in 0..3 {
        let refused = Client::connect(&server, ALICE).attach().await.unwrap_err();
        assert!(refused.error == FsError::Io && refused.message.contains("disk"), "{refused:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    disk.fail_syncs_from(u64::MAX);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut alice = Client::attached(&server, ALICE).await;
    assert!(alice.attached.as_ref().unwrap().epoch > epoch);
    alice.create(root, "after").await;
    assert!(alice.lookup(root, "before").await.unwrap().is_some());
}

/// Lets the disk fail at each point in turn. Writers that go on send again what was not acknowledged, until all is.
fn at_every_point(expected: &Expected, goes_on: bool, check: impl Fn(&str, Left)) {
    let faults = if goes_on { &[Fault::Sync, Fault::Write][..] } else { &[Fault::Sync, Fault::Write, Fault::Dies] };
    for fault in faults {
        for after in 0.. {
            let left = on_runtime(run(expected, *fault, after, goes_on));
            let reached = left.0.memory_disk().has_failed();
            check(&format!("{fault:?} {after}"), left);
            if !reached {
                assert!(after > 20, "the workload writes and syncs");
                break;
            }
        }
    }
}

async fn run(expected: &Expected, fault: Fault, after: u64, goes_on: bool) -> Left {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    let mut clients = BTreeMap::new();
    for id in [ALICE, BOB, READER] {
        let mut client = Client::attached(&server, id).await;
        client.acknowledge_all();
        clients.insert(id, client);
    }
    fault.strike(storage.memory_disk(), after);
    let known = Known { expected, least: RefCell::new(vec![0; LANES.len()]), working: Cell::new(LANES.len()) };
    let writers =
        (0..LANES.len()).map(|lane| Box::pin(write(&server, &clients[&LANES[lane].0], &known, lane, goes_on)));
    let writers = async { drop(futures_join(writers).await) };
    tokio::join!(writers, read(&clients[&READER], &known));
    (storage, known.least.into_inner())
}

/// Sends the records of a lane, until one is not acknowledged, or again over a new connection.
async fn write(server: &Arc<Server>, first: &Client, known: &Known<'_>, lane: usize, goes_on: bool) {
    let mut again: Option<Client> = None;
    for (applied, step) in known.expected.lanes[lane].iter().enumerate() {
        while let Err(refused) = try_send(again.as_ref().unwrap_or(first), step).await {
            assert!(is_about_the_disk(&refused), "lane {lane}: {refused:?}");
            if !goes_on {
                return known.working.set(known.working.get() - 1);
            }
            again = Some(attached_again(server, first.id).await);
        }
        known.note(lane, applied + 1);
    }
    known.working.set(known.working.get() - 1);
}

/// Attaches as soon as the volume is served again.
async fn attached_again(server: &Arc<Server>, id: ClientId) -> Client {
    for _ in 0..600 {
        let mut client = Client::connect(server, id);
        match client.attach().await {
            Ok(_) => {
                client.acknowledge_all();
                return client;
            }
            Err(refused) => assert!(is_about_the_disk(&refused), "{refused:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the volume is not served again");
}

/// Tells whether a connection has ended, a volume is not served, or another attach of the client came.
fn is_about_the_disk(refused: &Refused) -> bool {
    let has_ended = refused.error == FsError::Unknown(0);
    let is_not_served = refused.error == FsError::Io && refused.message.contains("disk");
    has_ended || is_not_served || refused.error == FsError::NotAttached
}

/// Looks at the lanes as long as somebody writes, and the connection lasts.
async fn read(client: &Client, known: &Known<'_>) {
    while known.working.get() > 0 {
        for lane in 0..LANES.len() {
            if look(client, known, lane).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn look(client: &Client, known: &Known<'_>, lane: usize) -> Result<(), Refused> {
    let Some(top) = client.lookup(client.root(), &format!("lane{lane}")).await? else { return Ok(()) };
    for entry in client.read_dir(top.fid, None, 1000).await?.entries {
        known.note_shown(lane, &entry.object, None);
        if entry.object.status.kind == Kind::File {
            match client.fetch(FetchRequest { fid: entry.object.fid, data_version: None, offset: 0 }).await {
                Ok((object, content)) => known.note_shown(lane, &object, Some(&content)),
                Err(refused) if refused.error == FsError::Stale => {}
                Err(refused) => return Err(refused),
            }
        }
    }
    Ok(())
}
