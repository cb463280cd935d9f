//! Tests of a server on a real data directory: restarts, the lock, volumes, damage.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::{BootClock, Payload};
use mafs_proto::call::{AttachRequest, FetchRequest, StatFsRequest};
use mafs_proto::{Call, Class, FsError, VolumeName, Wire};
use mafs_server::admin::{self, Quota, VolumeChange};
use mafs_server::verify::verify;
use mafs_server::{DirStorage, Server, ServerConfig, ServerError};
use support::{ALICE, BOB, Client, create, make_dir, noise};
use tempfile::TempDir;

fn serve(dir: &Path) -> Arc<Server> {
    let storage = DirStorage::open(dir).unwrap();
    Server::open(Arc::new(storage), Arc::new(BootClock), ServerConfig::default()).unwrap()
}

const READ_ONLY: VolumeChange = VolumeChange { read_only: Some(true), quota: None };

fn volume(name: &str) -> VolumeName {
    VolumeName::new(name).unwrap()
}

/// Lists all files below `dir`, with their names relative to it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_everything() {
    let dir = TempDir::new().unwrap();
    let big = noise(1, 1_000_000);
    let mut fids = Vec::new();
    for start in 0..3 {
        let server = serve(&dir.path().join("data"));
        let mut alice = Client::attached(&server, ALICE).await;
        let root = alice.root();
        for fid in &fids {
            assert!(alice.read(*fid).await == big);
        }
        let file = alice.create(root, &format!("f{start}")).await;
        alice.store(file, 1, big.clone()).await.unwrap();
        fids.push(file);
        // The first start ends as by kill -9, the others in order.
        if start > 0 {
            server.shutdown().await;
        }
        let id = server.id();
        alice.cut.cut();
        drop(alice);
        wait_until_gone(server).await;
        assert_eq!(serve_once(&dir.path().join("data")).await, id);
    }
}

/// Starts and stops a server. Returns its id.
async fn serve_once(dir: &Path) -> mafs_proto::ServerId {
    let server = serve(dir);
    server.shutdown().await;
    let id = server.id();
    wait_until_gone(server).await;
    id
}

/// Waits until the lock on the data directory is free again.
async fn wait_until_gone(server: Arc<Server>) {
    let weak = Arc::downgrade(&server);
    drop(server);
    let gone = async {
        while weak.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
}

#[test]
fn a_data_directory_has_one_user_at_a_time() {
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    let held = DirStorage::open(dir.path()).unwrap();
    let error = admin::add_volume(dir.path(), &volume("v")).unwrap_err();
    assert!(matches!(error, ServerError::InUse { .. }));
    assert!(error.to_string().contains("in use by another mafs-server"), "{error}");
    drop(held);
    admin::add_volume(dir.path(), &volume("v")).unwrap();
}

#[test]
fn a_directory_with_other_things_does_not_become_a_data_directory() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("thesis.tex"), "").unwrap();
    let error = admin::init(dir.path()).unwrap_err();
    assert!(matches!(error, ServerError::NotDataDirectory { .. }));
    assert_eq!(files(dir.path()).len(), 1, "nothing was added");
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_the_servers_identity_loses_no_files() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    alice.create(root, "precious").await;
    let id = server.id();
    server.shutdown().await;
    wait_until_gone(server).await;
    fs::remove_file(dir.path().join("server.json")).unwrap();
    let server = serve(dir.path());
    assert_ne!(server.id(), id);
    let alice = Client::attached(&server, ALICE).await;
    assert!(alice.lookup(root, "precious").await.unwrap().is_some());
}

#[test]
fn a_volume_without_its_description_is_damaged_and_not_made_anew() {
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    fs::remove_file(dir.path().join("volumes/home/volume.json")).unwrap();
    let listed = admin::volumes(dir.path()).unwrap();
    assert!(listed[0].damage.as_ref().is_some_and(|damage| damage.contains("missing")), "{listed:?}");
    assert!(matches!(admin::add_volume(dir.path(), &volume("home")), Err(ServerError::VolumeExists(_))));
    assert!(admin::remove(dir.path(), &volume("home"), false).is_err());
    admin::remove(dir.path(), &volume("home"), true).unwrap();
}

#[test]
fn init_is_done_once_and_volume_commands_need_it() {
    let dir = TempDir::new().unwrap();
    assert!(matches!(admin::volumes(dir.path()), Err(ServerError::NotInitialised { .. })));
    admin::init(dir.path()).unwrap();
    assert!(matches!(admin::init(dir.path()), Err(ServerError::Initialised { .. })));
    let missing = dir.path().join("missing");
    assert!(matches!(admin::volumes(&missing), Err(ServerError::NotInitialised { .. })));
    assert!(!missing.exists());
}

