//! Holding: tells the server which objects this client relies on. Over one connection only: another one may belong to
//! another session, which was told nothing.

use mafs_arpc::Payload;
use mafs_proto::Purpose;
use mafs_proto::call::HoldRequest;

use super::{Link, Remote};
use crate::core::promises::SessionNumber;

impl Remote {
    /// Tells the server of objects, if there is a connection of this session. Returns whether it has heard.
    pub(crate) async fn hold(&self, session: SessionNumber, request: &HoldRequest) -> bool {
        let Link::Up(connection) = self.link().0 else { return false };
        if connection.session != session {
            return false;
        }
        let deadline = self.shared.config.deadline;
        let call = self.shared.to_call(request, Purpose::Announce, Some(deadline), Payload::None);
        connection.peer.call(call).reply().await.is_ok_and(|reply| reply.status == 0)
    }
}
