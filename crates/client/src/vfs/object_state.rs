//! The state of one object, for people and scripts: how far it is between this machine and the server.

use mafs_proto::{Object, VnodeId};
use serde::{Deserialize, Serialize};

use super::{Error, Inner};

/// What `mafs-client state` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectState {
    /// Whether all of its content is on this machine.
    pub cached: bool,
    /// Whether the server lacks something of it.
    pub dirty: bool,
    /// How far its newest update is; none if the server has all that was closed.
    pub update: Option<UpdateState>,
    /// The version of the content that the server has, as far as this machine knows.
    pub version: u64,
    /// Bytes, as programs here see it.
    pub size: u64,
    /// What of its content has not arrived at the server.
    pub bytes_unsent: u64,
}

/// How far an update is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateState {
    /// Nobody else knows of it.
    Logged,
    /// Nobody is shown any more what was before it.
    Announced,
    /// It is on its way.
    Sending,
}

impl Inner {
    pub(super) async fn object_state(&self, vnode: VnodeId) -> Result<ObjectState, Error> {
        self.look_at_all();
        let object = match self.unlinked(vnode) {
            Some(object) => object,
            None => {
                let cached = self.status_of(vnode).await?;
                self.present(cached.object)
            }
        };
        Ok(self.state_of(&object))
    }

    fn state_of(&self, object: &Object) -> ObjectState {
        let (fid, status) = (object.fid, object.status);
        let mut state = ObjectState {
            cached: self.is_content_here(fid.vnode),
            dirty: false,
            update: self.update_of(object),
            version: status.data_version.0,
            size: status.size,
            bytes_unsent: 0,
        };
        state.dirty = state.update.is_some();
        let in_use = self.files().get(fid.vnode);
        if let Some(file) = in_use {
            let file = file.state();
            state.cached = file.is_complete();
            if file.is_dirty() {
                let arrived = file.sending.as_ref().map_or(0, |content| content.arrived_bytes());
                (state.dirty, state.bytes_unsent) = (true, file.size.saturating_sub(arrived));
            }
        }
        state
    }

    fn is_content_here(&self, vnode: VnodeId) -> bool {
        let known = self.cache.index.object(vnode).ok().flatten();
        known.is_some_and(|known| known.content.is_some_and(|here| here.version == known.object.status.data_version))
    }

    /// Where the newest record about an object is.
    fn update_of(&self, object: &Object) -> Option<UpdateState> {
        let id = self.remote.outstanding(|log| log.newest(object.fid))?;
        let queue = self.replay.queue();
        if !queue.contains(id) {
            // It is sent without waiting in the queue.
            return Some(UpdateState::Sending);
        }
        Some(match queue.is_announced(id) {
            _ if queue.is_under_way(id) => UpdateState::Sending,
            Some(true) => UpdateState::Announced,
            Some(false) | None => UpdateState::Logged,
        })
    }
}
