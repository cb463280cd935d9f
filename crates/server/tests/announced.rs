//! Tests of announced records: a client that opens what they touch gets them, one that only looks is shown them, and
//! nobody is promised anything about them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::call::{
    ApplyRequest, Broken, FetchReply, FetchRequest, GetXattrsRequest, InvalidateRequest, LookupRequest,
};
use mafs_proto::{
    Base, Call, Class, CmlOp, CmlRecord, DataVersion, Fid, FsError, Incarnation, Mode, RenameMode, SetAttr, StoreId,
    Timestamp, Wire, XattrMode, XattrName, XattrValue,
};
use support::announcing::{
    CAROL, NEW, SOON, WAIT, alice, alice_and_bob, announce_all, deliver, deliver_pulled, new_content, ready, serve,
};
use support::{BOB, Client, acknowledge, create, header, name, noise, store, trailer, whole};
use tokio::time::{Instant, timeout};

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

#[tokio::test(start_paused = true)]
async fn an_announcement_is_answered_once_the_holders_have_been_told() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let shown = bob.status(file, false).await.unwrap();
    let record = new_content(&mut alice, file);
    let announcing = announce_all(&alice, std::slice::from_ref(&record));
    tokio::pin!(announcing);
    let (request, call) = tokio::select! {
        () = &mut announcing => panic!("answered before Bob knows"),
        told = bob.next_break() => told,
    };
    let Broken::Objects(objects) = request.broken else { panic!("not everything") };
    assert_eq!(objects.iter().map(|object| object.fid).collect::<Vec<_>>(), [file]);
    assert!(request.change > shown.change, "an answer from before it brings no promise");
    assert!(timeout(SOON, &mut announcing).await.is_err(), "answered before Bob has");
    let again = announce_all(&alice, std::slice::from_ref(&record));
    assert!(timeout(SOON, again).await.is_err(), "nor does it help to repeat it");
    acknowledge(call);
    timeout(SOON, announcing).await.unwrap();
}

/// A small content is quicker than the announcement of it that was sent at the same time.
#[tokio::test(start_paused = true)]
async fn an_announcement_that_its_record_has_overtaken_is_answered_no_earlier() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    bob.status(file, false).await.unwrap();
    let record = new_content(&mut alice, file);
    let delivering = deliver(&alice, record.clone());
    tokio::pin!(delivering);
    let (_, call) = tokio::select! {
        _ = &mut delivering => panic!("acknowledged before Bob knows"),
        told = bob.next_break() => told,
    };
    let announcing = announce_all(&alice, std::slice::from_ref(&record));
    tokio::pin!(announcing);
    assert!(timeout(SOON, &mut announcing).await.is_err(), "answered before Bob has");
    acknowledge(call);
    timeout(SOON, announcing).await.unwrap();
    timeout(SOON, delivering).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn stat_does_not_wait_and_shows_what_is_announced_without_a_promise() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let CmlRecord { id, .. } = new_content(&mut alice, file);
    let mtime = Timestamp::new(77, 0).unwrap();
    let base = Base::Version(DataVersion(2));
    let stored = support::record(id, CmlOp::Store { fid: file, base, size: 1000, mtime });
    let mode = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
    let changed = alice.next_record(CmlOp::SetAttr { fid: file, set: mode });
    announce_all(&alice, &[stored.clone(), changed.clone()]).await;
    let reply = timeout(SOON, bob.status(file, false)).await.unwrap().unwrap();
    let (committed, pending) = (&reply.objects[0].status, &reply.pending[0].status);
    assert_eq!((committed.size, committed.data_version), (3, DataVersion(2)));
    assert_eq!((pending.size, pending.mtime, pending.data_version), (1000, mtime, DataVersion(2)));
    assert_eq!((pending.mode, pending.ctime), (Mode::from_bits(0o600), changed.time));
    assert!(alice.status(file, false).await.unwrap().pending.is_empty(), "who announced it sees it anyway");
    // Nothing was promised: Bob, who answers no breaks, holds up nothing.
    let larger = CmlRecord { op: CmlOp::Store { fid: file, base, size: 2000, mtime }, ..stored };
    timeout(SOON, announce_all(&alice, &[larger])).await.unwrap();
    let reply = bob.status(file, false).await.unwrap();
    assert_eq!(reply.pending[0].status.size, 2000, "it was announced again");
}

