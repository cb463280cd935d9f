//! Waiting: records that arrived before those they depend on.
//!
//! Calls of different classes overtake each other, so a Store may be here before the record that makes its file. A
//! record waits until the one it depends on has been decided, applied or refused, and not for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::call::ApplyRequest;
use mafs_proto::{ClientId, Instant, StoreId};

use super::Ticket;
use super::committer::Answer;
use crate::core::refused::Refused;
use crate::core::{NewContent, Refusal};

/// Number of records of one client that may wait: a client has so many on their way.
const PARKED_MAX: usize = 256;

/// Number of records that may wait altogether; with contents of up to 16 KB in memory, 64 MB.
const PARKED_ALL_MAX: usize = 4096;

/// Time for which a record waits. The record it depends on was made before it, so that one is on its way, or lost
/// with its connection.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A record to be applied, and the caller that waits for it.
pub(super) struct Apply {
    pub(super) ticket: Ticket,
    pub(super) request: Box<ApplyRequest>,
    /// Content that a Store brought, or the reason why it was not taken.
    pub(super) content: Result<Option<NewContent>, Refusal>,
    /// Whether it has waited long enough for what others have announced.
    pub(super) forced: bool,
    pub(super) answer: Answer<Bytes>,
}

/// A record that waits.
pub(super) struct Parked {
    pub(super) apply: Apply,
    /// The record that it waits for, and depends on.
    awaited: StoreId,
    pub(super) until: Instant,
}

/// The waiting records of one volume, in the order of their arrival.
#[derive(Default)]
pub(super) struct Waiting {
    parked: VecDeque<Parked>,
    counts: BTreeMap<ClientId, usize>,
    pub(super) refused: Refused,
}

impl Waiting {
    /// Lets a record wait for one that it depends on; gives it back if too many do.
    pub(super) fn park(&mut self, apply: Apply, awaited: StoreId, now: Instant) -> Result<(), Box<Apply>> {
        let count = self.counts.get(&apply.ticket.client).copied().unwrap_or_default();
        if count >= PARKED_MAX || self.parked.len() >= PARKED_ALL_MAX {
            return Err(Box::new(apply));
        }
        self.put_back(apply, awaited, now + WAIT_MAX);
        Ok(())
    }

    /// Lets a record wait for as long again: what it waits for is here, and waits for others.
    pub(super) fn prolong(&mut self, apply: Apply, awaited: StoreId, now: Instant) {
        self.put_back(apply, awaited, now + WAIT_MAX);
    }

    /// Lets a record wait on, until the time it was taken out with.
    pub(super) fn put_back(&mut self, apply: Apply, awaited: StoreId, until: Instant) {
        *self.counts.entry(apply.ticket.client).or_default() += 1;
        self.parked.push_back(Parked { apply, awaited, until });
    }

    /// Tells whether a record waits.
    pub(super) fn contains(&self, id: &StoreId) -> bool {
        self.parked.iter().any(|parked| parked.apply.request.record.id == *id)
    }

    /// Takes out the records that wait for one of `decided`.
    pub(super) fn take_awaiting(&mut self, decided: &BTreeSet<StoreId>) -> Vec<Parked> {
        self.take_where(|parked| decided.contains(&parked.awaited))
    }

    /// Takes out the records that have waited for as long as they may.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Parked> {
        self.take_where(|parked| parked.until <= now)
    }

    /// Takes out the records that came over earlier connections of a client.
    pub(super) fn take_fenced(&mut self, current: Ticket) -> Vec<Parked> {
        self.take_where(|Parked { apply, .. }| apply.ticket.client == current.client && apply.ticket != current)
    }

    /// Returns how long nothing happens by itself; `None`: for ever.
    pub(super) fn timeout(&self, now: Instant) -> Option<Duration> {
        self.parked.iter().map(|parked| parked.until.since(now)).min()
    }

    fn take_where(&mut self, is_taken: impl Fn(&Parked) -> bool) -> Vec<Parked> {
        if !self.parked.iter().any(&is_taken) {
            return Vec::new();
        }
        let (taken, parked) = std::mem::take(&mut self.parked).into_iter().partition::<Vec<_>, _>(is_taken);
        self.parked = parked.into();
        for parked in &taken {
            let client = parked.apply.ticket.client;
            if let Some(count) = self.counts.get_mut(&client) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&client);
                }
            }
        }
        taken
    }
}
