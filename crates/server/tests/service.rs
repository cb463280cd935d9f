//! Tests of the server as a client sees it, over the memory carrier in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_durable::{Disk, LoggedIndexConfig};
use mafs_proto::call::{
    ApplyRequest, AttachRequest, DetachRequest, FetchRequest, GetStatusRequest, GrantFidsRequest, LookupRequest, Method,
};
use mafs_proto::{
    Base, Call, Class, CmlOp, CmlRecord, ContentHasher, ContentPart, DataVersion, Fid, FsError, Segment, SegmentReader,
    SetAttr, StoreId, SymlinkTarget, VnodeId, VolumeName, Wire,
};
use mafs_server::{DirStorage, MemoryStorage, Server, ServerConfig};
use support::{ALICE, BOB, Client, TestClock, create, header, make_dir, name, noise, open, store, trailer, whole};

const CONTENT: &str = "volumes/home/content";

fn serve() -> (MemoryStorage, Arc<Server>) {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    (storage, server)
}

fn fetch(fid: Fid) -> FetchRequest {
    FetchRequest { fid, data_version: None, offset: 0 }
}

/// Lets the server notice what has happened to connections.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn files_and_directories_are_served_as_they_were_stored() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let dir = alice.next_fid();
    alice.apply(make_dir(root, "d", dir)).await.unwrap();
    let file = alice.create(dir, "f").await;
    alice.store(file, 1, Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!(alice.read(file).await, "hello");
    let found = alice.lookup(dir, "f").await.unwrap().unwrap();
    assert_eq!((found.fid, found.status.size), (file, 5));
    assert_eq!(alice.lookup(dir, "absent").await.unwrap(), None);
    let link = alice.next_fid();
    let target = SymlinkTarget::new(&b"../f"[..]).unwrap();
    alice.apply(CmlOp::SymLink { parent: dir, name: name("l"), fid: link, target: target.clone() }).await.unwrap();
    let page = alice.read_dir(dir, None, 10).await.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((names, page.end), (vec!["f".to_owned(), "l".to_owned()], true));
    assert_eq!(page.entries[1].object.target.as_ref(), Some(&target));
    let objects = alice
        .call(GetStatusRequest {
            fids: vec![link, Fid { vnode: VnodeId(99), ..dir }, dir],
            settled: false,
            unanswered: Vec::new(),
        })
        .await
        .unwrap();
    assert_eq!(objects.objects.iter().map(|object| object.fid).collect::<Vec<_>>(), [link, dir]);
}

#[tokio::test(start_paused = true)]
async fn who_asks_learns_which_of_its_records_are_in_the_answer() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let (dir, fids) = (alice.root(), [alice.next_fid(), alice.next_fid()]);
    let [done, undone] = fids.map(|fid| alice.next_record(create(dir, &format!("{}", fid.vnode.0), fid)));
    let foreign = StoreId { client: BOB, ..done.id };
    let unanswered = vec![undone.id, done.id, foreign];
    alice.apply_with(done.clone(), Payload::None).await.unwrap();
    let status = GetStatusRequest { fids: vec![dir], settled: false, unanswered: unanswered.clone() };
    assert_eq!(alice.call(status).await.unwrap().applied, [done.id]);
    let lookup = LookupRequest { parent: dir, name: name("absent"), unanswered };
    assert_eq!(alice.call(lookup).await.unwrap().applied, [done.id]);
}

