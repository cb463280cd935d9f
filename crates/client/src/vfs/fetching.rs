//! Fetching: brings the content of a file into its container, range by range, readers first.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mafs_arpc::{PayloadError, blocking};
use mafs_durable::{DiskFile, Fallocate, hash_content, write_sparse};
use mafs_proto::call::FetchRequest;
use mafs_proto::{ContentHash, ContentPart, FsError, SegmentReader};
use tokio::time::Instant;

use super::file::File;
use super::inflow::Inflow;
use super::passthrough::{end_writes, sight};
use super::rests::RestPlace;
use super::{Error, Inner, OpenMode};
use crate::cache::{CachedObject, seal};
use crate::core::content::Holder;
use crate::core::content::arrival::Fetch;
use crate::core::content::users::DataPath;
use crate::core::content::watch::Sight;
use crate::core::log::LogEntry;

/// Time between two notes in the index of how much has come.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Calls in a row that may bring nothing before the fetch gives up.
const FAILURES_MAX: u32 = 3;

impl Inner {
    /// Begins to fetch a file's present version into its container, and waits until the server has begun to send.
    pub(super) async fn fetch(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        self.fetch_as(file, Holder::Reader).await
    }

    /// Fetches as [`Self::fetch`] does, for a program that has locked the file, be it open for writing: the file has
    /// not been changed here. Waits until all has come.
    pub(super) async fn fetch_under_lock(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        self.fetch_as(file, Holder::Locker).await?;
        file.complete().await
    }

    async fn fetch_as(self: &Arc<Self>, file: &Arc<File>, holder: Holder) -> Result<(), Error> {
        let own = match holder {
            Holder::Reader => 1,
            Holder::Locker => 0,
        };
        self.refresh_read(file, own).await?;
        if let Some(fetch) = self.begin_fetch(file, holder)? {
            let (inner, file) = (Arc::clone(self), Arc::clone(file));
            tokio::spawn(async move {
                inner.run_fetch(&file, fetch).await;
                inner.drop_if_unused(&file);
            });
        }
        file.wait_for_content(|state| state.arrival().begun()).await
    }

    /// Brings the whole content of a file that nobody waits for. Returns when it is here.
    ///
    /// # Errors
    /// If it does not come.
    pub(super) async fn prefetch(self: &Arc<Self>, cached: &CachedObject) -> Result<(), Error> {
        let file = self.take_handle(cached, OpenMode { read: true, ..OpenMode::default() })?.file;
        let begun = match self.refresh_read(&file, 1).await {
            Ok(()) => self.begin_fetch(&file, Holder::Reader),
            Err(error) => Err(error),
        };
        // From now on what is on its way keeps it in use, and nobody has it open.
        self.release_file(&file);
        if let Some(fetch) = begun? {
            self.run_fetch(&file, fetch).await;
            self.drop_if_unused(&file);
        }
        file.complete().await
    }

    /// Prepares the container; `None` if the content is there or on its way. Which version is present is asked under
    /// `edit`: a store may just have made a newer one than the caller saw.
    fn begin_fetch(&self, file: &File, holder: Holder) -> Result<Option<Fetch>, Error> {
        let _edit = file.edit();
        let cached = self.cache.index.object(file.fid.vnode)?.ok_or(Error::Refused(FsError::Stale))?;
        let status = cached.object.status;
        let (version, size) = (status.data_version, status.size);
        if !file.state().needs_fetch(version, holder) {
            return Ok(None);
        }
        if file.state().is_complete() {
            // The index must not name these bytes, even after a power loss, while they turn into another version.
            self.cache.index.set_content(file.fid.vnode, None)?;
            self.cache.index.sync()?;
        }
        self.end_writing(file)?;
        file.refresh.note_turn();
        let in_place = file.state().users().path() == Some(DataPath::Passthrough);
        let part = if in_place { None } else { file.state().arrival_mut().take_part(version) };
        let part = match part {
            // The fetch goes on where it was.
            Some(part) if file.container.len()? == size => Some(part),
            Some(_) | None => {
                self.empty_container(file, size, in_place)?;
                None
            }
        };
        let fetch = file.state().begin_fetch(&status, in_place, part);
        file.notify();
        Ok(Some(fetch))
    }

    /// Prepares the container so that it holds nothing of the content to come. Under `edit`.
    fn empty_container(&self, file: &File, size: u64, in_place: bool) -> Result<(), Error> {
        self.forget_part(file)?;
        if in_place {
            // The kernel has this very container, and the program that has locked the file has it open for writing. A
            // container that is too long is cut when all has come.
            file.container.set_len(size.max(file.container.len()?))?;
        } else {
            // Cutting first drops the seal and every byte of an older version.
            file.container.set_len(0).and_then(|()| file.container.set_len(size))?;
        }
        Ok(())
    }

