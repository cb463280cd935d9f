//! Fids for new objects: taken from those of this life, and asked for in good time.

use std::sync::Arc;

use mafs_arpc::{blocking, spawn_blocking};
use mafs_proto::call::GrantFidsRequest;
use mafs_proto::{Fid, FsError, Purpose};

use super::{Ids, Remote, RemoteError, Shared};
use crate::core::fids::Part;

impl Remote {
    /// Takes a fid for a new object. Asks for more in the background in good time.
    pub(crate) async fn take_fid(&self) -> Result<Fid, RemoteError> {
        let (taken, ahead, ask) = {
            let mut ids = self.shared.ids();
            let taken = self.shared.next_fid(&mut ids)?;
            let low = ids.fids.are_low() && self.is_up();
            let ask = low && !std::mem::replace(&mut ids.granting, low);
            (taken, self.shared.log_part_ahead(&ids), ask)
        };
        if let Some(part) = ahead {
            let shared = Arc::clone(&self.shared);
            spawn_blocking(move || shared.add_fids(part));
        }
        match taken {
            Some(fid) => {
                if ask {
                    let remote = self.clone();
                    tokio::spawn(async move { remote.grant_fids().await });
                }
                Ok(fid)
            }
            None => self.grant_fids().await,
        }
    }

    /// Asks for fids and takes one of them.
    async fn grant_fids(&self) -> Result<Fid, RemoteError> {
        let answer = self.call(&GrantFidsRequest, Purpose::Ask).await;
        let mut ids = self.shared.ids();
        ids.granting = false;
        self.shared.begin_fids(&mut ids, Part::of(answer?.reply.fids))?;
        ids.fids.take().ok_or_else(|| RemoteError::refused(FsError::Busy, "the server granted no fids"))
    }
}

impl Shared {
    /// Takes the next fid, if there is one.
    fn next_fid(&self, ids: &mut Ids) -> Result<Option<Fid>, RemoteError> {
        if let Some(fid) = ids.fids.take() {
            return Ok(Some(fid));
        }
        let Some(part) = ids.fids.next_part() else { return Ok(None) };
        self.begin_fids(ids, part)?;
        Ok(ids.fids.take())
    }

    fn begin_fids(&self, ids: &mut Ids, part: Part) -> Result<(), RemoteError> {
        let spared = || self.listener.spare(part.spare).and_then(|()| self.listener.make_durable());
        blocking(spared).map_err(RemoteError::Unreachable)?;
        ids.fids.begin(part);
        Ok(())
    }

    /// Returns the next part, once it is time to make it ready. Logs the spare fids here, under the lock of `ids`.
    fn log_part_ahead(&self, ids: &Ids) -> Option<Part> {
        ids.fids.part_ahead().filter(|part| told(self.listener.spare(part.spare)))
    }

    /// Makes a part ready that has been logged.
    fn add_fids(&self, part: Part) {
        if told(self.listener.make_durable()) {
            self.ids().fids.add(part);
        }
    }
}

/// Whether a step of making a part ready has succeeded. If not, the operation that needs the part tries again and is
/// told the reason.
fn told(step: Result<(), String>) -> bool {
    step.inspect_err(|why| tracing::debug!(why, "no part of fids is ready ahead")).is_ok()
}
