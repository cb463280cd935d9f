//! A fetch: a call whose reply may take long, and that changes its class meanwhile.

use mafs_arpc::{Payload, Priority};
use mafs_proto::call::{FetchReply, FetchRequest};
use mafs_proto::{Classes, Method, Purpose};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::{Answer, Remote, RemoteError, Waiting};

/// How urgent a fetch is, to be changed while anything of it is on its way.
pub(crate) struct Urgency {
    priority: Priority,
    classes: Classes,
}

impl Urgency {
    /// From now on it is for this.
    pub(crate) fn set(&self, purpose: Purpose) {
        self.priority.set(self.classes.class(purpose));
    }
}

impl Remote {
    /// Asks for the content of a file. Each attempt is one that somebody waits for, unless `asked` says otherwise,
    /// which gets its urgency before it is sent.
    pub(crate) async fn fetch(
        &self,
        request: &FetchRequest,
        asked: &(dyn Fn(Urgency) + Sync),
    ) -> Result<Answer<FetchReply>, RemoteError> {
        let deadline = Instant::now() + self.shared.config.deadline;
        let mut attempts = Attempts::new(&self.shared.config, false);
        let _waiting = Waiting::begin(&self.shared);
        loop {
            let connection = self.connected(deadline).await?;
            let call = self.begin(&connection, request, Purpose::Fetch, Some(deadline), Payload::None);
            asked(Urgency { priority: call.handle.priority(), classes: self.shared.config.classes });
            match self.finish(&connection, call).await {
                Ok(answer) => return Ok(attempts.answered(Method::Fetch, answer)),
                Err(failure) => self.before_next(failure, &connection, &mut attempts).await?,
            }
        }
    }
}