    /// Ends the writing in the log: arriving bytes are not what programs write, and must not be taken for that after
    /// a crash. Under `edit`.
    pub(super) fn end_writing(&self, file: &File) -> Result<(), Error> {
        let lent = file.state().log_writing(false);
        if lent {
            self.cache.cml.append(LogEntry::Dropped { fid: file.fid })?;
            self.cache.cml.sync()?;
        }
        Ok(())
    }

    async fn run_fetch(self: &Arc<Self>, file: &Arc<File>, fetch: Fetch) {
        let mut failures = 0;
        // Nothing is asked of a file without bytes.
        let mut hash = ContentHash::of(&[]);
        let is_incomplete = || file.state().arrival().is_incomplete(fetch);
        while is_incomplete() {
            let mut place = self.place_for(file, fetch).await;
            let gap = file.state().arrival_mut().next_gap(fetch);
            let Some(gap) = gap else { break };
            let started = gap.start;
            match self.fetch_gap(file, fetch, gap, &mut hash, &mut place).await {
                Ok(None) => {}
                Ok(Some(reached)) if reached > started => failures = 0,
                Ok(Some(_)) if failures + 1 < FAILURES_MAX => failures += 1,
                Ok(Some(_)) => {
                    let error = Error::TimedOut(format!("{FAILURES_MAX} connections in a row brought nothing"));
                    return self.fail(file, fetch, error);
                }
                // The fetch has been tried again for as long as somebody was ready to wait.
                Err(error) => return self.fail(file, fetch, error),
            }
        }
        if let Err(error) = blocking(|| self.end_arrival(file, fetch, hash)) {
            self.fail(file, fetch, error);
        }
    }

    /// Ends the arrival of a content: compares it with the hash that the server has named.
    fn end_arrival(&self, file: &File, fetch: Fetch, hash: ContentHash) -> Result<(), Error> {
        let Some(hashed) = self.cut_arrived(file, fetch)? else { return Ok(()) };
        if hash_content(file.container.as_ref(), fetch.size())? == hash {
            return self.complete_fetch(file, fetch, hash, hashed);
        }
        // The file may have been cut or replaced meanwhile.
        let is_void = !file.state().arrival().goes_on(fetch);
        let damaged = || Error::Damaged(format!("what arrived of the file {} is not what was stored", file.fid));
        if is_void { Ok(()) } else { Err(damaged()) }
    }

    /// Cuts off what the version before had more. Returns a look at the container as it is then, behind every write
    /// that the kernel had begun; `None` if the fetch is void.
    fn cut_arrived(&self, file: &File, fetch: Fetch) -> Result<Option<Sight>, Error> {
        let _edit = file.edit();
        if !file.state().arrival().goes_on(fetch) {
            return Ok(None);
        }
        if fetch.is_in_place() {
            file.container.set_len(fetch.size())?;
            end_writes(file)?;
        }
        Ok(Some(sight(file)?))
    }

    /// Makes one call: fills a gap from its start, until its end, or until a reader waits elsewhere. Returns how far
    /// it came; `None` if it was interrupted for a reason of this end's.
    async fn fetch_gap(
        &self,
        file: &File,
        fetch: Fetch,
        gap: Range<u64>,
        hash: &mut ContentHash,
        place: &mut RestPlace,
    ) -> Result<Option<u64>, Error> {
        let request = FetchRequest { fid: file.fid, data_version: Some(fetch.version()), offset: gap.start };
        let asked = |urgency| file.note_asked(fetch, urgency);
        let purpose = || file.state().purpose();
        let answer = tokio::select! {
            biased;
            answer = self.remote.fetch(&request, &purpose, &asked) => answer?,
            ended = self.interruption(file, fetch, false, place) => return ended.map(|()| None),
        };
        let mut noted = Instant::now();
        let mut content = Inflow::new(answer.payload);
        *hash = answer.reply.hash;
        let mut segments = SegmentReader::new(fetch.size().saturating_sub(gap.start));
        let mut offset = gap.start;
        if !mark_answered(file, fetch) {
            return Ok(None);
        }
        while offset < gap.end {
            let pieces = tokio::select! {
                biased;
                pieces = content.next(offset, gap.end) => pieces,
                ended = self.interruption(file, fetch, true, place) => return ended.map(|()| None),
            };
            let pieces = match pieces {
                Ok(pieces) if pieces.is_empty() => break,
                Ok(pieces) => pieces,
                // The error would be the same over another connection.
                Err(PayloadError::Aborted(why)) => return Err(Error::Damaged(why)),
                Err(error) => {
                    tracing::debug!(fid = %file.fid, %error, "a fetch goes on over the next connection");
                    break;
                }
            };
            let parts = parts(&mut segments, pieces)?;
            let Some(reached) = blocking(|| self.put(file, fetch, offset, &parts))? else { return Ok(None) };
            offset = reached;
            file.notify();
            if noted.elapsed() >= NOTE_EVERY {
                noted = Instant::now();
                blocking(|| self.note_part(file, fetch));
            }
            let leads_elsewhere = file.state().arrival_mut().leads_elsewhere(fetch, offset);
            if leads_elsewhere {
                break;
            }
        }
        if offset < fetch.size() {
            blocking(|| self.note_part(file, fetch));
        }
        Ok(Some(offset))
    }