#[tokio::test(start_paused = true)]
async fn what_others_show_of_an_announced_object_says_so() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let root = alice.root();
    let record = new_content(&mut alice, file);
    announce_all(&alice, &[record]).await;
    let found = bob.call(LookupRequest { parent: root, name: name("f"), unanswered: Vec::new() }).await.unwrap();
    assert_eq!((found.pending.unwrap().status.size, found.name_pending), (NEW.len() as u64, false));
    assert_eq!(bob.read_dir(root, None, 10).await.unwrap().pending, [file]);
    assert!(bob.call(GetXattrsRequest { fid: file, settled: false, unanswered: Vec::new() }).await.unwrap().pending);
    let request = FetchRequest { fid: file, data_version: None, offset: 0 };
    let (body, _) =
        bob.raw(FetchRequest::METHOD.number(), request.encode(), Payload::None, Class::Fetch).await.unwrap();
    assert!(FetchReply::decode(body).unwrap().pending);
}

#[tokio::test(start_paused = true)]
async fn who_reads_attributes_waits_for_announced_ones_and_not_for_contents() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let content = new_content(&mut alice, file);
    announce_all(&alice, &[content]).await;
    let ask = || bob.call(GetXattrsRequest { fid: file, settled: true, unanswered: Vec::new() });
    let nothing = timeout(SOON, ask()).await.unwrap().unwrap();
    assert!(nothing.pending && nothing.xattrs.is_empty());
    let (name, value) = (XattrName::new(&b"user.a"[..]).unwrap(), XattrValue::new(&b"new"[..]).unwrap());
    let (named, mode) = (name.clone(), XattrMode::Either);
    let set = alice.next_record(CmlOp::SetXattr { fid: file, name: named, value: value.clone(), mode });
    announce_all(&alice, std::slice::from_ref(&set)).await;
    let deliver = async {
        assert_eq!(alice.next_pull(&[]).await, [set.id]);
        alice.apply_queued(set.clone(), Payload::None).await.unwrap();
    };
    let (shown, ()) = tokio::join!(ask(), deliver);
    assert_eq!(shown.unwrap().xattrs.get(&name), Some(&value));
    let own = GetXattrsRequest { fid: file, settled: true, unanswered: vec![set.id] };
    assert_eq!(timeout(SOON, alice.call(own)).await.unwrap().unwrap().applied, [set.id]);
}

/// Announces a save by way of another file: a content, and the record that moves it over the old one and waits behind
/// it.
async fn announced_save(alice: &mut Client) -> (Fid, CmlRecord, CmlRecord) {
    let root = alice.root();
    let old = alice.lookup(root, "f").await.unwrap().unwrap().fid;
    let temp = alice.create(root, "temp").await;
    let stored = alice.next_record(store(temp, Base::Version(DataVersion(1)), NEW.len() as u64));
    let mut renamed = alice.next_record(CmlOp::Rename {
        from_parent: root,
        from_name: name("temp"),
        to_parent: root,
        to_name: name("f"),
        fid: temp,
        replaced: Some(old),
        mode: RenameMode::Replace,
    });
    renamed.depends_on = vec![stored.id];
    announce_all(alice, &[stored.clone(), renamed.clone()]).await;
    (temp, stored, renamed)
}

#[tokio::test(start_paused = true)]
async fn who_looks_a_name_up_is_shown_what_it_will_mean_and_who_opens_that_waits() {
    let (_storage, server) = serve();
    let mut alice = alice(&server).await;
    let root = alice.root();
    let (temp, stored, renamed) = announced_save(&mut alice).await;
    let bob = ready(&server, BOB).await;
    assert!(bob.attached.as_ref().unwrap().root_pending, "nothing is promised about the names of the root");
    let shown = bob.status(root, false).await.unwrap();
    assert_eq!(shown.pending, shown.objects, "nor later");
    let deliver_both = async {
        assert_eq!(alice.next_pull(&[]).await, [stored.id, renamed.id]);
        deliver(&alice, stored).await.unwrap();
        alice.apply_queued(renamed.clone(), Payload::None).await.unwrap();
    };
    let lookup = || bob.call(LookupRequest { parent: root, name: name("f"), unanswered: Vec::new() });
    let found = timeout(SOON, lookup()).await.unwrap().unwrap();
    assert_eq!((found.object.unwrap().fid, found.name_pending), (temp, true));
    assert_eq!(found.pending.unwrap().status.size, NEW.len() as u64);
    let (opened, ()) = tokio::join!(bob.status(temp, true), deliver_both);
    assert_eq!(opened.unwrap().pending, []);
    assert_eq!(bob.read(temp).await, NEW);
    let found = lookup().await.unwrap();
    assert_eq!((found.object.unwrap().fid, found.pending, found.name_pending), (temp, None, false));
}

