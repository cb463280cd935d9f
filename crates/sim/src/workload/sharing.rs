//! Performs a [`Plan`]: a writer and readers, each behind a link of its own, and what the readers saw.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_client::vfs::StatusReport;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::plan::{Access, Participant, Plan};
use super::staleness::{Read, Write};
use super::{Tree, failed};

/// A content is made of pieces so long that begin with file and version, so that a torn one is noticed.
const PIECE_BYTES: usize = 4096;
const FILES_PER_DIR: usize = 8;
/// How often it is looked whether what has been closed has been announced. An announcement meanwhile counts from the
/// next look on.
const LOOKED_EVERY: Duration = Duration::from_millis(20);

/// Outcome of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    /// In the writer's order.
    pub writes: Vec<Write>,
    /// Each reader's, in its order.
    pub reads: Vec<Vec<Read>>,
    /// When the writer's last access had ended.
    pub writer_took: Duration,
    /// When the server had everything besides.
    pub sent_after: Duration,
    /// When each reader's last access had ended.
    pub readers_took: Vec<Duration>,
}

/// Makes the files: version 0 of each.
///
/// # Errors
/// The file system's error.
pub async fn populate(plan: &Plan, tree: &Tree) -> Result<(), String> {
    for (file, length) in plan.lengths.iter().enumerate() {
        if file % FILES_PER_DIR == 0 {
            tree.make_dir(&dir(file)).await?;
        }
        tree.write(&dir(file), &name(file), content(file, 0, *length)).await?;
    }
    Ok(())
}

/// Performs a plan. `all_announced` says whether a client's server knows of all that has been closed, and has broken
/// the promises.
///
/// # Errors
/// The file system's error; a content that is none of the writer's; an update that was refused.
pub async fn share(
    plan: &Plan,
    writer: &Tree,
    readers: &[Tree],
    all_announced: fn(&StatusReport) -> bool,
) -> Result<Shared, String> {
    let start = Instant::now();
    let ledger = Ledger { start, writes: Arc::default(), writer: writer.clone(), all_announced };
    let mut reading = JoinSet::new();
    for (number, (operations, tree)) in plan.readers.iter().zip(readers).enumerate() {
        let (lengths, operations, tree) = (plan.lengths.clone(), operations.clone(), tree.clone());
        reading.spawn(async move { (number, read(start, &lengths, &operations, &tree).await) });
    }
    let watch = tokio::spawn(ledger.clone().watch());
    let writer_took = write(start, plan, writer, &ledger).await?;
    writer.vfs().sync().await.map_err(|error| failed("sync", error))?;
    let sent_after = start.elapsed();
    ledger.look();
    let mut reads: Vec<(usize, Vec<Read>, Duration)> = Vec::new();
    while let Some(ended) = reading.join_next().await {
        let (number, read) = ended.map_err(|error| failed("a reader", error))?;
        let (read, took) = read?;
        reads.push((number, read, took));
    }
    watch.abort();
    reads.sort_unstable_by_key(|(number, ..)| *number);
    let refused = writer.vfs().status().refused;
    if let Some((path, why)) = refused.first() {
        return Err(format!("{} updates were refused, {path} first: {why}", refused.len()));
    }
    let writes = ledger.writes().clone();
    let readers_took = reads.iter().map(|(.., took)| *took).collect();
    Ok(Shared {
        writes,
        reads: reads.into_iter().map(|(_, reads, _)| reads).collect(),
        writer_took,
        sent_after,
        readers_took,
    })
}

/// The writes so far, and since when each is announced. Clones are the same.
#[derive(Clone)]
struct Ledger {
    start: Instant,
    writes: Arc<Mutex<Vec<Write>>>,
    writer: Tree,
    all_announced: fn(&StatusReport) -> bool,
}

impl Ledger {
    fn writes(&self) -> MutexGuard<'_, Vec<Write>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(self) {
        loop {
            self.look();
            sleep(LOOKED_EVERY).await;
        }
    }

    fn look(&self) {
        let mut writes = self.writes();
        if writes.last().is_some_and(|write| write.announced.is_none())
            && (self.all_announced)(&self.writer.vfs().status())
        {
            let now = self.start.elapsed();
            let new = writes.iter_mut().rev().take_while(|write| write.announced.is_none());
            new.for_each(|write| write.announced = Some(now));
        }
    }
}

/// Performs the writer's accesses. Returns when the last had ended.
async fn write(start: Instant, plan: &Plan, tree: &Tree, ledger: &Ledger) -> Result<Duration, String> {
    let mut versions = vec![0; plan.lengths.len()];
    for operation in &plan.writer {
        sleep_until(start + operation.at).await;
        for Access { file, writes } in operation.accesses.iter().copied() {
            if !writes {
                let found = version(file, plan.lengths[file], &tree.read(&dir(file), &name(file)).await?)?;
                if found != versions[file] {
                    return Err(format!("the writer read version {found} of file {file} after {}", versions[file]));
                }
                continue;
            }
            versions[file] += 1;
            tree.write(&dir(file), &name(file), content(file, versions[file], plan.lengths[file])).await?;
            let closed = start.elapsed();
            ledger.writes().push(Write { file, version: versions[file], closed, announced: None });
            ledger.look();
        }
    }
    Ok(start.elapsed())
}

/// Performs a reader's accesses. Returns what was read, and when the last had ended.
async fn read(
    start: Instant,
    lengths: &[u64],
    operations: &Participant,
    tree: &Tree,
) -> Result<(Vec<Read>, Duration), String> {
    let mut reads = Vec::new();
    for operation in operations {
        sleep_until(start + operation.at).await;
        for Access { file, .. } in operation.accesses.iter().copied() {
            let began = start.elapsed();
            let content = tree.read(&dir(file), &name(file)).await?;
            let version = version(file, lengths[file], &content)?;
            reads.push(Read { file, began, ended: start.elapsed(), version });
        }
    }
    Ok((reads, start.elapsed()))
}

fn dir(file: usize) -> String {
    format!("set{}", file / FILES_PER_DIR)
}

fn name(file: usize) -> String {
    format!("file{}", file % FILES_PER_DIR)
}

fn mark(file: usize, version: u64) -> [u8; 16] {
    ((file as u128) << 64 | u128::from(version)).to_be_bytes()
}

fn content(file: usize, version: u64, length: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(length).unwrap_or_default()];
    let mark = mark(file, version);
    content
        .chunks_mut(PIECE_BYTES)
        .filter(|piece| piece.len() >= 16)
        .for_each(|piece| piece[..16].copy_from_slice(&mark));
    content
}

/// Returns which version of a file this is.
fn version(file: usize, length: u64, content: &[u8]) -> Result<u64, String> {
    let found = content.first_chunk().map_or(0, |mark: &[u8; 16]| u128::from_be_bytes(*mark));
    let version = u64::try_from(found & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    let mark = mark(file, version);
    let torn = content.chunks(PIECE_BYTES).any(|piece| piece.len() >= 16 && piece[..16] != mark);
    if torn || content.len() as u64 != length {
        return Err(format!("file {file} has {} bytes of {length} and looks like version {version}", content.len()));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_content_is_noticed() {
        let whole = content(3, 7, 10_000);
        assert_eq!(version(3, 10_000, &whole), Ok(7));
        assert!(version(4, 10_000, &whole).is_err());
        assert!(version(3, 10_001, &whole).is_err());
        let torn: Vec<u8> = [&whole[..8192], &content(3, 8, 10_000)[8192..]].concat();
        assert!(version(3, 10_000, &torn).is_err());
    }
}
