//! Spools: the contents of a volume that are arriving, by client and file: a client sends one content of a file at a
//! time.
//!
//! When a connection breaks, what has arrived is kept, and the store goes on from there by another connection, or
//! after a restart: over a slow link a large file would never arrive otherwise. A spool stays until a content of the
//! file is whole, its room is needed, or [`LIFETIME`] has passed. The spool need not become the content that it was
//! begun for: the client sees whether the one it has begins with the same bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_proto::call::{ResumeStoreReply, ResumeStoreRequest};
use mafs_proto::{ClientId, Clock, ContentHash, ContentPart, Fid, FsError, Instant, Uniquifier, VnodeId, VolumeId};

use super::content::ContentStore;
use super::parse_hex;
use super::spool::{MARK_SUFFIX, Spool};
use crate::core::{NewContent, Refusal};

/// Time for which a spool is kept that nobody sends to: a ship may be out of reach for days.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Limit of spools of a volume; beyond, the one goes first that nobody has sent to for longest.
const SPOOLS_MAX: usize = 256;

/// Time between two marks. A crash of the machine costs what came in the last second; a content that arrives sooner
/// is never marked.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// Share of the time that marks may take: one part in so many.
const MARK_SHARE: u32 = 20;

/// The spools of one volume.
pub(crate) struct Spools {
    contents: Arc<ContentStore>,
    clock: Arc<dyn Clock>,
    dir: String,
    /// The slots. Their lock is never held while a slot is waited for.
    slots: Mutex<BTreeMap<SpoolId, Arc<Mutex<Slot>>>>,
}

/// The client that sends a content, and the file.
type SpoolId = (ClientId, Fid);

/// The place of one spool.
struct Slot {
    spool: Place,
    /// Number of the last sender: only that one may send.
    turn: u64,
    /// Whether somebody is sending.
    receiving: bool,
    used: Instant,
}

enum Place {
    Empty,
    Spool(Spool),
    /// The slot has left the list.
    Gone,
}

/// The right to send a content.
pub(crate) struct Arrival {
    spools: Arc<Spools>,
    id: SpoolId,
    slot: Arc<Mutex<Slot>>,
    turn: u64,
    mark_due: Instant,
}

impl Spools {
    /// Opens the spools in `dir` that earlier starts have marked; removes the others.
    pub(crate) fn open(contents: Arc<ContentStore>, dir: String, clock: Arc<dyn Clock>) -> io::Result<Self> {
        contents.disk().create_dir_all(&[&dir])?;
        let now = clock.now();
        let mut slots = BTreeMap::new();
        for name in contents.disk().list(&dir)? {
            let path = format!("{dir}/{name}");
            let id = parse_name(contents.volume(), &name);
            let spool = id.and_then(|id| Some((id, Spool::load(contents.disk(), path, id.1)?)));
            if let Some((id, spool)) = spool {
                let slot = Slot { spool: Place::Spool(spool), turn: 0, receiving: false, used: now };
                slots.insert(id, Arc::new(Mutex::new(slot)));
            }
        }
        let spools = Self { contents, clock, dir, slots: Mutex::new(slots) };
        spools.remove_strangers()?;
        Ok(spools)
    }

    /// Removes the files that belong to no spool.
    fn remove_strangers(&self) -> io::Result<()> {
        for name in self.contents.disk().list(&self.dir)? {
            let spool = parse_name(self.contents.volume(), name.strip_suffix(MARK_SUFFIX).unwrap_or(&name));
            if spool.is_none_or(|id| !self.slots().contains_key(&id)) {
                self.contents.remove_file(&format!("{}/{name}", self.dir));
            }
        }
        Ok(())
    }

    /// Tells what has been kept of a file's content. A sender of it cannot go on any more.
    pub(crate) fn resume(&self, client: ClientId, fid: Fid) -> ResumeStoreReply {
        let slot = self.slots().get(&(client, fid)).cloned();
        let kept = slot.and_then(|slot| {
            let mut slot = lock(&slot);
            slot.turn += 1;
            slot.receiving = false;
            match &slot.spool {
                Place::Spool(spool) => Some(ResumeStoreReply { bytes: spool.written, hash: spool.hash() }),
                Place::Empty | Place::Gone => None,
            }
        });
        kept.unwrap_or_else(|| ResumeStoreReply { bytes: 0, hash: ContentHash::of(&[]) })
    }