#[tokio::test(start_paused = true)]
async fn directories_are_read_in_pages_in_the_order_of_names() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for number in 0..25 {
        alice.create(root, &format!("{:02}", (number * 7) % 25)).await;
    }
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = alice.read_dir(root, after, 10).await.unwrap();
        assert_eq!(page.directory.status.size, 25);
        names.extend(page.entries.iter().map(|entry| entry.name.to_string()));
        after = page.entries.last().map(|entry| entry.name.clone());
        if page.end {
            break;
        }
    }
    assert_eq!(names, (0..25).map(|number| format!("{number:02}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_large_content_streams_in_and_out() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "big").await;
    let bytes = noise(1, 20_000_000);
    let record = alice.next_record(store(file, Base::Version(DataVersion(1)), bytes.len() as u64));
    let (mut writer, payload) = Payload::stream();
    let sent = bytes.clone();
    let sender = tokio::spawn(async move {
        writer.write(header(sent.len())).await.unwrap();
        for start in (0..sent.len()).step_by(100_000) {
            writer.write(sent.slice(start..sent.len().min(start + 100_000))).await.unwrap();
        }
        writer.write(trailer(&sent)).await.unwrap();
        writer.finish();
    });
    alice.apply_with(record, payload).await.unwrap();
    sender.await.unwrap();
    assert!(alice.read(file).await == bytes);
    let (_, tail) = alice.fetch(FetchRequest { offset: 19_999_990, ..fetch(file) }).await.unwrap();
    assert_eq!(tail, bytes.slice(19_999_990..));
    let (_, beyond) = alice.fetch(FetchRequest { offset: 20_000_001, ..fetch(file) }).await.unwrap();
    assert_eq!(beyond, "");
}

#[tokio::test(start_paused = true)]
async fn invariant_4_a_reader_gets_one_whole_version() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let (old, new) = (noise(1, 3_000_000), noise(2, 3_000_000));
    alice.store(file, 1, old.clone()).await.unwrap();
    let method = FetchRequest::METHOD.number();
    let (_, mut reading) = alice.raw(method, fetch(file).encode(), Payload::None, Class::Fetch).await.unwrap();
    let mut read = reading.read().await.unwrap().unwrap()[Segment::BYTES..].to_vec();
    alice.store(file, 2, new.clone()).await.unwrap();
    settle().await;
    while let Some(piece) = reading.read().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert!(read == old, "the version that was begun is read to its end");
    assert!(alice.read(file).await == new);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_of_a_version_that_is_gone_is_refused() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, noise(1, 10)).await.unwrap();
    let pinned = |version| FetchRequest { data_version: Some(DataVersion(version)), ..fetch(file) };
    assert_eq!(alice.fetch(pinned(1)).await.unwrap_err().error, FsError::VersionGone);
    assert_eq!(alice.fetch(pinned(2)).await.unwrap().1, noise(1, 10));
    assert_eq!(alice.fetch(fetch(root)).await.unwrap_err().error, FsError::IsDirectory);
    let gone = Fid { vnode: VnodeId(9999), ..root };
    assert_eq!(alice.fetch(fetch(gone)).await.unwrap_err().error, FsError::Stale);
}

#[tokio::test(start_paused = true)]
async fn replaced_and_removed_contents_leave_the_disk() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, noise(1, 100_000)).await.unwrap();
    alice.store(file, 2, noise(2, 100_000)).await.unwrap();
    settle().await;
    assert_eq!(contents(&storage), 1);
    alice.apply(CmlOp::Remove { parent: root, name: name("f"), fid: file }).await.unwrap();
    settle().await;
    assert_eq!(contents(&storage), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_or_repeated_store_leaves_no_content_behind() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let refused = alice.store(file, 7, noise(1, 100_000)).await.unwrap_err();
    assert_eq!(refused.error, FsError::BaseChanged);
    let record = alice.next_record(store(file, Base::Version(DataVersion(1)), 100_000));
    let first = alice.apply_with(record.clone(), whole(&noise(2, 100_000))).await.unwrap();
    let again = alice.apply_with(record, whole(&noise(2, 100_000))).await.unwrap();
    assert_eq!(first, again);
    settle().await;
    assert_eq!(contents(&storage), 1);
}

