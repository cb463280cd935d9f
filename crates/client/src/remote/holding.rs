//! Holding: tells the server which objects this client relies on. Over one connection only: another one may belong to
//! another session, which was told nothing.

use mafs_arpc::Payload;
use mafs_proto::call::HoldRequest;
use mafs_proto::{Call, Purpose, Wire};

use super::{Link, Remote};
use crate::core::promises::SessionNumber;

impl Remote {
    /// Tells the server of objects, if there is a connection of this session. Returns whether it has heard.
    pub(crate) async fn hold(&self, session: SessionNumber, request: &HoldRequest) -> bool {
        let Link::Up(connection) = self.link().0 else { return false };
        if connection.session != session {
            return false;
        }
        let call = mafs_arpc::Call {
            class: self.shared.config.classes.class(Purpose::Announce),
            timeout: Some(self.shared.config.deadline),
            method: HoldRequest::METHOD.number(),
            body: request.encode(),
            payload: Payload::None,
        };
        connection.peer.call(call).reply().await.is_ok_and(|reply| reply.status == 0)
    }
}