    /// Begins to take a content of exactly `size` bytes, from `offset` on. From 0 it begins anew.
    ///
    /// # Errors
    /// `NotKept` if there is nothing that goes on at `offset`, `NoSpace` if the disk is full, or errors of the disk.
    pub(crate) fn begin(
        self: &Arc<Self>,
        client: ClientId,
        fid: Fid,
        size: u64,
        offset: u64,
    ) -> Result<Arrival, Refusal> {
        let id = (client, fid);
        loop {
            let shared = self.slot(id);
            let mut slot = lock(&shared);
            if matches!(slot.spool, Place::Gone) {
                continue;
            }
            slot.turn += 1;
            let ready = match offset {
                0 => self.begin_anew(&mut slot, id, size),
                _ => go_on(&mut slot, size, offset),
            };
            if let Err(refusal) = ready {
                self.drop_slot(id, &mut slot);
                return Err(refusal);
            }
            slot.receiving = true;
            let (turn, now) = (slot.turn, self.clock.now());
            drop(slot);
            return Ok(Arrival { spools: Arc::clone(self), id, slot: shared, turn, mark_due: now + MARK_EVERY });
        }
    }

    fn begin_anew(&self, slot: &mut Slot, id: SpoolId, size: u64) -> Result<(), Refusal> {
        if let Place::Spool(spool) = std::mem::replace(&mut slot.spool, Place::Empty) {
            spool.remove(&self.contents);
        }
        let path = format!("{}/{}", self.dir, name_of(id));
        slot.spool = Place::Spool(self.with_room(|| Spool::create(&self.contents, path.clone(), id.1, size))?);
        Ok(())
    }

    /// Returns a slot, a new one if there was none.
    fn slot(&self, id: SpoolId) -> Arc<Mutex<Slot>> {
        if self.slots().len() >= SPOOLS_MAX {
            self.drop_oldest();
        }
        let now = self.clock.now();
        let empty = || Arc::new(Mutex::new(Slot { spool: Place::Empty, turn: 0, receiving: true, used: now }));
        Arc::clone(self.slots().entry(id).or_insert_with(empty))
    }

    /// Removes spools that have been kept for too long.
    pub(crate) fn expire(&self) {
        let now = self.clock.now();
        self.drop_those(|_, slot| now.since(slot.used) > LIFETIME);
    }

