//! A watchdog: ends a test that hangs in a call on a mount, where no signal reaches it.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

/// A watch over a time limit, until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Starts the watch. After `limit` every call on the FUSE file systems `mounts`, under way or later, fails with
    /// an error.
    #[must_use]
    pub fn start(limit: Duration, mounts: Vec<PathBuf>) -> Self {
        let (stop, stopped) = channel();
        thread::spawn(move || {
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test has not ended after {limit:?}: its mounts are aborted");
                for mount in mounts {
                    // Aborts the connection, also if the mount is busy and stays, or its daemon hangs in the kernel.
                    let _ = unmount(&mount, UnmountFlags::FORCE);
                }
            }
        });
        Self { _stop: stop }
    }
}
