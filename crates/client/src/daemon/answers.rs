//! What the daemon answers to commands.

use std::path::PathBuf;

use tokio::sync::watch;

use crate::control::{MountStatus, Request, Response};
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
            Request::Sync => match self.vfs.sync().await {
                Ok(()) => Response::Synced,
                Err(error) => Response::Failed(error.to_string()),
            },
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
