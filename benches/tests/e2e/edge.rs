//! POSIX at the kernel's edge: closes that end locks, appends behind what a lock has brought, mappings beyond the end,
//! and how full the disk is. With containers that the kernel has, and without.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::finish;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(120);

/// Options where the kernel has containers, where it has none, and where a close waits for the server.
const OPTIONS: [&str; 4] = ["", "passthrough=off", "writeback=sync", "writeback=sync,passthrough=off"];

/// Closes descriptors of a file beside one that it was locked by, and leaves one to a child.
const CLOSES: &str = r"
import fcntl, os, sys
directory = sys.argv[1]
def is_free(path):
    pid = os.fork()
    if pid == 0:
        file = os.open(path, os.O_RDWR)
        try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
for mode in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY):
    path = os.path.join(directory, 'file%d' % mode)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(file, fcntl.LOCK_EX)
    assert not is_free(path)
    os.close(os.open(path, mode))
    assert is_free(path), 'outlives the close of another, mode %d' % mode
    left, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        inherited = os.open(path, os.O_RDONLY)
        fcntl.lockf(inherited, fcntl.LOCK_SH)
        if os.fork() == 0:
            os.close(end)
            os.read(left, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert is_free(path), 'outlives its holder'
    os.close(end)
    os.close(left)
    os.close(file)
";

/// Two programs append by turns: one waits for the lock with the file open while the other writes under it.
const APPENDS: &str = r"
import fcntl, os, sys
one, other = (os.path.join(directory, 'log') for directory in sys.argv[1:3])
open(one, 'w').close()
expected = ''
for turn in range(8):
    if turn == 4: readers = open(one), open(other)
    if turn % 2: one, other = other, one
    first = open(one, 'a')
    fcntl.flock(first, fcntl.LOCK_EX)
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(first.fileno())
        second = open(other, 'a')
        os.write(say, b'x')
        fcntl.flock(second, fcntl.LOCK_EX)
        second.write('second %d\n' % turn)
        second.flush()
        os._exit(0)
    os.read(ready, 1)
    first.write('first %d\n' % turn)
    first.close()
    assert os.waitpid(pid, 0)[1] == 0
    expected += 'first %d\nsecond %d\n' % (turn, turn)
    for path in one, other:
        found = open(path).read()
        assert found == expected, (turn, path, found)
";

/// Raises a number under a lock, and opens the file anew each time.
const COUNT: &str = r"
import fcntl, os, sys
for _ in range(int(sys.argv[2])):
    file = os.open(sys.argv[1], os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    count = int(os.read(file, 100))
    os.pwrite(file, b'%d' % (count + 1), 0)
    os.close(file)
";

/// Tries to lock what somebody has just ceased to hold.
const TRIES: &str = r"
import fcntl, os, signal, sys, time
path, refused = os.path.join(sys.argv[1], 'lock'), []
open(path, 'w').close()
parent, busy = os.getpid(), []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        while os.getppid() == parent: sum(range(1000))
        os._exit(0)
    busy.append(pid)
for turn in range(40):
    for way, kind in [(way, fcntl.LOCK_EX) for way in ('exit', 'kill', 'close')] + [('exit', fcntl.LOCK_SH)]:
        locked, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            file = os.open(path, os.O_RDONLY)
            fcntl.flock(file, kind)
            if way == 'close': os.close(file)
            os.write(say, b'x')
            if way != 'exit': time.sleep(100)
            os._exit(0)
        os.read(locked, 1)
        if way == 'kill': os.kill(pid, signal.SIGKILL)
        if way != 'close': os.waitpid(pid, 0)
        file = os.open(path, os.O_RDONLY)
        try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: refused.append((turn, way, kind))
        os.close(file)
        os.close(locked)
        os.close(say)
        if way == 'close':
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
for pid in busy: os.kill(pid, signal.SIGKILL)
assert not refused, refused
";

/// Stores beyond the end of a file, in its last page, and makes it longer then.
const STORES: &str = r"
import ctypes, mmap, os, sys
number, wrong = 0, []
for size in (1000, 5000, 100000):
    for way in ('truncate', 'write', 'near', 'append', 'fallocate'):
        for flushed in (False, True):
            number += 1
            path, end = os.path.join(sys.argv[1], 'stores%d' % number), (size + 4095) // 4096 * 4096
            open(path, 'wb').write(b'a' * size)
            file = os.open(path, os.O_RDWR)
            mapped = mmap.mmap(file, size)
            place = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            ctypes.memset(place + size, ord('X'), end - size)
            if flushed: mapped.flush()
            grown = bytes(end + 100 - size)
            if way == 'truncate': os.ftruncate(file, end + 100)
            elif way == 'fallocate': os.posix_fallocate(file, 0, end + 100)
            elif way == 'append': grown = os.pwrite(file, b'z', size) * b'z'
            elif way == 'near': grown = bytes(8) + os.pwrite(file, b'z', size + 8) * b'z'
            else: grown += os.pwrite(file, b'z', end + 100) * b'z'
            found = os.pread(file, 1 << 20, 0)
            os.close(file)
            for found in found, open(path, 'rb').read():
                if found != b'a' * size + grown: wrong.append((size, way, flushed, len(found)))
assert not wrong, wrong
";

/// Reads a file with holes while a mapping stores into them, as programs do that skip holes. No descriptor is closed
/// between a store and the look, which would write the pages.
const HOLES: &str = r"
import mmap, os, sys, time
path, size = os.path.join(sys.argv[1], 'mapped'), 1 << 20
file, expected = os.open(path, os.O_RDWR | os.O_CREAT), bytearray(size)
os.ftruncate(file, size)
expected[200000:200007] = b'written'
os.pwrite(file, b'written', 200000)
mapped, reader = mmap.mmap(file, size), os.open(path, os.O_RDONLY)
os.close(file)
def data():
    found, at = bytearray(size), 0
    while True:
        try: start = os.lseek(reader, at, os.SEEK_DATA)
        except OSError: return found
        at = os.lseek(reader, start, os.SEEK_HOLE)
        found[start:at] = os.pread(reader, at - start, start)
for place in (0, 100000, 500000, size - 6):
    mapped[place:place + 6] = expected[place:place + 6] = b'stored'
    assert data() == expected, place
mapped.close()
assert data() == expected
for _ in range(200):
    found = os.lseek(reader, 300000, os.SEEK_DATA)
    if found > 400000: break
    time.sleep(0.05)
else: raise AssertionError('holes are lost though nobody has the file mapped')
";

/// Removes one tree by several programs at once, of one client or of two.
const REMOVE: &str = r#"
for round in 1 2 3 4; do
    mkdir -p "$1/tree/"{1,2,3,4}/below
    for d in 1 2 3 4; do touch "$1/tree/$d/"{a,b,c,d,e,f} "$1/tree/$d/below/"{a,b,c}; done
    for way in "$1" "$2" "$1" "$2"; do rm -rf "$way/tree" 2>> "$3" & done
    wait
    rm -rf "$1/tree"
    test ! -e "$1/tree" || exit 1
done
! grep -v -e "No such file" -e "Directory not empty" "$3" >&2
"#;

fn python(script: &str, arguments: &[&Path]) {
    let mut command = Command::new("python3");
    let done = finish(command.args(["-c", script]).args(arguments), LIMIT).unwrap();
    assert_eq!(done.code(), 0, "{arguments:?}: {}{}", done.stdout, done.stderr);
}

/// Runs a body on the mounts of two clients, with all of [`OPTIONS`].
fn with_two_clients(body: impl Fn(&Path, &Path)) {
    for options in OPTIONS {
        println!("{options:?}");
        let mut world = World::start_with(options).unwrap();
        let mut second = world.another_client("second").unwrap();
        let _watchdog = Watchdog::start(3 * LIMIT, vec![world.mount(), second.mount()]);
        body(&world.mount(), &second.mount());
        second.stop().unwrap();
        world.stop_client().unwrap();
    }
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn a_close_of_any_descriptor_ends_what_its_process_has_locked() {
    with_two_clients(|one, _| python(CLOSES, &[one]));
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn who_has_waited_for_a_lock_appends_behind_what_it_has_brought() {
    with_two_clients(|one, other| python(APPENDS, &[one, other]));
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn a_counter_is_exact_that_each_opens_anew() {
    const TIMES: u32 = 60;
    with_two_clients(|one, other| {
        std::fs::write(one.join("count"), "0").unwrap();
        let counting = [one, other, one].map(|way| {
            Command::new("python3").args(["-c", COUNT]).arg(way.join("count")).arg(TIMES.to_string()).spawn().unwrap()
        });
        counting.into_iter().for_each(|mut process| assert!(process.wait().unwrap().success()));
        for way in [one, other] {
            assert_eq!(std::fs::read_to_string(way.join("count")).unwrap(), (3 * TIMES).to_string());
        }
    });
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn a_lock_is_free_when_its_holder_has_ended() {
    with_two_clients(|one, _| python(TRIES, &[one]));
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn what_is_stored_beyond_the_end_is_zeros_when_a_file_grows() {
    let local = tempfile::tempdir().unwrap();
    python(STORES, &[local.path()]);
    with_two_clients(|one, _| python(STORES, &[one]));
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn what_a_mapping_has_stored_is_in_no_hole() {
    let local = tempfile::tempdir().unwrap();
    python(HOLES, &[local.path()]);
    with_two_clients(|one, _| python(HOLES, &[one]));
}

#[test]
#[ignore = "needs: fuse, root"]
fn what_others_remove_too_does_not_exist() {
    with_two_clients(|one, other| {
        for other in [one, other] {
            let mut command = Command::new("bash");
            let said = one.parent().unwrap().join("said");
            command.args(["-c", REMOVE, "bash"]).args([one, other, said.as_path()]);
            let done = finish(&mut command, LIMIT).unwrap();
            assert_eq!(done.code(), 0, "{}", done.stderr);
        }
    });
}

#[test]
#[ignore = "needs: fuse, root"]
fn the_disk_is_as_full_as_the_disk_of_the_server() {
    let world = World::start().unwrap();
    // Other programs write to the disk meanwhile.
    const SLACK: u64 = 1 << 30;
    let ask = |path: &Path| {
        let mut command = Command::new("stat");
        let said = finish(command.args(["-f", "-c", "%b %f %a %S"]).arg(path), LIMIT).unwrap().stdout;
        let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [total, unused, free, block] = numbers[..] else { panic!("{said}") };
        [total, unused, free].map(|blocks| blocks * block)
    };
    let (mount, disk) = (ask(&world.mount()), ask(&world.store()));
    println!("size, unused, free: {mount:?}, on the disk {disk:?}");
    for (shown, expected) in mount.iter().zip(disk) {
        assert!(shown.abs_diff(expected) < SLACK, "{mount:?}, on the disk {disk:?}");
    }
    assert!(disk[1] - disk[2] < SLACK || mount[1] > mount[2], "what is kept for root is not used");
}
