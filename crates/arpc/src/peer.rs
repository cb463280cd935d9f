//! One end of a session, as programs use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::{BODY_BYTES_MAX, Class, Clock};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::carrier::{Carrier, Ends};
use crate::driver::Driver;
use crate::engine::{CALLS_MAX, CallId, Charge, Rate, Reserve, STATUS_BUSY, STATUS_UNANSWERED, Violation};
use crate::error::CallError;
use crate::gate::SharedGate;
use crate::loss::Loss;
use crate::payload::{Payload, PayloadReader};
use crate::shared::{Command, Link, OwnCall, Progress, WantedClass};
use crate::watch;

/// How one end behaves. Defaults are right for every link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The order in which content goes out.
    pub scheduling: Scheduling,
    /// The share of this end's direction that the log gets when more urgent classes starve it.
    pub reserve: Reserve,
}

/// The order in which content goes out. All but the default are for comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheduling {
    /// The five classes, with a window that adapts to the link.
    #[default]
    Classes,
    /// Everything takes turns, with the same window: this shows the effect of the window alone.
    OneClass,
    /// Everything takes turns, and the transport takes all it will, as under a file system that knows no classes.
    Off,
}

/// A call to make.
#[derive(Debug)]
pub struct Call {
    /// How urgently somebody waits.
    pub class: Class,
    /// The time without a reply after which the call is given up; `None`: only when the connection ends. The payload of
    /// the reply may take longer.
    pub timeout: Option<Duration>,
    /// The number of the requested operation.
    pub method: u32,
    /// The request: at most `mafs_proto::BODY_BYTES_MAX`.
    pub body: Bytes,
    /// Bytes that go with the request.
    pub payload: Payload,
}

/// The answer to a call.
#[derive(Debug)]
pub struct Reply {
    /// 0: success; otherwise a number the two ends agree on. `u32::MAX`: the peer left the call unanswered.
    pub status: u32,
    /// The answer.
    pub body: Bytes,
    /// Bytes that come with the answer; they arrive while they are read.
    pub payload: PayloadReader,
    /// How long the call took.
    pub timing: Timing,
}

/// The time that a call took until the first of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// The time until the first of the request went out: others were more urgent, or the window was full.
    pub queued: Duration,
    /// The time from then on.
    pub served: Duration,
}

/// The present knowledge of the link.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Estimate {
    /// Bytes per second that this end has seen the link carry; `None` before it had enough to send to fill
    /// the link once.
    pub rate: Option<u64>,
    /// Smallest round-trip time seen of late; `None` before the first answer.
    pub rtt_min: Option<Duration>,
    /// Smoothed round-trip time, with the time in queues.
    pub rtt: Option<Duration>,
    /// The most bytes that this end may have sent without an acknowledgement.
    pub window_bytes: u64,
    /// Bytes that this end sends in one frame.
    pub chunk_bytes: u64,
    /// Bytes waiting to be sent, by [`Class::index`].
    pub queued_bytes: [u64; 5],
    /// Bytes sent that the peer has not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bodies and payloads in both directions since the connection began, by [`Class::index`] of the frames.
    pub traffic: [Traffic; 5],
}

/// Bytes that went over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes sent by this end.
    pub sent_bytes: u64,
    /// Bytes received by this end.
    pub received_bytes: u64,
}

/// One end of a session. Clones are the same end. When the last clone is dropped the connection closes.
#[derive(Clone, Debug)]
pub struct Peer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Arc<Link>,
    next_id: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.link.close("nobody uses the connection any more");
    }
}

impl Peer {
    /// Starts the engine over a carrier. Must be called in a tokio runtime. Calls of the other end come out of
    /// [`Incoming`]; if that is dropped they are refused.
    #[must_use]
    pub fn start(carrier: Carrier, config: Config, clock: Arc<dyn Clock>) -> (Self, Incoming) {
        Self::start_behind(None, carrier, config, clock)
    }

