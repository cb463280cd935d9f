//! Locks among the programs of several clients: counters and databases stay whole, locks end with the lease of a
//! client that has lost touch, outlive the server, and let go a program that a signal calls (docs/semantics.md,
//! "Locks").

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{exit_code, finish, wait, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

use super::number_from_env;

const LIMIT: Duration = Duration::from_secs(120);
/// A lease, and what the server adds.
const LEASE: Duration = Duration::from_secs(62);
/// Interval at which the server looks for leases that have ended, and what a busy machine takes.
const SLACK: Duration = Duration::from_secs(8);

/// Increments of the counter, by all processes together, unless `MAFS_INCREMENTS` says otherwise.
const INCREMENTS: u32 = 400;
const ROWS: u32 = 100;

/// Raises the number in a file, under a lock, so many times.
const COUNT: &str = r"
import fcntl, os, sys
path, kind, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = fcntl.flock if kind == 'flock' else fcntl.lockf
file = os.open(path, os.O_RDWR)
for _ in range(times):
    lock(file, fcntl.LOCK_EX)
    count = int(os.pread(file, 100, 0))
    os.pwrite(file, b'%20d' % (count + 1), 0)
    lock(file, fcntl.LOCK_UN)
";

/// Puts rows into a database, each in a transaction of its own that reads what the last one was.
const INSERT: &str = r"
import sqlite3, sys
path, who, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, timeout=100, isolation_level=None)
for row in range(rows):
    database.execute('BEGIN IMMEDIATE')
    last, = database.execute('SELECT coalesce(max(number), 0) FROM rows').fetchone()
    database.execute('INSERT INTO rows VALUES (?, ?, ?)', (last + 1, who, row))
    database.execute('COMMIT')
database.close()
";

