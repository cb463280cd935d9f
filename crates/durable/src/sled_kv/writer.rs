//! The one thread that changes the database: it moves what is pending into sled, and makes sled durable.
//!
//! sled keeps what a change has replaced (pages, log buffers of 512 KB) in a list of the thread that made the change,
//! until that list has 64 entries or the thread ends. Callers come from dozens of threads, because a task that blocks
//! hands its thread's work to another one, and each would keep such a list, in a malloc arena of its own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::KvError;

/// Time from the first change without a sync until the thread makes one.
const SYNC_AFTER: Duration = Duration::from_millis(500);

/// Time from a sync that failed until the thread makes the next, if nobody asks for one before.
const SYNC_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Operations of the thread on the database.
pub(super) trait Work: Send + 'static {
    /// Moves the closed groups into it.
    fn move_closed(&self) -> Result<(), KvError>;
    /// Moves everything into it, and makes it durable.
    fn sync(&self) -> Result<(), KvError>;
}

enum Order {
    /// There is something to move; somebody may wait for it.
    Move(Option<SyncSender<Result<(), KvError>>>),
    Sync(SyncSender<Result<(), KvError>>),
}

/// The thread; it syncs and ends when this is dropped.
pub(super) struct Writer {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(work: impl Work) -> io::Result<Self> {
        let (orders, received) = channel();
        let thread =
            std::thread::Builder::new().name("index writer".to_owned()).spawn(move || run(&work, &received))?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Tells that there is something to move, and does not wait.
    pub(super) fn tell(&self) {
        if let Some(orders) = &self.orders {
            // An error means that the thread has panicked, which the next caller that waits for it learns.
            let _ = orders.send(Order::Move(None));
        }
    }

    /// Waits until the closed groups have moved.
    pub(super) fn move_closed(&self) -> Result<(), KvError> {
        self.wait_for(|done| Order::Move(Some(done)))
    }

    /// Waits until everything is durable.
    pub(super) fn sync(&self) -> Result<(), KvError> {
        self.wait_for(Order::Sync)
    }

    fn wait_for(&self, order: impl FnOnce(SyncSender<Result<(), KvError>>) -> Order) -> Result<(), KvError> {
        let gone = || KvError::Io(io::Error::other("the index has no writer any more"));
        let (done, outcome) = sync_channel(1);
        self.orders.as_ref().ok_or_else(gone)?.send(order(done)).map_err(|_| gone())?;
        outcome.recv().map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Every call of sled is guarded; if the thread panicked all the same, the callers that waited have been
            // told.
            let _ = thread.join();
        }
    }
}

fn run(work: &impl Work, orders: &Receiver<Order>) {
    let mut sync_at: Option<Instant> = None;
    loop {
        let order = match sync_at {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => orders.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match order {
            Ok(Order::Move(done)) => {
                sync_at = sync_at.or_else(|| Some(Instant::now() + SYNC_AFTER));
                let moved = work.move_closed();
                match done {
                    // The caller that asked may have died.
                    Some(done) => drop(done.send(moved)),
                    None => report(moved),
                }
            }
            Ok(Order::Sync(done)) => {
                let synced = work.sync();
                sync_at = again(&synced);
                let _ = done.send(synced);
            }
            Err(RecvTimeoutError::Timeout) => {
                let synced = work.sync();
                sync_at = again(&synced);
                report(synced);
            }
            Err(RecvTimeoutError::Disconnected) => return report(work.sync()),
        }
    }
}

fn again(synced: &Result<(), KvError>) -> Option<Instant> {
    synced.is_err().then(|| Instant::now() + SYNC_AGAIN_AFTER)
}

fn report(outcome: Result<(), KvError>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "the index could not be written in the background");
    }
}
