//! Bounds on the wire during a run: how much waits below the engine, how long a small call waits, and that no stranger
//! harms anybody by sending nonsense.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::carrier::Carrier;
use mafs_arpc::{Call, Config, Payload, Peer};
use mafs_client::vfs::Vfs;
use mafs_proto::{Class, Clock, Method, Random};
use tokio::time::{Instant, timeout};

/// Small frames of Control that pass a full window, with what goes around them.
const EXEMPT_BYTES: u64 = 4 * 1100;
/// Nobody answers nonsense later than this.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The status of a reply to a call that was dropped.
const UNANSWERED: u32 = u32::MAX;
/// Calls of one stranger.
const CALLS: usize = 10;
/// Beyond every method that there is.
const METHOD_MAX: u64 = 24;
/// Bytes that may be in flight before anything is known of a link, and the least chunk, with their headers.
const FIRST_WINDOW_BYTES: u64 = 10 * 1500;
const CHUNK_BYTES_MIN: u64 = 1500;
/// A chunk takes so much of a link's time.
const CHUNK_TIME: Duration = Duration::from_millis(10);
/// Timers go by milliseconds, and an acknowledgement of a small frame waits for 5 of them.
const SLACK: Duration = Duration::from_millis(10);

/// A link whose rate is always the same.
#[derive(Clone, Copy)]
pub(super) struct SteadyLink {
    pub(super) bytes_per_s: u64,
    pub(super) rtt: Duration,
    /// Since when the client is seen to know the rate.
    known_since: Option<Instant>,
}

impl SteadyLink {
    pub(super) fn new(bytes_per_s: u64, rtt: Duration) -> Self {
        Self { bytes_per_s, rtt, known_since: None }
    }

    /// Checks the bounds of a client at the end of such a link, if nothing has befallen it.
    pub(super) fn check(&mut self, client: usize, vfs: &Vfs) -> Result<(), String> {
        let status = vfs.status();
        // As long as the rate is not known the window is two and a half times what the link holds, and that counts how
        // long acknowledgements wait in the other end's queue: 37 ms on a link of 96, with seed 310142. Bytes sent
        // until then are in flight until they have arrived: 86 KB on a link of 250 KB/s, with seed 794489.
        let beginning = Self { rtt: self.rtt * 3 / 2, ..*self };
        let known_since = status.rate_bytes_per_s.map(|_| self.known_since.unwrap_or_else(Instant::now));
        self.known_since = known_since;
        let is_known = known_since.is_some_and(|since| since.elapsed() > beginning.control_wait_max());
        let allowed = if is_known { *self } else { beginning };
        let (in_flight, most) = (status.in_flight_bytes, allowed.window_bytes_max() + EXEMPT_BYTES);
        if in_flight > most {
            return Err(format!("invariant 7: client {client} has {in_flight} bytes in flight, not {most}"));
        }
        let [control, ..] = vfs.statistics();
        let (longest, most) = (control.queued.percentile(100).unwrap_or_default(), self.control_wait_max());
        if longest > most {
            return Err(format!(
                "invariant 6: a Control call of client {client} has waited for {longest:?}, not {most:?}"
            ));
        }
        Ok(())
    }

    /// Returns the most that a window may be: what the link holds, and beyond that two chunks, or one and a half times
    /// as much while the rate grows. The smallest round trip takes its own frame's way onto the link, too.
    fn window_bytes_max(self) -> u64 {
        let link = self.bytes_in(self.rtt) + CHUNK_BYTES_MIN;
        FIRST_WINDOW_BYTES.max(link + (2 * self.chunk_bytes()).max(link * 3 / 2))
    }

    fn chunk_bytes(self) -> u64 {
        CHUNK_BYTES_MIN.max(self.bytes_in(CHUNK_TIME))
    }

    /// Returns how long a window and a chunk take, until they are acknowledged.
    fn control_wait_max(self) -> Duration {
        let bytes = self.window_bytes_max() + self.chunk_bytes();
        Duration::from_micros(bytes * 1_000_000 / self.bytes_per_s) + self.rtt + SLACK
    }

    fn bytes_in(self, time: Duration) -> u64 {
        self.bytes_per_s * u64::try_from(time.as_micros()).unwrap_or(0) / 1_000_000
    }
}

/// Connects as a stranger and calls methods with bytes that mean nothing. Each call is answered, none with success.
pub(super) async fn call_nonsense(carrier: Carrier, clock: Arc<dyn Clock>, random: &mut Random) -> Result<(), String> {
    let (peer, _incoming) = Peer::start(carrier, Config::default(), clock);
    for _ in 0..CALLS {
        let method = u32::try_from(random.below(METHOD_MAX)).unwrap_or(0);
        // Detach has no arguments, so any message will do; and a stranger without a session has nothing to end.
        let may_succeed = method == Method::Detach.number();
        let body: Vec<u8> = (0..random.below(200)).map(|_| u8::try_from(random.below(256)).unwrap_or(0)).collect();
        let class = random.one_of(&Class::ALL);
        let told = format!("method {method} with {body:?}");
        let call = Call { class, timeout: None, method, body: Bytes::from(body), payload: Payload::None };
        match timeout(ANSWER_MAX, peer.call(call).reply()).await {
            Ok(Ok(reply)) if reply.status == 0 && !may_succeed => return Err(format!("invariant 10: {told} was done")),
            Ok(Ok(reply)) if reply.status == UNANSWERED => {
                return Err(format!("invariant 10: {told} ended what was to answer it"));
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("invariant 10: {told} ended the connection: {error}")),
            Err(_) => return Err(format!("invariant 10: {told} had no answer")),
        }
    }
    Ok(())
}