    /// Puts parts of the content into the container. `None` if the fetch is void; else the offset behind them.
    fn put(&self, file: &File, fetch: Fetch, offset: u64, parts: &[ContentPart]) -> Result<Option<u64>, Error> {
        self.make_room_for(file, parts)?;
        let _edit = file.edit();
        if !file.state().arrival().goes_on(fetch) {
            return Ok(None);
        }
        // A container that was cut to nothing first has its zeros.
        let clear = |zeros: Range<u64>| match fetch.is_in_place() {
            true => file.container.fallocate(Fallocate::Punch, zeros.start, zeros.end - zeros.start),
            false => Ok(()),
        };
        let (mut end, mut data) = (offset, BytesMut::new());
        for part in parts {
            match part {
                ContentPart::Segment(segment) => {
                    end = write_data(file.container.as_ref(), &mut data, end, clear)?;
                    clear(end..end + segment.zeros)?;
                    end += segment.zeros;
                }
                ContentPart::Data(bytes) => data.extend_from_slice(bytes),
            }
        }
        end = write_data(file.container.as_ref(), &mut data, end, clear)?;
        file.state().arrival_mut().came(fetch, offset..end);
        Ok(Some(end))
    }

    /// Makes room for the data that segments announce.
    fn make_room_for(&self, file: &File, parts: &[ContentPart]) -> Result<(), Error> {
        let announced = parts.iter().map(|part| match part {
            ContentPart::Segment(segment) => segment.data,
            ContentPart::Data(_) => 0,
        });
        let bytes: u64 = announced.sum();
        if bytes > 0 {
            self.make_room(bytes);
            self.count_bytes(file.fid.vnode, file.container.allocated()? + bytes);
        }
        Ok(())
    }

    /// Completes a fetch: the container is the version, as it was when it was `hashed`.
    fn complete_fetch(&self, file: &File, fetch: Fetch, hash: ContentHash, hashed: Sight) -> Result<(), Error> {
        let _edit = file.edit();
        let (arriving, may_write) = {
            let state = file.state();
            (state.arrival().goes_on(fetch), state.users().may_write())
        };
        if !arriving {
            return Ok(());
        }
        if !may_write {
            seal(file.container.as_ref(), fetch.version())?;
        }
        self.set_content(file, fetch.version(), hash)?;
        self.count_content(file)?;
        // Last: from then on the file may be dropped, and the next open looks for what the index names.
        file.state().complete_fetch(fetch, hash, hashed);
        if may_write {
            self.begin_lending(file)?;
            // Sees what the kernel has written since the container was hashed.
            self.look(file)?;
        }
        file.notify();
        Ok(())
    }

    /// Ends a fetch that has failed. Bytes that have come stay for the next one, unless they are of no use.
    fn fail(&self, file: &File, fetch: Fetch, error: Error) {
        let _edit = file.edit();
        let is_useless =
            fetch.is_in_place() || matches!(error, Error::Damaged(_) | Error::VersionGone | Error::Refused(_));
        if is_useless
            && file.state().arrival().goes_on(fetch)
            && let Err(error) = blocking(|| self.forget_part(file))
        {
            tracing::warn!(fid = %file.fid, %error, "the index cannot be told that a file is not here");
        }
        {
            let mut state = file.state();
            match state.handles() {
                0 => tracing::debug!(fid = %file.fid, %error, "the rest of a file that nobody has open does not come"),
                _ => tracing::warn!(fid = %file.fid, %error, "a file cannot be fetched"),
            }
            if state.arrival_mut().fail(fetch, error, !is_useless) {
                self.replacement().remove(file.fid.vnode);
            }
        }
        file.notify();
    }
}

/// Writes pieces that have come one after the other as one: the kernel then keeps them in large folios, from which it
/// reads faster. Returns the offset behind them.
pub(super) fn write_data(
    container: &dyn DiskFile,
    data: &mut BytesMut,
    offset: u64,
    clear: impl Fn(Range<u64>) -> io::Result<()>,
) -> io::Result<u64> {
    write_sparse(container, data, offset, clear)?;
    let end = offset + data.len() as u64;
    data.clear();
    Ok(end)
}

/// Notes that the server sends. `false` if the fetch is void.
fn mark_answered(file: &File, fetch: Fetch) -> bool {
    let goes_on = file.state().arrival_mut().answered(fetch);
    file.notify();
    goes_on
}

/// Splits pieces of the payload into the parts of the content.
pub(super) fn parts(segments: &mut SegmentReader, pieces: Vec<Bytes>) -> Result<Vec<ContentPart>, Error> {
    let mut parts = Vec::new();
    for mut piece in pieces {
        while let Some(part) = segments.next(&mut piece).map_err(|_| Error::Refused(FsError::Malformed))? {
            parts.push(part);
        }
    }
    Ok(parts)
}
