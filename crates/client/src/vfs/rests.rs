//! Rests: the missing bytes of files that no program has open any more.
//!
//! A rest is fetched in class Prefetch, so it may be starved for as long as other traffic needs the link. Meanwhile
//! each would keep a call at both ends and one of the server's 16 readers of the session. So only a few are fetched at
//! a time; the others wait without a call, and keep the bytes that have come.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::file::{Content, File};
use super::{Error, Inner};
use crate::core::content::arrival::Fetch;
use crate::remote::{Link, RemoteError};

/// Most rests that are fetched at a time. A few fill the link; for small files on a long link it takes more. Half of
/// the readers of the session are left to programs that wait.
const RESTS_MAX: usize = 8;

/// The places of rests that are being fetched.
pub(super) struct Rests(Arc<Semaphore>);

impl Default for Rests {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(RESTS_MAX)))
    }
}

/// Place that a fetch holds while it fetches a rest.
pub(super) struct RestPlace(Option<OwnedSemaphorePermit>);

impl Inner {
    /// Waits until a fetch is wanted by a program, or has a place as a rest, or is void.
    pub(super) async fn place_for(&self, file: &File, fetch: Fetch) -> RestPlace {
        let wanted = file.wait(|state| (state.handles() > 0 || !state.arrival().goes_on(fetch)).then_some(()));
        tokio::select! {
            biased;
            () = wanted => RestPlace(None),
            place = Arc::clone(&self.rests.0).acquire_owned() => RestPlace(place.ok()),
        }
    }

    /// Returns when a fetch under way is to be ended: it is void, or has become a rest for which there is no place.
    /// The fetch itself waits for as long as it takes.
    ///
    /// # Errors
    /// If the programs that wanted the file have gone away without any of it.
    pub(super) async fn interruption(
        &self,
        file: &File,
        fetch: Fetch,
        answered: bool,
        place: &mut RestPlace,
    ) -> Result<(), Error> {
        let is_void = |state: &mut Content| !state.arrival().goes_on(fetch);
        loop {
            self.until_not_wanted(file, fetch, answered).await;
            if is_void(&mut file.state()) {
                return Ok(());
            }
            if file.state().arrival().is_in_vain() {
                return Err(self.in_vain(answered).into());
            }
            if place.0.is_none() {
                place.0 = Arc::clone(&self.rests.0).try_acquire_owned().ok();
            }
            if place.0.is_none() {
                return Ok(());
            }
            file.wait(|state| (state.handles() > 0 || is_void(state)).then_some(())).await;
            place.0 = None;
        }
    }

    /// Returns when no program has the file of a fetch under way open any more, or the fetch is void. A program that
    /// has it open waits no longer than the deadline, nor for a server that is out of reach, and counts as waiting for
    /// the server while there is no answer.
    async fn until_not_wanted(&self, file: &File, fetch: Fetch, answered: bool) {
        let not_wanted = || file.wait(|state| (state.handles() == 0 || !state.arrival().goes_on(fetch)).then_some(()));
        loop {
            let waiting = (!answered && file.state().handles() > 0).then(|| self.remote.waiting());
            let lasts = tokio::select! {
                biased;
                ended = timeout(self.settings.deadline, not_wanted()) => match ended {
                    Ok(()) => return,
                    Err(_) => false,
                },
                () = self.remote.until_in_vain() => true,
            };
            drop(waiting);
            file.state().arrival_mut().stall(self.in_vain(answered).into(), lasts);
            file.notify();
            if lasts {
                tokio::select! {
                    () = not_wanted() => return,
                    () = self.remote.until_within_reach() => {}
                }
            }
        }
    }

    /// Returns why a program has waited in vain.
    fn in_vain(&self, answered: bool) -> RemoteError {
        match self.remote.link().0 {
            Link::Up(_) | Link::Closed if answered => RemoteError::TimedOut("the file stopped arriving".to_owned()),
            Link::Up(_) | Link::Closed | Link::Down(_) => self.remote.unanswered(),
        }
    }
}
