//! The emulated link: what it says about time and rate is what programs see, and nothing of it is left behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::link::EmulatedLink;
use mafs_bench::measure;
use mafs_bench::process::{finish, run, wait, wait_until};
use mafs_bench::programs::Programs;
use mafs_bench::world::World;
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);

/// Beginning of the scripts at both ends.
const COMMON: &str = "
import os, socket, statistics, time
address = (os.environ['MAFS_LINK_SERVER'], 7777)
def until_heard(attempt):
    while True:
        try: return attempt()
        except OSError: time.sleep(0.05)
";

const ECHO: &str = "
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(address)
while True:
    data, peer = s.recvfrom(2048)
    s.sendto(data, peer)
";

/// Sends packets of 84 bytes, with 56 bytes of data as those of ping(8).
const PING: &str = "
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(address)
s.settimeout(10)
def ping():
    start = time.perf_counter()
    s.send(bytes(56))
    s.recv(2048)
    return (time.perf_counter() - start) * 1000
until_heard(ping)
print(statistics.median(ping() for _ in range(21)))
";

/// Prints the rate in bytes per second, from the first piece on.
const SINK: &str = "
s = socket.create_server(address)
peer, _ = s.accept()
peer.recv(65536)
start, total = time.perf_counter(), 0
while data := peer.recv(65536):
    total += len(data)
print(total / (time.perf_counter() - start))
";

const SOURCE: &str = "
s = until_heard(lambda: socket.create_connection(address))
s.sendall(bytes(1 << 20))
";

