//! The driver: the one task of a connection. Owns the engine and the carrier, and moves frames, events and commands
//! between them and the handles.
//!
//! Each turn waits for one thing, then takes all that is there (up to a bound), then sends all that may go. The driver
//! decides nothing. An idle connection wakes only for the probe of every 20 s.

mod events;
mod outbound;
mod sending;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mafs_proto::{Clock, Instant};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use self::outbound::{Outbound, Read, Reading};
use crate::carrier::{Broken, Carrier};
use crate::engine::{CALLS_MAX, CallId, Engine, Frame, NewCall, Settings, Violation};
use crate::error::PayloadError;
use crate::gate::Place;
use crate::peer::{BodyCredit, Call, Config, Estimate, IncomingCall, Over};
use crate::pipe::Pipe;
use crate::shared::{Command, Link, OwnCall, Urges};
use crate::wire;

/// How many frames are taken before frames are sent again.
const FRAMES_BATCH: usize = 32;
/// How many commands are taken before frames are sent again: as many as there can be replies.
const COMMANDS_BATCH: usize = CALLS_MAX;
/// While a call waits the clock is read at least this often, so that a resume from suspend is noticed: tokio's timers
/// stand still during it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long the peer has to hear why the connection ends.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The cause of a driver's turn.
enum Wake {
    Frame(Option<Result<wire::Frame, Broken>>),
    Command(Option<Command>),
    Read(Option<Read>),
    Timer,
    /// Something that every turn looks at.
    Other,
}

/// One connection's task.
pub(crate) struct Driver {
    engine: Engine,
    /// The place at the gate, if there is one.
    place: Option<Place>,
    carrier: Carrier,
    clock: Arc<dyn Clock>,
    now: Instant,
    link: Arc<Link>,
    commands: mpsc::UnboundedReceiver<Command>,
    incoming: mpsc::Sender<(IncomingCall, BodyCredit)>,
    own: BTreeMap<CallId, OwnCall>,
    theirs: BTreeMap<CallId, Arc<Over>>,
    inbound: BTreeMap<CallId, Arc<Pipe>>,
    outbound: BTreeMap<CallId, Outbound>,
    /// At most one per outgoing payload.
    reads: FuturesUnordered<Reading>,
    timer: Pin<Box<Sleep>>,
    /// When `timer` goes off; `None`: it has.
    armed: Option<Instant>,
    /// The carrier took no more.
    blocked: bool,
    /// The reason why the connection is to end, and the latest time; sooner if the carrier has taken all frames that
    /// could go.
    closing: Option<(String, Instant)>,
    over: bool,
}

