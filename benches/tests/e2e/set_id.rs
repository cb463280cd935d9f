//! Bits and attributes that lend rights: they go when somebody else changes a file, as on ext4, and writing does not
//! cost a question each time.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs: fuse, root, python3"]
fn who_changes_a_file_takes_away_the_rights_it_lends_as_on_ext4() {
    for options in ["suid,passthrough=auto", "suid,passthrough=off"] {
        let world = World::start_with(options).unwrap();
        let [near, far] = [world.local(), world.mount()].map(|dir| changes(&dir));
        for (near, far) in near.lines().zip(far.lines()) {
            assert_eq!(near, far, "{options}");
        }
        assert_eq!(near, far, "{options}");
        assert!(near.contains("write 0o6777: 0o777 0o777"), "{near}");
    }
}

#[test]
#[ignore = "needs: fuse"]
fn small_writes_do_not_ask_for_attributes() {
    const WRITES: u64 = 10_000;
    let world = World::start_with("passthrough=off").unwrap();
    let before = requests(&world);
    let mut file = File::create(world.mount().join("file")).unwrap();
    for _ in 0..WRITES {
        file.write_all(&[7; 4096]).unwrap();
    }
    drop(file);
    let asked = requests(&world) - before;
    assert!(asked < WRITES + WRITES / 5, "{asked} requests for {WRITES} writes");
}

/// Counts what the client has read so far: requests of the kernel, and data from the server, which is little here.
fn requests(world: &World) -> u64 {
    let counters = fs::read_to_string(format!("/proc/{}/io", world.client().unwrap().pid())).unwrap();
    let reads = counters.lines().find_map(|line| line.strip_prefix("syscr: "));
    reads.unwrap().parse().unwrap()
}

/// Does to files with each combination of bits what changes them, as root and as nobody, and returns what is left.
fn changes(dir: &Path) -> String {
    const SCRIPT: &str = r"
import os, sys
os.chdir(sys.argv[1]); os.chmod('.', 0o755); os.mkdir('ids'); os.chdir('ids'); os.chmod('.', 0o777)
CAPABILITY = bytes([1, 0, 0, 2, 0, 0x20] + [0] * 14)
def write(fd): os.write(fd, b'x')
def truncate(fd): os.truncate(name, 1)
def ftruncate(fd): os.ftruncate(fd, 1)
def open_truncate(fd): os.close(os.open(name, os.O_WRONLY | os.O_TRUNC))
def reserve(fd): os.posix_fallocate(fd, 0, 100)
def copy(fd): os.copy_file_range(source, fd, 3)
def open_only(fd): os.close(os.open(name, os.O_WRONLY))
def chmod(fd): os.chmod(name, 0o6755)
def chown(fd): os.chown(name, 65534, -1)
def chgrp(fd): os.chown(name, -1, 65534)
def give_all(fd): os.chown(name, 1234, 1234)
def utimes(fd): os.utime(name)
with open('source', 'w') as file: file.write('abc')
source = os.open('source', os.O_RDONLY)
changes = (write, truncate, ftruncate, open_truncate, reserve, copy)
changes += (open_only, chmod, chown, chgrp, give_all, utimes)
for uid in (0, 65534):
    for change in changes:
        for mode in (0o4755, 0o2755, 0o2745, 0o6777, 0o6666, 0o1777, 0o777):
            name = f'{uid}-{change.__name__}-{mode:o}'
            with open(name, 'w') as file: file.write('before')
            os.chown(name, 0 if change in (write, copy, reserve, ftruncate) else uid, uid)
            os.chmod(name, mode)
            fd = os.open(name, os.O_RDWR)
            if os.fork() == 0:
                if uid: os.setgroups([]); os.setgid(uid); os.setuid(uid)
                try: change(fd)
                except OSError as error: print(error.strerror, end=' ')
                after = [oct(os.fstat(fd).st_mode & 0o7777), oct(os.stat(name).st_mode & 0o7777)]
                print(uid, change.__name__, oct(mode) + ':', *after, flush=True)
                os._exit(0)
            os.wait(); os.close(fd)
        with open(name, 'w') as file: file.write('before')
        fd = os.open(name, os.O_RDWR)
        os.setxattr(name, 'security.capability', CAPABILITY); os.setxattr(name, 'user.kept', b'')
        change(fd)
        print(change.__name__, 'leaves', sorted(os.listxattr(name)), flush=True)
        os.close(fd)
";
    run(Command::new("python3").args(["-c", SCRIPT]).arg(dir), LIMIT).unwrap()
}
