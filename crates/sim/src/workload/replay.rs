//! Replays a [`Trace`]: its processes run beside each other at one client.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::trace::{Trace, TraceShape};
use super::{Tree, content, failed};

/// How long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// Until the last read had ended: the paper's trace duration.
    pub last_read: Duration,
    /// Until the last access of any kind had ended.
    pub last_access: Duration,
    /// Until the server had everything besides.
    pub sent_after: Duration,
    /// The sum of all reads' times: what is in the cache takes none, so these are the fetches.
    pub fetching: Duration,
}

const NOTHING: Replayed = Replayed {
    last_read: Duration::ZERO,
    last_access: Duration::ZERO,
    sent_after: Duration::ZERO,
    fetching: Duration::ZERO,
};

const DIR: &str = "trace";

/// Whether the first access to each file has ended.
type Begun = Arc<[watch::Sender<bool>]>;

/// Makes the files that are there before the trace begins.
///
/// # Errors
/// What the file system says.
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
/// What the file system says.
pub async fn replay(shape: &TraceShape, trace: &Trace, tree: &Tree) -> Result<Replayed, String> {
    let start = Instant::now();
    let begun: Begun = trace.sizes.iter().map(|_| watch::Sender::new(false)).collect();
    let all = Arc::new(trace.clone());
    let mut processes = JoinSet::new();
    for process in 0..shape.processes {
        processes.spawn(run(start, process, Arc::clone(&all), Arc::clone(&begun), tree.clone()));
    }
    let mut sum = NOTHING;
    while let Some(ended) = processes.join_next().await {
        let ended = ended.map_err(|error| failed("a process", error))??;
        sum.last_read = sum.last_read.max(ended.last_read);
        sum.last_access = sum.last_access.max(ended.last_access);
        sum.fetching += ended.fetching;
    }
    tree.vfs().sync().await.map_err(|error| failed("sync", error))?;
    sum.sent_after = start.elapsed();
    Ok(sum)
}

async fn run(start: Instant, process: usize, trace: Arc<Trace>, begun: Begun, tree: Tree) -> Result<Replayed, String> {
    let mut took = NOTHING;
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
        let began = Instant::now();
        if access.writes {
            tree.write(DIR, &name(access.file), content(trace.sizes[access.file])).await?;
        } else {
            tree.read(DIR, &name(access.file)).await?;
            took.fetching += began.elapsed();
            took.last_read = start.elapsed();
        }
        took.last_access = start.elapsed();
        begun[access.file].send_replace(true);
    }
    Ok(took)
}

fn name(file: usize) -> String {
    format!("{file}")
}
