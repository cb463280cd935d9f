//! Locks of files that two clients make at the same moment: a client that is granted one has it alone (consistency.md,
//! "Locks").

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, OpenMode, Opened, Vfs, Writeback};
use mafs_proto::{FsError, LockOwner, Mode, VnodeId};
use mafs_sim::World;
use tokio::time::sleep;

use crate::support::locking::Process;
use crate::support::{CALLER, MAKE, WRITE, clients, configured, content, simulate};

const NEAR: Duration = Duration::from_millis(10);
const FILE: &str = "log";

/// `open(O_RDWR | O_CREAT)` as the kernel does it: it looks, makes what is not there, and looks again if another was
/// quicker.
async fn open_or_make(vfs: &Vfs, mode: OpenMode, number: u32) -> Process {
    loop {
        let opened = match vfs.lookup(VnodeId::ROOT, Bytes::from(FILE)).await {
            Ok(object) => vfs.open(object.fid.vnode, mode, CALLER).await,
            Err(_) => {
                let made = vfs.create(VnodeId::ROOT, Bytes::from(FILE), Mode::from_bits(0o644), mode, CALLER).await;
                made.map(|(_, opened)| opened)
            }
        };
        match opened {
            Ok(Opened { file, .. }) => {
                let owner = LockOwner { id: number.into(), process: number, file: file.0 };
                return Process { vfs: vfs.clone(), file, owner };
            }
            Err(Error::Refused(FsError::Exists | FsError::Stale | FsError::NotFound)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn two(policy: Writeback, passthrough: bool) -> World {
    let world = World::start_several(1, 2, NEAR, passthrough).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(policy);
        machine.set_disconnected(true);
    })
    .await;
    for vfs in clients::<2>(&world) {
        // Both know what names there are.
        vfs.read_dir(VnodeId::ROOT, 0, usize::MAX).await.expect("a listing");
    }
    world
}

/// `( flock 9; echo NUMBER >&9 ) 9>>log`
async fn append(vfs: Vfs, number: u32, passthrough: bool) {
    let process = open_or_make(&vfs, OpenMode { append: true, ..WRITE }, number).await;
    process.lock().await.expect("a lock");
    let mut lines = process.read().await;
    lines.extend_from_slice(format!("{number}\n").as_bytes());
    process.write(lines, passthrough).await;
    process.close().await.expect("a close");
}

#[test]
fn what_two_clients_append_under_locks_to_a_file_that_both_make_is_all_there() {
    for (policy, passthrough) in [(Writeback::Sirp, false), (Writeback::Sirp, true), (Writeback::Sync, true)] {
        for delay in (0..60).step_by(3) {
            simulate(async move {
                let world = two(policy, passthrough).await;
                let [one, two] = clients(&world);
                let first = tokio::spawn(append(one.clone(), 1, passthrough));
                sleep(Duration::from_millis(delay)).await;
                append(two.clone(), 2, passthrough).await;
                first.await.expect("it ends");
                for vfs in [&one, &two] {
                    vfs.sync().await.expect("a sync");
                    assert_eq!(vfs.conflicts().await.expect("a list"), [], "{policy:?}, {delay} ms apart");
                    let mut lines = content(vfs, FILE).await;
                    lines.retain(|byte| *byte != b'\n');
                    lines.sort_unstable();
                    assert_eq!(lines, b"12", "{policy:?}, {delay} ms apart");
                }
            });
        }
    }
}

#[test]
fn of_two_clients_that_truncate_a_new_file_and_lock_it_one_has_the_lock() {
    for policy in [Writeback::Sirp, Writeback::Sync] {
        for delay in (0..60).step_by(3) {
            simulate(async move {
                let world = two(policy, false).await;
                let [one, two] = clients(&world);
                let locked = |vfs: Vfs, number| async move {
                    let process = open_or_make(&vfs, MAKE, number).await;
                    let locked = process.lock_range(mafs_proto::LockRange::ALL, mafs_proto::LockKind::Exclusive, false);
                    (locked.await, process)
                };
                let first = tokio::spawn(locked(one.clone(), 1));
                sleep(Duration::from_millis(delay)).await;
                let (second, of_two) = locked(two.clone(), 2).await;
                let (first, of_one) = first.await.expect("it ends");
                let granted = usize::from(first.is_ok()) + usize::from(second.is_ok());
                assert_eq!(granted, 1, "{policy:?}, {delay} ms apart: {first:?}, {second:?}");
                for refused in [first, second].into_iter().filter_map(Result::err) {
                    assert!(matches!(refused, Error::Refused(FsError::Locked | FsError::Stale)), "{refused}");
                }
                of_one.close().await.expect("a close");
                of_two.close().await.expect("a close");
            });
        }
    }
}
