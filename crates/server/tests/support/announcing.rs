//! Parts that tests of announced records share: a file, its writer, and its reader.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::call::{ApplyReply, InvalidateReply};
use mafs_proto::{Base, ClientId, CmlRecord, DataVersion, Fid};
use mafs_server::{MemoryStorage, Server};

use super::{ALICE, BOB, Client, Refused, open, store, whole};

pub(crate) const CAROL: ClientId = ClientId([3; 16]);

/// Length of a lease and the bias, as the server counts them.
pub(crate) const LEASE: Duration = Duration::from_secs(62);

/// A time far longer than a round trip, far shorter than a wait for a pull.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Time for which one call waits.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

pub(crate) const NEW: &[u8] = b"the new content";

pub(crate) fn serve() -> (MemoryStorage, Arc<Server>) {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    (storage, server)
}

/// Makes a file with a content, its writer and its reader, who has not been shown it.
pub(crate) async fn alice_and_bob(server: &Arc<Server>) -> (Client, Client, Fid) {
    let alice = alice(server).await;
    let file = alice.lookup(alice.root(), "f").await.unwrap().unwrap().fid;
    (alice, ready(server, BOB).await, file)
}

/// Attaches a client and makes a file that has a content.
pub(crate) async fn alice(server: &Arc<Server>) -> Client {
    let mut alice = Client::attached(server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, Bytes::from_static(b"old")).await.unwrap();
    alice
}

pub(crate) async fn ready(server: &Arc<Server>, id: ClientId) -> Client {
    let client = Client::attached(server, id).await;
    client.renew().await.unwrap();
    client
}

/// Makes a store of [`NEW`] on the version that [`alice_and_bob`] leaves.
pub(crate) fn new_content(client: &mut Client, file: Fid) -> CmlRecord {
    client.next_record(store(file, Base::Version(DataVersion(2)), NEW.len() as u64))
}

pub(crate) async fn announce_all(client: &Client, records: &[CmlRecord]) {
    assert_eq!(client.announce(records).await.unwrap(), InvalidateReply::default());
}

pub(crate) async fn deliver(client: &Client, record: CmlRecord) -> Result<ApplyReply, Refused> {
    client.apply_queued(record, whole(NEW)).await
}

/// Delivers, as the writer, the record that it is asked for.
pub(crate) async fn deliver_pulled(client: &mut Client, record: &CmlRecord) {
    assert_eq!(client.next_pull(&[]).await, [record.id]);
    deliver(client, record.clone()).await.unwrap();
}