    /// Starts the engine like [`Self::start`]; frames of this end pass a gate, if there is one.
    #[must_use]
    pub fn start_behind(
        gate: Option<&SharedGate>,
        carrier: Carrier,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> (Self, Incoming) {
        let (link, commands) = Link::new(carrier.loss.clone());
        let place = gate.map(|gate| gate.join(&link));
        // The channel holds as many as the engine lets the peer have under way; more can only be calls that were
        // cancelled meanwhile.
        let (incoming, calls) = mpsc::channel(CALLS_MAX);
        let next_id = AtomicU64::new(carrier.side.first_id());
        let driver = Driver::new(carrier, config, place, clock, link.clone(), commands, incoming);
        tokio::spawn(driver.run());
        (Self { shared: Arc::new(Shared { link, next_id }) }, Incoming { calls })
    }

    /// Makes a call. The call goes out even if the handle is not awaited; dropping the handle cancels it.
    #[must_use]
    pub fn call(&self, call: Call) -> CallHandle {
        let link = &self.shared.link;
        let id = CallId(self.shared.next_id.fetch_add(2, Ordering::Relaxed));
        let progress = Arc::new(Progress::default());
        let (answer, answered) = oneshot::channel();
        let priority = Priority { id, link: link.clone(), wanted: WantedClass::default() };
        let handle = CallHandle { priority, progress: progress.clone(), answered, ended: false };
        let refused = match (link.permits.clone().try_acquire_owned(), call.body.len()) {
            (_, bytes) if bytes > BODY_BYTES_MAX => CallError::TooLarge(bytes),
            (Err(_), _) => CallError::Busy,
            (Ok(permit), _) => {
                link.send(Command::Call { id, call, own: OwnCall { answer, progress, _permit: permit } });
                return handle;
            }
        };
        // The handle's end is here: this cannot fail.
        let _ = answer.send(Err(refused));
        handle
    }

    /// Returns the present knowledge of the link.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        self.shared.link.estimate()
    }

    /// Returns how much of its sent bytes the transport has lost; `None` where it does not tell: UNIX sockets, memory,
    /// the end that was connected to, and once the connection has ended. Asks the kernel, which takes some 10 us.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.shared.link.loss()
    }

    /// Notifies of significant changes of the estimate: rate (below 64 MB/s) or smallest round-trip time (by 10 ms) are
    /// known for the first time, have doubled or have halved. Once a second at most.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Estimate> {
        self.shared.link.watch_estimate()
    }

    /// Limits what travels of each class, by [`Class::index`]: bodies and payloads, each direction by itself, until the
    /// next call of this; the other end hears of the limits ahead of later calls. `None`: no limit, as at first. If
    /// both ends set one the smaller holds. Less urgent classes overtake calls that a limit keeps waiting, and the
    /// timeouts of those calls run. Acknowledgements and other frames without content never wait, and a limit of
    /// Control is none.
    pub fn set_limits(&self, limits: [Option<Rate>; 5]) {
        self.shared.link.set_limits(limits);
    }

    /// Returns the addresses of both ends of the connection; `None` where there are none, or they are not known: UNIX
    /// sockets, memory, emulated links, the accepting end of TCP.
    #[must_use]
    pub fn ends(&self) -> Option<Ends> {
        self.shared.link.ends()
    }

    /// Asks the other end for a sign of life, because this host's network has changed. Over TCP an end that does not
    /// answer within a second is given up, or within four round trips if that is more: another connection does better
    /// than one that has lost much. QUIC goes on where the network does, and waits as long as ever.
    pub fn look(&self) {
        self.shared.link.urge(|urges| urges.look = true);
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> String {
        why_closed(&self.shared.link).await
    }

    /// Whether the connection has ended because the other end gave no sign of life when it was asked for one.
    #[must_use]
    pub fn ended_in_silence(&self) -> bool {
        self.shared.link.is_silent()
    }

    /// Whether the connection has ended because a frame was damaged on its way to either end.
    #[must_use]
    pub fn ended_by_damage(&self) -> bool {
        // Whichever end has noticed, it has told the other.
        self.shared.link.is_closed_for(&Violation::Damaged.to_string())
    }

    /// Ends the connection without a word to the other end, which would not hear it; calls under way end at once.
    pub fn abandon(&self, why: &str) {
        self.shared.link.urge(|urges| urges.abandon = Some(why.to_owned()));
    }

    /// Ends the connection; calls under way end with `Disconnected`. Small replies given before still arrive.
    pub fn close(&self, why: &str) {
        self.shared.link.close(why);
    }
}

async fn why_closed(link: &Link) -> String {
    let mut closed = link.watch_closed();
    // The sender lives in the link.
    let why = closed.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
    why.unwrap_or_default()
}

/// A call under way. Dropping it cancels the call.
#[derive(Debug)]
pub struct CallHandle {
    priority: Priority,
    progress: Arc<Progress>,
    answered: oneshot::Receiver<Result<Reply, CallError>>,
    ended: bool,
}

impl CallHandle {
    /// Waits for the reply's status and body; its payload follows through the reply's reader.
    ///
    /// # Errors
    /// [`CallError`] if there is none.
    pub async fn reply(mut self) -> Result<Reply, CallError> {
        let answer = (&mut self.answered).await;
        self.ended = true;
        match answer {
            Ok(answer) => answer,
            // The driver is gone, or was when the call was made.
            Err(_) => Err(CallError::Disconnected(why_closed(&self.priority.link).await)),
        }
    }

