//! Committer: takes the waiting mutations in order, a group at a time, and sees to it that each is answered.
//!
//! One task per volume. While one group is being made durable the next one gathers: that is the whole of group commit.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::call::{InvalidateReply, InvalidateRequest};
use mafs_proto::{ClientId, Clock, Fid, FidRange, StoreId};
use tokio::sync::{mpsc, oneshot};

use super::group::Group;
use super::janitor::Chore;
use super::waiting::{Apply, Waiting};
use super::{Begun, Continued, Shared, Ticket};
use crate::core::Refusal;

/// Number of jobs in a group: at 64 KB each, the most of one key, they stay far below the journal's reserve.
const GROUP_JOBS_MAX: usize = 256;

/// Timers do not run through suspend, the clock does: it is read again at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);

pub(super) type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// A job of the committer.
pub(super) enum Job {
    Attach {
        ticket: Ticket,
        client_name: String,
        confirmed_below: Option<StoreId>,
        session: Continued,
        answer: Answer<Begun>,
    },
    /// These clients hold no promises any more.
    EndSessions(Vec<ClientId>),
    GrantFids {
        ticket: Ticket,
        answer: Answer<FidRange>,
    },
    Apply(Apply),
    Announce(Announce),
    /// Others want to know what a client has decided in a directory.
    Recall {
        client: ClientId,
        directory: Fid,
    },
    /// The client does not have these announced records.
    EndAnnounced {
        ticket: Ticket,
        ids: Vec<StoreId>,
    },
    Stop {
        answer: oneshot::Sender<()>,
    },
}

/// An announcement, and the caller that waits until nobody relies on what was before.
pub(super) struct Announce {
    pub(super) ticket: Ticket,
    pub(super) request: InvalidateRequest,
    /// The caller; `None`: nobody waits.
    pub(super) answer: Option<Answer<InvalidateReply>>,
}

/// Runs until [`Job::Stop`], until the disk fails, or until the volume is dropped.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<Job>,
    chores: mpsc::Sender<Chore>,
    clock: Arc<dyn Clock>,
) {
    let mut waiting = Waiting::default();
    let mut jobs = Vec::with_capacity(GROUP_JOBS_MAX);
    loop {
        let taking = queue.recv_many(&mut jobs, GROUP_JOBS_MAX);
        let taken = match waiting.timeout(clock.now()) {
            None => Ok(taking.await),
            Some(timeout) => tokio::time::timeout(timeout.min(SLEEP_MAX), taking).await,
        };
        if taken == Ok(0) || shared.failure.get().is_some() {
            return;
        }
        let stop = blocking(|| {
            let mut group = Group::new(&shared, &mut waiting, clock.now());
            jobs.drain(..).for_each(|job| group.decide(job));
            group.retry();
            group.commit(&chores)
        });
        if shared.failure.get().is_some() {
            return;
        }
        if let Some(answer) = stop {
            if let Err(error) = blocking(|| shared.index.close()) {
                tracing::warn!(volume = %shared.name, %error, "the index is not closed; the next start replays more");
            }
            let _ = answer.send(());
            return;
        }
    }
}