#[tokio::test(start_paused = true)]
async fn a_content_of_the_wrong_size_changes_nothing() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    for (said, sent) in [(10, 9), (10, 11), (0, 1), (100_000, 99_999), (100_000, 100_001), (100_000, 10)] {
        let record = alice.next_record(store(file, Base::Version(DataVersion(1)), said));
        let refused = alice.apply_with(record, whole(&noise(1, sent))).await.unwrap_err();
        assert_eq!(refused.error, FsError::Malformed, "{said} {sent}");
    }
    let found = alice.lookup(root, "f").await.unwrap().unwrap();
    assert_eq!((found.status.size, found.status.data_version), (0, DataVersion(1)));
    settle().await;
    assert_eq!(contents(&storage), 0);
}

#[tokio::test(start_paused = true)]
async fn holes_and_zeros_take_no_room_and_no_time() {
    const TB: u64 = 1 << 40;
    let dir = tempfile::tempdir().unwrap();
    let storage = DirStorage::open(dir.path()).unwrap();
    let server = Server::open(Arc::new(storage), TestClock::start(), ServerConfig::default()).unwrap();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let record = alice.next_record(store(file, Base::Version(DataVersion(1)), 2 * TB));
    let mut data = vec![0; 1_000_000];
    data[500_000..].copy_from_slice(&noise(1, 500_000));
    let segments = [Segment { zeros: TB, data: 1_000_000 }, Segment { zeros: TB - 1_000_000, data: 0 }];
    let mut hasher = ContentHasher::default();
    hasher.skip(TB);
    hasher.update(&data);
    hasher.skip(TB - 1_000_000);
    let wire = [&segments[0].encode()[..], &data, &segments[1].encode(), &hasher.finish().0].concat();
    alice.apply_with(record, Payload::Bytes(wire.into())).await.unwrap();
    let status = alice.lookup(root, "f").await.unwrap().unwrap().status;
    assert_eq!(status.size, 2 * TB);
    let shards = std::fs::read_dir(dir.path().join(CONTENT)).unwrap().map(|shard| shard.unwrap().path());
    let mut files = shards.flat_map(|shard| std::fs::read_dir(shard).unwrap());
    let room = files.next().unwrap().unwrap().metadata().unwrap().blocks() * 512;
    assert!((500_000..600_000).contains(&room), "{room} bytes");
    let method = FetchRequest::METHOD.number();
    let (_, mut reading) = alice.raw(method, fetch(file).encode(), Payload::None, Class::Fetch).await.unwrap();
    let (mut sent, mut parts) = (0, Vec::new());
    let mut reader = SegmentReader::new(2 * TB);
    while let Some(mut piece) = reading.read().await.unwrap() {
        sent += piece.len();
        while let Some(part) = reader.next(&mut piece).unwrap() {
            parts.extend(match part {
                ContentPart::Segment(segment) => Some(segment),
                ContentPart::Data(_) => None,
            });
        }
    }
    assert!(reader.is_whole() && sent < 510_000, "{sent} bytes");
    assert_eq!(parts[0].zeros, TB + 500_000 / 4_096 * 4_096);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_cut_short_leaves_nothing() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let record = alice.next_record(store(file, Base::Version(DataVersion(1)), 1_000_000));
    let (mut writer, payload) = Payload::stream();
    let calling = async {
        writer.write(header(1_000_000)).await.unwrap();
        writer.write(noise(1, 500_000)).await.unwrap();
        settle().await;
        writer.abort("the disk of the client failed");
    };
    let (refused, ()) = tokio::join!(alice.apply_with(record, payload), calling);
    assert!(refused.is_err());
    settle().await;
    assert_eq!(contents(&storage), 0);
    assert_eq!(alice.read(file).await, "");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_attaches_again_fences_its_older_session() {
    let (_, server) = serve();
    let mut older = Client::attached(&server, ALICE).await;
    let newer = Client::attached(&server, ALICE).await;
    let (first, second) = (older.attached.clone().unwrap(), newer.attached.clone().unwrap());
    assert!(second.generation > first.generation);
    assert_eq!(second.incarnation.0, first.incarnation.0 + first.spare_lives + 1);
    assert!(second.fids.first().vnode.0 >= first.fids.first().vnode.0 + first.fids.count());
    let (root, fid) = (older.root(), older.next_fid());
    assert_eq!(older.apply(create(root, "late", fid)).await.unwrap_err().error, FsError::NotAttached);
    assert_eq!(older.lookup(root, "late").await.unwrap_err().error, FsError::NotAttached);
    older.cut.cut();
    settle().await;
    assert_eq!(newer.lookup(root, "late").await.unwrap(), None, "the end of the older session frees nothing");
}

#[tokio::test(start_paused = true)]
async fn one_session_may_attach_again() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    alice.attach().await.unwrap();
    let root = alice.root();
    alice.create(root, "f").await;
    alice.call(DetachRequest).await.unwrap();
    Client::attached(&server, BOB).await;
}

