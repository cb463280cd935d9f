//! Rests: what is missing of files that nobody has open any more.
//!
//! A rest is fetched in class Prefetch, so it may be starved for as long as others need the link. Meanwhile each would
//! keep a call at both ends and one of the server's 16 readers of the session; so only a few are fetched at a time, the
//! others wait without a call, and keep what has come of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::file::{File, FileState};
use super::{Error, Inner};
use crate::remote::{Link, RemoteError};

/// So many rests are fetched at a time: a few fill the link, and most readers of the session are left to those who
/// wait.
const RESTS_MAX: usize = 4;

/// The places of rests that are being fetched.
pub(super) struct Rests(Arc<Semaphore>);

impl Default for Rests {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(RESTS_MAX)))
    }
}

/// What a fetch holds while it fetches a rest.
pub(super) struct RestPlace(Option<OwnedSemaphorePermit>);

impl Inner {
    /// Waits until a fetch is wanted by somebody, or has a place as a rest, or is void.
    pub(super) async fn place_for(&self, file: &File, fetch: u64) -> RestPlace {
        let wanted = file.wait(|state| (state.handles > 0 || state.fetch != fetch).then_some(()));
        tokio::select! {
            biased;
            () = wanted => RestPlace(None),
            place = Arc::clone(&self.rests.0).acquire_owned() => RestPlace(place.ok()),
        }
    }

    /// Returns when a fetch under way is to be ended: it is void, or has become a rest for which there is no place. Who
    /// has the file open waits no longer than the deadline, nor for a server that is out of reach, and counts as
    /// somebody who waits for the server while there is no answer; a rest waits as long as it takes.
    ///
    /// # Errors
    /// If somebody has waited in vain.
    pub(super) async fn interruption(
        &self,
        file: &File,
        fetch: u64,
        answered: bool,
        place: &mut RestPlace,
    ) -> Result<(), Error> {
        let is_void = |state: &mut FileState| state.fetch != fetch;
        loop {
            {
                let _waiting = (!answered && file.state().handles > 0).then(|| self.remote.waiting());
                let not_wanted = file.wait(|state| (state.handles == 0 || is_void(state)).then_some(()));
                tokio::select! {
                    biased;
                    ended = timeout(self.settings.deadline, not_wanted) => {
                        ended.map_err(|_| self.in_vain(answered))?;
                    }
                    () = self.remote.until_in_vain() => return Err(self.in_vain(answered).into()),
                }
            }
            if is_void(&mut file.state()) {
                return Ok(());
            }
            if place.0.is_none() {
                place.0 = Arc::clone(&self.rests.0).try_acquire_owned().ok();
            }
            if place.0.is_none() {
                return Ok(());
            }
            file.wait(|state| (state.handles > 0 || is_void(state)).then_some(())).await;
            place.0 = None;
        }
    }

    /// Why somebody has waited in vain.
    fn in_vain(&self, answered: bool) -> RemoteError {
        RemoteError::TimedOut(match self.remote.link().0 {
            Link::Down(outage) => outage.why,
            Link::Up(_) | Link::Closed if answered => "the file stopped arriving".to_owned(),
            Link::Up(_) | Link::Closed => "the server has not answered".to_owned(),
        })
    }
}
