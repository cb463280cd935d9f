//! The state that the handles of one connection share with its driver: the way in for commands, and the values that the
//! driver publishes.
//!
//! Commands never wait and never get lost, so their queue is not bounded by a capacity but by the commands that can
//! exist: per call under way (at most 1,024 from each end, see `permits` and the engine's limit) one Call or Reply, one
//! Cancel, one Reprioritise and two Unwanted; and one Reprioritise for each [`Priority`](crate::Priority) that outlives
//! its call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mafs_proto::Class;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::carrier::{Ends, LossMeter};
use crate::engine::{CALLS_MAX, CREDIT_BYTES, CallId, Charge, Rate};
use crate::error::CallError;
use crate::loss::Loss;
use crate::payload::Payload;
use crate::peer::{Call, Estimate, Reply};
use crate::watch;

/// The driver is woken when an application has taken this much of a class; less is collected when it runs anyway.
const CONSUMED_WAKE_BYTES: u64 = CREDIT_BYTES / 4;

/// A request of a handle to the driver.
#[derive(Debug)]
pub(crate) enum Command {
    /// Make a call.
    Call { id: CallId, call: Call, own: OwnCall },
    /// Give an own call up.
    Cancel { id: CallId },
    /// Move an own call to another class.
    Reprioritise { id: CallId, wanted: WantedClass },
    /// Answer an incoming call.
    Reply { id: CallId, status: u32, body: Bytes, payload: Payload },
    /// Nobody reads this incoming payload any more.
    Unwanted { id: CallId },
}

/// The driver's state of an own call until it has ended.
#[derive(Debug)]
pub(crate) struct OwnCall {
    pub(crate) answer: oneshot::Sender<Result<Reply, CallError>>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// State that a call's handle and the driver share while the call is under way.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Payload bytes acknowledged.
    pub(crate) acknowledged: AtomicU64,
}

/// The class that a call is to have, until the driver has seen it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedClass(Arc<Mutex<Option<Class>>>);

impl WantedClass {
    /// Sets the class. Returns whether the driver has to be told: otherwise it has yet to look at an earlier one.
    pub(crate) fn set(&self, class: Class) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(class).is_none()
    }

    pub(crate) fn take(&self) -> Option<Class> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Things for the driver to do besides commands.
#[derive(Debug, Default)]
pub(crate) struct Urges {
    /// Ask the peer for a sign of life, since this end's network has changed.
    pub(crate) look: bool,
    /// End the connection, for this reason.
    pub(crate) abandon: Option<String>,
}

/// The shared part of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    commands: mpsc::UnboundedSender<Command>,
    /// Wakes the driver for anything but a command.
    pub(crate) wake: Notify,
    consumed: [AtomicU64; 5],
    close: Mutex<Option<String>>,
    limits: Mutex<Option<[Option<Rate>; 5]>>,
    urges: Mutex<Urges>,
    closed: watch::Sender<Option<String>>,
    /// The peer was given up because it gave no sign of life.
    silent: AtomicBool,
    /// The latest estimate; watching tasks are woken by significant changes only.
    estimate: watch::Sender<Estimate>,
    loss: LossMeter,
    /// One for each own call that has not ended.
    pub(crate) permits: Arc<Semaphore>,
}

impl Link {
    pub(crate) fn new(loss: LossMeter) -> (Arc<Self>, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        let link = Self {
            commands,
            wake: Notify::new(),
            consumed: Default::default(),
            close: Mutex::default(),
            limits: Mutex::default(),
            urges: Mutex::default(),
            closed: watch::Sender::new(None),
            silent: AtomicBool::new(false),
            estimate: watch::Sender::new(Estimate::default()),
            loss,
            permits: Arc::new(Semaphore::new(CALLS_MAX)),
        };
        (Arc::new(link), received)
    }

    /// Hands a command to the driver; without one it has no effect any more.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Notes that an application has taken bytes.
    pub(crate) fn consumed(&self, charge: Charge) {
        let Charge { class, bytes } = charge;
        let before = self.consumed[class.index()].fetch_add(bytes, Ordering::Relaxed);
        if before < CONSUMED_WAKE_BYTES && before + bytes >= CONSUMED_WAKE_BYTES {
            self.wake.notify_one();
        }
    }

    /// Takes the counts of bytes that applications have consumed since the last time.
    pub(crate) fn take_consumed(&self) -> impl Iterator<Item = Charge> {
        let taken = |class: Class| Charge { class, bytes: self.consumed[class.index()].swap(0, Ordering::Relaxed) };
        Class::ALL.into_iter().map(taken)
    }

    /// Asks the driver to end the connection.
    pub(crate) fn close(&self, why: &str) {
        self.close.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.to_owned());
        self.wake.notify_one();
    }

    /// Takes the reason why the connection is to be ended, if it is.
    pub(crate) fn close_wanted(&self) -> Option<String> {
        self.close.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Publishes that the connection has ended. The first reason counts.
    pub(crate) fn set_closed(&self, why: &str) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    /// Notes, before [`Self::set_closed`], that the peer has given no sign of life.
    pub(crate) fn set_silent(&self) {
        self.silent.store(true, Ordering::Release);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Asks for limits, by [`Class::index`].
    pub(crate) fn set_limits(&self, limits: [Option<Rate>; 5]) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Some(limits);
        self.wake.notify_one();
    }

    /// Takes the limits that have been asked for since the last time.
    pub(crate) fn take_limits(&self) -> Option<[Option<Rate>; 5]> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Asks for things that the driver does at its next turn, which is now.
    pub(crate) fn urge(&self, change: impl FnOnce(&mut Urges)) {
        change(&mut self.urges.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    /// Takes the urges that have been asked for since the last time.
    pub(crate) fn take_urges(&self) -> Urges {
        std::mem::take(&mut *self.urges.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the addresses of the connection's ends.
    pub(crate) fn ends(&self) -> Option<Ends> {
        self.loss.ends()
    }

    /// Whether the connection has ended for this reason.
    pub(crate) fn is_closed_for(&self, reason: &str) -> bool {
        self.closed.borrow().as_ref().is_some_and(|why| why.contains(reason))
    }

    /// Watches for the reason why the connection has ended, once it has.
    pub(crate) fn watch_closed(&self) -> watch::Receiver<Option<String>> {
        self.closed.subscribe()
    }

    /// Publishes an estimate of the link; tasks that watch it are woken if the change is `significant`.
    pub(crate) fn set_estimate(&self, estimate: Estimate, significant: bool) {
        self.estimate.send_if_modified(|old| {
            *old = estimate;
            significant
        });
    }

    pub(crate) fn watch_estimate(&self) -> watch::Receiver<Estimate> {
        self.estimate.subscribe()
    }

    pub(crate) fn estimate(&self) -> Estimate {
        self.estimate.borrow().clone()
    }

    /// Returns how much the transport has lost, while the connection lasts: its addresses may be another's afterwards.
    pub(crate) fn loss(&self) -> Option<Loss> {
        if self.closed.borrow().is_none() { self.loss.read() } else { None }
    }
}
