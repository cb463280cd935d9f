//! Images of the server's disk: what a crash leaves, and what it would have left on the way there.

use std::io;

use mafs_durable::{Disk, MemoryDisk};
use mafs_server::MemoryStorage;

/// Where the server of a world keeps the journal and the contents of its volume.
const JOURNAL: &str = "volumes/home/journal";
const CONTENT: &str = "volumes/home/content";

/// docs/formats.md, "Append log".
const SEGMENT_HEADER_BYTES: usize = 28;
const RECORD_HEADER_BYTES: usize = 24;
const SEAL: u32 = u32::MAX;

/// The disk of a server that has crashed.
#[derive(Clone)]
pub struct ServerImage(pub(crate) MemoryStorage);

impl ServerImage {
    /// Returns what a crash would have left after each transaction since `before`. Transactions that became durable
    /// together are told apart, for a crash may leave any of the first of them. The last image is this one, but for
    /// what was tidied up.
    ///
    /// # Errors
    /// If the journal is not what it was with more behind it.
    pub fn since(&self, before: &Self) -> io::Result<Vec<Self>> {
        let segments = |image: &Self| image.0.memory_disk().list(JOURNAL);
        let names = segments(self)?;
        let (Some(last), true) = (names.last(), segments(before)? == names) else {
            return Err(io::Error::other("the journal has gone on in another segment"));
        };
        let path = format!("{JOURNAL}/{last}");
        let (journal, known) = (read(self.0.memory_disk(), &path)?, read(before.0.memory_disk(), &path)?);
        let behind = record_ends(&known).last().copied().unwrap_or(SEGMENT_HEADER_BYTES);
        if journal.get(..behind) != known.get(..behind) {
            return Err(io::Error::other("the journal has changed"));
        }
        let new = record_ends(&journal).into_iter().filter(|end| *end > behind);
        new.map(|end| self.at(before, &path, &journal[..end])).collect()
    }

    /// Returns the image before, with contents that have come since and this journal.
    fn at(&self, before: &Self, path: &str, journal: &[u8]) -> io::Result<Self> {
        let image = before.0.kill(journal.len() as u64);
        add_missing(self.0.memory_disk(), image.memory_disk(), CONTENT)?;
        let segment = image.memory_disk().open(path)?;
        segment.set_len(0)?;
        segment.write_all_at(journal, 0)?;
        Ok(Self(image))
    }
}

/// Where each record of a segment ends.
fn record_ends(segment: &[u8]) -> Vec<usize> {
    let (mut at, mut ends) = (SEGMENT_HEADER_BYTES, Vec::new());
    while let Some(head) = segment.get(at..at + 4) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let Ok(payload) = usize::try_from(length) else { break };
        if payload == 0 || length == SEAL {
            break;
        }
        at += RECORD_HEADER_BYTES + payload;
        ends.push(at);
    }
    ends
}

fn read(disk: &MemoryDisk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn add_missing(from: &MemoryDisk, to: &MemoryDisk, dir: &str) -> io::Result<()> {
    to.create_dir_all(&[dir])?;
    for name in from.list(dir)? {
        let path = format!("{dir}/{name}");
        if from.list(&path).is_ok() {
            add_missing(from, to, &path)?;
        } else if to.open(&path).is_err() {
            to.create(&path)?.write_all_at(&read(from, &path)?, 0)?;
        }
    }
    Ok(())
}