#[tokio::test(start_paused = true)]
async fn a_protocol_mismatch_names_both_ranges() {
    let (_, server) = serve();
    let alice = Client::connect(&server, ALICE);
    let request = AttachRequest { protocol_min: 90, protocol_max: 99, ..alice.attach_request() };
    let refused = alice.call(request).await.unwrap_err();
    assert_eq!(refused.error, FsError::ProtocolMismatch);
    assert!(refused.message.contains("90 to 99") && refused.message.contains("2 to 2"), "{}", refused.message);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_volume_is_refused() {
    let (_, server) = serve();
    let alice = Client::connect(&server, ALICE);
    let request = AttachRequest { volume: VolumeName::new("nowhere").unwrap(), ..alice.attach_request() };
    assert_eq!(alice.call(request).await.unwrap_err().error, FsError::NoVolume);
}

#[tokio::test(start_paused = true)]
async fn invariant_10_malformed_calls_end_themselves_and_not_the_session() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    for method in Method::ALL {
        for body in [&b"\xff\xff\xff"[..], &[7; 300]] {
            let body = Bytes::copy_from_slice(body);
            let refused = alice.raw(method.number(), body, Payload::None, Class::Control).await.unwrap_err();
            assert_eq!(refused.error, FsError::Malformed, "{method:?}");
        }
    }
    let unknown = alice.raw(4711, Bytes::new(), Payload::None, Class::Control).await.unwrap_err();
    assert_eq!(unknown.error, FsError::NoMethod);
    let root = alice.root();
    alice.create(root, "f").await;
}

#[tokio::test(start_paused = true)]
async fn records_are_for_the_client_that_made_them() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    let mut record = alice.next_record(create(root, "f", fid));
    record.id.client = BOB;
    assert_eq!(alice.apply_with(record, Payload::None).await.unwrap_err().error, FsError::Malformed);
    let mut record = alice.next_record(store(fid, Base::Version(DataVersion(1)), 1));
    record.id.client = BOB;
    let refused = alice.apply_with(record, whole(&noise(1, 1))).await.unwrap_err();
    assert_eq!(refused.error, FsError::Malformed);
}

