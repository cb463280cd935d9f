//! Settings of a sender.

/// The queues that a sender has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queues {
    /// A queue for each station, served in turn.
    PerStation,
    /// One queue for all stations, first come first served: the output queue of a device driver. A first packet whose
    /// station does not hear holds up all others. For comparison.
    Shared,
}

/// The settings of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    queues: Queues,
    queue_bytes: u64,
    retries: u32,
}

impl Default for Settings {
    /// Makes a queue of 64 KB for each station. Packets are sent again 32 times: with waits of 20 ms that outlasts the
    /// longest burst of the wireless papers, 320 ms, and ends before their NFS sends a call again, after 700 ms.
    fn default() -> Self {
        Self { queues: Queues::PerStation, queue_bytes: 64 * 1024, retries: 32 }
    }
}

impl Settings {
    /// Sets which queues there are; one for each station by default.
    #[must_use]
    pub fn with_queues(self, queues: Queues) -> Self {
        Self { queues, ..self }
    }

    /// Sets how many bytes each queue holds, with the packet that is being sent; 64 KB by default. A packet that does
    /// not fit is refused.
    #[must_use]
    pub fn with_queue_bytes(self, queue_bytes: u64) -> Self {
        Self { queue_bytes, ..self }
    }

    /// Sets how many silences a packet survives, after probes for it and after itself; 32 by default. More of them
    /// carry it through longer bursts, and packets behind it wait longer.
    #[must_use]
    pub fn with_retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    pub(in crate::link) fn queues(&self) -> Queues {
        self.queues
    }

    pub(super) fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries
    }
}
