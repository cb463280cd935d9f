//! Replays a [`Trace`]: its processes run beside each other at one client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::trace::Trace;
use super::{Tree, content, failed};

/// Times of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// Until the last read had ended: the paper's trace duration.
    pub last_read: Duration,
    /// Until the last access of any kind had ended.
    pub last_access: Duration,
    /// Until the server had everything besides.
    pub sent_after: Duration,
    /// The sum of all reads' times: cached files take none, so these are the fetches. A process that begins later,
    /// having waited for a write, shares the link with fewer others.
    pub fetching: Duration,
    /// How long at least one of them was under way.
    pub some_fetching: Duration,
    /// The sum of the times from when the trace has reads begin until they had ended: what their process has waited
    /// before is part of it.
    pub late: Duration,
}

/// An access that has ended; times since the beginning.
#[derive(Clone, Copy)]
struct Done {
    due: Duration,
    began: Duration,
    ended: Duration,
    writes: bool,
}

impl Replayed {
    fn new(done: &[Done], sent_after: Duration) -> Self {
        let mut reads: Vec<&Done> = done.iter().filter(|access| !access.writes).collect();
        reads.sort_unstable_by_key(|read| read.began);
        let (mut some_fetching, mut until) = (Duration::ZERO, Duration::ZERO);
        for read in &reads {
            some_fetching += read.ended.saturating_sub(read.began.max(until));
            until = until.max(read.ended);
        }
        Self {
            last_read: until,
            last_access: done.iter().map(|access| access.ended).max().unwrap_or_default(),
            sent_after,
            fetching: reads.iter().map(|read| read.ended - read.began).sum(),
            some_fetching,
            late: reads.iter().map(|read| read.ended - read.due).sum(),
        }
    }
}

const DIR: &str = "trace";

/// Whether the first access to each file has ended.
type Begun = Arc<[watch::Sender<bool>]>;

/// Makes the files that are there before the trace begins.
///
/// # Errors
/// The file system's error.
pub async fn populate(trace: &Trace, tree: &Tree) -> Result<(), String> {
    tree.make_dir(DIR).await?;
    for (file, size) in trace.sizes.iter().enumerate().filter(|(file, _)| trace.exists[*file]) {
        tree.write(DIR, &name(file), content(*size)).await?;
    }
    Ok(())
}

/// Replays a trace. A process begins an access at its time or, if it is late, when the one before has ended; and not
/// before the first access to the file has, which makes the file or brings it here.
///
/// # Errors
/// The file system's error.
pub async fn replay(trace: &Trace, tree: &Tree) -> Result<Replayed, String> {
    let start = Instant::now();
    let begun: Begun = trace.sizes.iter().map(|_| watch::Sender::new(false)).collect();
    let all = Arc::new(trace.clone());
    let mut processes = JoinSet::new();
    let processes_of: BTreeSet<usize> = trace.accesses.iter().map(|access| access.process).collect();
    for process in processes_of {
        processes.spawn(run(start, process, Arc::clone(&all), Arc::clone(&begun), tree.clone()));
    }
    let mut done = Vec::new();
    while let Some(ended) = processes.join_next().await {
        done.extend(ended.map_err(|error| failed("a process", error))??);
    }
    tree.vfs().sync().await.map_err(|error| failed("sync", error))?;
    Ok(Replayed::new(&done, start.elapsed()))
}

async fn run(start: Instant, process: usize, trace: Arc<Trace>, begun: Begun, tree: Tree) -> Result<Vec<Done>, String> {
    let mut done = Vec::new();
    let mut seen = vec![false; trace.sizes.len()];
    for (access, first) in
        trace.accesses.iter().map(|access| (access, !std::mem::replace(&mut seen[access.file], true)))
    {
        if access.process != process {
            continue;
        }
        sleep_until(start + access.at).await;
        if !first {
            // The sender lives in `begun`.
            let _ = begun[access.file].subscribe().wait_for(|begun| *begun).await;
        }
        let began = start.elapsed();
        if access.writes {
            tree.write(DIR, &name(access.file), content(trace.sizes[access.file])).await?;
        } else {
            tree.read(DIR, &name(access.file)).await?;
        }
        done.push(Done { due: access.at, began, ended: start.elapsed(), writes: access.writes });
        begun[access.file].send_replace(true);
    }
    Ok(done)
}

fn name(file: usize) -> String {
    format!("{file}")
}