impl Driver {
    pub(crate) fn new(
        carrier: Carrier,
        config: Config,
        place: Option<Place>,
        clock: Arc<dyn Clock>,
        link: Arc<Link>,
        commands: mpsc::UnboundedReceiver<Command>,
        incoming: mpsc::Sender<(IncomingCall, BodyCredit)>,
    ) -> Self {
        let now = clock.now();
        let settings = Settings::of(config.scheduling, config.reserve);
        let settings = carrier.transport.suit(settings, carrier.side);
        let settings = place.as_ref().map_or(settings, |place| settings.gated(place.chunk_bytes_max()));
        Self {
            engine: Engine::new(carrier.side, settings, now),
            place,
            carrier,
            clock,
            now,
            link,
            commands,
            incoming,
            own: BTreeMap::new(),
            theirs: BTreeMap::new(),
            inbound: BTreeMap::new(),
            outbound: BTreeMap::new(),
            reads: FuturesUnordered::new(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
            blocked: false,
            closing: None,
            over: false,
        }
    }

    /// Runs until the connection has ended.
    pub(crate) async fn run(mut self) {
        loop {
            self.flush();
            if self.over {
                break;
            }
            self.arm_timer();
            let wake = self.wait().await;
            self.now = self.clock.now();
            self.handle(wake);
            self.drain();
        }
        self.farewell().await;
    }

    async fn wait(&mut self) -> Wake {
        // The order is fixed, so that runs of the simulator repeat. None starves: every turn takes commands and frames,
        // up to a bound, and looks at the timers, whatever it was woken for. Only reads are taken here alone.
        tokio::select! {
            biased;
            () = &mut self.timer, if self.armed.is_some() => Wake::Timer,
            Some(read) = self.reads.next(), if !self.reads.is_empty() => Wake::Read(read.ok()),
            _ = self.carrier.sink.reserve(), if self.blocked => Wake::Other,
            () = self.link.wake.notified() => Wake::Other,
            command = self.commands.recv() => Wake::Command(command),
            frame = self.carrier.stream.next() => Wake::Frame(frame),
        }
    }

    fn handle(&mut self, wake: Wake) {
        match wake {
            Wake::Frame(Some(Ok(frame))) => self.engine.handle_frame(Frame::parse(frame), self.now),
            Wake::Frame(Some(Err(Broken::Lost(why)))) => self.engine.disconnected(&why),
            Wake::Frame(Some(Err(Broken::Damaged))) => self.engine.handle_frame(Err(Violation::Damaged), self.now),
            Wake::Frame(None) => self.engine.disconnected("the connection was lost"),
            Wake::Command(Some(command)) => self.handle_command(command),
            Wake::Read(Some(read)) => self.handle_read(read),
            Wake::Timer => self.armed = None,
            Wake::Command(None) | Wake::Read(None) | Wake::Other => {}
        }
        self.handle_events();
    }

    /// Takes everything else that is there already, so that its answers go out together.
    fn drain(&mut self) {
        for _ in 0..COMMANDS_BATCH {
            let Ok(command) = self.commands.try_recv() else { break };
            self.handle_command(command);
        }
        for _ in 0..FRAMES_BATCH {
            // A carrier that has ended must not be asked again.
            if self.over {
                return;
            }
            let Some(frame) = self.carrier.stream.next().now_or_never() else { break };
            // Round-trip times are measured with this clock.
            self.now = self.clock.now();
            self.handle(Wake::Frame(frame));
        }
        for charge in self.link.take_consumed() {
            self.engine.consumed(charge);
        }
        if let Some(limits) = self.link.take_limits() {
            self.engine.set_limits(limits, self.now);
        }
        let Urges { look, abandon } = self.link.take_urges();
        if look {
            self.engine.look(self.now);
        }
        if let Some(why) = abandon {
            self.engine.disconnected(&why);
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
        }
        if let Some(why) = self.link.close_wanted() {
            self.closing.get_or_insert((why, self.now + FAREWELL_MAX));
        }
    }

    /// Acts on the engine's events and sends the frames that may go.
    fn flush(&mut self) {
        self.now = self.clock.now();
        if let Some(segment_bytes) = self.carrier.transport.measured_segment_bytes() {
            self.engine.set_segment_bytes(segment_bytes);
        }
        self.handle_events();
        self.blocked = false;
        // A peer that takes no more may still have sent something: only its end of frames ends the connection.
        while !self.over && !self.blocked && !self.carrier.sink.is_closed() {
            if self.carrier.sink.capacity() == 0 {
                self.blocked = true;
            } else if let Some(outgoing) = self.next_frame() {
                self.send(outgoing);
            } else {
                break;
            }
        }
        if let Some(place) = self.place.as_mut().filter(|_| self.blocked || self.carrier.sink.is_closed()) {
            place.withdraw();
        }
        if let Some((why, _)) = self.closing.take_if(|(_, latest)| !self.blocked || *latest <= self.now) {
            self.engine.close(&why);
            self.handle_events();
        }
        let significant = self.engine.take_notice(self.now);
        let estimate = Estimate {
            rate: self.engine.rate(),
            window_bytes: self.engine.window_bytes(self.now),
            chunk_bytes: self.engine.chunk_bytes(self.now),
            rtt_min: self.engine.rtt_min(),
            rtt: self.engine.rtt(),
            queued_bytes: self.engine.queued_bytes(),
            unacknowledged_bytes: self.engine.unacknowledged_bytes(),
            traffic: self.engine.traffic(),
        };
        self.link.set_estimate(estimate, significant);
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Call { id, call: Call { class, timeout, method, body, payload }, own } => {
                self.own.insert(id, own);
                let now = self.now;
                self.open_outbound(id, payload, |engine, payload| {
                    engine.call(NewCall { id, class, method, body, timeout, payload }, now);
                });
            }
            Command::Cancel { id } => self.engine.cancel(id),
            Command::Reprioritise { id, wanted } => {
                if let Some(class) = wanted.take() {
                    self.engine.reprioritise(id, class);
                }
            }
            Command::Reply { id, status, body, payload } => {
                // Without an entry nobody waits any more.
                if self.theirs.remove(&id).is_some() {
                    self.open_outbound(id, payload, |engine, payload| engine.reply(id, status, body, payload));
                }
            }
            Command::Unwanted { id } => {
                self.inbound.remove(&id);
                self.engine.unwanted(id);
            }
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.handle_event(event);
        }
    }

    fn arm_timer(&mut self) {
        let turn_at = self.place.as_ref().and_then(Place::turn_at);
        let Some(mut due) = self.engine.poll_timeout().into_iter().chain(turn_at).min() else { return };
        if self.engine.is_owed() || self.closing.is_some() {
            due = due.min(self.now + WAIT_MAX);
        }
        // A timer that goes off early finds nothing due and is set again.
        if self.armed.is_none_or(|armed| due < armed) {
            self.timer.as_mut().reset(tokio::time::Instant::now() + due.since(self.now));
            self.armed = Some(due);
        }
    }

    /// Ends everything that handles still wait for.
    fn end(&mut self, why: &str) {
        self.over = true;
        if self.engine.is_silent() {
            self.link.set_silent();
        }
        self.link.set_closed(why);
        self.place = None;
        self.outbound.clear();
        self.reads.clear();
        for pipe in std::mem::take(&mut self.inbound).into_values() {
            pipe.end(Err(PayloadError::CallEnded(why.to_owned())));
        }
        for over in std::mem::take(&mut self.theirs).into_values() {
            over.set();
        }
        self.commands.close();
        while self.commands.try_recv().is_ok() {}
        tracing::debug!(why, "connection ended");
    }

    /// Tells the peer why, if the engine wants that and the peer listens.
    async fn farewell(mut self) {
        let Some(outgoing) = self.engine.poll_frame(self.now) else { return };
        let close = async {
            let _ = self.carrier.sink.send(outgoing.frame.into_wire()).await;
            // The peer ends the stream when it has read the frame; cutting it earlier could overtake the frame.
            while let Some(Ok(_)) = self.carrier.stream.next().await {}
        };
        let _ = tokio::time::timeout(FAREWELL_MAX, close).await;
    }
}

impl Drop for Driver {
    /// Ends the connection also when the runtime stops the task: no handle may wait for ever.
    fn drop(&mut self) {
        if !self.over {
            self.end("the connection's task was stopped");
        }
    }
}