fn python(mut command: Command, script: &str) -> Command {
    command.args(["-c", &format!("{COMMON}{script}")]);
    command
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

#[test]
#[ignore = "needs: root, tun, iproute2, python3"]
fn a_round_trip_takes_what_the_link_says() {
    let link = EmulatedLink::start(&Profile::steady(64 << 10, Duration::from_millis(20))).unwrap();
    let mut echo = python(link.server_command("python3"), ECHO).spawn().unwrap();
    let median_ms = number(&run(&mut python(link.client_command("python3"), PING), LIMIT).unwrap());
    let [up, down] = link.stop();
    wait(&mut echo, LIMIT).unwrap();
    println!("round trip {median_ms:.2} ms; up {up}; down {down}");
    // 20 ms, and 1.3 ms each way for 84 bytes.
    assert!((22.5..30.0).contains(&median_ms), "{median_ms} ms");
    assert!(up.packets >= 22 && down.packets >= 22, "{up}; {down}");
}

#[test]
#[ignore = "needs: root, tun, iproute2, python3"]
fn a_tcp_stream_gets_the_rate_of_the_link() {
    let rate = 256 << 10;
    let link = EmulatedLink::start(&Profile::steady(rate, Duration::from_millis(20))).unwrap();
    let mut source = python(link.client_command("python3"), SOURCE).spawn().unwrap();
    let share = number(&run(&mut python(link.server_command("python3"), SINK), LIMIT).unwrap()) / rate as f64;
    wait(&mut source, LIMIT).unwrap();
    println!("{:.1} % of the rate", 100.0 * share);
    // Headers take 3.5 %, and no program may get more than the link has.
    assert!((0.9..=0.97).contains(&share), "{share}");
}

#[test]
#[ignore = "needs: root, tun, iproute2, python3"]
fn the_program_ends_as_its_client_does_and_leaves_nothing() {
    let mut program = Command::new(Programs::build().unwrap().link());
    program.args(["--rate", "1000", "--rtt", "10", "--seed", "3"]);
    let script = |script: &str| format!("exec python3 -c \"{COMMON}{script}\"");
    program.arg("--server").arg(script(ECHO));
    program.arg("--client").arg(format!("echo $PPID; ({}); exit 7", script(PING)));
    let finished = finish(&mut program, LIMIT).unwrap();
    assert_eq!(finished.code(), 7, "{finished:?}");
    let [parent, median_ms] = finished.stdout.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!((10.0..20.0).contains(&number(median_ms)), "{finished:?}");
    let [up, down] = finished.stderr.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(up.starts_with("mafs-link: up: ") && down.starts_with("mafs-link: down: "), "{finished:?}");
    assert_eq!(namespaces_of(parent.parse().unwrap()), 0);
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_mount_over_a_link_is_seen_from_outside() {
    let rtt = Duration::from_millis(100);
    let link = EmulatedLink::start(&Profile::steady(1 << 20, rtt)).unwrap();
    let mut world = World::start_over(link, "").unwrap();
    let file = world.mount().join("f");
    fs::write(&file, [7; 100_000]).unwrap();
    world.forget_cache().unwrap();
    let before = world.link().unwrap().counts();
    let start = Instant::now();
    assert_eq!(fs::read(&file).unwrap(), [7; 100_000]);
    let took = start.elapsed();
    let [_, down] = world.link().unwrap().counts();
    println!("{took:?}; down: {down}");
    // A round trip, and 100 KB at 1 MB/s.
    assert!(took >= rtt + Duration::from_millis(95), "{took:?}");
    assert!(down.bytes - before[1].bytes > 100_000, "{down}");
    world.stop_client().unwrap();
    world.stop_server().unwrap();
}

#[test]
#[ignore = "needs: root, tun, iproute2"]
fn an_interrupt_ends_everything() {
    let directory = tempfile::tempdir().unwrap();
    let (mut program, [server, client]) = running(directory.path());
    assert_eq!(namespaces_of(program.id()), 2);
    signal(&program, Signal::INT);
    let status = wait(&mut program, LIMIT).unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(namespaces_of(program.id()), 0);
    assert!(is_gone(server) && is_gone(client));
}

#[test]
#[ignore = "needs: root, tun, iproute2"]
fn what_a_killed_one_leaves_the_next_one_removes() {
    let directory = tempfile::tempdir().unwrap();
    let (mut program, [server, client]) = running(directory.path());
    signal(&program, Signal::KILL);
    wait(&mut program, LIMIT).unwrap();
    assert_eq!(namespaces_of(program.id()), 2);
    assert!(!is_gone(server) && !is_gone(client));
    let link = EmulatedLink::start(&Profile::steady(1 << 20, Duration::ZERO)).unwrap();
    assert_eq!(namespaces_of(program.id()), 0);
    assert!(is_gone(server) && is_gone(client));
    assert_eq!(namespaces_of(std::process::id()), 2, "its own");
    drop(link);
    assert_eq!(namespaces_of(std::process::id()), 0);
}

#[test]
#[ignore = "needs: root, tun, iproute2, util-linux"]
fn without_root_one_line_says_so() {
    // The programs' directory is mounted where other users can reach it.
    let directory = mafs_bench::mounted::Mounted::bind(Programs::build().unwrap().link().parent().unwrap()).unwrap();
    let mut program = Command::new("setpriv");
    program.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(directory.path().join("mafs-link"));
    let finished = finish(program.args(["--profile", "lan", "--server", "true", "--client", "true"]), LIMIT).unwrap();
    assert_eq!(finished.code(), 125, "{finished:?}");
    assert!(finished.stderr.starts_with("mafs-link: an emulated link needs root"), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
}

/// Starts the program with two commands that never end. Returns it and their process ids.
fn running(directory: &Path) -> (Child, [u32; 2]) {
    let mut program = Command::new(Programs::build().unwrap().link());
    program.args(["--profile", "lan"]).current_dir(directory).stdin(Stdio::null());
    for role in ["server", "client"] {
        program.arg(format!("--{role}")).arg(format!("echo $$ > {role}.new; mv {role}.new {role}; exec sleep 600"));
    }
    let program = program.spawn().unwrap();
    let files = ["server", "client"].map(|role| directory.join(role));
    wait_until(LIMIT, "both commands run", || Ok(files.iter().all(|file| file.exists()))).unwrap();
    (program, files.map(|file| fs::read_to_string(file).unwrap().trim().parse().unwrap()))
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Tells whether a process is gone. Nobody may have asked yet how an orphan ended.
fn is_gone(pid: u32) -> bool {
    matches!(measure::state(pid), None | Some('Z'))
}

fn namespaces_of(pid: u32) -> usize {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let own = format!("mafs-link-{pid}-");
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
}
