//! The network changes below a mount: a link goes down and comes up, an address is replaced, a handoff is announced.

use std::env;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::content::{check_file, write_file};
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(60);
const RTT: Duration = Duration::from_millis(20);
const RATE: u64 = 1 << 20;
/// Time that a busy machine adds to the measured times.
const SLACK: Duration = Duration::from_millis(150);
/// Address that the client moves to.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Time that a client that roams has no link, and time that it has one in between.
const BLACKOUT: Duration = Duration::from_millis(1500);
const BETWEEN_BLACKOUTS: Duration = Duration::from_secs(5);

const PROTOS: [&str; 2] = ["tcp", "quic"];

fn start(proto: &str) -> (World, Watchdog) {
    let link = EmulatedLink::start(&Profile::steady(RATE, RTT)).unwrap();
    let world = World::start_over(link, &format!("writeback=sync,proto={proto}")).unwrap();
    let watchdog = Watchdog::start(3 * LIMIT, vec![world.mount()]);
    (world, watchdog)
}

/// Runs lines of ip(8) at the client's end, one right after the other.
fn at_client(world: &World, lines: &str) {
    let script = lines.lines().map(|line| format!("ip {line}")).collect::<Vec<_>>().join(" && ");
    run(world.link().unwrap().client_command("sh").args(["-c", &script]), LIMIT).unwrap();
}

fn set_link(world: &World, state: &str) {
    at_client(world, &format!("link set dev link0 {state}"));
}

/// Gives the client another address in place of its own.
fn move_client(world: &World) {
    replace_address(world, EmulatedLink::CLIENT, ELSEWHERE);
}

fn replace_address(world: &World, old: Ipv4Addr, new: Ipv4Addr) {
    let server = world.link().unwrap().server_command("ip");
    run({ server }.args(["route", "replace", &new.to_string(), "dev", "link0"]), LIMIT).unwrap();
    let peer = EmulatedLink::SERVER;
    at_client(world, &format!("address del {old} peer {peer} dev link0\naddress add {new} peer {peer} dev link0"));
}

/// Returns how long it takes until the mount says that its server is out of reach.
fn until_noticed(world: &World) -> Duration {
    let begun = Instant::now();
    let is_noticed = || {
        let text = run(&mut command(world, &["status", "--json"]), LIMIT)?;
        let status: serde_json::Value = serde_json::from_str(&text).map_err(io::Error::other)?;
        Ok(status["disconnected"] == true)
    };
    wait_until(LIMIT, "the outage is noticed", is_noticed).unwrap();
    begun.elapsed()
}

/// Returns how long it takes until a file that is not cached can be read, if it can be.
fn until_read(path: &Path) -> Duration {
    let begun = Instant::now();
    while fs::read(path).is_err() {
        assert!(begun.elapsed() < LIMIT, "{} cannot be read", path.display());
        thread::sleep(Duration::from_millis(2));
    }
    begun.elapsed()
}

fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.client_command();
    command.args(arguments).arg(world.mount());
    command
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_link_that_is_down_is_noticed_at_once_and_one_that_is_up_is_used_at_once() {
    for proto in PROTOS {
        let (world, _watchdog) = start(proto);
        let mut other = world.another_client_beside_server("other").unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            fs::write(other.mount().join(name), name.repeat(2000)).unwrap();
        }
        let mount = world.mount();
        assert_eq!(fs::read(mount.join("a")).unwrap().len(), 2000);
        for name in ["b", "c", "d"] {
            set_link(&world, "down");
            let noticed = until_noticed(&world);
            assert_eq!(fs::read(mount.join("a")).unwrap().len(), 2000, "what is cached can be used");
            let path = mount.join(name);
            let reading = thread::spawn(move || fs::read(path));
            thread::sleep(BLACKOUT);
            set_link(&world, "up");
            let begun = Instant::now();
            assert_eq!(reading.join().unwrap().unwrap().len(), 2000, "who needs the server waits for a moment");
            let answered = begun.elapsed();
            println!("{proto}: down noticed within {noticed:?}, first answer {answered:?} after up");
            assert!(noticed < Duration::from_millis(100) + SLACK, "{proto}: {noticed:?}");
            assert!(answered < Duration::from_millis(200) + RTT + SLACK, "{proto}: {answered:?}");
        }
        set_link(&world, "down");
        until_noticed(&world);
        let begun = Instant::now();
        fs::read(mount.join("e")).unwrap_err();
        let waited = begun.elapsed();
        assert!((4..8).contains(&waited.as_secs()), "{proto}: an outage that lasts is not waited for: {waited:?}");
        let begun = Instant::now();
        fs::read(mount.join("e")).unwrap_err();
        assert!(begun.elapsed() < SLACK, "{proto}: at once, now: {:?}", begun.elapsed());
        set_link(&world, "up");
        assert!(until_read(&mount.join("e")) < Duration::from_millis(200) + RTT + SLACK, "{proto}");
        other.stop().unwrap();
    }
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn transfers_and_changes_of_others_survive_another_address() {
    for proto in PROTOS {
        let (world, _watchdog) = start(proto);
        let mut other = world.another_client_beside_server("other").unwrap();
        let mount = world.mount();
        let shared = other.mount().join("shared");
        fs::write(&shared, "first").unwrap();
        write_file(&other.mount().join("far"), 7, 3_000_000).unwrap();
        assert_eq!(fs::read_to_string(mount.join("shared")).unwrap(), "first");
        let [sent_before, _] = world.link().unwrap().counts().map(|counts| counts.bytes);
        let begun = Instant::now();
        let (up, down) = (mount.join("near"), mount.join("far"));
        let uploading = thread::spawn(move || write_file(&up, 3, 3_000_000));
        let downloading = thread::spawn(move || fs::read(down));
        thread::sleep(Duration::from_secs(1));
        move_client(&world);
        let moved = Instant::now();
        fs::write(&shared, "second").unwrap();
        let waited = moved.elapsed();
        assert_eq!(fs::read_to_string(mount.join("shared")).unwrap(), "second");
        uploading.join().unwrap().unwrap();
        assert_eq!(downloading.join().unwrap().unwrap().len(), 3_000_000);
        let took = begun.elapsed();
        let [sent, _] = world.link().unwrap().counts().map(|counts| counts.bytes);
        println!("{proto}: another's change waited {waited:?}; both ways {took:?}; {} bytes up", sent - sent_before);
        assert!(waited < Duration::from_secs(2), "{proto}: {waited:?}");
        assert!(took < Duration::from_secs(6), "{proto}: {took:?}");
        other.stop().unwrap();
    }
}

/// Time of the transfers both ways, and bytes that the client's end has sent meanwhile.
struct Transfers {
    took: Duration,
    sent: u64,
}

/// Stores a file and reads another at once, of so many bytes. Meanwhile the client's link is gone for [`BLACKOUT`] so
/// many times, and each time it comes back with another address.
fn transfers(proto: &str, bytes: u64, blackouts: usize) -> Transfers {
    let (world, _watchdog) = start(proto);
    let mut other = world.another_client_beside_server("other").unwrap();
    write_file(&other.mount().join("far"), 7, bytes).unwrap();
    let mount = world.mount();
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 1);
    let sent = || world.link().unwrap().counts()[0].bytes;
    let (begun, sent_before) = (Instant::now(), sent());
    let (near, far) = (mount.join("near"), mount.join("far"));
    let uploading = thread::spawn(move || write_file(&near, 3, bytes));
    let downloading = thread::spawn(move || check_file(&far, 7, bytes));
    let addresses = [EmulatedLink::CLIENT, ELSEWHERE];
    for number in 0..blackouts {
        thread::sleep(BETWEEN_BLACKOUTS);
        set_link(&world, "down");
        thread::sleep(BLACKOUT);
        replace_address(&world, addresses[number % 2], addresses[(number + 1) % 2]);
        set_link(&world, "up");
    }
    uploading.join().unwrap().unwrap();
    downloading.join().unwrap().unwrap();
    let (took, sent) = (begun.elapsed(), sent() - sent_before);
    check_file(&other.mount().join("near"), 3, bytes).unwrap();
    other.stop().unwrap();
    Transfers { took, sent }
}

