//! Spool: the bytes so far of a content that is arriving.
//!
//! Room is taken by segments as they begin. The hash runs along, so that the whole content is never read again; only
//! a spool that an earlier start has left is read again, before it goes on.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mafs_durable::{Disk, DiskFile, Fallocate, begin_hash, write_file_atomically, write_sparse};
use mafs_proto::{ContentHash, ContentHasher, ContentPart, Fid, FsError, Segment};
use serde::{Deserialize, Serialize};

use super::content::{ContentStore, refuse_io};
use super::{parse_hex, read_small};
use crate::core::edit::{ContentBody, check_arrived};
use crate::core::{NewContent, Refusal};

/// End of a mark's name.
pub(super) const MARK_SUFFIX: &str = ".json";

/// A content that is arriving.
pub(super) struct Spool {
    fid: Fid,
    pub(super) size: u64,
    path: String,
    file: Arc<dyn DiskFile>,
    progress: Progress,
    /// End of the data that room was taken for.
    reserved: u64,
    pub(super) written: u64,
}

/// Hash of the bytes that are there.
enum Progress {
    /// The bytes have been hashed as they came.
    Hashed(Box<ContentHasher>),
    /// An earlier start has marked this as their hash.
    Marked(ContentHash),
}

/// Content of the mark, the file beside a spool: how much of the spool is durable.
#[derive(Serialize, Deserialize)]
struct Mark {
    bytes: u64,
    hash: String,
}

impl Spool {
    /// Makes an empty spool.
    pub(super) fn create(contents: &ContentStore, path: String, fid: Fid, size: u64) -> Result<Self, Refusal> {
        contents.check_room(0)?;
        let failed = |error| refuse_io("make a content file", &error);
        let file = contents.disk().create(&path).map_err(failed)?;
        let spool = Self { fid, size, path, file, progress: Progress::Hashed(Box::default()), reserved: 0, written: 0 };
        if let Err(error) = spool.file.set_len(size) {
            spool.remove(contents);
            return Err(failed(error));
        }
        Ok(spool)
    }

    /// Loads a spool that an earlier start has left; `None` if it has no mark, or one that cannot be.
    pub(super) fn load(disk: &dyn Disk, path: String, fid: Fid) -> Option<Self> {
        let mark = read_small(disk, &mark_path(&path)).ok()??;
        let Mark { bytes, hash } = serde_json::from_slice(&mark).ok()?;
        let file = disk.open(&path).ok()?;
        let size = file.len().ok()?;
        let progress = Progress::Marked(ContentHash(parse_hex(&hash)?));
        (bytes <= size).then_some(Self { fid, size, path, file, progress, reserved: bytes, written: bytes })
    }

    /// Returns the hash of the bytes that are there.
    pub(super) fn hash(&self) -> ContentHash {
        match &self.progress {
            Progress::Hashed(hasher) => ContentHasher::clone(hasher).finish(),
            Progress::Marked(hash) => *hash,
        }
    }

    /// Makes sure that the bytes are those that were marked, before more come, to `size` in all. The sender begins a
    /// segment.
    ///
    /// # Errors
    /// Errors of the disk, also if it has changed them.
    pub(super) fn go_on(&mut self, size: u64) -> io::Result<()> {
        if let Progress::Marked(hash) = self.progress {
            let hasher = begin_hash(&*self.file, self.written)?;
            if hasher.clone().finish() != hash {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not what was spooled"));
            }
            self.progress = Progress::Hashed(Box::new(hasher));
        }
        // Bytes that were written and not marked are of another content, perhaps: where this one has a hole there
        // must be one.
        self.file.set_len(self.written)?;
        self.file.set_len(size)?;
        (self.size, self.reserved) = (size, self.written);
        Ok(())
    }

    /// Makes the bytes that are there durable, and notes how many they are.
    pub(super) fn mark(&self, disk: &dyn Disk) -> io::Result<()> {
        self.file.sync_data()?;
        let hash = self.hash().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mark = Mark { bytes: self.written, hash };
        write_file_atomically(disk, &mark_path(&self.path), &serde_json::to_vec(&mark)?)
    }

    /// Takes the next part: of a segment its zeros, and room for its data.
    ///
    /// # Errors
    /// `Malformed` if they are more than was announced; `NoSpace` if there is no room for them, and then it may be
    /// tried again; or errors of the disk.
    pub(super) fn take(&mut self, contents: &ContentStore, part: &ContentPart) -> Result<(), Refusal> {
        match part {
            ContentPart::Segment(segment) => self.begin_segment(contents, *segment),
            ContentPart::Data(bytes) => self.write(bytes),
        }
    }

    fn begin_segment(&mut self, contents: &ContentStore, segment: Segment) -> Result<(), Refusal> {
        let start = self.written.saturating_add(segment.zeros);
        let end = start.saturating_add(segment.data);
        if end > self.size {
            return Err(wrong_size(self.size, end));
        }
        contents.take_room(&*self.file, start, segment.data)?;
        self.hasher()?.skip(segment.zeros);
        (self.written, self.reserved) = (start, end);
        Ok(())
    }

    fn write(&mut self, bytes: &Bytes) -> Result<(), Refusal> {
        let end = self.written + bytes.len() as u64;
        if end > self.reserved {
            return Err(wrong_size(self.size, end));
        }
        let give_back =
            |hole: Range<u64>| match self.file.fallocate(Fallocate::Punch, hole.start, hole.end - hole.start) {
                // The zeros then keep the room that was reserved, and read as zeros all the same.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
                other => other,
            };
        write_sparse(&*self.file, bytes, self.written, give_back)
            .map_err(|error| refuse_io("write a content", &error))?;
        self.hasher()?.update(bytes);
        self.written = end;
        Ok(())
    }

    fn hasher(&mut self) -> Result<&mut ContentHasher, Refusal> {
        match &mut self.progress {
            Progress::Hashed(hasher) => Ok(hasher),
            Progress::Marked(_) => Err(FsError::NotKept.into()),
        }
    }

    /// Makes the whole content durable under its own name, if it is the one that was `sent`.
    ///
    /// # Errors
    /// `Malformed` if bytes are missing, `Damaged` if others came than were sent, or errors of the disk.
    pub(super) fn finish(self, contents: &ContentStore, sent: ContentHash) -> Result<NewContent, Refusal> {
        let content = self.publish(contents, sent);
        self.remove(contents);
        content
    }

    fn publish(&self, contents: &ContentStore, sent: ContentHash) -> Result<NewContent, Refusal> {
        if self.written != self.size {
            return Err(wrong_size(self.size, self.written));
        }
        let (size, hash) = (self.size, self.hash());
        check_arrived(hash, sent)?;
        let published = self.file.sync_data().and_then(|()| contents.publish(&self.path, self.fid));
        let serial = published.map_err(|error| refuse_io("make a content durable", &error))?;
        Ok(NewContent { fid: self.fid, size, hash, body: ContentBody::File(serial) })
    }

    /// Removes the files of the spool. The content that [`Self::finish`] has made of it stays.
    pub(super) fn remove(&self, contents: &ContentStore) {
        for path in [&mark_path(&self.path), &self.path] {
            contents.remove_file(path);
        }
    }
}

fn mark_path(path: &str) -> String {
    format!("{path}{MARK_SUFFIX}")
}

fn wrong_size(announced: u64, got: u64) -> Refusal {
    Refusal::new(FsError::Malformed, format!("the content has {got} bytes, the record says {announced}"))
}
