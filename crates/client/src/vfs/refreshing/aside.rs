//! Aside: a version that is fetched beside the container of a file, and the step that turns the container over to it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use mafs_arpc::{PayloadError, blocking};
use mafs_durable::{DiskFile, begin_hash, hash_content, next_extent};
use mafs_proto::call::FetchRequest;
use mafs_proto::{ContentHash, ContentPart, SegmentReader, Status};
use tokio::time::timeout;

use super::{Read, read_before};
use crate::cache::{ContainerCopy, seal};
use crate::core::refresh::{rest, tail};
use crate::remote::Urgency;
use crate::vfs::fetching::{parts, write_data};
use crate::vfs::file::File;
use crate::vfs::inflow::Inflow;
use crate::vfs::{Error, Inner};

/// Bytes that are compared and written at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// A version that is here as a whole, beside the container's.
pub(super) struct Next {
    content: ContainerCopy,
    hash: ContentHash,
    /// Offset from which on it may differ from the container.
    from: u64,
}

impl Inner {
    /// Fetches a version beside the content that is read: first the bytes behind its end, then the rest if more has
    /// changed. `None` if the rest is needed and the whole has more bytes than `whole_max`.
    pub(super) async fn fetch_aside(
        &self,
        file: &Arc<File>,
        read: Read,
        status: &Status,
        whole_max: u64,
    ) -> Result<Option<Next>, Error> {
        let size = status.size;
        let tail = tail(read.size, size);
        if tail.is_none() && size > whole_max {
            return Ok(None);
        }
        self.make_room(tail.as_ref().map_or(size, |tail| tail.end - tail.start));
        let content = blocking(|| self.cache.containers.beside(size))?;
        if let Some(tail) = &tail {
            let hash = self.fetch_range(file, status, tail.clone(), content.file.as_ref()).await?;
            let appended = blocking(|| hash_joined(file.container.as_ref(), content.file.as_ref(), tail))?;
            if appended == hash {
                return Ok(Some(Next { content, hash, from: tail.start }));
            }
            if size > whole_max {
                tracing::debug!(fid = %file.fid, size, "who has a large file open goes on with the version before");
                return Ok(None);
            }
        }
        let rest = rest(tail.as_ref(), size);
        let hash = match size {
            0 => ContentHash::of(&[]),
            _ => self.fetch_range(file, status, rest, content.file.as_ref()).await?,
        };
        if blocking(|| hash_content(content.file.as_ref(), size))? != hash {
            return Err(Error::Damaged(format!("what arrived of the file {} is not what was stored", file.fid)));
        }
        Ok(Some(Next { content, hash, from: 0 }))
    }

    /// Fetches a range of a version, with all that comes with it. Returns the hash of the whole content.
    async fn fetch_range(
        &self,
        file: &File,
        status: &Status,
        range: Range<u64>,
        to: &dyn DiskFile,
    ) -> Result<ContentHash, Error> {
        let request = FetchRequest { fid: file.fid, data_version: Some(status.data_version), offset: range.start };
        let (purpose, late) = (|| file.state().purpose(), |_| self.remote.unanswered());
        let (patience, as_begun) = (self.settings.deadline, |_: Urgency| ());
        let asked = self.remote.fetch(&request, &purpose, &as_begun);
        let answer = timeout(patience, asked).await.map_err(late)??;
        let mut content = Inflow::new(answer.payload);
        let mut segments = SegmentReader::new(status.size.saturating_sub(range.start));
        let mut offset = range.start;
        while offset < range.end {
            let next = timeout(patience, content.next(offset, range.end));
            let pieces = next.await.map_err(late)?.map_err(|error| match error {
                PayloadError::Aborted(why) => Error::Damaged(why),
                error => Error::TimedOut(error.to_string()),
            })?;
            if pieces.is_empty() {
                return Err(Error::TimedOut("a file has not come to its end".to_owned()));
            }
            let parts = parts(&mut segments, pieces)?;
            offset = blocking(|| put(to, offset, &parts))?;
        }
        Ok(answer.reply.hash)
    }

    /// Turns the container over to a version that is here, unless the container no longer holds `read`. Returns
    /// whether it did.
    pub(super) fn turn_over(&self, file: &Arc<File>, read: Read, status: &Status, next: &Next) -> Result<bool, Error> {
        let turned = {
            let _edit = file.edit();
            {
                let mut state = file.state();
                if read_before(&state, status.data_version) != Some(read) {
                    return Ok(false);
                }
                // The file stays in use, even if all programs close it, until the index names its container again.
                state.open();
            }
            self.turn_container_over(file, read, status, next)
        };
        self.let_go(file);
        turned.map(|()| true)
    }

    /// Writes the version into the container and tells index and kernel. Under `edit`.
    fn turn_container_over(&self, file: &File, read: Read, status: &Status, next: &Next) -> Result<(), Error> {
        // The index must not name these bytes, even after a power loss, while they turn into another version.
        self.cache.index.set_content(file.fid.vnode, None)?;
        self.cache.index.sync()?;
        self.end_writing(file)?;
        self.kernel.forget_pages(file.fid.vnode);
        file.refresh.set_turning(true);
        let turned = write_over(file.container.as_ref(), next, (read.size, status.size))
            .and_then(|()| seal(file.container.as_ref(), status.data_version));
        let outcome = turned.as_ref().map(|()| next.hash).map_err(|error| Error::Cache(error.to_string()));
        file.state().turn_over(status, outcome);
        if status.size > read.size {
            // Readers wait until the turn is over. A shorter content ends their reads by itself.
            self.kernel.forget_end(file.fid.vnode);
        }
        file.refresh.set_turning(false);
        if turned.is_ok() {
            self.set_content(file, status.data_version, next.hash)?;
            self.count_content(file)?;
        }
        file.notify();
        Ok(turned?)
    }
}

