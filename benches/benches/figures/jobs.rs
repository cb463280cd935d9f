//! Runs in virtual time, several at once: each is a world of its own in a thread of its own.

use std::env;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` with each job. The results are in the jobs' order, so they do not depend on how many jobs run at once:
/// `MAFS_FIGURE_THREADS`, as many as there are processors by default.
pub(crate) fn run_all<J: Sync, T: Send>(jobs: &[J], work: impl Fn(&J) -> io::Result<T> + Sync) -> io::Result<Vec<T>> {
    let wanted = env::var("MAFS_FIGURE_THREADS").ok().and_then(|text| text.parse().ok());
    let threads = wanted.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let record = |number, result| done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
    let work_on = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return };
            record(number, work(job));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(work_on);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}