/// Takes a lock, says so, and does what it is told, line by line.
const HOLD: &str = r"
import errno, fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX)
print('locked', flush=True)
for line in sys.stdin:
    try:
        if line == 'fsync\n': os.fsync(file)
        elif line == 'lock\n': fcntl.flock(file, fcntl.LOCK_EX)
        elif line == 'write\n': os.pwrite(file, b'written', 0)
        elif line == 'unlock\n': fcntl.flock(file, fcntl.LOCK_UN)
        elif line == 'close\n': os.close(file)
        print('done', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
";

/// Tries to lock, and says what came of it.
const TRY: &str = r"
import errno, fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('locked')
except OSError as error:
    print(errno.errorcode[error.errno])
";

/// Uses both kinds of locks on one open file.
const BOTH: &str = r"
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX)
fcntl.lockf(file, fcntl.LOCK_EX)
fcntl.lockf(file, fcntl.LOCK_UN)
fcntl.flock(file, fcntl.LOCK_UN)
";

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A process that holds a lock.
struct Holder {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Holder {
    fn start(path: &Path) -> Self {
        let mut process = python(HOLD, &[text(path)]).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        let mut holder = Self { process, said };
        assert_eq!(holder.hear(), "locked");
        holder
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn does(&mut self, what: &str) -> String {
        use std::io::Write;
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.hear()
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        wait(&mut self.process, LIMIT).unwrap();
    }
}

fn tries(path: &Path) -> String {
    finish(&mut python(TRY, &[text(path)]), LIMIT).unwrap().stdout.trim().to_owned()
}

fn all_succeed(processes: Vec<Child>, limit: Duration) {
    for mut process in processes {
        assert_eq!(exit_code(wait(&mut process, limit).unwrap()), 0);
    }
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn a_counter_that_four_processes_of_two_clients_raise_is_exact() {
    let increments = number_from_env("MAFS_INCREMENTS", INCREMENTS).next_multiple_of(4);
    let limit = LIMIT * increments.div_ceil(INCREMENTS);
    for options in ["", "writeback=sirp"] {
        let mut world = World::start_with(options).unwrap();
        let mut second = world.another_client("second").unwrap();
        let ways = [world.mount(), second.mount()];
        let _watchdog = Watchdog::start(2 * limit, ways.to_vec());
        for kind in ["flock", "fcntl"] {
            std::fs::write(ways[0].join(kind), "0").unwrap();
            let begun = Instant::now();
            let times = (increments / 4).to_string();
            let counting =
                [0, 1, 0, 1].map(|way| python(COUNT, &[text(&ways[way].join(kind)), kind, &times]).spawn().unwrap());
            all_succeed(counting.into(), limit);
            println!("{options} {kind}: {increments} increments in {:?}", begun.elapsed());
            for way in &ways {
                let count = std::fs::read_to_string(way.join(kind)).unwrap();
                assert_eq!(count.trim(), increments.to_string(), "{kind}");
            }
        }
        second.stop().unwrap();
        world.stop_client().unwrap();
    }
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn a_database_that_two_clients_write_stays_whole() {
    let rows = number_from_env("MAFS_ROWS", ROWS);
    for options in ["", "writeback=sirp"] {
        let mut world = World::start_with(options).unwrap();
        let mut second = world.another_client("second").unwrap();
        let ways = [world.mount(), second.mount()];
        let _watchdog = Watchdog::start(LIMIT * rows.div_ceil(ROWS), ways.to_vec());
        let query = |way: usize, statement: &str| {
            const ASK: &str = "import sqlite3, sys\nfor row in sqlite3.connect(sys.argv[1], timeout=100) \
                .execute(sys.argv[2]): print(*row)";
            let said = finish(&mut python(ASK, &[text(&ways[way].join("database")), statement]), LIMIT).unwrap();
            assert_eq!(said.code(), 0, "{}", said.stderr);
            said.stdout.trim().to_owned()
        };
        query(0, "CREATE TABLE rows (number INTEGER PRIMARY KEY, who TEXT, row INTEGER)");
        let begun = Instant::now();
        let inserting = [0, 1, 0, 1].iter().enumerate().map(|(who, way)| {
            let database = ways[*way].join("database");
            python(INSERT, &[text(&database), &who.to_string(), &rows.to_string()]).spawn().unwrap()
        });
        all_succeed(inserting.collect(), LIMIT * rows.div_ceil(ROWS));
        println!("{options}: {} transactions in {:?}", 4 * rows, begun.elapsed());
        for way in 0..2 {
            assert_eq!(query(way, "PRAGMA integrity_check"), "ok");
            let counted = query(way, "SELECT count(*), max(number), count(DISTINCT who || '/' || row) FROM rows");
            assert_eq!(counted, format!("{0} {0} {0}", 4 * rows));
        }
        second.stop().unwrap();
        world.stop_client().unwrap();
    }
}

#[test]
#[ignore = "needs: fuse, root, python3, tun, iproute2"]
fn a_lock_goes_on_when_the_lease_of_its_client_has_ended() {
    let link = EmulatedLink::start(&Profile::steady(4 << 20, Duration::from_millis(20))).unwrap();
    let mut world = World::start_over(link, "lock=strict").unwrap();
    let mut killed = world.another_client_beside_server("killed").unwrap();
    let mut next = world.another_client_beside_server("next").unwrap();
    let _watchdog = Watchdog::start(3 * LIMIT, vec![world.mount(), killed.mount(), next.mount()]);
    for name in ["cut-off", "killed"] {
        std::fs::write(world.mount().join(name), "unlocked").unwrap();
    }
    let mut cut_off = Holder::start(&world.mount().join("cut-off"));
    let dead = Holder::start(&killed.mount().join("killed"));
    assert_eq!(tries(&next.mount().join("cut-off")), "EAGAIN");
    assert_eq!(tries(&next.mount().join("killed")), "EAGAIN");
    world.link().unwrap().set_unplugged(true);
    killed.kill().unwrap();
    let begun = Instant::now();
    let mut taken = [("cut-off", None), ("killed", None)];
    wait_until(LEASE + SLACK, "both locks go on", || {
        for (name, after) in taken.iter_mut().filter(|(_, after)| after.is_none()) {
            *after = (tries(&next.mount().join(*name)) == "locked").then(|| begun.elapsed());
        }
        Ok(taken.iter().all(|(_, after)| after.is_some()))
    })
    .unwrap();
    println!("locks of lost clients go on after {taken:?}");
    for what in ["fsync", "lock", "unlock"] {
        assert_eq!(cut_off.does(what), "EIO", "{what}");
    }
    world.link().unwrap().set_unplugged(false);
    assert_eq!(cut_off.does("close"), "EIO");
    cut_off.end();
    dead.end();
    wait_until(LIMIT, "the mount is connected", || Ok(tries(&world.mount().join("cut-off")) == "locked")).unwrap();
    next.stop().unwrap();
    world.kill_client().unwrap();
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn locks_outlive_the_server() {
    let mut world = World::start_with("writeback=sirp").unwrap();
    let mut second = world.another_client("second").unwrap();
    let ways = [world.mount(), second.mount()];
    let _watchdog = Watchdog::start(2 * LIMIT, ways.to_vec());
    std::fs::write(ways[0].join("file"), "unlocked").unwrap();
    let mut holder = Holder::start(&ways[0].join("file"));
    world.kill_server().unwrap();
    world.start_server().unwrap();
    assert_eq!(tries(&ways[1].join("file")), "EAGAIN");
    for what in ["fsync", "write", "fsync", "unlock"] {
        assert_eq!(holder.does(what), "done", "{what}");
    }
    assert_eq!(tries(&ways[1].join("file")), "locked");
    assert_eq!(std::fs::read_to_string(ways[1].join("file")).unwrap(), "writtend");
    assert_eq!(holder.does("close"), "done");
    holder.end();
    second.stop().unwrap();
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse, root, python3, util-linux"]
fn who_waits_for_a_lock_is_let_go_by_a_signal() {
    let mut world = World::start().unwrap();
    let mut second = world.another_client("second").unwrap();
    let ways = [world.mount(), second.mount()];
    let _watchdog = Watchdog::start(LIMIT, ways.to_vec());
    std::fs::write(ways[0].join("file"), "unlocked").unwrap();
    let mut holder = Holder::start(&ways[0].join("file"));
    let waits = || Command::new("flock").arg(ways[1].join("file")).arg("true").spawn().unwrap();
    let mut waiting = waits();
    std::thread::sleep(Duration::from_secs(1));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    let begun = Instant::now();
    Command::new("kill").arg(waiting.id().to_string()).status().unwrap();
    wait(&mut waiting, Duration::from_secs(2)).unwrap();
    println!("let go {:?} after SIGTERM", begun.elapsed());
    // A timer's signal, which the program handles.
    let begun = Instant::now();
    let timed = Command::new("flock").args(["-w", "1"]).arg(ways[1].join("file")).arg("true").status().unwrap();
    assert_eq!(exit_code(timed), 1);
    println!("let go {:?} after the start of a program that waits 1 s", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3));
    let mut waiting = waits();
    assert_eq!(holder.does("unlock"), "done");
    assert_eq!(exit_code(wait(&mut waiting, Duration::from_secs(10)).unwrap()), 0, "nobody is in the way");
    holder.end();
    let both_kinds = finish(&mut python(BOTH, &[text(&ways[0].join("file"))]), Duration::from_secs(20)).unwrap();
    assert_eq!(both_kinds.code(), 0, "one process uses both kinds: {}", both_kinds.stderr);
    second.stop().unwrap();
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn with_nolock_locks_hold_among_the_programs_of_one_client() {
    let mut world = World::start_with("nolock").unwrap();
    let mut second = world.another_client("second").unwrap();
    let ways = [world.mount(), second.mount()];
    let _watchdog = Watchdog::start(LIMIT, ways.to_vec());
    std::fs::write(ways[0].join("file"), "unlocked").unwrap();
    let holder = Holder::start(&ways[0].join("file"));
    assert_eq!(tries(&ways[0].join("file")), "EAGAIN");
    assert_eq!(tries(&ways[1].join("file")), "locked");
    holder.end();
    second.stop().unwrap();
    world.stop_client().unwrap();
}

/// Appends lines to a file under a lock, as shells do: LOG, WHO, LINES.
const APPEND: &str = r#"for line in $(seq "$3"); do ( flock 9 && echo "$2 $line" >&9 ) 9>>"$1" || exit 1; done"#;

#[test]
#[ignore = "needs: fuse, root, util-linux"]
fn a_log_that_two_clients_make_holds_every_line() {
    const LOGS: u32 = 8;
    const LINES: u32 = 10;
    let mut world = World::start().unwrap();
    let mut second = world.another_client("second").unwrap();
    let ways = [world.mount(), second.mount()];
    let _watchdog = Watchdog::start(LIMIT, ways.to_vec());
    for number in 0..LOGS {
        let log = format!("log-{number}");
        let append = |way: &Path, who| shell(APPEND, &[text(&way.join(&log)), who, &LINES.to_string()]);
        let mut appending = [append(&ways[0], "one"), append(&ways[1], "two")];
        for appending in &mut appending {
            assert_eq!(exit_code(wait(appending, LIMIT).unwrap()), 0);
        }
        for way in &ways {
            let mut lines: Vec<String> =
                std::fs::read_to_string(way.join(&log)).unwrap().lines().map(str::to_owned).collect();
            lines.sort_unstable();
            let mut expected: Vec<String> =
                (1..=LINES).flat_map(|line| [format!("one {line}"), format!("two {line}")]).collect();
            expected.sort_unstable();
            assert_eq!(lines, expected, "{log}");
        }
    }
    second.stop().unwrap();
    world.stop_client().unwrap();
}

/// Takes the lock of a file that it opens anew, and says so: FILE, GOT.
const TAKE: &str = r#"exec 9>"$1"; flock -n 9 2>/dev/null && { echo got >>"$2"; sleep 0.5; }; true"#;

#[test]
#[ignore = "needs: fuse, root, util-linux"]
fn of_two_clients_that_make_a_lock_file_one_has_the_lock() {
    let mut world = World::start().unwrap();
    let mut second = world.another_client("second").unwrap();
    let ways = [world.mount(), second.mount()];
    let _watchdog = Watchdog::start(LIMIT, ways.to_vec());
    for number in 0..10 {
        for way in &ways {
            assert!(std::fs::read_dir(way).unwrap().count() >= number);
        }
        let got = world.local().join(format!("got-{number}"));
        let mut taking =
            ways.each_ref().map(|way| shell(TAKE, &[text(&way.join(format!("lock-{number}"))), text(&got)]));
        for taking in &mut taking {
            wait(taking, LIMIT).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&got).unwrap(), "got\n", "lock-{number}");
    }
    second.stop().unwrap();
    world.stop_client().unwrap();
}

fn shell(script: &str, arguments: &[&str]) -> Child {
    Command::new("bash").args(["-c", script, "bash"]).args(arguments).spawn().unwrap()
}
