//! A fetch: a call whose reply may take long, and that changes its class meanwhile.

use std::time::Duration;

use mafs_arpc::{Payload, Priority};
use mafs_proto::call::{FetchReply, FetchRequest};
use mafs_proto::{Classes, Method, Purpose};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::{Answer, Remote, RemoteError};

const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

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
    /// Asks for the content of a file, for the `purpose` that it has then, and again as long as connections break. Each
    /// attempt is handed to `asked` as soon as it is made. Has no deadline: whoever waits, waits as long as he likes.
    pub(crate) async fn fetch(
        &self,
        request: &FetchRequest,
        purpose: &(dyn Fn() -> Purpose + Sync),
        asked: &(dyn Fn(Urgency) + Sync),
    ) -> Result<Answer<FetchReply>, RemoteError> {
        let mut attempts = Attempts::new(&self.shared.config, false);
        loop {
            let connection = self.connected(Instant::now() + FOR_EVER).await?;
            let call = self.begin(&connection, request, purpose(), None, Payload::None);
            asked(Urgency { priority: call.handle.priority(), classes: self.shared.config.classes });
            match self.finish(&connection, call).await {
                Ok(answer) => return Ok(attempts.answered(Method::Fetch, answer)),
                Err(failure) => self.before_next(failure, &connection, &mut attempts).await?,
            }
        }
    }
}
