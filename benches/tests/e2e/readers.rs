//! Readers: programs that have a file open, or an inode in hand, while another client changes it or takes its name.

use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(120);

/// Mount options: the way in which root gets at the files, the time when the other hears of what is closed, and what
/// waits for the server.
const WAYS: [&str; 4] = ["passthrough=auto", "passthrough=off", "close=announced", "writeback=sync"];

/// Runs a program of Python with one directory through two clients; its output is the reason if it fails.
fn on_two_clients(script: &str) {
    for options in WAYS {
        let mut world = World::start_with(options).unwrap();
        let mut second = world.another_client("second").unwrap();
        let ways = [world.mount(), second.mount()];
        let _watchdog = Watchdog::start(LIMIT, ways.to_vec());
        let outcome = run(Command::new("python3").args(["-c", &format!("{COMMON}{script}")]).args(&ways), LIMIT);
        outcome.unwrap_or_else(|error| panic!("with {options}: {error}"));
        second.stop().unwrap();
        world.stop_client().unwrap();
    }
}

const COMMON: &str = r"
import os, sys, threading, time
a, b = sys.argv[1], sys.argv[2]
def until(what, seconds=20):
    end = time.time() + seconds
    while not what():
        assert time.time() < end, 'in vain'
        time.sleep(0.01)
def put(path, content):
    with open(path, 'wb') as file: file.write(content)
";

#[test]
#[ignore = "needs: fuse, python3"]
fn who_has_a_file_open_reads_what_another_client_appends() {
    on_two_clients(
        r"
for size in (6, 100000):
    p, q, want = f'{a}/log{size}', f'{b}/log{size}', b'f' * size
    put(p, want)
    until(lambda: os.path.exists(q) and os.stat(q).st_size == size)
    fd, text, looks = os.open(q, os.O_RDONLY), b'', True
    # With somebody who looks at it all the time.
    def look():
        while looks: os.stat(q); time.sleep(0.001)
    looker = threading.Thread(target=look); looker.start()
    try:
        for i in range(20):
            with open(p, 'ab') as file: file.write(b'line %d\n' % i)
            want += b'line %d\n' % i
            for _ in range(3):
                text += os.read(fd, max(0, os.fstat(fd).st_size - len(text)))
                assert want.startswith(text), f'{len(text)} bytes, {text.count(0)} of them zeros'
                time.sleep(0.003)
        def grown():
            global text
            text += os.read(fd, 4096)
            return text == want
        until(grown)
    finally: looks = False; looker.join()
",
    );
}

#[test]
#[ignore = "needs: fuse, python3"]
fn a_reader_sees_the_version_that_it_has_or_the_next() {
    on_two_clients(
        r"
versions = [b'first', b'a longer second', b'3', b'b' * 70000, b'c' * 200000, b'd' * 90000, b'e' * 90000]
put(f'{a}/file', versions[0])
until(lambda: os.path.exists(f'{b}/file') and os.stat(f'{b}/file').st_size == 5)
fd = os.open(f'{b}/file', os.O_RDONLY)
for before, now in zip(versions, versions[1:]):
    put(f'{a}/file', now)
    def turned():
        read = os.pread(fd, 1 << 20, 0)
        assert read.count(0) == 0, f'{len(read)} bytes, {read.count(0)} of them zeros'
        return read == now
    until(turned)
    until(lambda: os.fstat(fd).st_size == len(now))
",
    );
}

#[test]
#[ignore = "needs: fuse, python3"]
fn a_path_that_always_exists_can_always_be_opened() {
    on_two_clients(
        r"
stop, failed, reads = [], [], 0
def replace(i):
    put(f'{a}/new', bytes([65 + i % 26]) * 100000)
    os.rename(f'{a}/new', f'{a}/file')
def read():
    global reads
    while not stop:
        try:
            content = open(f'{b}/file', 'rb').read()
            if len(content) != 100000 or len(set(content)) != 1: failed.append(len(content))
        except OSError as error: failed.append(str(error))
        reads += 1
replace(0)
until(lambda: os.path.exists(f'{b}/file'))
reader = threading.Thread(target=read, daemon=True); reader.start()
for i in range(150): replace(i); time.sleep(0.005)
stop.append(1); reader.join()
assert reads and not failed, f'{reads} reads, {failed[:5]}'
",
    );
}

#[test]
#[ignore = "needs: fuse, python3"]
fn what_a_program_holds_stays_when_its_name_goes() {
    on_two_clients(
        r"
for wait in (0, 1):
    for how in ('unlink', 'replace', 'elsewhere'):
        p = f'{a}/{how}{wait}'
        put(p, b'x' * 16000)
        time.sleep(wait)
        fd = os.open(p, os.O_PATH)
        if how == 'unlink': os.unlink(p)
        elif how == 'replace': put(p + '.new', b'new'); os.rename(p + '.new', p)
        else:
            other = f'{b}/{how}{wait}'
            until(lambda: os.path.exists(other) and os.stat(other).st_size == 16000)
            os.unlink(other)
            until(lambda: not os.path.exists(p))
        for _ in range(3):
            assert os.fstat(fd).st_size == 16000, f'{how} {wait}: {os.fstat(fd).st_size}'
            with open(f'/proc/self/fd/{fd}', 'rb') as file: assert file.read() == b'x' * 16000
        with open(f'/proc/self/fd/{fd}', 'r+b') as file: file.write(b'y')
        with open(f'/proc/self/fd/{fd}', 'rb') as file: assert file.read() == b'y' + b'x' * 15999
        os.close(fd)
os.mkdir(f'{a}/gone')
os.chdir(f'{a}/gone')
os.rmdir(f'{a}/gone')
for use in (lambda: open('file', 'w'), lambda: os.stat('file'), lambda: os.mkdir('dir'), lambda: os.unlink('file')):
    try: use(); raise AssertionError('there is something')
    except FileNotFoundError: pass
assert os.listdir('.') == []
",
    );
}
