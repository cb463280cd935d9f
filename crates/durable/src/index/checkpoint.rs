//! Checkpoint files: the whole index as journal-format records.
//!
//! A checkpoint at position P is fuzzy: it is written while commits go on and holds, for every key, its value at P or a
//! later one. Changes are absolute, so replaying the journal from P brings every key to the journal's end.

use std::io;
use std::sync::Arc;

use super::codec;
use super::{LoggedIndexError, RESERVED};
use crate::disk::join;
use crate::log::format::{FileHeader, FileKind, encode_record, new_salt};
use crate::log::scan::{Scan, Step};
use crate::{Batch, Disk, DiskFile, DiskPath, Kv, Lsn};

/// Pairs read from the index at once.
const PAGE_PAIRS: usize = 128;

/// Keys and values in a record of a checkpoint, in bytes; the pair that goes beyond is its last.
const RECORD_BYTES: usize = 256 * 1024;

/// Bytes after which a checkpoint is synced in between, so that no commit waits behind all of it in the disk's queue.
const SYNC_EVERY_BYTES: u64 = 8 << 20;

/// Reason why a checkpoint cannot be loaded.
pub(super) enum Unusable {
    /// Its bytes are wrong.
    Damaged(String),
    /// Something else failed.
    Other(LoggedIndexError),
}

impl<E: Into<LoggedIndexError>> From<E> for Unusable {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Lists the positions of the checkpoints in `dir` (made if absent), oldest first. Unfinished ones are deleted.
pub(super) fn list(disk: &dyn Disk, dir: &DiskPath) -> io::Result<Vec<Lsn>> {
    disk.create_dir_all(&[dir])?;
    let mut positions = Vec::new();
    for name in disk.list(dir)? {
        match Lsn::from_file_name(&name) {
            Some(position) => positions.push(position),
            None if name.ends_with(".tmp") => disk.remove(&join(dir, &name))?,
            None => {}
        }
    }
    Ok(positions)
}

/// Writes a checkpoint of `kv` at `position`. A failure leaves nothing behind.
pub(super) fn write(disk: &dyn Disk, dir: &DiskPath, position: Lsn, kv: &dyn Kv) -> Result<(), LoggedIndexError> {
    let temporary = format!("{}.tmp", path(dir, position));
    let result = write_file(disk, &temporary, position, kv);
    if result.is_err() {
        // The file may not even be there: `result` tells what matters, and the next open deletes what is left.
        let _ = disk.remove(&temporary);
        return result;
    }
    disk.rename(&temporary, &path(dir, position))?;
    Ok(disk.sync_dir(dir)?)
}

/// Hands every batch of a checkpoint to `sink`, in order.
pub(super) fn read(
    disk: &dyn Disk,
    dir: &DiskPath,
    position: Lsn,
    mut sink: impl FnMut(Batch) -> Result<(), LoggedIndexError>,
) -> Result<(), Unusable> {
    let file = disk.open(&path(dir, position))?;
    let len = file.len()?;
    let (header, mut scan) = Scan::open(file, len, FileKind::Checkpoint)?.map_err(Unusable::Damaged)?;
    if header.first != position {
        return Err(Unusable::Damaged(format!("its header says {}", header.first)));
    }
    let mut ended = false;
    loop {
        let offset = scan.offset();
        match scan.step()? {
            Step::Record(_, _) if ended => {
                return Err(Unusable::Damaged(format!("records follow its end at {offset}")));
            }
            Step::Record(_, []) => ended = true,
            Step::Record(_, payload) => {
                let batch = codec::decode(payload);
                sink(batch.map_err(|why| Unusable::Damaged(format!("at byte {offset}: {why}")))?)?;
            }
            Step::End if ended => return Ok(()),
            Step::End => return Err(Unusable::Damaged("its end is missing".to_owned())),
            Step::Bad(why) => return Err(Unusable::Damaged(format!("at byte {offset}: {why}"))),
        }
    }
}

pub(super) fn remove(disk: &dyn Disk, dir: &DiskPath, position: Lsn) -> io::Result<()> {
    disk.remove(&path(dir, position))
}

fn path(dir: &DiskPath, position: Lsn) -> String {
    join(dir, &position.file_name())
}

fn write_file(disk: &dyn Disk, path: &DiskPath, position: Lsn, kv: &dyn Kv) -> Result<(), LoggedIndexError> {
    let mut writer = Writer::begin(disk, path, position)?;
    let mut after: Option<Vec<u8>> = None;
    let mut batch = Batch::default();
    let mut bytes = 0;
    loop {
        let page = kv.scan(b"", after.as_deref(), PAGE_PAIRS)?;
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        for (key, value) in page {
            if key.first() == Some(&RESERVED) {
                continue;
            }
            bytes += key.len() + value.len();
            batch.put(key, value);
            if bytes >= RECORD_BYTES {
                writer.put(&batch)?;
                batch.changes.clear();
                bytes = 0;
            }
        }
    }
    if !batch.is_empty() {
        writer.put(&batch)?;
    }
    Ok(writer.end()?)
}

/// A checkpoint that is being written.
struct Writer {
    file: Arc<dyn DiskFile>,
    salt: u32,
    next: Lsn,
    offset: u64,
    synced: u64,
    payload: Vec<u8>,
    record: Vec<u8>,
}

impl Writer {
    fn begin(disk: &dyn Disk, path: &DiskPath, position: Lsn) -> io::Result<Self> {
        let file = disk.create(path)?;
        let salt = new_salt();
        file.write_all_at(&FileHeader { kind: FileKind::Checkpoint, salt, first: position }.encode(), 0)?;
        let offset = FileHeader::BYTES as u64;
        Ok(Self { file, salt, next: Lsn::FIRST, offset, synced: 0, payload: Vec::new(), record: Vec::new() })
    }

    fn put(&mut self, batch: &Batch) -> io::Result<()> {
        self.payload.clear();
        codec::encode(batch, &mut self.payload);
        self.write_payload()
    }

    /// Writes the empty record that marks a whole checkpoint.
    fn end(mut self) -> io::Result<()> {
        self.payload.clear();
        self.write_payload()?;
        self.file.sync_data()
    }

    fn write_payload(&mut self) -> io::Result<()> {
        self.record.clear();
        encode_record(self.salt, self.next, 0, &self.payload, &mut self.record);
        self.file.write_all_at(&self.record, self.offset)?;
        self.next = Lsn(self.next.0 + 1);
        self.offset += self.record.len() as u64;
        if self.offset - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync_data()?;
            self.synced = self.offset;
        }
        Ok(())
    }
}
