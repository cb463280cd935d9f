//! Full disks under the server and under the cache, and a full quota: programs are told, what frees room works at once,
//! nothing is damaged, and all works again when there is room.

use std::ffi::CStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_bench::content::{check_file, write_file};
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::world::World;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const LIMIT: Duration = Duration::from_secs(60);

/// Limit of a removal on a full disk: far less than the 10 s that records wait for each other.
const AT_ONCE: Duration = Duration::from_secs(2);

const LARGE_BYTES: u64 = 80 << 20;
const SMALL_BYTES: u64 = 1 << 20;

/// A small disk of memory; gone from the tree when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Makes a disk with room for one large file beside the 64 MB that the server reserves for its journal.
    fn under_the_store_of(world: &World) -> Self {
        Self::at(world.store(), c"size=160m")
    }

    fn at(path: PathBuf, size: &CStr) -> Self {
        fs::create_dir(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(size)).unwrap();
        Self(path)
    }

    /// Takes all the room there is, as another program may.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("of another program");
        let mut file = fs::File::create(&path).unwrap();
        let error = (0..1 << 20).find_map(|_| file.write_all(&[1; 4096]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        path
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // The server may still use the disk, which goes with the last file then.
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
        assert_eq!(names_in(&mount), ["again", "small"]);
    }
    world.stop_client().unwrap();
    world.stop_server().unwrap();
    let listed = run(world.server_command().args(["volume", "list", "--data"]).arg(world.store()), LIMIT).unwrap();
    assert!(listed.lines().any(|line| line.starts_with("home") && line.ends_with("ok")), "{listed}");
}

#[test]
#[ignore = "needs: fuse, root"]
fn a_full_quota_is_told_to_programs_and_what_it_refused_is_sent_when_there_is_room() {
    let mut world = World::new().unwrap();
    run(world.server_command().arg("init").arg(world.store()), LIMIT).unwrap();
    let set = ["volume", "set", "home", "--quota", "1500K", "--data"];
    run(world.server_command().args(set).arg(world.store()), LIMIT).unwrap();
    world.start_server().unwrap();
    world.start_client().unwrap();
    let (mount, source) = (world.mount(), world.local().join("source"));
    write_file(&source, 1, SMALL_BYTES).unwrap();
    run(Command::new("cp").arg(&source).arg(mount.join("kept")), LIMIT).unwrap();
    for (name, flags) in [("closed", "conv=notrunc"), ("fsynced", "conv=fsync")] {
        let mut dd = Command::new("dd");
        dd.args(["status=none", "bs=64K", flags]).arg(format!("if={}", source.display()));
        let refused = finish(dd.arg(format!("of={}", mount.join(name).display())), LIMIT).unwrap();
        assert_ne!(refused.code(), 0, "there was room for two");
        assert!(refused.stderr.contains("Disk quota exceeded"), "{}", refused.stderr);
    }
    fs::remove_file(mount.join("fsynced")).unwrap();
    fs::remove_file(mount.join("kept")).unwrap();
    run(world.client_command().args(["sync", "--timeout", "30"]).arg(&mount), LIMIT).unwrap();
    world.forget_cache().unwrap();
    check_file(&mount.join("closed"), 1, SMALL_BYTES).unwrap();
    assert_eq!(names_in(&mount), ["closed"]);
    world.stop_client().unwrap();
}

/// Others fill the disk of the cache, until even what is known of names has no room.
#[test]
#[ignore = "needs: fuse, root, tmpfs"]
fn a_full_disk_under_the_cache_loses_nothing_and_works_again_without_a_new_mount() {
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    let cache = Tmpfs::at(world.local().join("small"), c"size=48m");
    let place = world.mount();
    let mount = |cache: &Path| {
        let options = format!("minfree=1M,cache={}", cache.display());
        let mut command = world.client_command();
        run(command.args(["mount", &world.target(), "-o", &options]).arg(&place), LIMIT).unwrap();
    };
    let umount = || run(world.client_command().arg("umount").arg(&place), LIMIT).unwrap();
    mount(&cache.0);
    write_file(&place.join("kept"), 1, SMALL_BYTES).unwrap();
    let other = cache.fill();
    let link = |number: u32| symlink("x".repeat(3000), place.join(format!("link{number}")));
    let (made, error) = (0..20_000).find_map(|number| Some((number, link(number).err()?))).unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(link(made).is_err(), "there is no more room than before");
    check_file(&place.join("kept"), 1, SMALL_BYTES).unwrap();
    let expected = |made: u32| {
        let mut names: Vec<_> = (0..made).map(|number| format!("link{number}")).chain(["kept".to_owned()]).collect();
        names.sort();
        names
    };
    assert_eq!(names_in(&place), expected(made), "what was refused has not been done");

    fs::remove_file(other).unwrap();
    link(made).unwrap();
    write_file(&place.join("kept"), 2, SMALL_BYTES).unwrap();
    assert_eq!(names_in(&place), expected(made + 1));
    for cache in [&cache.0, &world.local().join("empty")] {
        umount();
        mount(cache);
        check_file(&place.join("kept"), 2, SMALL_BYTES).unwrap();
        assert_eq!(names_in(&place), expected(made + 1));
    }
    umount();
}

fn names_in(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