/// Puts parts of a content into a file of its size that reads as zeros there. Returns the offset behind them.
fn put(to: &dyn DiskFile, offset: u64, parts: &[ContentPart]) -> io::Result<u64> {
    let (mut end, mut data) = (offset, BytesMut::new());
    for part in parts {
        match part {
            ContentPart::Segment(segment) => {
                end = write_data(to, &mut data, end, |_| Ok(()))? + segment.zeros;
            }
            ContentPart::Data(bytes) => data.extend_from_slice(bytes),
        }
    }
    write_data(to, &mut data, end, |_| Ok(()))
}

/// Hashes the first bytes of one file together with a range behind them in another.
fn hash_joined(first: &dyn DiskFile, then: &dyn DiskFile, range: &Range<u64>) -> io::Result<ContentHash> {
    let mut hasher = begin_hash(first, range.start)?;
    let mut at = range.start;
    for_each_piece(then, range.clone(), |offset, bytes| {
        hasher.skip(offset - at);
        hasher.update(bytes);
        at = offset + bytes.len() as u64;
        Ok(())
    })?;
    hasher.skip(range.end - at);
    Ok(hasher.finish())
}

/// Makes a file hold `next`, which may have another size: first writes the bytes that differ, in order, then sets the
/// end.
fn write_over(to: &dyn DiskFile, next: &Next, (before, now): (u64, u64)) -> io::Result<()> {
    let from = next.content.file.as_ref();
    let common = before.min(now);
    let mut at = next.from;
    while at < common {
        let wanted = usize::try_from(PIECE_BYTES.min(common - at)).unwrap_or(usize::MAX);
        let piece = read_piece(from, at, wanted)?;
        if piece != read_piece(to, at, wanted)? {
            to.write_all_at(&piece, at)?;
        }
        at += wanted as u64;
    }
    for_each_piece(from, at.max(common)..now, |offset, bytes| to.write_all_at(bytes, offset))?;
    to.set_len(now)
}

/// Takes the data of a range in pieces, without its holes.
fn for_each_piece(
    file: &dyn DiskFile,
    range: Range<u64>,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = range.start;
    while let Some(extent) = next_extent(file, at..range.end)? {
        at = extent.start;
        while at < extent.end {
            let wanted = usize::try_from(PIECE_BYTES.min(extent.end - at)).unwrap_or(usize::MAX);
            let piece = read_piece(file, at, wanted)?;
            take(at, &piece)?;
            at += wanted as u64;
        }
    }
    Ok(())
}

fn read_piece(file: &dyn DiskFile, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match file.read_at(&mut piece[done..], offset + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use mafs_durable::{Disk, MemoryDisk};
    use mafs_proto::VnodeId;

    use super::*;
    use crate::cache::Containers;

    /// A container that holds `before`, and `now` beside it, as far as it differs from `from` on.
    fn beside(before: &[u8], now: &[u8], from: usize) -> (Arc<dyn DiskFile>, Next) {
        let containers = Containers::open(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>, 2).unwrap();
        let (_, container) = containers.create(VnodeId(1)).unwrap();
        container.write_all_at(before, 0).unwrap();
        let content = containers.beside(now.len() as u64).unwrap();
        content.file.write_all_at(&now[from..], from as u64).unwrap();
        (container, Next { content, hash: ContentHash::of(now), from: from as u64 })
    }

    fn bytes_of(file: &dyn DiskFile) -> Vec<u8> {
        read_piece(file, 0, usize::try_from(file.len().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_container_is_turned_over_to_a_version_of_any_size() {
        let piece = usize::try_from(PIECE_BYTES).unwrap();
        let large = vec![7; 3 * piece / 2];
        let mut changed = large.clone();
        changed[piece] = 8;
        let versions: [&[u8]; 6] = [b"", b"first\n", b"first\nsecond\n", b"another", &large, &changed];
        for before in versions {
            for now in versions {
                let (container, next) = beside(before, now, 0);
                write_over(container.as_ref(), &next, (before.len() as u64, now.len() as u64)).unwrap();
                assert!(bytes_of(container.as_ref()) == now);
            }
        }
    }

    #[test]
    fn what_is_appended_is_known_by_the_hash_of_all() {
        let (before, now) = (vec![1; 10_000], [vec![1; 10_000], vec![0; 20_000], vec![2; 5]].concat());
        for (known, is_append) in [(before, true), (vec![3; 10_000], false)] {
            let (container, next) = beside(&known, &now, known.len());
            let range = known.len() as u64..now.len() as u64;
            let joined = hash_joined(container.as_ref(), next.content.file.as_ref(), &range).unwrap();
            assert_eq!(joined == next.hash, is_append);
            if is_append {
                write_over(container.as_ref(), &next, (range.start, range.end)).unwrap();
                assert!(bytes_of(container.as_ref()) == now);
            }
        }
    }
}
