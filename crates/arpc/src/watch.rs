//! A value that tasks watch for changes.
//!
//! Like tokio's `watch`, but for the order in which tasks are woken: there it is random, here it is the order in which
//! they began to wait, so that runs of the simulator repeat.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The end that sets the value. Receivers fail when it is dropped.
pub struct Sender<T>(Arc<Shared<T>>);

/// An end that looks at the value, and remembers which one it has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

struct State<T> {
    value: T,
    version: u64,
    closed: bool,
}

/// The present value. The value does not change while this lives, which must be short.
pub struct Ref<'a, T>(MutexGuard<'a, State<T>>);

/// The error of a receiver whose sender is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nobody is left who could change the value")]
pub struct Closed;

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Makes a sender without receivers.
    pub fn new(value: T) -> Self {
        let state = Mutex::new(State { value, version: 0, closed: false });
        Self(Arc::new(Shared { state, changed: Notify::new() }))
    }

    /// Makes another receiver, which has seen the present value.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { shared: Arc::clone(&self.0), seen: self.0.lock().version }
    }

    /// Returns the present value.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.lock())
    }

    /// Sets the value, and notifies the receivers also if it is the same.
    pub fn send_replace(&self, value: T) {
        self.send_modify(|old| *old = value);
    }

    /// Changes the value, and notifies the receivers.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value, and notifies the receivers if `change` says so.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        let modified = {
            let mut state = self.0.lock();
            let modified = change(&mut state.value);
            state.version += u64::from(modified);
            modified
        };
        if modified {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// Takes the present value for seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.lock().version;
    }

    /// Waits for a value that this receiver has not seen, and takes it for seen. May be dropped at any moment.
    ///
    /// # Errors
    /// [`Closed`] if there will be none.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let seen = self.seen;
        self.next(|version, _| version != seen).await.map(drop)
    }

    /// Waits for a wanted value, which may be the present one, and takes it for seen. May be dropped at any moment.
    ///
    /// # Errors
    /// [`Closed`] if there will be none.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        self.next(|_, value| wanted(value)).await
    }

    async fn next(&mut self, mut wanted: impl FnMut(u64, &T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let Self { shared, seen } = self;
        loop {
            // Before the look, so that no change is missed after it.
            let changed = shared.changed.notified();
            {
                let state = shared.lock();
                if wanted(state.version, &state.value) {
                    *seen = state.version;
                    return Ok(Ref(state));
                }
                if state.closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.0.lock().value).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_sees_a_change_once() {
        let sender = Sender::new(1);
        let mut receiver = sender.subscribe();
        sender.send_replace(2);
        sender.send_if_modified(|value| {
            *value = 3;
            false
        });
        receiver.changed().await.unwrap();
        let again = tokio::time::timeout(std::time::Duration::from_millis(1), receiver.changed()).await;
        assert!(again.is_err(), "the change was seen already");
        assert_eq!(*sender.borrow(), 3);
    }

    #[tokio::test]
    async fn a_value_that_is_there_is_not_waited_for() {
        let sender = Sender::new(7);
        assert_eq!(*sender.subscribe().wait_for(|value| *value == 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn without_a_sender_nothing_is_waited_for() {
        let sender = Sender::new(0);
        let mut receiver = sender.subscribe();
        let waiting = tokio::spawn(async move { receiver.changed().await });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
    }

    #[tokio::test]
    async fn the_last_value_is_seen_also_when_the_sender_is_gone() {
        let sender = Sender::new(0);
        let mut receiver = sender.subscribe();
        sender.send_replace(1);
        drop(sender);
        receiver.changed().await.unwrap();
        assert_eq!(receiver.changed().await, Err(Closed));
    }

    #[tokio::test]
    async fn tasks_are_woken_in_the_order_in_which_they_began_to_wait() {
        for _ in 0..20 {
            let sender = Sender::new(());
            let order = Arc::new(Mutex::new(Vec::new()));
            let tasks = (0..10).map(|number| {
                let (mut receiver, order) = (sender.subscribe(), Arc::clone(&order));
                tokio::spawn(async move {
                    receiver.changed().await.unwrap();
                    order.lock().unwrap().push(number);
                })
            });
            let tasks: Vec<_> = tasks.collect();
            tokio::task::yield_now().await;
            sender.send_replace(());
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        }
    }
}