#[test]
fn volumes_are_added_listed_changed_and_removed() {
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    admin::add_volume(dir.path(), &volume("b")).unwrap();
    assert!(matches!(admin::add_volume(dir.path(), &volume("b")), Err(ServerError::VolumeExists(_))));
    admin::set_volume(dir.path(), &volume("b"), READ_ONLY).unwrap();
    let listed = admin::volumes(dir.path()).unwrap();
    let shown: Vec<_> = listed.iter().map(|v| (v.name.as_str(), v.id, v.read_only, v.objects)).collect();
    assert_eq!(shown, [("b", 2, true, 0), ("home", 1, false, 0)]);
    admin::remove(dir.path(), &volume("b"), false).unwrap();
    assert!(matches!(admin::remove(dir.path(), &volume("b"), true), Err(ServerError::NoVolume(_))));
    admin::add_volume(dir.path(), &volume("b")).unwrap();
    assert_eq!(admin::volumes(dir.path()).unwrap()[0].id, 3, "a number is not used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_with_files_is_removed_by_force_only() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, noise(1, 1234)).await.unwrap();
    server.shutdown().await;
    wait_until_gone(server).await;
    let listed = admin::volumes(dir.path()).unwrap();
    assert_eq!((listed[0].objects, listed[0].used_bytes, listed[0].change), (1, 1234, 2));
    let refused = admin::remove(dir.path(), &volume("home"), false).unwrap_err();
    assert!(matches!(refused, ServerError::VolumeNotEmpty { objects: 1, .. }));
    admin::remove(dir.path(), &volume("home"), true).unwrap();
    assert!(admin::volumes(dir.path()).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_volume_is_read_and_not_changed() {
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    admin::set_volume(dir.path(), &volume("home"), READ_ONLY).unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    assert_eq!(alice.apply(create(root, "f", fid)).await.unwrap_err().error, FsError::ReadOnly);
    assert_eq!(alice.lookup(root, "f").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_quota_refuses_bytes_and_nothing_else() {
    const QUOTA: u64 = 100_000;
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    let change = VolumeChange { quota: Some(Quota::Bytes(QUOTA)), ..VolumeChange::default() };
    admin::set_volume(dir.path(), &volume("home"), change).unwrap();
    assert_eq!(admin::volumes(dir.path()).unwrap()[0].quota_bytes, Some(QUOTA));
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let [large, small] = [alice.create(root, "large").await, alice.create(root, "small").await];
    alice.store(large, 1, noise(1, 60_000)).await.unwrap();
    let space = alice.call(StatFsRequest).await.unwrap();
    assert_eq!((space.bytes_total, space.bytes_free), (QUOTA, QUOTA - 60_000));
    assert_eq!(space.bytes_unused, QUOTA - 60_000, "nothing but what is stored is used");
    for bytes in [40_001, 10_000_000] {
        let refused = alice.store(small, 1, noise(2, bytes)).await.unwrap_err();
        assert_eq!(refused.error, FsError::Quota, "{bytes} bytes");
        assert!(refused.message.contains("100000 bytes"), "{}", refused.message);
    }
    assert_eq!(alice.read(small).await, "", "what was refused has left nothing");
    alice.store(small, 1, noise(3, 40_000)).await.unwrap();
    alice.create(root, "an empty one takes no bytes").await;
    alice.store(large, 2, noise(4, 59_999)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_volume_says_where_and_the_others_serve() {
    let dir = TempDir::new().unwrap();
    admin::init(dir.path()).unwrap();
    admin::add_volume(dir.path(), &volume("other")).unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for number in 0..20 {
        alice.create(root, &format!("f{number}")).await;
    }
    server.shutdown().await;
    wait_until_gone(server).await;
    flip_a_byte_in_the_middle(&dir.path().join("volumes/home/journal"));

    let server = serve(dir.path());
    let mut alice = Client::connect(&server, ALICE);
    let refused = alice.attach().await.unwrap_err();
    assert_eq!(refused.error, FsError::VolumeDamaged);
    assert!(refused.message.contains("journal is damaged") && refused.message.contains("byte"), "{}", refused.message);
    let bob = Client::connect(&server, BOB);
    bob.call(AttachRequest { volume: volume("other"), ..bob.attach_request() }).await.unwrap();
    server.shutdown().await;
    wait_until_gone(server).await;
    let listed = admin::volumes(dir.path()).unwrap();
    assert!(listed[0].damage.as_ref().is_some_and(|damage| damage.contains("byte")), "{listed:?}");
    assert_eq!(listed[1].damage, None);
}

fn flip_a_byte_in_the_middle(journal: &Path) {
    let segment = files(journal).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used / 2] ^= 1;
    fs::write(&segment, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_is_rebuilt_from_the_journal() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, Bytes::from_static(b"hello")).await.unwrap();
    server.shutdown().await;
    wait_until_gone(server).await;
    let index = dir.path().join("volumes/home/index");
    for path in files(&index) {
        fs::write(path, "rubbish").unwrap();
    }
    let server = serve(dir.path());
    let alice = Client::attached(&server, ALICE).await;
    assert_eq!(alice.read(file).await, "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_the_disk_has_changed_is_not_served_as_the_version() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for (bytes, sent) in [(20_000, false), (1_000_000, false), (6_000_000, true)] {
        let file = alice.create(root, &format!("f{bytes}")).await;
        alice.store(file, 1, noise(1, bytes)).await.unwrap();
        let content = files(&dir.path().join("volumes/home/content")).pop().unwrap();
        let mut stored = fs::read(&content).unwrap();
        stored[bytes / 2] ^= 1;
        fs::write(&content, stored).unwrap();
        let request = FetchRequest { fid: file, data_version: None, offset: 0 };
        let method = FetchRequest::METHOD.number();
        let (_, mut payload) = alice.raw(method, request.encode(), Payload::None, Class::Fetch).await.unwrap();
        let mut received = 0;
        let error = loop {
            match payload.read().await {
                Ok(piece) => received += piece.expect("the payload must not end well").len(),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(received > 0, sent, "{bytes} bytes");
        assert!(received < bytes);
        assert!(error.contains("the server cannot read the content: it is not what was stored"), "{error}");
        fs::remove_file(content).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_names_the_files_that_the_disk_has_changed_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let (root, directory) = (alice.root(), alice.next_fid());
    alice.apply(make_dir(root, "docs", directory)).await.unwrap();
    for (name, bytes) in [("note", 4), ("photo", 100_000)] {
        let file = alice.create(directory, name).await;
        alice.store(file, 1, noise(1, bytes)).await.unwrap();
    }
    assert!(matches!(verify(dir.path(), &[], |_, _| {}), Err(ServerError::InUse { .. })));
    server.shutdown().await;
    alice.cut.cut();
    wait_until_gone(server).await;
    let check = || verify(dir.path(), &[], |_, _| {}).unwrap().pop().unwrap();
    let intact = check();
    assert!(intact.is_intact() && (intact.files, intact.bytes) == (2, 100_004), "{intact:?}");
    let [content] = files(&dir.path().join("volumes/home/content")).try_into().unwrap();
    let stored = fs::read(&content).unwrap();
    for damage in [&[&stored[..50_000], b"x", &stored[50_001..]].concat()[..], &stored[..50_000]] {
        fs::write(&content, damage).unwrap();
        let found = check();
        let damaged: Vec<_> = found.damaged.iter().map(|file| file.path.as_deref()).collect();
        assert_eq!((found.damaged_files, damaged), (1, vec![Some("docs/photo")]), "{found:?}");
    }
    fs::remove_file(&content).unwrap();
    assert_eq!(check().damaged_files, 1);
    assert!(matches!(verify(dir.path(), &[volume("other")], |_, _| {}), Err(ServerError::NoVolume(_))));
    fs::write(&content, stored).unwrap();
    assert_eq!(check(), intact);
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_nothing_names_are_collected_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let server = serve(dir.path());
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    alice.store(file, 1, noise(1, 100_000)).await.unwrap();
    server.shutdown().await;
    wait_until_gone(server).await;
    let content = dir.path().join("volumes/home/content");
    let [named] = files(&content).try_into().unwrap();
    let orphan = named.with_file_name("7f.1.1.ffff");
    fs::copy(&named, &orphan).unwrap();
    fs::write(content.join("spool/7"), "half a content").unwrap();
    fs::write(named.with_file_name("not ours"), "").unwrap();

    let server = serve(dir.path());
    let collected = async {
        while orphan.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), collected).await.unwrap();
    server.shutdown().await;
    let mut left = files(&content);
    left.sort();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&named));
}
