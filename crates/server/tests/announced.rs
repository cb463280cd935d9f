//! Announced records: who opens what they touch gets them, who only looks is shown them, and nobody is promised anything
//! about them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::call::{
    ApplyReply, ApplyRequest, Broken, DetachRequest, FetchReply, FetchRequest, GetXattrsRequest, InvalidateReply,
    InvalidateRequest, LookupRequest,
};
use mafs_proto::{
    Base, Call, Class, ClientId, CmlOp, CmlRecord, DataVersion, Fid, FsError, Incarnation, Mode, RenameMode, SetAttr,
    StoreId, Timestamp, Wire,
};
use mafs_server::{MemoryStorage, Server};
use support::{ALICE, BOB, Client, Refused, acknowledge, create, header, name, noise, open, store, whole};
use tokio::time::{Instant, timeout};

const CAROL: ClientId = ClientId([3; 16]);

/// A lease and the bias, as the server counts them.
const LEASE: Duration = Duration::from_secs(62);

/// Far longer than a round trip, far shorter than a wait for a pull.
const SOON: Duration = Duration::from_secs(1);

/// As long as one call waits.
const WAIT: Duration = Duration::from_secs(10);

const NEW: &[u8] = b"the new content";

fn serve() -> (MemoryStorage, Arc<Server>) {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    (storage, server)
}

/// A file with a content, its writer and its reader, who has not been shown it.
async fn alice_and_bob(server: &Arc<Server>) -> (Client, Client, Fid) {
    let mut alice = Client::attached(server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, Bytes::from_static(b"old")).await.unwrap();
    (alice, ready(server, BOB).await, file)
}

async fn ready(server: &Arc<Server>, id: ClientId) -> Client {
    let client = Client::attached(server, id).await;
    client.renew().await.unwrap();
    client
}

/// A store of [`NEW`] on the version that [`alice_and_bob`] leaves.
fn new_content(client: &mut Client, file: Fid) -> CmlRecord {
    client.next_record(store(file, Base::Version(DataVersion(2)), NEW.len() as u64))
}

async fn announce_all(client: &Client, records: &[CmlRecord]) {
    assert_eq!(client.announce(records).await.unwrap(), InvalidateReply { refused: Vec::new() });
}

async fn deliver(client: &Client, record: CmlRecord) -> Result<ApplyReply, Refused> {
    client.apply_queued(record, whole(NEW)).await
}

/// The writer delivers what it is asked for.
async fn deliver_pulled(client: &mut Client, record: &CmlRecord) {
    assert_eq!(client.next_pull(&[]).await, [record.id]);
    deliver(client, record.clone()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_announced_content_is_pulled_and_who_opens_the_file_gets_it() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let (opened, ()) = tokio::join!(bob.status(file, true), deliver_pulled(&mut alice, &record));
    let reply = opened.unwrap();
    assert_eq!(reply.objects[0].status.data_version, DataVersion(3));
    assert_eq!((reply.pending, reply.stale), (Vec::new(), false));
    assert_eq!(bob.read(file).await, NEW);
}
