//! The thread that carries the packets of one direction from one device to the other, each when it arrives.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use mafs_arpc::BootClock;
use mafs_arpc::link::{Link, PACKET_BYTES};
use mafs_proto::{Clock, Instant};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::way::{Counts, Way};

/// Limit of a packet: the devices segment in software, so none is longer.
#[allow(clippy::cast_possible_truncation, reason = "it is 1500")]
const PACKET_BYTES_MAX: usize = PACKET_BYTES as usize;

/// Packets that are read before those that have arrived get their turn.
const BURST_PACKETS: usize = 64;

/// A carrier of packets until it is dropped.
#[derive(Debug)]
pub(super) struct Carrier {
    way: Arc<Mutex<Way>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts to carry the packets that come out of `from` over `link` into `to`. Both are devices that do not block.
    pub(super) fn start(link: Link, from: &Arc<File>, to: &Arc<File>) -> io::Result<Self> {
        let way = Arc::new(Mutex::new(Way::new(link)));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (its_way, its_stop) = (Arc::clone(&way), Arc::clone(&stop));
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        let carry = move || {
            if let Err(error) = carry(&its_way, &from, &to, &its_stop) {
                eprintln!("an emulated link has broken: {error}");
            }
        };
        let thread = Some(thread::Builder::new().name("link".to_owned()).spawn(carry)?);
        Ok(Self { way, stop, thread })
    }

    pub(super) fn set_unplugged(&self, unplugged: bool) {
        lock(&self.way).set_unplugged(unplugged);
    }

    pub(super) fn set_udp_blocked(&self, blocked: bool) {
        lock(&self.way).set_udp_blocked(blocked);
    }

    pub(super) fn counts(&self) -> Counts {
        lock(&self.way).counts()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let stopped = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (stopped, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn carry(way: &Mutex<Way>, from: &File, to: &File, stop: &OwnedFd) -> io::Result<()> {
    loop {
        take_in(&mut lock(way), from)?;
        let next = give_out(&mut lock(way), to);
        // An arrival in the past is one that came meanwhile: look at once.
        let timeout =
            next.map(|at| Timespec::try_from(at.since(BootClock.now()))).transpose().map_err(io::Error::other)?;
        let mut watched = [PollFd::new(from, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !watched[1].revents().is_empty() {
            return Ok(());
        }
    }
}

fn take_in(way: &mut Way, mut from: &File) -> io::Result<()> {
    let mut packet = [0; PACKET_BYTES_MAX];
    for _ in 0..BURST_PACKETS {
        match from.read(&mut packet) {
            Ok(bytes) => way.offer(&packet[..bytes], BootClock.now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the packets that have arrived, and returns when the next one arrives.
fn give_out(way: &mut Way, mut to: &File) -> Option<Instant> {
    while let Some(packet) = way.take_arrived(BootClock.now()) {
        // A host whose interface is down does not hear.
        let _ = to.write(&packet);
    }
    way.next_arrival()
}

fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}
