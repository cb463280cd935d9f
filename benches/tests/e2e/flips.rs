//! A byte that changes between client and server: no program sees it, the server does not store it, and everything
//! arrives.
//!
//! A changed byte in the length that HTTP/2 or gRPC puts before a frame makes its receiver wait for bytes that do not
//! come. This outage is like any other: the connection is given up after 5 s, and programs may be told meanwhile that
//! a new file is not there. So those are asked again, and counted.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mafs_bench::content::{Random, bytes, check_file, write_file};
use mafs_bench::process::{finish, run};
use mafs_bench::world::World;

use crate::number_from_env;

/// Sizes that are sent in a call's own frame, in a few, and in many.
const SIZES: [u64; 5] = [100, 6_000, 40_000, 300_000, 2_000_000];
/// Bytes of calls and frames besides: a byte may change in these as well.
const BESIDES: u64 = 600;

const LIMIT: Duration = Duration::from_secs(60);

/// Direction in which bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    ToServer,
    ToClient,
}

/// The change to come, and the count of the changes that there were.
#[derive(Debug, Default)]
struct Flips {
    next: Option<(Way, u64, u8)>,
    done: u64,
}

/// Carries connections to a server, and changes bytes.
#[derive(Clone)]
struct Proxy {
    server: SocketAddr,
    flips: Arc<Mutex<Flips>>,
}

impl Proxy {
    /// Begins to carry. Returns the address where it listens.
    fn start(server: SocketAddr) -> (Self, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (proxy, address) = (Self { server, flips: Arc::default() }, listener.local_addr().unwrap());
        let carrying = proxy.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|client| carrying.carry(client)));
        (proxy, address)
    }

    fn carry(&self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let ends = [(&client, &server, Way::ToServer), (&server, &client, Way::ToClient)];
        for (from, to, way) in ends {
            let (from, to, proxy) = (from.try_clone().unwrap(), to.try_clone().unwrap(), self.clone());
            to.set_nodelay(true).unwrap();
            thread::spawn(move || proxy.pass_on(from, to, way));
        }
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, way: Way) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            self.flips.lock().unwrap().touch(way, &mut buffer[..count]);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The other end hears that the connection has ended, and the other thread ends.
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }

    /// Changes one byte of what comes, somewhere among so many.
    fn flip(&self, way: Way, among: u64, random: &mut Random) {
        let mask = u8::try_from(random.below(255)).unwrap() + 1;
        self.flips.lock().unwrap().next = Some((way, random.below(among), mask));
    }
}

impl Flips {
    fn touch(&mut self, way: Way, bytes: &mut [u8]) {
        let Some((wanted, left, mask)) = &mut self.next else { return };
        if *wanted != way {
            return;
        }
        match bytes.get_mut(usize::try_from(*left).unwrap()) {
            Some(byte) => {
                *byte ^= *mask;
                self.next = None;
                self.done += 1;
            }
            None => *left -= bytes.len() as u64,
        }
    }
}

/// Chooses the usual way, and one of eight times the other way.
fn way(usual: Way, random: &mut Random) -> Way {
    match (usual, random.below(8)) {
        (Way::ToServer, 0) => Way::ToClient,
        (Way::ToClient, 0) => Way::ToServer,
        (usual, _) => usual,
    }
}

#[test]
#[ignore = "needs: fuse, root"]
fn a_byte_that_changes_on_its_way_is_never_shown_nor_stored_and_everything_arrives() {
    let (rounds, seed) = (number_from_env("MAFS_FLIPS", 20), number_from_env("MAFS_SEED", 1));
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    let near = world.another_client("near").unwrap();
    let (proxy, address) = Proxy::start(world.address().parse().unwrap());
    world.set_client_address(address);
    world.start_client().unwrap();
    let (mut random, mut outages) = (Random::new(seed), 0);
    let (far, near) = (world.mount(), near.mount());
    for round in 0..rounds {
        outages += upload(&proxy, &far, &near, round, &mut random);
        outages += download(&proxy, &far, &near, round, &mut random);
    }
    let flips = proxy.flips.lock().unwrap().done;
    let status = run(world.client_command().args(["status", "--json"]).arg(&far), LIMIT).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let ended = status["damaged_connections"].as_u64().unwrap();
    println!("seed {seed}: {flips} bytes changed, {ended} connections ended for one, {outages} outages");
    assert!(flips >= rounds, "{flips}");
    assert!(ended > 0 && outages <= 1 + rounds / 50, "{ended} ended, {outages} outages");
    assert_eq!((&status["unsent_files"], &status["refused"]), (&0.into(), &serde_json::json!([])));
    world.stop_server().unwrap();
    let verified = finish(world.server_command().args(["verify", "--data"]).arg(world.store()), LIMIT).unwrap();
    assert_eq!(verified.code(), 0, "{verified:?}");
}

/// Does the work again as long as an outage may last. Returns how often it was done in vain.
fn through_outages(what: &str, mut work: impl FnMut() -> io::Result<()>) -> u64 {
    let begun = Instant::now();
    for outages in 0.. {
        match work() {
            Ok(()) => return outages,
            Err(error) if is_outage(&error) && begun.elapsed() < LIMIT => thread::sleep(Duration::from_secs(1)),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    unreachable!("it ends with the limit")
}

fn is_outage(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TimedOut)
}

fn upload(proxy: &Proxy, far: &Path, near: &Path, round: u64, random: &mut Random) -> u64 {
    let size = SIZES[usize::try_from(random.below(5)).unwrap()];
    let name = format!("up-{round}");
    proxy.flip(way(Way::ToServer, random), size + BESIDES, random);
    let outages = through_outages(&name, || write_file(&far.join(&name), round, size));
    check_file(&near.join(&name), round, size).unwrap_or_else(|error| panic!("upload {round}: {error}"));
    outages
}

fn download(proxy: &Proxy, far: &Path, near: &Path, round: u64, random: &mut Random) -> u64 {
    let size = SIZES[usize::try_from(random.below(5)).unwrap()];
    let name = format!("down-{round}");
    write_file(&near.join(&name), round, size).unwrap();
    proxy.flip(way(Way::ToClient, random), size + BESIDES, random);
    let outages = through_outages(&name, || {
        let read = fs::read(far.join(&name))?;
        assert!(read == bytes(round, usize::try_from(size).unwrap()), "download {round}");
        Ok(())
    });
    fs::remove_file(near.join(&name)).unwrap();
    outages
}
