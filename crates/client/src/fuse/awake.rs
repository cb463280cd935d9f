//! Processors that stay awake while programs make one request after another.
//!
//! A request wakes a session thread and its answer wakes the program. In a virtual machine a processor with nothing to
//! do is given back to the host, and waking it costs 50 us and more: an open of a cached file took 50 to 150 us, and
//! takes 19 when they stay awake (2 processors, `guest_halt_poll_ns` 0). So a burst of requests asks the kernel not to
//! let them sleep, by way of its PM QoS interface, until the burst is over. Real machines are left alone: their idle
//! states are chosen by how long the sleep will be, and the lightest is left in a microsecond.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

/// The file with the kernel's name for the way a processor idles. This matters in guests of KVM only, and of latencies
/// that are asked for the driver knows none but zero.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const HALT_POLLING: &str = "haltpoll";

/// The device that takes the latency which waking may have, for as long as it is open. Belongs to root.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";
const NO_LATENCY_US: i32 = 0;
const ANY_LATENCY: i32 = -1;

/// The most processors: all are kept awake, whichever program needs them, and with more that costs too much for one
/// program that waits.
const PROCESSORS_MAX: usize = 8;

/// The requests, and the time, that make a burst: `git status` makes 22 in 10 ms, a desktop that nobody uses none.
const BURST_REQUESTS: u32 = 8;
const BURST_WITHIN: Duration = Duration::from_millis(10);

/// The time that processors stay awake from the request that makes a burst. A burst that goes on renews it every
/// [`BURST_WITHIN`].
const STAY_AWAKE: Duration = Duration::from_millis(20);

/// Keeps the processors awake, or lets them sleep. The seam to the kernel.
type Keep = Box<dyn Fn(bool) -> io::Result<()> + Send + Sync>;

/// Notices bursts of requests.
pub(super) struct Awake {
    keep: Keep,
    runtime: Handle,
    burst: Mutex<Burst>,
}

struct Burst {
    since: Instant,
    requests: u32,
    awake_until: Option<Instant>,
}

impl Awake {
    /// Makes one; `None` where waking is cheap, or this process may not change the latency. Lets processors sleep
    /// again from tasks in `runtime`.
    pub(super) fn find(runtime: Handle) -> Option<Arc<Self>> {
        let driver = std::fs::read_to_string(IDLE_DRIVER).ok()?;
        let processors = std::thread::available_parallelism().ok()?.get();
        if driver.trim() != HALT_POLLING || processors > PROCESSORS_MAX {
            return None;
        }
        let device = OpenOptions::new().write(true).open(LATENCY_DEVICE).ok()?;
        Some(Self::new(runtime, Box::new(move |awake| ask(&device, awake))))
    }

    fn new(runtime: Handle, keep: Keep) -> Arc<Self> {
        let burst = Burst { since: Instant::now(), requests: 0, awake_until: None };
        Arc::new(Self { keep, runtime, burst: Mutex::new(burst) })
    }

    /// Counts a request, and keeps the processors awake if it makes a burst.
    pub(super) fn note_request(self: &Arc<Self>) {
        let now = Instant::now();
        let mut burst = self.lock();
        if now - burst.since >= BURST_WITHIN {
            (burst.since, burst.requests) = (now, 0);
        }
        burst.requests += 1;
        if burst.requests == BURST_REQUESTS && burst.awake_until.replace(now + STAY_AWAKE).is_none() {
            self.keep(true);
            self.runtime.spawn(Arc::clone(self).end_of_burst());
        }
    }

    async fn end_of_burst(self: Arc<Self>) {
        loop {
            let until = {
                let mut burst = self.lock();
                match burst.awake_until {
                    Some(until) if until > Instant::now() => until,
                    _ => {
                        burst.awake_until = None;
                        return self.keep(false);
                    }
                }
            };
            tokio::time::sleep_until(until).await;
        }
    }

    fn keep(&self, awake: bool) {
        if let Err(error) = (self.keep)(awake) {
            tracing::debug!(%error, awake, "{LATENCY_DEVICE} does not take a wish");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Burst> {
        self.burst.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(mut device: &File, awake: bool) -> io::Result<()> {
    let latency = if awake { NO_LATENCY_US } else { ANY_LATENCY };
    device.write_all(&latency.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wishes, and the time of each.
    type Asked = Arc<Mutex<Vec<(Duration, bool)>>>;

    fn awake() -> (Arc<Awake>, Asked) {
        let (asked, start) = (Asked::default(), Instant::now());
        let book = Arc::clone(&asked);
        let keep = move |awake| {
            book.lock().unwrap().push((start.elapsed(), awake));
            Ok(())
        };
        (Awake::new(Handle::current(), Box::new(keep)), asked)
    }

    async fn requests(awake: &Arc<Awake>, count: u32, every: Duration) {
        for _ in 0..count {
            awake.note_request();
            tokio::time::sleep(every).await;
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_no_burst_ask_for_nothing() {
        let (awake, asked) = awake();
        requests(&awake, 1000, 2 * MS).await;
        requests(&awake, BURST_REQUESTS - 1, Duration::ZERO).await;
        tokio::time::sleep(BURST_WITHIN).await;
        requests(&awake, BURST_REQUESTS - 1, Duration::ZERO).await;
        assert_eq!(*asked.lock().unwrap(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_keeps_processors_awake_from_its_eighth_request_until_shortly_after() {
        let (awake, asked) = awake();
        requests(&awake, 8, MS).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*asked.lock().unwrap(), [(7 * MS, true), (27 * MS, false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_that_goes_on_is_asked_for_once() {
        let (awake, asked) = awake();
        requests(&awake, 1000, MS).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = asked.lock().unwrap();
        let [(_, true), (end, false)] = asked[..] else { panic!("{asked:?}") };
        assert!(end > 1000 * MS && end <= 1000 * MS + STAY_AWAKE, "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_burst_asks_again() {
        let (awake, asked) = awake();
        for _ in 0..3 {
            requests(&awake, 20, Duration::ZERO).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let wishes: Vec<_> = asked.lock().unwrap().iter().map(|(_, awake)| *awake).collect();
        assert_eq!(wishes, [true, false, true, false, true, false]);
    }

    #[test]
    fn the_device_gets_four_bytes_of_this_machine() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let device = File::create(&path).unwrap();
        ask(&device, true).unwrap();
        ask(&device, false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0, 0, 0, 0, 255, 255, 255, 255]);
    }
}
