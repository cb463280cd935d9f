//! Changes that the kernel tells of: of links, addresses and routes, and of the clock when this host resumes.
//!
//! A thread waits for them, which costs nothing while there are none.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mafs_arpc::carrier::Ends;
use mafs_arpc::watch;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Network, Way, way_of};

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR and RTMGRP_IPV6_ROUTE.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// Messages within this time of the first are one change.
const GATHER: Duration = Duration::from_millis(10);
/// The rest after a change: nothing is looked at before it is over.
const REST: Duration = Duration::from_millis(40);
/// Messages that are taken at a time; their content is not looked at.
const MESSAGES_MAX: usize = 256;
/// A time of the wall clock that does not come. The kernel sets the timer off when the clock jumps.
const NEVER: Timespec = Timespec { tv_sec: 1 << 33, tv_nsec: 0 };

/// The network of this host. Watches it until it is dropped.
#[derive(Debug)]
pub struct HostNetwork {
    changes: Arc<watch::Sender<()>>,
    stop: Option<Arc<OwnedFd>>,
}

impl HostNetwork {
    /// Begins to watch. If the kernel does not let it a line of the log says so, and changes are noticed later, by
    /// timers.
    #[must_use]
    pub fn start() -> Self {
        let changes = Arc::new(watch::Sender::new(()));
        match watch(&changes) {
            Ok(stop) => Self { changes, stop: Some(stop) },
            Err(error) => {
                tracing::warn!(%error, "changes of this host's network are not noticed at once");
                Self { changes, stop: None }
            }
        }
    }
}

impl Drop for HostNetwork {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            // Only a number that is too large is refused.
            let _ = rustix::io::write(stop, &1_u64.to_ne_bytes());
        }
    }
}

impl Network for HostNetwork {
    fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn way(&self, ends: Ends) -> Way {
        way_of(ends)
    }
}

/// The sources of changes.
struct Sources {
    messages: OwnedFd,
    jumps: OwnedFd,
}

/// Starts the thread. Returns the descriptor that ends it.
fn watch(changes: &Arc<watch::Sender<()>>) -> io::Result<Arc<OwnedFd>> {
    let sources = Sources { messages: netlink_socket()?, jumps: jump_timer()? };
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (its_stop, its_changes) = (Arc::clone(&stop), Arc::clone(changes));
    let follow = move || {
        if let Err(error) = follow(&sources, &its_stop, &its_changes) {
            tracing::warn!(%error, "changes of this host's network are not noticed at once from now on");
        }
    };
    thread::Builder::new().name("network".to_owned()).spawn(follow)?;
    Ok(stop)
}

fn follow(sources: &Sources, stop: &OwnedFd, changes: &watch::Sender<()>) -> rustix::io::Result<()> {
    loop {
        let mut watched = [stop, &sources.messages, &sources.jumps].map(|source| PollFd::new(source, PollFlags::IN));
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let [stopped, told, jumped] = watched.map(|source| !source.revents().is_empty());
        if stopped {
            return Ok(());
        }
        if told {
            thread::sleep(GATHER);
            take_messages(&sources.messages)?;
        }
        if jumped {
            take_jump(&sources.jumps)?;
        }
        if told || jumped {
            tracing::debug!(jumped, "this host's network has changed, or it was suspended");
            changes.send_replace(());
            thread::sleep(REST);
        }
    }
}

fn netlink_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The first protocol of the family is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

/// Takes the messages that are there. An error that some were lost counts as a message.
fn take_messages(socket: &OwnedFd) -> rustix::io::Result<()> {
    for _ in 0..MESSAGES_MAX {
        match recv(socket, &mut [0; 16][..], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a timer that goes off when the wall clock jumps, as it does after a suspend.
fn jump_timer() -> rustix::io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    arm(&timer)?;
    Ok(timer)
}

fn arm(timer: &OwnedFd) -> rustix::io::Result<()> {
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: NEVER };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once).map(drop)
}

/// Takes a jump, with which reading the timer fails, and arms the timer for the next.
fn take_jump(timer: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::io::read(timer, &mut [0; 8][..]) {
        Ok(_) | Err(Errno::CANCELED | Errno::AGAIN | Errno::INTR) => arm(timer),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs: netlink"]
    fn a_network_can_be_watched_and_its_thread_ends_with_it() {
        let network = HostNetwork::start();
        let (stop, changes) = (network.stop.clone().unwrap(), Arc::clone(&network.changes));
        take_messages(&netlink_socket().unwrap()).unwrap();
        take_jump(&jump_timer().unwrap()).unwrap();
        drop(network);
        let ended = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            (Arc::strong_count(&stop), Arc::strong_count(&changes)) == (1, 1)
        });
        assert!(ended, "the thread is still there");
    }
}