    /// Returns a handle that changes the class of the call, also while the payload of its reply arrives.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.priority.clone()
    }

    /// Returns the progress of the request, which can be looked at also while a task waits for the reply.
    #[must_use]
    pub fn progress(&self) -> CallProgress {
        CallProgress(Arc::clone(&self.progress))
    }
}

/// A handle to change the class of a call that this end has made. Clones are of the same call.
#[derive(Clone, Debug)]
pub struct Priority {
    id: CallId,
    link: Arc<Link>,
    wanted: WantedClass,
}

impl Priority {
    /// Moves the unsent rest of the request, the reply and their payloads to another class. Does nothing for a call
    /// that is over.
    pub fn set(&self, class: Class) {
        if self.wanted.set(class) {
            self.link.send(Command::Reprioritise { id: self.id, wanted: self.wanted.clone() });
        }
    }
}

/// The progress of a call's request.
#[derive(Clone, Debug)]
pub struct CallProgress(Arc<Progress>);

impl CallProgress {
    /// Returns how many bytes of the request's payload the peer has acknowledged.
    #[must_use]
    pub fn acknowledged_bytes(&self) -> u64 {
        self.0.acknowledged.load(Ordering::Relaxed)
    }
}

impl Drop for CallHandle {
    fn drop(&mut self) {
        if !self.ended {
            self.priority.link.send(Command::Cancel { id: self.priority.id });
        }
    }
}

/// The calls of the other end.
#[derive(Debug)]
pub struct Incoming {
    calls: mpsc::Receiver<(IncomingCall, BodyCredit)>,
}

impl Incoming {
    /// Returns the next call; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<IncomingCall> {
        self.calls.recv().await.map(|(call, _)| call)
    }
}

/// Credit that the body of a waiting call holds; returned when the call is taken or refused.
#[derive(Debug)]
pub(crate) struct BodyCredit {
    pub(crate) link: Arc<Link>,
    pub(crate) charge: Charge,
}

impl Drop for BodyCredit {
    fn drop(&mut self) {
        self.link.consumed(self.charge);
    }
}

/// A call of the other end. Dropping it without a reply answers with status `u32::MAX`.
#[derive(Debug)]
pub struct IncomingCall {
    /// How urgently the caller waits.
    pub class: Class,
    /// The number of the requested operation.
    pub method: u32,
    /// The request.
    pub body: Bytes,
    /// Bytes that come with the request.
    pub payload: PayloadReader,
    pub(crate) responder: Responder,
}

impl IncomingCall {
    /// Answers, in the class of the request (`Control` if the whole reply is at most 1 KB). The body may have
    /// `mafs_proto::BODY_BYTES_MAX` bytes; with more the call is left unanswered.
    pub fn reply(self, status: u32, body: Bytes, payload: Payload) {
        let Self { payload: request, mut responder, .. } = self;
        if body.len() > BODY_BYTES_MAX {
            tracing::error!(bytes = body.len(), "the body of a reply is too large");
        } else {
            responder.send(status, body, payload);
        }
        // The request is dropped after the reply, which makes the rest of the request unwanted.
        drop(request);
    }

    /// Waits until the caller has cancelled the call or the connection has ended.
    pub async fn cancelled(&self) {
        self.responder.over.wait().await;
    }

    /// Answers that too many calls are waiting.
    pub(crate) fn refuse(mut self) {
        self.responder.send(STATUS_BUSY, Bytes::new(), Payload::None);
    }
}

/// The debt of one reply.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) id: CallId,
    pub(crate) link: Arc<Link>,
    pub(crate) over: Arc<Over>,
    pub(crate) answered: bool,
}

impl Responder {
    fn send(&mut self, status: u32, body: Bytes, payload: Payload) {
        self.answered = true;
        self.link.send(Command::Reply { id: self.id, status, body, payload });
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            self.send(STATUS_UNANSWERED, Bytes::new(), Payload::None);
        }
    }
}

/// A flag that says whether nobody waits for an answer any more.
#[derive(Debug, Default)]
pub(crate) struct Over {
    over: AtomicBool,
    changed: Notify,
}

impl Over {
    pub(crate) fn set(&self) {
        self.over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn wait(&self) {
        // This is made before the look, so that it sees every later change.
        let changed = self.changed.notified();
        if !self.over.load(Ordering::Acquire) {
            changed.await;
        }
    }
}