/// Compares transfers with and without outages; `MAFS_ROAM_MB` is how many megabytes go each way.
#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_client_that_roams_loses_the_outages_and_sends_little_again() {
    let bytes = env::var("MAFS_ROAM_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(8) * 1_000_000;
    for proto in PROTOS {
        let quiet = transfers(proto, bytes, 0);
        let blackouts = usize::try_from(quiet.took.as_secs() / BETWEEN_BLACKOUTS.as_secs()).unwrap();
        assert!(blackouts > 0);
        let roaming = transfers(proto, bytes, blackouts);
        let outages = BLACKOUT * u32::try_from(blackouts).unwrap();
        #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
        let again = roaming.sent as f64 / quiet.sent as f64 - 1.0;
        let (took, without) = (roaming.took, quiet.took);
        println!(
            "{proto}: {bytes} bytes both ways in {without:?}, with {blackouts} outages {took:?}; {:.1} % more sent",
            100.0 * again
        );
        // The link's own bound is 1.1 of what it carries; a busy machine adds to that.
        assert!(took < (without + outages).mul_f64(1.1) + 4 * SLACK, "{proto}: {took:?}");
        assert!(again < 0.05, "{proto}: {again}");
    }
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn who_has_moved_while_idle_lets_nobody_wait() {
    for proto in PROTOS {
        let (world, _watchdog) = start(proto);
        let mut other = world.another_client_beside_server("other").unwrap();
        let shared = other.mount().join("shared");
        fs::write(&shared, "first").unwrap();
        assert_eq!(fs::read_to_string(world.mount().join("shared")).unwrap(), "first");
        move_client(&world);
        let moved = Instant::now();
        fs::write(&shared, "second").unwrap();
        let waited = moved.elapsed();
        println!("{proto}: another's change waited {waited:?}");
        assert!(waited < Duration::from_secs(2), "{proto}: {waited:?}");
        assert_eq!(fs::read_to_string(world.mount().join("shared")).unwrap(), "second");
        other.stop().unwrap();
    }
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn during_a_handoff_nothing_is_declared_dead() {
    for proto in PROTOS {
        let (world, _watchdog) = start(proto);
        let mut other = world.another_client_beside_server("other").unwrap();
        for name in ["b", "c"] {
            fs::write(other.mount().join(name), name.repeat(2000)).unwrap();
        }
        assert_eq!(fs::read_dir(world.mount()).unwrap().count(), 2);
        run(&mut command(&world, &["handoff", "--for", "20"]), LIMIT).unwrap();
        let link = world.link().unwrap();
        link.set_unplugged(true);
        let reading = world.mount().join("b");
        let reading = thread::spawn(move || fs::read(reading));
        // Without a handoff a silent server is given up after 5 s, and the first probe.
        thread::sleep(Duration::from_secs(8));
        link.set_unplugged(false);
        let begun = Instant::now();
        assert_eq!(reading.join().unwrap().unwrap().len(), 2000, "{proto}");
        println!("{proto}: read {:?} behind a black hole of 8 s", begun.elapsed());
        set_link(&world, "down");
        let reading = world.mount().join("c");
        let reading = thread::spawn(move || fs::read(reading));
        thread::sleep(Duration::from_secs(1));
        set_link(&world, "up");
        assert_eq!(reading.join().unwrap().unwrap().len(), 2000, "{proto}");
        let log = world.client().unwrap().log_end();
        assert!(!log.contains("out of reach"), "{proto}: {log}");
        other.stop().unwrap();
    }
}