#[tokio::test(start_paused = true)]
async fn who_looks_up_a_name_whose_object_is_not_there_yet_waits_for_it() {
    let (_storage, server) = serve();
    let mut alice = alice(&server).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    let made = alice.next_record(create(root, "new", fid));
    announce_all(&alice, std::slice::from_ref(&made)).await;
    let bob = ready(&server, BOB).await;
    let deliver = async {
        assert_eq!(alice.next_pull(&[]).await, [made.id]);
        alice.apply_queued(made.clone(), Payload::None).await.unwrap();
    };
    let (found, ()) =
        tokio::join!(bob.call(LookupRequest { parent: root, name: name("new"), unanswered: Vec::new() }), deliver);
    let found = found.unwrap();
    assert_eq!((found.object.unwrap().fid, found.name_pending), (fid, false));
}

#[tokio::test(start_paused = true)]
async fn who_lists_a_directory_waits_for_its_announced_names_and_other_names_do_not() {
    let (_storage, server) = serve();
    let mut alice = alice(&server).await;
    let root = alice.root();
    let other = alice.create(root, "other").await;
    let (_, stored, renamed) = announced_save(&mut alice).await;
    let bob = ready(&server, BOB).await;
    let found = timeout(SOON, bob.lookup(root, "other")).await.unwrap().unwrap();
    assert_eq!(found.unwrap().fid, other);
    let deliver_both = async {
        assert_eq!(alice.next_pull(&[]).await, [renamed.id]);
        deliver(&alice, stored).await.unwrap();
        alice.apply_queued(renamed.clone(), Payload::None).await.unwrap();
    };
    let (page, ()) = tokio::join!(bob.read_dir(root, None, 10), deliver_both);
    let page = page.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!((names, page.pending), (vec![name("f"), name("other")], Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_record_is_pulled_once_for_all_who_wait_for_it_unless_it_is_announced_again() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let carol = ready(&server, CAROL).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let both = async { tokio::join!(bob.status(file, true), carol.status(file, true)) };
    tokio::pin!(both);
    assert!(timeout(SOON, &mut both).await.is_err());
    assert_eq!(alice.next_pull(&[]).await, [record.id]);
    assert!(timeout(SOON, alice.next_pull(&[])).await.is_err(), "once");
    let larger = CmlRecord { op: store(file, Base::Version(DataVersion(2)), 5), ..record.clone() };
    announce_all(&alice, std::slice::from_ref(&larger)).await;
    assert_eq!(alice.next_pull(&[]).await, [record.id]);
    let delivering = alice.apply_queued(larger, whole(b"12345"));
    let ((one, two), delivered) = tokio::join!(both, delivering);
    delivered.unwrap();
    for reply in [one, two] {
        assert_eq!(reply.unwrap().objects[0].status.size, 5);
    }
}

/// The record did not come, as when the server was full.
#[tokio::test(start_paused = true)]
async fn what_did_not_come_is_pulled_again_for_who_waits_again() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    for _ in 0..2 {
        let (refused, pulled) = tokio::join!(bob.status(file, true), alice.next_pull(&[]));
        assert_eq!(refused.unwrap_err().error, FsError::Pulling);
        assert_eq!(pulled, [record.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_takes_long_ends_with_progress_that_rises_while_the_content_arrives() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let size = 400_000;
    let content = noise(1, size);
    let record = alice.next_record(store(file, Base::Version(DataVersion(2)), size as u64));
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let (mut writer, payload) = Payload::stream();
    let sending = tokio::spawn({
        let (method, class) = (ApplyRequest::METHOD.number(), Class::Store);
        let request = ApplyRequest { comes_again: true, ..ApplyRequest::new(record, None) };
        let call = mafs_arpc::Call { class, timeout: None, method, body: request.encode(), payload };
        alice.peer.call(call).reply()
    });
    writer.write(header(size)).await.unwrap();
    let mut progress = 0;
    for piece in content.chunks(100_000) {
        writer.write(Bytes::copy_from_slice(piece)).await.unwrap();
        let begun = Instant::now();
        let refused = bob.status(file, true).await.unwrap_err();
        assert_eq!(refused.error, FsError::Pulling);
        assert!(begun.elapsed() >= WAIT && begun.elapsed() <= WAIT + SOON, "{:?}", begun.elapsed());
        assert!(refused.progress >= progress + 100_000, "{} after {progress}", refused.progress);
        progress = refused.progress;
        alice.renew().await.unwrap();
        bob.renew().await.unwrap();
    }
    let stuck = bob.status(file, true).await.unwrap_err();
    assert_eq!((stuck.error, stuck.progress), (FsError::Pulling, progress), "nothing has come since");
    writer.write(trailer(&content)).await.unwrap();
    writer.finish();
    assert_eq!(sending.await.unwrap().unwrap().status, 0);
    assert_eq!(bob.status(file, true).await.unwrap().objects[0].status.size, size as u64);
}

#[tokio::test(start_paused = true)]
async fn a_content_on_its_way_is_announced_by_its_header() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = alice.next_record(store(file, Base::Version(DataVersion(2)), 100_000));
    let (mut writer, payload) = Payload::stream();
    let request = ApplyRequest { comes_again: true, announces: true, ..ApplyRequest::new(record, None) };
    let (method, class) = (ApplyRequest::METHOD.number(), Class::Store);
    let call = mafs_arpc::Call { class, timeout: None, method, body: request.encode(), payload };
    let sending = tokio::spawn(alice.peer.call(call).reply());
    writer.write(header(100_000)).await.unwrap();
    tokio::time::sleep(SOON).await;
    assert_eq!(bob.status(file, false).await.unwrap().pending[0].status.size, 100_000);
    let content = noise(1, 100_000);
    let rest = async {
        writer.write(content.clone()).await.unwrap();
        writer.write(trailer(&content)).await.unwrap();
        writer.finish();
        assert_eq!(sending.await.unwrap().unwrap().status, 0);
    };
    let (opened, ()) = tokio::join!(bob.status(file, true), rest);
    assert_eq!(opened.unwrap().objects[0].status.data_version, DataVersion(3));
    assert!(bob.read(file).await == content);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_session() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, &[record]).await;
    let opening = bob.status(file, true);
    tokio::pin!(opening);
    assert!(timeout(SOON, &mut opening).await.is_err());
    let _later = Client::attached(&server, BOB).await;
    let refused = timeout(2 * SOON, opening).await.unwrap().unwrap_err();
    assert_eq!(refused.error, FsError::NotAttached);
}

#[tokio::test(start_paused = true)]
async fn too_many_announcements_are_refused_and_nobody_waits_for_them() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let set = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
    for _ in 0..4096 / InvalidateRequest::RECORDS_MAX {
        let batch = (0..InvalidateRequest::RECORDS_MAX).map(|_| alice.next_record(CmlOp::SetAttr { fid: file, set }));
        let batch: Vec<_> = batch.collect();
        announce_all(&alice, &batch).await;
    }
    let root = alice.root();
    let fid = alice.next_fid();
    let more = alice.next_record(create(root, "more", fid));
    assert_eq!(alice.announce(std::slice::from_ref(&more)).await.unwrap().refused, [more.id]);
    assert!(timeout(SOON, bob.lookup(root, "more")).await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn invariant_10_announcements_that_cannot_be_a_clients_own_are_refused() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    let with = |id| CmlRecord { id, ..record.clone() };
    let bad = [
        with(StoreId { client: BOB, ..record.id }),
        with(StoreId { incarnation: Incarnation(99), ..record.id }),
        with(StoreId { incarnation: Incarnation(0), ..record.id }),
        with(StoreId { seq: 0, ..record.id }),
    ];
    for bad in bad {
        // The bad record is sent together with a good one, which is not entered either.
        let refused = alice.announce(&[record.clone(), bad.clone()]).await.unwrap_err();
        assert_eq!(refused.error, FsError::Malformed, "{:?}", bad.id);
        let request = InvalidateRequest {
            records: Vec::new(),
            retracted: vec![bad.id],
            confirmed_below: None,
            settled: Vec::new(),
        };
        assert_eq!(alice.invalidate(request).await.unwrap_err().error, FsError::Malformed);
    }
    let elsewhere = Fid { volume: mafs_proto::VolumeId(99), ..file };
    let op = CmlOp::SetAttr { fid: elsewhere, set: SetAttr::default() };
    let foreign = CmlRecord { op, ..record.clone() };
    assert_eq!(alice.announce(&[foreign]).await.unwrap_err().error, FsError::CrossVolume);
    let many = vec![record.clone(); InvalidateRequest::RECORDS_MAX + 1];
    assert_eq!(alice.announce(&many).await.unwrap_err().error, FsError::Malformed);
    let others = StoreId { client: BOB, ..record.id };
    let request = InvalidateRequest {
        records: Vec::new(),
        retracted: Vec::new(),
        confirmed_below: Some(others),
        settled: Vec::new(),
    };
    assert_eq!(alice.invalidate(request).await.unwrap_err().error, FsError::Malformed);
    assert!(bob.status(file, true).await.unwrap().pending.is_empty());
    let stranger = Client::connect(&server, CAROL);
    assert_eq!(stranger.announce(&[record]).await.unwrap_err().error, FsError::NotAttached);
}
