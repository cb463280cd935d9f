//! Fetching: brings the content of a file into its container, range by range, readers first.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mafs_arpc::{PayloadError, blocking};
use mafs_durable::{DiskFile, Fallocate, RangeSet, hash_content, write_sparse};
use mafs_proto::call::FetchRequest;
use mafs_proto::{ContentHash, ContentPart, DataVersion, FsError, SegmentReader};
use tokio::time::Instant;

use super::file::{Arrival, File};
use super::inflow::Inflow;
use super::passthrough::{end_writes, sight};
use super::rests::RestPlace;
use super::{Error, Inner, OpenMode};
use crate::cache::{CachedObject, seal};
use crate::core::content::users::DataPath;
use crate::core::content::watch::Sight;
use crate::core::log::LogEntry;

/// A reader further than this ahead of what arrives gets a fetch of its own place; nearer, waiting is quicker than
/// asking.
const JUMP_BYTES: u64 = 1 << 20;
/// So often the index is told how much has come.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Calls in a row that may bring nothing before the fetch gives up.
const FAILURES_MAX: u32 = 3;

/// Which fetch of a file this is: a void one must not touch the container.
#[derive(Clone, Copy)]
struct Fetch {
    number: u64,
    version: DataVersion,
    size: u64,
    /// Whether the container holds another version, which the kernel is reading.
    in_place: bool,
}

/// For whom a content is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// Who opens the file: what programs have open for writing stays as it is.
    Reader,
    /// Who has locked it.
    Locker,
}

impl Inner {
    /// Begins to fetch a file's present version into its container, and waits until the server has begun to send.
    pub(super) async fn fetch(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        self.fetch_as(file, Holder::Reader).await
    }

