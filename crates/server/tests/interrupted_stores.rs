//! Tests of stores whose connection ends half way, and of the calls that go on with them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::{Payload, PayloadWriter};
use mafs_proto::call::{ApplyReply, ApplyRequest, ResumeStoreReply, ResumeStoreRequest};
use mafs_proto::{Base, Call, Class, CmlRecord, ContentHash, DataVersion, Fid, FsError, Segment, Wire};
use mafs_server::{MemoryStorage, Server};
use support::{ALICE, BOB, Client, Refused, header, noise, open, rest, store, whole};

const SIZE: usize = 1_000_000;
const ARRIVED: usize = 400_000;

/// Lets the server notice what has happened to connections.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

struct Interrupted {
    server: Arc<Server>,
    /// The client, attached anew.
    alice: Client,
    file: Fid,
    record: CmlRecord,
    /// The connection before, by which the client is still sending.
    _old: (Client, PayloadWriter),
}

/// Makes a store of which [`ARRIVED`] bytes have arrived by a connection that still stands; its client attaches by
/// another.
async fn interrupted() -> Interrupted {
    let server = open(&MemoryStorage::new(1));
    let mut old = Client::attached(&server, ALICE).await;
    let root = old.root();
    let file = old.create(root, "f").await;
    let record = old.next_record(store(file, Base::Version(DataVersion(1)), SIZE as u64));
    let (mut writer, payload) = Payload::stream();
    let (body, peer) = (ApplyRequest::new(record.clone(), None).encode(), old.peer.clone());
    tokio::spawn(async move {
        let method = ApplyRequest::METHOD.number();
        let call = mafs_arpc::Call { class: Class::Store, timeout: None, method, body, payload };
        let _ = peer.call(call).reply().await;
    });
    writer.write(header(SIZE)).await.unwrap();
    writer.write(noise(1, SIZE).slice(..ARRIVED)).await.unwrap();
    settle().await;
    let alice = Client::attached(&server, ALICE).await;
    Interrupted { server, alice, file, record, _old: (old, writer) }
}

impl Interrupted {
    async fn kept(&self) -> ResumeStoreReply {
        self.alice.call(ResumeStoreRequest { fid: self.file }).await.unwrap()
    }

    async fn send_from(&self, content_offset: usize) -> Result<ApplyReply, Refused> {
        let whole_request = ApplyRequest::new(self.record.clone(), None);
        let request = ApplyRequest { content_offset: content_offset as u64, ..whole_request };
        let payload = rest(&noise(1, SIZE), content_offset);
        let method = ApplyRequest::METHOD.number();
        let (body, _) = self.alice.raw(method, request.encode(), payload, Class::Store).await?;
        Ok(ApplyReply::decode(body).unwrap())
    }
}

fn first(bytes: usize) -> ResumeStoreReply {
    ResumeStoreReply { bytes: bytes as u64, hash: ContentHash::of(&noise(1, SIZE)[..bytes]) }
}

#[tokio::test(start_paused = true)]
async fn a_store_goes_on_where_it_was_while_its_old_connection_still_stands() {
    let interrupted = interrupted().await;
    assert_eq!(interrupted.kept().await, first(ARRIVED));
    let reply = interrupted.send_from(ARRIVED).await.unwrap();
    assert_eq!(reply.hash, Some(ContentHash::of(&noise(1, SIZE))));
    assert_eq!(interrupted.alice.read(interrupted.file).await, noise(1, SIZE));
    assert_eq!(interrupted.kept().await, first(0));
    // The store comes again, as after a lost answer.
    assert_eq!(interrupted.send_from(0).await.unwrap(), reply);
}

#[tokio::test(start_paused = true)]
async fn a_store_goes_on_after_its_connection_was_cut() {
    let Interrupted { server, alice, file, record, _old: (old, writer) } = interrupted().await;
    old.cut.cut();
    drop(writer);
    settle().await;
    let interrupted = Interrupted { server, alice, file, record, _old: (old, Payload::stream().0) };
    assert_eq!(interrupted.kept().await, first(ARRIVED));
    interrupted.send_from(ARRIVED).await.unwrap();
    assert_eq!(interrupted.alice.read(interrupted.file).await, noise(1, SIZE));
}

#[tokio::test(start_paused = true)]
async fn to_ask_what_became_of_a_record_costs_nothing_of_what_was_kept() {
    let interrupted = interrupted().await;
    let asked = interrupted.alice.apply_with(interrupted.record.clone(), Payload::None).await;
    assert_eq!(asked.unwrap_err().error, FsError::Malformed);
    assert_eq!(interrupted.kept().await, first(ARRIVED));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_not_assumed() {
    let interrupted = interrupted().await;
    for wrong in [1, ARRIVED - 1, ARRIVED + 1, SIZE] {
        assert_eq!(interrupted.send_from(wrong).await.unwrap_err().error, FsError::NotKept, "from {wrong}");
    }
    // The first of these calls has ended it.
    assert_eq!(interrupted.kept().await, first(0));
    assert_eq!(interrupted.alice.read(interrupted.file).await, Bytes::new());
    interrupted.send_from(0).await.unwrap();
    assert_eq!(interrupted.alice.read(interrupted.file).await, noise(1, SIZE));
}

#[tokio::test(start_paused = true)]
async fn what_was_damaged_on_its_way_is_not_stored_and_decides_nothing() {
    for (size, comes_again) in [(9, false), (SIZE, false), (9, true), (SIZE, true)] {
        let server = open(&MemoryStorage::new(1));
        let mut alice = Client::attached(&server, ALICE).await;
        let root = alice.root();
        let file = alice.create(root, "f").await;
        let content = noise(1, size);
        let record = alice.next_record(store(file, Base::Version(DataVersion(1)), size as u64));
        let request = ApplyRequest { comes_again, ..ApplyRequest::new(record, None) };
        for at in [Segment::BYTES, Segment::BYTES + size / 2, Segment::BYTES + size + 3] {
            let mut wire = Segment::upload(&content).to_vec();
            wire[at] ^= 1;
            let refused = alice.apply_request(request.clone(), Payload::Bytes(wire.into())).await.unwrap_err();
            assert_eq!(refused.error, FsError::Damaged);
            assert_eq!(alice.call(ResumeStoreRequest { fid: file }).await.unwrap(), first(0), "kept nothing");
            assert_eq!(alice.read(file).await, Bytes::new());
        }
        let reply = alice.apply_request(request.clone(), whole(&content)).await.unwrap();
        assert_eq!(reply.hash, Some(ContentHash::of(&content)));
        assert_eq!(alice.read(file).await, content);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_sent_is_its_own() {
    let interrupted = interrupted().await;
    let bob = Client::attached(&interrupted.server, BOB).await;
    assert_eq!(bob.call(ResumeStoreRequest { fid: interrupted.file }).await.unwrap(), first(0));
    interrupted.send_from(ARRIVED).await.unwrap();
}
