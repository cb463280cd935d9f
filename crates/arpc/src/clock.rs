//! The real clock, and how blocking work is run.

use mafs_proto::{Clock, Instant, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// `CLOCK_BOOTTIME`: runs through suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        // Neither is ever negative on this clock.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Instant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn wall(&self) -> Timestamp {
        std::time::SystemTime::now().into()
    }
}

/// Runs a call that may block on the local disk: off the executor's core on a multi-threaded runtime, in place on a
/// single-threaded one (the simulator), where it must not switch threads.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    if is_multi_threaded() { tokio::task::block_in_place(work) } else { work() }
}

/// Runs longer work, which the caller need not wait for: on a thread of its own, or on a single-threaded runtime in a
/// task, so that runs of the simulator repeat. Must be called in a runtime.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if is_multi_threaded() { tokio::task::spawn_blocking(work) } else { tokio::spawn(async { work() }) }
}

/// Runs a daemon on so many threads until it ends, and its process soon after. Tasks that still wait then, as for
/// programs that have lost an open file, end with the process: a runtime that is dropped stops its timers before its
/// tasks, and tokio 1.54 panics in one that looks at a timer (once in 6 times that Ctrl-C came while 3 GB were being
/// written).
///
/// # Errors
/// The system's error if the threads cannot be started.
pub fn run_to_end<T>(workers: usize, daemon: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let ended = runtime.block_on(daemon);
    std::mem::forget(runtime);
    Ok(ended)
}

fn is_multi_threaded() -> bool {
    Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_still_waits_when_a_daemon_ends_is_not_disturbed() {
        let (sender, ended) = std::sync::mpsc::channel();
        let (begun, begin) = tokio::sync::oneshot::channel();
        let daemon = async {
            tokio::spawn(async move {
                // This is like an operation that waits for the disk and is then looked at again.
                blocking(|| {
                    let _ = begun.send(());
                    std::thread::sleep(Duration::from_millis(200));
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
                let _ = sender.send(());
            });
            begin.await
        };
        run_to_end(2, daemon).unwrap().unwrap();
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn boot_clock_counts_from_the_start_of_the_machine() {
        let before = BootClock.now();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: u64 = uptime.split('.').next().unwrap().parse().unwrap();
        assert!(before <= BootClock.now());
        assert!((before.0 / 1_000_000_000).abs_diff(seconds) < 5, "{before:?} {seconds}");
    }
}