    /// The same for who has locked the file, be it open for writing: it has not been changed here. Waits until all has
    /// come.
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
        file.wait_for_content(|state| match &state.arrival {
            Arrival::Partial { answered, .. } if !answered || state.is_stalled() => None,
            Arrival::Failed(error) => Some(Err(error.clone())),
            Arrival::Partial { .. } | Arrival::Complete | Arrival::Missing => Some(Ok(())),
        })
        .await
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
        let is_current = {
            let state = file.state();
            match holder {
                Holder::Reader => state.is_current(version),
                Holder::Locker => state.is_dirty() || state.has_version(version),
            }
        };
        if is_current {
            return Ok(None);
        }
        if file.state().is_complete() {
            // The index must not name these bytes, even after a power loss, while they turn into another version.
            self.cache.index.set_content(file.fid.vnode, None)?;
            self.cache.index.sync()?;
        }
        self.end_writing(file)?;
        file.refresh.note_turn();
        let in_place = file.state().kernel.path() == Some(DataPath::Passthrough);
        let left = if in_place { None } else { file.state().left.take().filter(|left| left.version == version) };
        let present = match left {
            // It goes on where it was.
            Some(left) if file.container.len()? == size => to_go_on(left.present, size),
            Some(_) | None => {
                self.empty_container(file, size, in_place)?;
                RangeSet::default()
            }
        };
        let number = {
            let mut state = file.state();
            state.fetch += 1;
            state.base_on(version);
            (state.size, state.mtime, state.ctime) = (size, status.mtime, status.ctime);
            state.wanted = None;
            state.end_stall();
            state.arrival = Arrival::Partial { present, answered: false, in_place };
            state.fetch
        };
        file.notify();
        Ok(Some(Fetch { number, version, size, in_place }))
    }

    /// Nothing of the content to come is in the container. Under `edit`.
    fn empty_container(&self, file: &File, size: u64, in_place: bool) -> Result<(), Error> {
        self.forget_part(file)?;
        if in_place {
            // The kernel has this very container, and who has locked the file has it open for writing. What is too long
            // is cut when all has come.
            file.container.set_len(size.max(file.container.len()?))?;
        } else {
            // Cutting first drops the seal and every byte of an older version.
            file.container.set_len(0).and_then(|()| file.container.set_len(size))?;
        }
        Ok(())
    }

    /// What arrives is not what programs write: the log must not take it for that after a crash. Under `edit`.
    pub(super) fn end_writing(&self, file: &File) -> Result<(), Error> {
        let lent = std::mem::take(&mut file.state().writing_logged);
        if lent {
            self.cache.cml.append(LogEntry::Dropped { fid: file.fid })?;
            self.cache.cml.sync()?;
        }
        Ok(())
    }

    async fn run_fetch(self: &Arc<Self>, file: &Arc<File>, fetch: Fetch) {
        let mut failures = 0;
        // Of a file without bytes nothing is asked.
        let mut hash = ContentHash::of(&[]);
        while is_incomplete(file, fetch) {
            let mut place = self.place_for(file, fetch.number).await;
            let Some(gap) = next_gap(file, fetch) else { break };
            let started = gap.start;
            match self.fetch_gap(file, fetch, gap, &mut hash, &mut place).await {
                Ok(None) => {}
                Ok(Some(reached)) if reached > started => failures = 0,
                Ok(Some(_)) if failures + 1 < FAILURES_MAX => failures += 1,
                Ok(Some(_)) => {
                    let error = Error::TimedOut(format!("{FAILURES_MAX} connections in a row brought nothing"));
                    return self.fail(file, fetch, error);
                }
                // It has been tried again for as long as somebody was ready to wait.
                Err(error) => return self.fail(file, fetch, error),
            }
        }
        if let Err(error) = blocking(|| self.end_arrival(file, fetch, hash)) {
            self.fail(file, fetch, error);
        }
    }

    /// Everything has arrived: compares it with the hash that the server has named.
    fn end_arrival(&self, file: &File, fetch: Fetch, hash: ContentHash) -> Result<(), Error> {
        let Some(hashed) = self.cut_arrived(file, fetch)? else { return Ok(()) };
        if hash_content(file.container.as_ref(), fetch.size)? == hash {
            return self.complete_fetch(file, fetch, hash, hashed);
        }
        // It may have been cut or replaced meanwhile.
        let is_void = file.state().fetch != fetch.number;
        let damaged = || Error::Damaged(format!("what arrived of the file {} is not what was stored", file.fid));
        if is_void { Ok(()) } else { Err(damaged()) }
    }

    /// Cuts off what the version before had more. Returns a look at the container as it is then, behind every write
    /// that the kernel had begun; `None` if the fetch is void.
    fn cut_arrived(&self, file: &File, fetch: Fetch) -> Result<Option<Sight>, Error> {
        let _edit = file.edit();
        if !file.state().is_arriving(fetch.number) {
            return Ok(None);
        }
        if fetch.in_place {
            file.container.set_len(fetch.size)?;
            end_writes(file)?;
        }
        Ok(Some(sight(file)?))
    }

    /// One call: fills a gap from its start, until its end, or until a reader waits elsewhere. Returns how far it came;
    /// `None` if it was interrupted for a reason of this end's.
    async fn fetch_gap(
        &self,
        file: &File,
        fetch: Fetch,
        gap: Range<u64>,
        hash: &mut ContentHash,
        place: &mut RestPlace,
    ) -> Result<Option<u64>, Error> {
        let request = FetchRequest { fid: file.fid, data_version: Some(fetch.version), offset: gap.start };
        let asked = |urgency| {
            let mut state = file.state();
            if state.fetch == fetch.number {
                state.set_arriving(urgency);
                state.end_stall();
            }
        };
        let purpose = || file.state().purpose();
        let answer = tokio::select! {
            biased;
            answer = self.remote.fetch(&request, &purpose, &asked) => answer?,
            ended = self.interruption(file, fetch.number, false, place) => return ended.map(|()| None),
        };
        let mut noted = Instant::now();
        let mut content = Inflow::new(answer.payload);
        *hash = answer.reply.hash;
        let mut segments = SegmentReader::new(fetch.size.saturating_sub(gap.start));
        let mut offset = gap.start;
        if !mark_answered(file, fetch) {
            return Ok(None);
        }
        while offset < gap.end {
            let pieces = tokio::select! {
                biased;
                pieces = content.next(offset, gap.end) => pieces,
                ended = self.interruption(file, fetch.number, true, place) => return ended.map(|()| None),
            };
            let pieces = match pieces {
                Ok(pieces) if pieces.is_empty() => break,
                Ok(pieces) => pieces,
                // It would be the same over another connection.
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
                blocking(|| self.note_part(file, fetch.number));
            }
            if wanted_elsewhere(file, fetch, offset) {
                break;
            }
        }
        if offset < fetch.size {
            blocking(|| self.note_part(file, fetch.number));
        }
        Ok(Some(offset))
    }

    /// Puts parts of the content into the container. `None` if the fetch is void; else the offset behind them.
    fn put(&self, file: &File, fetch: Fetch, offset: u64, parts: &[ContentPart]) -> Result<Option<u64>, Error> {
        self.make_room_for(file, parts)?;
        let _edit = file.edit();
        if file.state().fetch != fetch.number {
            return Ok(None);
        }
        // A container that was cut to nothing first has its zeros.
        let clear = |zeros: Range<u64>| match fetch.in_place {
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
        if let Arrival::Partial { present, .. } = &mut file.state().arrival {
            present.insert(offset..end);
        }
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

    /// The container is the version, as it was when it was `hashed`.
    fn complete_fetch(&self, file: &File, fetch: Fetch, hash: ContentHash, hashed: Sight) -> Result<(), Error> {
        let _edit = file.edit();
        let (arriving, may_write) = {
            let state = file.state();
            (state.is_arriving(fetch.number), state.kernel.may_write())
        };
        if !arriving {
            return Ok(());
        }
        if !may_write {
            seal(file.container.as_ref(), fetch.version)?;
        }
        self.set_content(file, fetch.version, hash)?;
        self.count_content(file)?;
        {
            // Last: from then on the file may be dropped, and whoever opens it again looks for what the index names.
            let mut state = file.state();
            (state.arrival, state.hash, state.arriving) = (Arrival::Complete, Some(hash), None);
            state.part_noted = false;
            state.kernel.watch.begin(hashed);
        }
        if may_write {
            self.begin_lending(file)?;
            // What the kernel has written since it was hashed.
            self.look(file)?;
        }
        file.notify();
        Ok(())
    }

    /// What has come stays for the next fetch, unless it is of no use.
    fn fail(&self, file: &File, fetch: Fetch, error: Error) {
        let _edit = file.edit();
        let is_useless = fetch.in_place || matches!(error, Error::Damaged(_) | Error::VersionGone | Error::Refused(_));
        if is_useless
            && file.state().fetch == fetch.number
            && let Err(error) = blocking(|| self.forget_part(file))
        {
            tracing::warn!(fid = %file.fid, %error, "the index cannot be told that a file is not here");
        }
        {
            let mut state = file.state();
            match state.handles {
                0 => tracing::debug!(fid = %file.fid, %error, "the rest of a file that nobody has open does not come"),
                _ => tracing::warn!(fid = %file.fid, %error, "a file cannot be fetched"),
            }
            if state.fetch == fetch.number {
                state.end_arrival(error);
                if is_useless {
                    state.left = None;
                }
                if state.left.is_none() {
                    self.replacement().remove(file.fid.vnode);
                }
            }
        }
        file.notify();
    }
}

/// Whether something of a fetch that is not void is missing.
fn is_incomplete(file: &File, fetch: Fetch) -> bool {
    let state = file.state();
    match &state.arrival {
        Arrival::Partial { present, .. } => state.fetch == fetch.number && present.first_gap(0, fetch.size).is_some(),
        Arrival::Missing | Arrival::Complete | Arrival::Failed(_) => false,
    }
}

/// What counts of what an earlier fetch has brought. If that is all, all but the last byte: what the content is
/// compared with comes with an answer, so something has to be asked for.
fn to_go_on(mut present: RangeSet, size: u64) -> RangeSet {
    if present.first_gap(0, size).is_none() {
        present.remove(size.saturating_sub(1)..size);
    }
    present
}

/// The next bytes to ask for: where a reader waits, else the first that are missing. `None`: complete, or void.
fn next_gap(file: &File, fetch: Fetch) -> Option<Range<u64>> {
    let mut state = file.state();
    let wanted = state.wanted.take().unwrap_or(0);
    match &state.arrival {
        Arrival::Partial { present, .. } if state.fetch == fetch.number => {
            present.first_gap(wanted, fetch.size).or_else(|| present.first_gap(0, fetch.size))
        }
        Arrival::Partial { .. } | Arrival::Missing | Arrival::Complete | Arrival::Failed(_) => None,
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
    let current = {
        let mut state = file.state();
        let current = state.fetch == fetch.number;
        if let (true, Arrival::Partial { answered, .. }) = (current, &mut state.arrival) {
            *answered = true;
        }
        current
    };
    file.notify();
    current
}

/// What pieces of the payload say.
pub(super) fn parts(segments: &mut SegmentReader, pieces: Vec<Bytes>) -> Result<Vec<ContentPart>, Error> {
    let mut parts = Vec::new();
    for mut piece in pieces {
        while let Some(part) = segments.next(&mut piece).map_err(|_| Error::Refused(FsError::Malformed))? {
            parts.push(part);
        }
    }
    Ok(parts)
}

/// Whether a reader waits at a place that the fetch under way, which has come to `offset`, does not reach soon.
fn wanted_elsewhere(file: &File, fetch: Fetch, offset: u64) -> bool {
    let mut state = file.state();
    let Some(wanted) = state.wanted else { return false };
    if state.fetch != fetch.number {
        return true;
    }
    // It may have come since: the reader has not looked yet.
    let missing = match &state.arrival {
        Arrival::Partial { present, .. } => !present.contains(wanted..wanted + 1),
        Arrival::Missing | Arrival::Complete | Arrival::Failed(_) => false,
    };
    let elsewhere = missing && (wanted < offset || wanted > offset + JUMP_BYTES);
    if !elsewhere {
        state.wanted = None;
    }
    elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_leaves_something_to_ask_for() {
        let mut present = RangeSet::default();
        present.insert(5..10);
        assert_eq!(to_go_on(present.clone(), 10), present);
        present.insert(0..5);
        assert_eq!(to_go_on(present, 10).first_gap(0, 10), Some(9..10));
        assert_eq!(to_go_on(RangeSet::default(), 0), RangeSet::default());
    }
}
