//! A fetch: a call whose reply may take long, and that changes its class meanwhile.

use mafs_arpc::Payload;
use mafs_proto::call::{FetchReply, FetchRequest};
use mafs_proto::{Method, Purpose};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::urgency::Urgency;
use super::{Answer, Remote, RemoteError};
use crate::options::FOR_EVER;

impl Remote {
    /// Asks for the content of a file, for the `purpose` at that moment, and again as long as connections break. Each
    /// attempt is handed to `asked` as soon as it is made. Has no deadline: the caller waits as long as it likes.
    pub(crate) async fn fetch(
        &self,
        request: &FetchRequest,
        purpose: &(dyn Fn() -> Purpose + Sync),
        asked: &(dyn Fn(Urgency) + Sync),
    ) -> Result<Answer<FetchReply>, RemoteError> {
        let mut attempts = Attempts::new(&self.shared.config, false);
        loop {
            let connection = self.connected_by(Instant::now() + FOR_EVER).await?;
            let call = self.begin(&connection, request, purpose(), None, Payload::None);
            asked(call.urgency(self.shared.config.classes));
            match self.finish(&connection, call).await {
                Ok(answer) => return Ok(attempts.answered(Method::Fetch, answer)),
                Err(failure) => self.before_next(failure, &connection, &mut attempts).await?,
            }
        }
    }
}
