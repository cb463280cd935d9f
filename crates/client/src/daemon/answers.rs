//! The daemon's answers to commands.

use std::path::PathBuf;
use std::time::Duration;

use mafs_arpc::blocking;
use tokio::sync::watch;

use crate::control::{HoardRequest, HoardResponse, MountStatus, Request, Response, SyncRequest};
use crate::printable::printable_path;
use crate::vfs::{Error, HoardFailure, Vfs};

/// Answers commands about one mount, also for a moment after its end.
pub(super) struct Answers {
    vfs: Vfs,
    target: String,
    mount_point: PathBuf,
    ended: watch::Sender<bool>,
}

impl Answers {
    pub(super) fn new(vfs: Vfs, target: String, mount_point: PathBuf) -> Self {
        Self { vfs, target, mount_point, ended: watch::Sender::new(false) }
    }

    /// Notes that the mount has ended, after it has sent what it could: commands that waited for that get the last
    /// status.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    pub(super) async fn answer(&self, request: Request) -> Response {
        match request {
            Request::Status => self.status(),
            Request::Statistics => Response::Statistics(Box::new(self.vfs.statistics())),
            Request::Limit(limit) => {
                self.vfs.limit(limit);
                Response::Limited
            }
            Request::Sync(SyncRequest { below, ticket }) => match self.vfs.find(&below).await {
                Some(vnode) => match self.vfs.sync_below(vnode, ticket).await {
                    Ok(()) => Response::Synced,
                    Err(error @ Error::ByHand) => Response::OutOfReach(error.to_string()),
                    Err(error) => Response::Failed(error.to_string()),
                },
                None => Response::Unknown,
            },
            Request::Progress(ticket) => Response::Progress(self.vfs.sync_progress(ticket)),
            Request::Queue(page) => Response::Queue(Box::new(blocking(|| self.vfs.queue(&page)))),
            Request::Pause(paused) => {
                self.vfs.set_paused(paused);
                Response::Paused
            }
            Request::First(records) => Response::First(self.vfs.send_first(&records)),
            Request::State(below) => {
                let found = self.vfs.find(&below).await;
                let state = found.and_then(|vnode| blocking(|| self.vfs.object_report(vnode)));
                state.map_or(Response::Unknown, |state| Response::State(Box::new(state)))
            }
            Request::Conflicts => match self.vfs.conflicts_report().await {
                Ok(report) => Response::Conflicts(Box::new(report)),
                Err(error) => Response::Failed(error.to_string()),
            },
            Request::Dismiss(below) => Response::Dismissed(blocking(|| self.vfs.dismiss_refused(&below))),
            Request::Disconnect => {
                self.vfs.disconnect().await;
                self.status()
            }
            Request::Reconnect => match self.vfs.reconnect().await {
                Ok(()) => Response::Reconnected,
                Err(error) => Response::OutOfReach(error.to_string()),
            },
            Request::Handoff(ms) => {
                self.vfs.hand_off(Duration::from_millis(ms));
                Response::HandingOff
            }
            Request::Hoard(request) => self.answer_hoard(request).await,
            Request::Verify(below) => match self.vfs.verify(&below).await {
                Ok(Some(verified)) => Response::Verified(Box::new(verified)),
                Ok(None) => Response::Unknown,
                Err(error) => Response::Failed(error.to_string()),
            },
            Request::End => {
                // The sender lives in `self`, so this ends with the mount.
                let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
                self.status()
            }
        }
    }

    async fn answer_hoard(&self, request: HoardRequest) -> Response {
        let answered = match request {
            HoardRequest::Add { below, spec } => self.vfs.hoard(&below, spec).map(|()| {
                let known = blocking(|| self.vfs.is_known(&below));
                Some(HoardResponse::Added { connected: self.vfs.is_connected(), known })
            }),
            HoardRequest::Remove { below, pin } => {
                let removed = self.vfs.unhoard(&below, |spec| !pin || spec.rank.is_pinned());
                removed.map(|removed| Some(HoardResponse::Removed(removed)))
            }
            HoardRequest::List => Ok(Some(HoardResponse::List(self.vfs.hoard_entries()))),
            HoardRequest::Walk => self.vfs.walk_hoard().await.map(|report| Some(HoardResponse::Walked(report))),
            HoardRequest::Warm { below, ticket } => {
                self.vfs.warm_up(&below, ticket).await.map(|warmed| warmed.map(HoardResponse::Warmed))
            }
            HoardRequest::Warming(ticket) => Ok(Some(HoardResponse::Warming(self.vfs.warming(ticket)))),
            HoardRequest::Check(below) => {
                self.vfs.look_at_cached(&below).await.map(|warmed| warmed.map(HoardResponse::Warmed))
            }
            HoardRequest::Evict(below) => {
                self.vfs.evict(&below).await.map(|evicted| evicted.map(HoardResponse::Evicted))
            }
            HoardRequest::Record(ticket) => {
                self.vfs.record(ticket).await;
                Ok(Some(HoardResponse::Recorded(None)))
            }
            HoardRequest::Recording(ticket) => Ok(Some(HoardResponse::Recording(self.vfs.records(ticket)))),
            HoardRequest::EndRecord { ticket, rank } => {
                let recorded = blocking(|| self.vfs.end_recording(ticket, rank));
                recorded.map(|recorded| Some(HoardResponse::Recorded(recorded)))
            }
        };
        match answered {
            Ok(Some(response)) => Response::Hoard(Box::new(response)),
            Ok(None) => Response::Unknown,
            Err(failure @ HoardFailure::OutOfReach(_)) => Response::OutOfReach(failure.to_string()),
            Err(failure) => Response::Failed(failure.to_string()),
        }
    }

    fn status(&self) -> Response {
        Response::Status(Box::new(MountStatus {
            mount_point: printable_path(&self.mount_point),
            target: self.target.clone(),
            pid: std::process::id(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            report: self.vfs.status(),
        }))
    }
}
