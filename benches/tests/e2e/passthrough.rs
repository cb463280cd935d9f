//! Passthrough: programs' work on files that the kernel reads and writes by itself, and on files through the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mafs_bench::content::{check_file, write_file};
use mafs_bench::process::{run, wait_until};
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(60);

const BOTH_WAYS: [&str; 2] = ["passthrough=auto", "passthrough=off"];

#[test]
#[ignore = "needs: fuse, root, Linux 6.9"]
fn the_kernel_gets_the_files_of_root_unless_told_otherwise() {
    for options in BOTH_WAYS {
        let mut world = World::start_with(options).unwrap();
        let path = world.mount().join("file");
        write_file(&path, 1, 1 << 20).unwrap();
        check_file(&path, 1, 1 << 20).unwrap();
        let status = run(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap();
        let expected = if options.ends_with("auto") { "by the kernel itself" } else { "through the daemon" };
        assert!(status.contains(expected), "{status}");
        world.stop_client().unwrap();
    }
}

/// Each check is true of a local file system too, and is tried there first.
#[test]
#[ignore = "needs: fuse, python3"]
fn programs_find_open_files_as_on_a_local_disk() {
    for options in BOTH_WAYS {
        let mut world = World::start_with(options).unwrap();
        for directory in [world.local(), world.mount()] {
            run(Command::new("python3").args(["-c", OPEN_FILES]).arg(&directory), LIMIT).unwrap();
        }
        run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
        world.forget_cache().unwrap();
        for name in ["stored-after-close", "appended", "growing", "large"] {
            let read = |directory: &Path| fs::read(directory.join(name)).unwrap();
            assert!(read(&world.mount()) == read(&world.local()), "{name} with {options}");
        }
        let mode = |directory: &Path| fs::metadata(directory.join("set-id")).unwrap().permissions().mode();
        assert_eq!(mode(&world.mount()), mode(&world.local()), "{options}");
        world.stop_client().unwrap();
    }
}

/// A cache in memory does not say when a mapping was written to: its files go through the daemon.
#[test]
#[ignore = "needs: fuse, python3"]
fn a_cache_in_memory_is_not_given_to_the_kernel() {
    let memory = tempfile::Builder::new().prefix("mafs-").tempdir_in("/dev/shm").unwrap();
    let cache = memory.path().join("cache");
    let mut world = World::start_with(&format!("cache={}", cache.display())).unwrap();
    let status = run(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap();
    assert!(status.contains("through the daemon"), "{status}");
    for directory in [world.local(), world.mount()] {
        run(Command::new("python3").args(["-c", OPEN_FILES]).arg(&directory), LIMIT).unwrap();
    }
    world.stop_client().unwrap();
    fs::remove_dir_all(&cache).unwrap();
    world.start_client().unwrap();
    let read = |directory: &Path| fs::read(directory.join("stored-after-close")).unwrap();
    assert!(read(&world.mount()) == read(&world.local()));
    world.stop_client().unwrap();
}

const OPEN_FILES: &str = r#"
import ctypes, mmap, os, subprocess, sys, time
os.chdir(sys.argv[1])

# A store through a mapping that outlives its descriptor.
fd = os.open('stored-after-close', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 300000)
mapped = mmap.mmap(fd, 300000)
mapped[0:5] = b'early'
copy = os.dup(fd)
os.close(fd); os.close(copy)
mapped[0:4] = b'late'
mapped[200000:200004] = b'late'
mapped.close()

# stat(2) by name and by descriptor while the file grows and through a mapping.
fd = os.open('growing', os.O_RDWR | os.O_CREAT)
for size in range(1, 50):
    os.write(fd, b'x' * 1000)
    assert os.fstat(fd).st_size == os.stat('growing').st_size == size * 1000
assert os.lseek(fd, 0, os.SEEK_END) == 49000
before = os.stat('growing').st_mtime_ns
mapped = mmap.mmap(fd, 49000)
time.sleep(0.05)
mapped[100:103] = b'map'
mapped.flush()
assert os.stat('growing').st_mtime_ns > before
assert open('growing', 'rb').read()[100:103] == b'map'
os.utime(fd, ns=(10**18, 10**18))
assert os.stat('growing').st_mtime_ns == 10**18
mapped.close(); os.close(fd)
assert os.stat('growing').st_mtime_ns == 10**18

# Two processes append, one line at a time.
script = """
import os
fd = os.open('appended', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for n in range(500): os.write(fd, b'one line;')
"""
both = [subprocess.Popen([sys.executable, '-c', script]) for _ in range(2)]
assert [p.wait() for p in both] == [0, 0]
assert open('appended', 'rb').read() == b'one line;' * 1000

# A file without a name.
fd = os.open('nameless', os.O_RDWR | os.O_CREAT)
os.write(fd, b'still here')
os.unlink('nameless')
os.pwrite(fd, b'open', 6)
assert os.pread(fd, 20, 0) == b'still open' and os.fstat(fd).st_size == 10
os.ftruncate(fd, 5)
assert os.fstat(fd).st_size == 5
os.close(fd)

# A program, run while it is copied to another name.
subprocess.check_call(['cp', '/bin/true', 'program'])
subprocess.check_call(['./program'])
subprocess.check_call(['./program'])

# Writers that cut, and readers that see it.
fd = os.open('large', os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(range(256)) * 4000)
reader = os.open('large', os.O_RDONLY)
other = os.open('large', os.O_WRONLY | os.O_TRUNC)
assert os.fstat(reader).st_size == 0 and os.pread(reader, 10, 0) == b''
os.write(other, b'cut')
os.pwrite(fd, b'behind', 500000)
assert os.pread(reader, 3, 0) == b'cut' and os.fstat(reader).st_size == 500006
os.close(other); os.close(reader); os.close(fd)

# Whoever is not root takes the set-id bits away by writing.
fd = os.open('set-id', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'content')
os.chmod('set-id', 0o6777)
pid = os.fork()
if pid == 0:
    if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
    os.write(fd, b'other')
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
os.close(fd)
assert os.stat('set-id').st_mode & 0o7777 == 0o777, oct(os.stat('set-id').st_mode)
"#;

#[test]
#[ignore = "needs: fuse"]
fn a_file_is_read_while_it_arrives_and_then_by_the_kernel() {
    const BYTES: u64 = 32 << 20;
    let mut world = World::start().unwrap();
    let path = world.mount().join("file");
    write_file(&path, 1, BYTES).unwrap();
    world.forget_cache().unwrap();
    check_file(&path, 1, BYTES).unwrap();
    check_file(&path, 1, BYTES).unwrap();
    world.server().unwrap().signal(rustix::process::Signal::STOP).unwrap();
    check_file(&path, 1, BYTES).unwrap();
    world.server().unwrap().signal(rustix::process::Signal::CONT).unwrap();
    world.stop_client().unwrap();
}

/// The kernel lets a program write on when the daemon is gone: what it wrote before counts, what it writes after the
/// next mount does not, and the file is whole.
#[test]
#[ignore = "needs: fuse, root, Linux 6.9"]
fn invariant_1_a_writer_that_outlives_the_daemon_does_no_harm() {
    let mut world = World::start().unwrap();
    let path = world.mount().join("file");
    fs::write(&path, vec![b'a'; 200_000]).unwrap();
    let mut writer = surviving_writer(&path, &world.local());
    world.kill_client().unwrap();
    fs::write(world.local().join("go"), b"").unwrap();
    let went_on = world.local().join("went-on");
    wait_until(LIMIT, "the writer goes on", || Ok(went_on.exists())).unwrap();
    world.start_client().unwrap();
    let taken_up = fs::read(&path).unwrap();
    assert_eq!((taken_up.len(), &taken_up[..6], taken_up[6]), (200_000, &b"second"[..], b'a'));
    fs::write(world.local().join("go-again"), b"").unwrap();
    assert!(writer.wait().unwrap().success());
    assert!(fs::read(&path).unwrap() == taken_up, "a program of an earlier mount changed a file");
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
    world.forget_cache().unwrap();
    assert!(fs::read(&path).unwrap() == taken_up, "the server has something else");
    world.stop_client().unwrap();
}

/// Writes `first`, then `second` and `third` over it, each when it is told to.
fn surviving_writer(path: &Path, signals: &Path) -> Child {
    const SCRIPT: &str = "
exec 3<>\"$1\"
printf first >&3; touch \"$2/began\"
while [ ! -e \"$2/go\" ]; do sleep 0.05; done
python3 -c 'import os; os.pwrite(3, b\"second\", 0)'; touch \"$2/went-on\"
while [ ! -e \"$2/go-again\" ]; do sleep 0.05; done
python3 -c 'import os; os.pwrite(3, b\"third!\", 0)'
";
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "bash"]).arg(path).arg(signals).stderr(Stdio::null());
    let writer = command.spawn().unwrap();
    wait_until(LIMIT, "the writer has begun", || Ok(signals.join("began").exists())).unwrap();
    writer
}
