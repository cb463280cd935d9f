//! Measures of a running process, read from `/proc`: memory of its own, processor time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between samples of memory: 10 Hz.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// USER_HZ is 100 on every architecture that matters here.
const MILLIS_PER_TICK: u64 = 10;

/// Returns the bytes of memory that belong to a process alone and are no file's (`RssAnon`).
///
/// # Errors
/// If there is no such process.
pub fn rss_anon(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB"));
    let kilobytes = kilobytes.and_then(|number| number.trim().parse::<u64>().ok());
    kilobytes.map(|number| number * 1024).ok_or_else(|| io::Error::other(format!("no RssAnon of process {pid}")))
}

/// Returns the processor time that a process has used, in user and system mode, with threads that have ended, to 10
/// ms.
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // utime and stime, in USER_HZ.
    let ticks = stat_field(pid, 14)? + stat_field(pid, 15)?;
    Ok(Duration::from_millis(ticks * MILLIS_PER_TICK))
}

/// Returns the start of a process, in ticks since the machine started. Together with the process id it names the
/// process for ever.
///
/// # Errors
/// If there is no such process.
pub fn started_at(pid: u32) -> io::Result<u64> {
    stat_field(pid, 22)
}

/// Returns the parent of a process; `None` if there is no such process.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    let pid = u32::try_from(pid).ok()?;
    stat_field(pid, 4).ok().and_then(|parent| i32::try_from(parent).ok())
}

/// Returns a number out of the line of `/proc/PID/stat`, whose fields proc(5) counts from 1.
fn stat_field(pid: u32, field: usize) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, is the 2nd and may hold anything.
    let value = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(field - 3)?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("stat of process {pid} has no number in field {field}: {stat:?}")))
}

/// Returns the one-letter state of a process, as `ps` shows it: `S` and `D` wait, `R` runs, `Z` has ended. `None` if
/// there is no such process.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Counts how often each thread of a process has woken up since it started, by the thread's id.
fn wakeups(pid: u32) -> io::Result<HashMap<OsString, u32>> {
    let mut counts = HashMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
        counts.insert(task.file_name(), count.ok_or_else(|| io::Error::other("a thread without a count of switches"))?);
    }
    Ok(counts)
}

/// Use of the processor by processes during a watch.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// The share of one processor, to 10 ms.
    pub cpu_share: f64,
    /// Wakeups of the processes' threads, of those that are there at the end.
    pub wakeups_per_second: f64,
}

impl Usage {
    /// Watches `pids` for so long.
    ///
    /// # Errors
    /// If one of them does not run.
    pub fn during(window: Duration, pids: &[u32]) -> io::Result<Self> {
        let used = || pids.iter().map(|pid| cpu_time(*pid)).sum::<io::Result<Duration>>();
        let woken = || pids.iter().map(|pid| wakeups(*pid)).collect::<io::Result<Vec<_>>>();
        let (start, used_before, woken_before) = (Instant::now(), used()?, woken()?);
        thread::sleep(window);
        let seconds = start.elapsed().as_secs_f64();
        let before: HashMap<_, _> = woken_before.into_iter().flatten().collect();
        let wakeups = woken()?.into_iter().flatten().map(|(thread, count)| {
            // A thread that is new has its count from meanwhile.
            count.saturating_sub(before.get(&thread).copied().unwrap_or_default())
        });
        Ok(Self {
            cpu_share: used()?.saturating_sub(used_before).as_secs_f64() / seconds,
            wakeups_per_second: f64::from(wakeups.sum::<u32>()) / seconds,
        })
    }
}

/// A watch over the memory of processes, until it is asked for the peaks.
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
            loop {
                // The memory at the moment of the question counts too.
                let is_last = stopped.load(Ordering::Relaxed);
                for (pid, peak) in pids.iter().zip(&mut peaks) {
                    *peak = rss_anon(*pid)?.max(*peak);
                }
                if is_last {
                    return Ok(peaks);
                }
                thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self { stop, thread }
    }

    /// Returns the largest values seen, in bytes, in the order of the processes.
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
        while start.0.elapsed() < 3 * SAMPLE_INTERVAL || cpu_time(pid).unwrap() == start.1 {
            std::hint::black_box(&block);
        }
        let peak = watch.peaks().unwrap()[0];
        // Other tests of this process may have freed what they had.
        assert!(peak > before + (32 << 20), "{peak} after {before}");
        drop(std::hint::black_box(block));
        assert!(state(pid).is_some());
        assert_eq!(state(u32::MAX), None);
    }
}
