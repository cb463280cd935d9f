//! Attempts: how often a call is made before it fails.

use std::time::Duration;

use mafs_proto::Method;
use tokio::time::Instant;

use super::{Answer, RemoteConfig, RemoteError};
use crate::core::promises::SessionNumber;

/// Connections in a row on which a call is tried in vain before it gives up: each is a fresh attach, so this bounds a
/// call that kills its connection.
const IN_VAIN_MAX: u32 = 8;

/// The reason why an attempt has brought no answer.
pub(super) enum Failure {
    /// The connection has ended; on the next one there may be an answer.
    Broken(String),
    /// Too many calls are under way.
    Busy,
    /// Another attempt would not help.
    Final(RemoteError),
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        Self::Final(error)
    }
}

/// The attempts of one call.
pub(super) struct Attempts {
    /// Attempts in a row that failed and brought nothing.
    in_vain: u32,
    /// Whether the request was, or may have been, sent before.
    pub(super) repeated: bool,
    patience: Duration,
    patience_end: Instant,
}

impl Attempts {
    pub(super) fn new(config: &RemoteConfig, repeated: bool) -> Self {
        Self { in_vain: 0, repeated, patience: config.deadline, patience_end: Instant::now() + config.deadline }
    }

    /// Returns until when a call without a deadline waits for a connection. Time spent on a silent server counts;
    /// whether the server was silent all the time is not known, so some time is left in any case.
    pub(super) fn connect_by(&self) -> Instant {
        let now = Instant::now();
        if now < self.patience_end { self.patience_end.max(now + self.patience / 2) } else { now + self.patience }
    }

    /// Counts an attempt on a connection that broke.
    pub(super) fn failed(&mut self, why: String) -> Result<(), RemoteError> {
        (self.in_vain, self.repeated) = (self.in_vain + 1, true);
        match self.in_vain < IN_VAIN_MAX {
            true => Ok(()),
            false => Err(RemoteError::TimedOut(format!("the connection broke {IN_VAIN_MAX} times: {why}"))),
        }
    }

    /// Notes that a failed attempt has brought something all the same.
    pub(super) fn progressed(&mut self) {
        self.in_vain = 0;
    }

    /// Returns the answer. If a mutation was sent again, its reply was perhaps promised in an earlier session, so no
    /// session is named.
    pub(super) fn answered<R>(&self, method: Method, answer: Answer<R>) -> Answer<R> {
        let kept = self.repeated && method == Method::Apply;
        Answer { session: if kept { SessionNumber::NONE } else { answer.session }, ..answer }
    }

    /// Fails once the patience is over for an attempt that could not be made.
    pub(super) fn busy(&self) -> Result<(), RemoteError> {
        match Instant::now() < self.patience_end {
            true => Ok(()),
            false => Err(RemoteError::TimedOut("too many calls are under way".to_owned())),
        }
    }
}
