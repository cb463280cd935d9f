//! Asking for locks.

use mafs_arpc::Payload;
use mafs_proto::Purpose;
use mafs_proto::call::{LockReply, LockRequest};
use tokio::time::Instant;

use super::{Answer, PULL_WAIT, Remote, RemoteError};

impl Remote {
    /// Asks for a lock. The server lets the request wait: for other clients that have the lock, and then for the
    /// updates they have announced.
    pub(crate) async fn ask_for_lock(&self, request: &LockRequest) -> Result<Answer<LockReply>, RemoteError> {
        let deadline = Instant::now() + self.shared.config.deadline + 2 * PULL_WAIT;
        self.call_until(request, Purpose::Ask, Some(deadline), &|| Payload::None).await
    }
}
