//! The server's limits.

use std::time::Duration;

use mafs_arpc::{Rate, Scheduling};
use mafs_durable::LoggedIndexConfig;

use crate::core::promises::Timing;

/// Behaviour of a [`Server`](crate::Server). The defaults suit a disk of some gigabytes and one machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    space_reserve_bytes: u64,
    sessions_max: usize,
    uplink: Option<Rate>,
    scheduling: Scheduling,
    timing: Timing,
    index: LoggedIndexConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            space_reserve_bytes: 64 * 1024 * 1024,
            sessions_max: 1024,
            uplink: None,
            scheduling: Scheduling::default(),
            timing: Timing {
                lease: Duration::from_secs(60),
                bias: Duration::from_secs(2),
                break_timeout: Duration::from_secs(15),
            },
            index: LoggedIndexConfig::default(),
        }
    }
}

impl ServerConfig {
    /// Sets the room on the disk that contents may not use, in bytes, so that a full disk never stops the journal.
    /// Default 64 MB, which is one journal segment; the last quarter of it is kept even from removals.
    #[must_use]
    pub fn with_space_reserve_bytes(mut self, bytes: u64) -> Self {
        self.space_reserve_bytes = bytes;
        self
    }

    /// Sets how many connections there may be at one time; more are turned away. Default 1,024.
    #[must_use]
    pub fn with_sessions_max(mut self, sessions: usize) -> Self {
        self.sessions_max = sessions;
        self
    }

    /// Sets the rate of the uplink of all sessions, in bytes of IP packets per second: they share it fairly, and none
    /// delays another. Default none: each session sends what its own way seems to carry.
    #[must_use]
    pub fn with_uplink(mut self, rate: Rate) -> Self {
        self.uplink = Some(rate);
        self
    }

    /// Sets what goes first among the things that the server sends. Default: by class.
    #[must_use]
    pub fn with_scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets the sizes of journals and checkpoints.
    #[must_use]
    pub fn with_index(mut self, index: LoggedIndexConfig) -> Self {
        self.index = index;
        self
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn space_reserve_bytes(&self) -> u64 {
        self.space_reserve_bytes
    }

    pub(crate) fn sessions_max(&self) -> usize {
        self.sessions_max
    }

    pub(crate) fn uplink(&self) -> Option<Rate> {
        self.uplink
    }

    pub(crate) fn scheduling(&self) -> Scheduling {
        self.scheduling
    }

    pub(crate) fn index(&self) -> LoggedIndexConfig {
        self.index
    }
}