    /// Does work that takes room. If there is none, contents that nothing names are removed before it is done again:
    /// a client that removes a file may use its room at once. Then, one by one, spools go that nobody is sending to.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
        loop {
            let removed = self.contents.removed();
            match work() {
                Err(refusal) if refusal.error == FsError::NoSpace => {
                    if self.contents.remove_unwanted() == removed && !self.drop_oldest() {
                        return Err(refusal);
                    }
                }
                done => return done,
            }
        }
    }

    /// Removes the spool that has rested for longest. Returns whether there was one.
    fn drop_oldest(&self) -> bool {
        let resting = self.listed().into_iter().filter_map(|(id, slot)| {
            let slot = slot.try_lock().ok()?;
            (!slot.receiving).then_some((slot.used, id))
        });
        let oldest = resting.min();
        oldest.is_some_and(|(_, oldest)| self.drop_those(|id, _| id == oldest) > 0)
    }

    /// Removes spools that nobody is sending to. Returns how many.
    fn drop_those(&self, unwanted: impl Fn(SpoolId, &Slot) -> bool) -> usize {
        let mut dropped = 0;
        for (id, slot) in self.listed() {
            // A caller that holds the lock is using the slot.
            if let Ok(mut slot) = slot.try_lock()
                && !slot.receiving
                && unwanted(id, &slot)
            {
                self.drop_slot(id, &mut slot);
                dropped += 1;
            }
        }
        dropped
    }

    fn drop_slot(&self, id: SpoolId, slot: &mut Slot) {
        if let Place::Spool(spool) = std::mem::replace(&mut slot.spool, Place::Gone) {
            spool.remove(&self.contents);
        }
        self.slots().remove(&id);
    }

    fn listed(&self) -> Vec<(SpoolId, Arc<Mutex<Slot>>)> {
        self.slots().iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect()
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<SpoolId, Arc<Mutex<Slot>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn go_on(slot: &mut Slot, size: u64, offset: u64) -> Result<(), Refusal> {
    match &mut slot.spool {
        Place::Spool(spool) if spool.written == offset && offset <= size => {
            let not_kept = |error| Refusal::new(FsError::NotKept, format!("a spool cannot be continued: {error}"));
            spool.go_on(size).map_err(not_kept)
        }
        Place::Spool(_) | Place::Empty | Place::Gone => Err(FsError::NotKept.into()),
    }
}

impl Arrival {
    /// Takes the next parts.
    ///
    /// # Errors
    /// `Malformed` if they are more than was announced, `NoSpace` if there is no room for them, `Busy` if another
    /// call sends the content by now, or errors of the disk.
    pub(crate) fn take(&self, part: &ContentPart) -> Result<(), Refusal> {
        self.with_spool(|spool| {
            let contents = &self.spools.contents;
            self.spools.with_room(|| spool.take(contents, part))
        })
    }

    /// Marks what has arrived, if it is time to.
    pub(crate) fn mark_now_and_then(&mut self) {
        let began = self.spools.clock.now();
        if began >= self.mark_due {
            self.mark();
            let marked = self.spools.clock.now();
            self.mark_due = marked + MARK_EVERY.max(marked.since(began) * MARK_SHARE);
        }
    }

    /// Keeps what has arrived from an interrupted sender, if it is worth it.
    pub(crate) fn interrupt(self) {
        let worth = |spool: &mut Spool| Ok(spool.size >= ResumeStoreRequest::CONTENT_BYTES_MIN && spool.written > 0);
        match self.with_spool(worth) {
            Ok(true) => self.mark(),
            Ok(false) => self.discard(),
            Err(_) => {}
        }
    }

    /// Removes what has arrived.
    pub(crate) fn discard(self) {
        let mut slot = lock(&self.slot);
        if slot.turn == self.turn {
            self.spools.drop_slot(self.id, &mut slot);
        }
    }

    /// Makes the whole content durable under its own name, if it is the one that was `sent`. Otherwise nothing is kept.
    ///
    /// # Errors
    /// `Malformed` if bytes are missing, `Damaged` if others came than were sent, `Busy` as for [`Self::take`], or
    /// errors of the disk.
    pub(crate) fn finish(self, sent: ContentHash) -> Result<NewContent, Refusal> {
        let mut slot = lock(&self.slot);
        let taken = if slot.turn == self.turn { std::mem::replace(&mut slot.spool, Place::Gone) } else { Place::Empty };
        let Place::Spool(spool) = taken else { return Err(sent_elsewhere()) };
        let finished = spool.finish(&self.spools.contents, sent);
        self.spools.drop_slot(self.id, &mut slot);
        finished
    }

    /// Marks what has arrived. A failure costs only what would have to be sent again.
    fn mark(&self) {
        let marked = self.with_spool(|spool| Ok(spool.mark(self.spools.contents.disk())));
        if let Ok(Err(error)) = marked {
            tracing::warn!(%error, "what has arrived of a content cannot be marked");
        }
    }

    fn with_spool<T>(&self, work: impl FnOnce(&mut Spool) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let mut slot = lock(&self.slot);
        match &mut *slot {
            Slot { turn, spool: Place::Spool(spool), .. } if *turn == self.turn => work(spool),
            _ => Err(sent_elsewhere()),
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
        if slot.turn == self.turn {
            slot.receiving = false;
            slot.used = self.spools.clock.now();
        }
    }
}

fn sent_elsewhere() -> Refusal {
    Refusal::new(FsError::Busy, "the content is being sent by another call")
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of((client, fid): SpoolId) -> String {
    format!("{client}.{:x}.{:x}", fid.vnode.0, fid.unique.0)
}

fn parse_name(volume: VolumeId, name: &str) -> Option<SpoolId> {
    let mut parts = name.split('.');
    let (client, vnode, unique) = (parts.next()?, parts.next()?, parts.next()?);
    let vnode = VnodeId(u64::from_str_radix(vnode, 16).ok()?);
    let unique = Uniquifier(u32::from_str_radix(unique, 16).ok()?);
    let id = (ClientId(parse_hex(client)?), Fid { volume, vnode, unique });
    (parts.next().is_none() && name == name_of(id)).then_some(id)
}

#[cfg(test)]
mod tests;