#[tokio::test(start_paused = true)]
async fn many_mutations_in_flight_are_each_applied_once() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let syncs = storage.memory_disk().syncs();
    let records: Vec<_> = (0..500)
        .map(|number| {
            let fid = alice.next_fid();
            alice.next_record(create(root, &format!("f{number}"), fid))
        })
        .collect();
    let method = ApplyRequest::METHOD.number();
    let calls: Vec<_> = records
        .into_iter()
        .map(|record| {
            let body = ApplyRequest::new(record, None).encode();
            let (class, payload) = (Class::Metadata, Payload::None);
            alice.peer.call(mafs_arpc::Call { class, timeout: None, method, body, payload })
        })
        .collect();
    let mut changes = std::collections::BTreeSet::new();
    for call in calls {
        let reply = call.reply().await.unwrap();
        assert_eq!(reply.status, 0);
        changes.insert(mafs_proto::call::ApplyReply::decode(reply.body).unwrap().change.0);
    }
    assert_eq!((changes.len(), changes.last()), (500, Some(&500)));
    assert_eq!(alice.lookup(root, "f499").await.unwrap().unwrap().status.nlink, 1);
    assert!(storage.memory_disk().syncs() - syncs < 250, "mutations in flight share their syncs");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_overtakes_what_it_depends_on_waits_for_it() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    let made = alice.next_record(create(root, "f", fid));
    let mut stored = alice.next_record(store(fid, Base::Record(made.id), 3));
    stored.depends_on = vec![made.id];
    let mut last = alice.next_record(CmlOp::Remove { parent: root, name: name("f"), fid });
    last.depends_on = vec![made.id, stored.id];
    let late = async {
        settle().await;
        alice.apply_with(made, Payload::None).await
    };
    let (removed, stored, made) =
        tokio::join!(alice.apply_with(last, Payload::None), alice.apply_with(stored, whole(b"abc")), late);
    assert_eq!([made, stored, removed].map(|reply| reply.unwrap().change.0), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_record_does_not_wait_for_one_that_was_refused() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    let gone = alice.next_record(CmlOp::Remove { parent: root, name: name("gone"), fid });
    let mut next = alice.next_record(create(root, "f", fid));
    next.depends_on = vec![gone.id];
    let (refused, made) = tokio::join!(alice.apply_with(gone, Payload::None), alice.apply_with(next, Payload::None));
    assert_eq!(refused.unwrap_err().error, FsError::NotFound);
    made.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_content_that_its_sender_cuts_short_settles_what_waits_for_it_and_one_that_is_given_up_does_not() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    for is_cut_short in [true, false] {
        let stored = alice.next_record(store(file, Base::Version(DataVersion(1)), 100_000));
        let mode = CmlOp::SetAttr { fid: file, set: SetAttr { uid: Some(7), ..SetAttr::default() } };
        let mut changed = alice.next_record(mode);
        changed.depends_on = vec![stored.id];
        let (mut writer, payload) = Payload::stream();
        writer.write([header(100_000), noise(1, 50_000)].concat().into()).await.unwrap();
        let sending = tokio::time::timeout(Duration::from_secs(1), alice.apply_with(stored.clone(), payload));
        if is_cut_short {
            writer.abort("the disk of the client failed");
            let (stored, changed) = tokio::join!(sending, alice.apply_with(changed, Payload::None));
            assert_eq!(stored.unwrap().unwrap_err().error, FsError::Malformed);
            changed.unwrap();
        } else {
            let again = async {
                assert!(sending.await.is_err(), "it was given up");
                settle().await;
                alice.apply_with(stored, whole(&noise(1, 100_000))).await.unwrap().change
            };
            let (stored, changed) = tokio::join!(again, alice.apply_with(changed, Payload::None));
            assert!(stored < changed.unwrap().change, "the order is kept");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_record_waits_for_ever() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let lost = alice.next_record(create(root, "lost", file));
    let mut waiting = alice.next_record(store(file, Base::Version(DataVersion(1)), 100_000));
    waiting.depends_on = vec![lost.id];
    let refused = alice.apply_with(waiting.clone(), whole(&noise(1, 100_000))).await.unwrap_err();
    assert_eq!(refused.error, FsError::Busy);
    settle().await;
    assert_eq!(contents(&storage), 0);
    for _ in 0..300 {
        let id = alice.next_record(waiting.op.clone()).id;
        let record = CmlRecord { id, ..waiting.clone() };
        let body = ApplyRequest::new(record, None).encode();
        let (class, payload) = (Class::Store, whole(&noise(1, 100_000)));
        let method = ApplyRequest::METHOD.number();
        tokio::spawn(alice.peer.call(mafs_arpc::Call { class, timeout: None, method, body, payload }).reply());
    }
    settle().await;
    alice.create(root, "g").await;
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn checkpoints_are_written_while_mutations_go_on() {
    let storage = MemoryStorage::new(1);
    let index = LoggedIndexConfig {
        segment_bytes: 16 * 1024,
        checkpoint_bytes: 32 * 1024,
        horizon_records: 10,
        horizon_bytes: 16 * 1024,
    };
    let config = ServerConfig::default().with_space_reserve_bytes(0).with_index(index);
    let server = Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for number in 0..300 {
        alice.create(root, &format!("f{number}")).await;
    }
    let disk = storage.memory_disk();
    assert!(!disk.list("volumes/home/checkpoint").unwrap().is_empty());
    assert!(disk.list("volumes/home/journal").unwrap().len() < 10, "what a checkpoint covers is not kept for ever");
    let server = open(&storage.crash(1));
    let alice = Client::attached(&server, ALICE).await;
    assert_eq!(
        alice
            .call(GetStatusRequest { fids: vec![root], settled: false, unanswered: Vec::new() })
            .await
            .unwrap()
            .objects[0]
            .status
            .size,
        300
    );
}

#[tokio::test(start_paused = true)]
async fn too_many_connections_are_turned_away() {
    let storage = MemoryStorage::new(1);
    let config = ServerConfig::default().with_space_reserve_bytes(0).with_sessions_max(1);
    let server = Server::open(Arc::new(storage), TestClock::start(), config).unwrap();
    let alice = Client::attached(&server, ALICE).await;
    let refused = Client::connect(&server, BOB);
    assert!(refused.peer.closed().await.contains("too many connections"));
    alice.cut.cut();
    settle().await;
    Client::attached(&server, BOB).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_what_is_under_way_and_tells_the_peers() {
    let (storage, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let record = alice.next_record(store(file, Base::Version(DataVersion(1)), 1_000_000));
    let content = noise(1, 1_000_000);
    let (mut writer, payload) = Payload::stream();
    let sending = async {
        writer.write(header(1_000_000)).await.unwrap();
        writer.write(content.slice(..500_000)).await.unwrap();
        settle().await;
        writer.write(content.slice(500_000..)).await.unwrap();
        writer.write(trailer(&content)).await.unwrap();
        writer.finish();
    };
    let shutdown = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.shutdown().await;
    };
    let (stored, (), ()) = tokio::join!(alice.apply_with(record, payload), sending, shutdown);
    stored.unwrap();
    assert!(alice.peer.closed().await.contains("shutting down"));
    let server = open(&storage.crash(1));
    let alice = Client::attached(&server, ALICE).await;
    assert_eq!(alice.read(file).await.len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn every_start_has_an_epoch_of_its_own_and_attaches_stay_ordered() {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    let first = Client::attached(&server, ALICE).await.attached.unwrap();
    server.shutdown().await;
    drop(server);
    let server = open(&storage);
    let second = Client::attached(&server, ALICE).await.attached.unwrap();
    assert_eq!(second.epoch.0, first.epoch.0 + 1);
    assert_eq!((second.server, second.history), (first.server, first.history));
    assert!(second.generation > first.generation && second.incarnation > first.incarnation);
}

#[tokio::test(start_paused = true)]
async fn more_fids_are_granted_when_asked_for() {
    let (_, server) = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let first = alice.attached.clone().unwrap().fids;
    let mut more = alice.call(GrantFidsRequest).await.unwrap().fids;
    assert!(!first.contains(more.first()));
    let root = alice.root();
    alice.apply(create(root, "f", more.take().unwrap())).await.unwrap();
}

/// Counts the content files on the disk, spools included.
fn contents(storage: &MemoryStorage) -> usize {
    let disk = storage.memory_disk();
    let count = |dir: &str| disk.list(dir).map_or(0, |names| names.len());
    disk.list(CONTENT).unwrap().iter().map(|shard| count(&format!("{CONTENT}/{shard}"))).sum()
}
