//! The gate of a server, which its sessions share when the rate of their uplink is known.
//!
//! Stands between the drivers and [`engine::Gate`](crate::engine), which decides. A driver whose frame has to wait
//! sleeps until its turn if it is the next one; otherwise it is woken when it becomes the next. A driver that stands
//! first and sends nothing, because it cannot any more or has ended, gives its place up in the same turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mafs_proto::Instant;

use crate::engine::{Demand, Gate, Rate, SessionId, Verdict};
use crate::shared::Link;

/// A gate that frames of many peers pass in order of class, and in equal shares within one, no faster than an uplink
/// carries them. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct SharedGate(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    gate: Gate,
    links: BTreeMap<SessionId, Arc<Link>>,
}

impl SharedGate {
    /// Makes a gate for an uplink that carries so much, in bytes of IP packets; 3 % of it are left to traffic that the
    /// peers do not see.
    #[must_use]
    pub fn new(uplink: Rate) -> Self {
        Self(Arc::new(Mutex::new(Shared { gate: Gate::new(uplink), links: BTreeMap::new() })))
    }

    /// Makes a place for one more driver, that of `link`.
    pub(crate) fn join(&self, link: &Arc<Link>) -> Place {
        let id = self.with(|Shared { gate, links }| {
            let id = gate.join();
            links.insert(id, Arc::clone(link));
            id
        });
        Place { gate: self.clone(), id, verdict: Verdict::Admit }
    }

    /// Does something, and wakes the driver that has become the next by it.
    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut shared);
        let next = shared.gate.poll_next();
        if let Some(link) = next.and_then(|next| shared.links.get(&next)) {
            link.wake.notify_one();
        }
        done
    }
}

/// One driver's place, which is given up when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    gate: SharedGate,
    id: SessionId,
    /// The gate's last verdict; [`Verdict::Admit`] while nothing waits.
    verdict: Verdict,
}

impl Place {
    /// Returns whether the content that the engine could send goes now. Without a demand the place is free for others.
    pub(crate) fn admit(&mut self, demand: Option<Demand>, now: Instant) -> bool {
        let Some(demand) = demand else {
            self.withdraw();
            return false;
        };
        self.verdict = self.gate.with(|shared| shared.gate.admit(self.id, demand, now));
        self.verdict == Verdict::Admit
    }

    /// Gives the place up, since nothing can be sent now.
    pub(crate) fn withdraw(&mut self) {
        if std::mem::replace(&mut self.verdict, Verdict::Admit) != Verdict::Admit {
            self.gate.with(|shared| shared.gate.withdraw(self.id));
        }
    }

    /// Returns [`Gate::chunk_bytes_max`].
    pub(crate) fn chunk_bytes_max(&self) -> u64 {
        self.gate.with(|shared| shared.gate.chunk_bytes_max())
    }

    /// Counts a frame that does not wait, with so much content.
    pub(crate) fn pass(&self, bytes: u64, now: Instant) {
        self.gate.with(|shared| shared.gate.pass(bytes, now));
    }

    /// Returns when to ask again, if the gate will not wake the driver.
    pub(crate) fn turn_at(&self) -> Option<Instant> {
        match self.verdict {
            Verdict::WaitUntil(at) => Some(at),
            Verdict::Admit | Verdict::Wait => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.with(|Shared { gate, links }| {
            gate.leave(self.id);
            links.remove(&self.id);
        });
    }
}
