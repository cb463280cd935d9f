//! What the daemon answers to commands.

use std::path::PathBuf;

use mafs_arpc::blocking;
use tokio::sync::watch;

use crate::control::{MountStatus, Request, Response, SyncRequest};
use crate::printable::printable_path;
use crate::vfs::Vfs;

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

    /// The mount has ended and what could be sent has been: whoever waited for that gets the last status.
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
                    Err(error) => Response::Failed(error.to_string()),
                },
                None => Response::Unknown,
            },
            Request::Progress(ticket) => Response::Progress(self.vfs.sync_progress(ticket)),
            Request::Queue(page) => Response::Queue(Box::new(blocking(|| self.vfs.queue(&page)))),
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
            Request::End => {
                // The sender lives in `self`, so this ends with the mount.
                let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
                self.status()
            }
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
