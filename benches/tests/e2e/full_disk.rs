//! A full disk under the server: programs get ENOSPC at close, and what frees room works at once.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_bench::content::{check_file, write_file};
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::world::World;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const LIMIT: Duration = Duration::from_secs(60);

/// How long a removal may take on a full disk: far less than the 10 s that records wait for each other.
const AT_ONCE: Duration = Duration::from_secs(2);

const LARGE_BYTES: u64 = 80 << 20;
const SMALL_BYTES: u64 = 1 << 20;

/// A small disk of memory; gone from the tree when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Room for one large file beside the 64 MB that the server reserves for its journal.
    fn under_the_store_of(world: &World) -> Self {
        let path = world.store();
        fs::create_dir(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(c"size=160m")).unwrap();
        Self(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // The server may still use it; it goes with the last file then.
        if let Err(error) = unmount(&self.0, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

#[test]
#[ignore = "needs: fuse, root, tmpfs"]
fn a_file_that_the_full_server_refused_is_removed_at_once_and_nothing_is_damaged() {
    let mut world = World::new().unwrap();
    let _tmpfs = Tmpfs::under_the_store_of(&world);
    world.start_server().unwrap();
    world.start_client().unwrap();
    let (mount, source) = (world.mount(), world.local().join("large"));
    write_file(&source, 1, LARGE_BYTES).unwrap();
    let copy_to = |name: &str| finish(Command::new("cp").arg(&source).arg(mount.join(name)), LIMIT).unwrap();

    assert_eq!(copy_to("kept").code(), 0);
    for round in 0..3 {
        let refused = copy_to("refused");
        assert_ne!(refused.code(), 0, "there was room for two");
        assert!(refused.stderr.contains("No space left on device"), "{}", refused.stderr);
        // In the last round the client has begun to try again by itself.
        std::thread::sleep(Duration::from_millis(700) * round);
        let begun = Instant::now();
        run(Command::new("rm").arg(mount.join("refused")), LIMIT).unwrap();
        assert!(begun.elapsed() < AT_ONCE, "rm took {:?}", begun.elapsed());
    }
    write_file(&mount.join("small"), 2, SMALL_BYTES).unwrap();
    fs::rename(mount.join("kept"), mount.join("moved")).unwrap();
    fs::remove_file(mount.join("moved")).unwrap();
    wait_until(LIMIT, "the room is free again", || Ok(copy_to("again").code() == 0)).unwrap();

    world.restart().unwrap();
    for empty_cache in [false, true] {
        if empty_cache {
            world.forget_cache().unwrap();
        }
        check_file(&mount.join("again"), 1, LARGE_BYTES).unwrap();
        check_file(&mount.join("small"), 2, SMALL_BYTES).unwrap();
        let mut names: Vec<_> = fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["again", "small"]);
    }
    world.stop_client().unwrap();
    world.stop_server().unwrap();
    let listed = run(world.server_command().args(["volume", "list", "--data"]).arg(world.store()), LIMIT).unwrap();
    assert!(listed.lines().any(|line| line.starts_with("home") && line.ends_with("ok")), "{listed}");
}
