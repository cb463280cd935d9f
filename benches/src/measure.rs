//! Measures of a running process, read from `/proc`: memory of its own, processor time.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often memory is sampled: 10 Hz.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// USER_HZ is 100 on every architecture that matters here.
const MILLIS_PER_TICK: u64 = 10;

/// The bytes of memory that belong to a process alone and are no file's (`RssAnon`).
///
/// # Errors
/// If there is no such process.
pub fn rss_anon(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB"));
    let kilobytes = kilobytes.and_then(|number| number.trim().parse::<u64>().ok());
    kilobytes.map(|number| number * 1024).ok_or_else(|| io::Error::other(format!("no RssAnon of process {pid}")))
}

/// The processor time that a process has used, in user and system mode, with threads that have ended, to 10 ms.
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // utime and stime, in USER_HZ.
    let ticks = stat_field(pid, 14)? + stat_field(pid, 15)?;
    Ok(Duration::from_millis(ticks * MILLIS_PER_TICK))
}

/// When a process was started, in ticks since the machine was: with its id that names it for ever.
///
/// # Errors
/// If there is no such process.
pub fn started_at(pid: u32) -> io::Result<u64> {
    stat_field(pid, 22)
}

/// The process that a process is a child of; `None` if there is no such process.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    let pid = u32::try_from(pid).ok()?;
    stat_field(pid, 4).ok().and_then(|parent| i32::try_from(parent).ok())
}

/// A number out of the line of `/proc/PID/stat`, whose fields proc(5) counts from 1.
fn stat_field(pid: u32, field: usize) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, is the 2nd and may hold anything.
    let value = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(field - 3)?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("stat of process {pid} has no number in field {field}: {stat:?}")))
}

/// The one-letter state of a process, as `ps` shows it: `S` and `D` wait, `R` runs, `Z` has ended. `None` if there is
/// none.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Watches the memory of processes until it is asked for the peaks.
#[derive(Debug)]
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<u64>>>,
}

impl MemoryWatch {
    /// Starts to sample `pids`.
    #[must_use]
    pub fn start(pids: Vec<u32>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut peaks = vec![0; pids.len()];
            while !stopped.load(Ordering::Relaxed) {
                for (pid, peak) in pids.iter().zip(&mut peaks) {
                    *peak = rss_anon(*pid)?.max(*peak);
                }
                thread::sleep(SAMPLE_INTERVAL);
            }
            Ok(peaks)
        });
        Self { stop, thread }
    }

    /// The largest values seen, in bytes, in the order of the processes.
    ///
    /// # Errors
    /// If a process ended meanwhile.
    pub fn peaks(self) -> io::Result<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| io::Error::other("the memory watch panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn memory_and_time_of_this_process_are_seen() {
        let pid = std::process::id();
        let before = rss_anon(pid).unwrap();
        let watch = MemoryWatch::start(vec![pid]);
        let start = (Instant::now(), cpu_time(pid).unwrap());
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        while start.0.elapsed() < 3 * SAMPLE_INTERVAL {
            std::hint::black_box(&block);
        }
        assert!(cpu_time(pid).unwrap() > start.1);
        assert!(watch.peaks().unwrap()[0] > before + (60 << 20));
        assert!(state(pid).is_some());
        assert_eq!(state(u32::MAX), None);
    }
}
