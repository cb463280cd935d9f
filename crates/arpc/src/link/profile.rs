//! Whole links: both directions and what they share; the ones with names, and those of the papers' experiments.
//!
//! A named profile is a type of link, not a place: its figures are from the source it names, and round where the source
//! has none ("chosen"). Link layers that repeat by themselves (Wi-Fi, cellular) show their loss as a varying rate and
//! as gaps, so only the rest of it is here as loss.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mafs_proto::Instant;

use super::channel::Channel;
use super::{Cellular, Direction, Link, Periods, Rate, Stream};

const KBYTE: u64 = 1024;
/// How long a generated trace is before it begins again.
const TRACE_LENGTH: Duration = Duration::from_secs(300);

/// A link between a client and its server.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The direction from the client.
    pub up: Direction,
    /// The direction to the client.
    pub down: Direction,
    /// Bursts of errors, in both directions at once.
    pub bursts: Option<Periods>,
    /// Times when nothing gets through: out of reach, between two cells. They work like bursts, on another scale of
    /// time.
    pub outages: Option<Periods>,
    /// How the link's own hardware sends lost packets again, if it does.
    pub retransmission: Option<Retransmission>,
    /// The seed that all random values follow from.
    pub seed: u64,
}

/// The way in which a link sends lost packets again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retransmission {
    /// Holds a lost packet until the channel is good again, and sends it then; later ones wait behind it. This is the
    /// best case of a data and acknowledgement protocol, as the wireless papers emulate it (000 section 4.3, 001
    /// section 5.3).
    Hold,
    /// Runs the protocol itself, [`super::arq`], with one station and its defaults: a loss is known when no
    /// acknowledgement comes, silent channels are probed, answers take their time on the air, and after 32 repetitions
    /// a packet is lost. Packets that find no room in the receive buffer are sent again, too.
    Arq,
}

/// The error for a name that no profile has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no link profile is called `{name}`: use one of {}", Profile::NAMES.join(", "))]
pub struct UnknownProfile {
    /// The name that was asked for.
    pub name: String,
}

/// Makes a profile, from a seed if its rate needs one.
type Named = fn(u64) -> Profile;

/// All profiles that have names.
const NAMED: [(&str, Named); 12] = [
    ("lan", |_| Profile::lan()),
    ("wifi-good", |_| Profile::wifi_good()),
    ("wifi-cafe", |_| Profile::wifi_cafe()),
    ("wifi-roam", |_| Profile::wifi_roam()),
    ("lte", Profile::lte),
    ("lte-drive", Profile::lte_drive),
    ("3g", |_| Profile::umts()),
    ("edge-lossy", |_| Profile::edge_lossy()),
    ("geo", |_| Profile::geo()),
    ("leo", |_| Profile::leo()),
    ("flaky", |_| Profile::flaky()),
    ("down", |_| Profile::down()),
];

/// The name of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileName {
    /// The index in the table of names.
    index: usize,
}

impl ProfileName {
    /// Returns the profile of this name.
    #[must_use]
    pub fn profile(self, seed: u64) -> Profile {
        Profile { seed, ..NAMED[self.index].1(seed) }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMED[self.index].0)
    }
}

impl FromStr for ProfileName {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let index = NAMED.iter().position(|(known, _)| *known == name);
        index.map(|index| Self { index }).ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }
}

impl Profile {
    /// All names of profiles.
    pub const NAMES: [&str; 12] = {
        let mut names = [""; 12];
        let mut at = 0;
        while at < names.len() {
            names[at] = NAMED[at].0;
            at += 1;
        }
        names
    };

    /// Returns the profile of a name.
    ///
    /// # Errors
    /// There is no such profile; the error lists the names there are.
    pub fn named(name: &str, seed: u64) -> Result<Self, UnknownProfile> {
        Ok(name.parse::<ProfileName>()?.profile(seed))
    }

    /// Makes the link of the MAFS paper's experiments (003 sections 4.3 and 5.4): a rate, the same in both directions,
    /// and nothing else. The queue of 64 KB is that of the measurements in facts.md section 3.
    #[must_use]
    pub fn steady(bytes_per_s: u64, rtt: Duration) -> Self {
        let direction = direction(bytes_per_s, rtt / 2, 64 * KBYTE);
        Self::of(direction.clone(), direction)
    }

    /// Makes the link of the wireless papers (000 section 3; 001): infra-red at 1 Mbit/s in one room, good periods of
    /// one second on average and bad ones of `bad`: 40 and 80 ms there, up to 160 ms in the journal's version. Delay (4
    /// ms both ways) and queue are those of facts.md section 4.
    #[must_use]
    pub fn burst_errors(bad: Duration, seed: u64) -> Self {
        let bursts = (!bad.is_zero()).then_some(Periods::Random { good: Duration::from_secs(1), bad });
        Self { bursts, seed, ..Self::steady(kbit(1000), ms(4)) }
    }

    /// Returns both directions as packets see them, `up` first. Time begins at `start`.
    #[must_use]
    pub fn links(&self, start: Instant) -> [Link; 2] {
        let [up, down] = Channel::both(self, 0);
        [Link::new(&self.up, up, start), Link::new(&self.down, down, start)]
    }

    /// Returns both directions as bytes on a reliable transport see them, `up` first. Time begins at `start`.
    #[must_use]
    pub fn streams(&self, start: Instant) -> [Stream; 2] {
        self.streams_of(0, start)
    }

    /// Returns [`Self::streams`] for one of the connections that are made over the link one after the other, by its
    /// number. All that depends on time is the same for all; only by chance each loses other segments.
    #[must_use]
    pub fn streams_of(&self, connection: u64, start: Instant) -> [Stream; 2] {
        let [up, down] = Channel::both(self, connection);
        let rtt = self.up.delay.saturating_add(self.down.delay);
        [Stream::new(&self.up, up, rtt, start), Stream::new(&self.down, down, rtt, start)]
    }

    /// An office's wire: 1 Gbit/s switched Ethernet, 0.2 ms both ways (chosen).
    fn lan() -> Self {
        let direction = direction(kbit(1_000_000), Duration::from_micros(100), 512 * KBYTE);
        Self::of(direction.clone(), direction)
    }

    /// A good signal at home: 33 Mbit/s up, 40 down, 2 ms both ways, the preset "Wi-Fi" of Apple's Network Link
    /// Conditioner. Its link layer hides losses.
    fn wifi_good() -> Self {
        Self::of(direction(kbit(33_000), ms(1), 256 * KBYTE), direction(kbit(40_000), ms(1), 256 * KBYTE))
    }

    /// A Wi-Fi shared by many and disturbed: a fraction of the good one's rate (chosen), with the bursts of the
    /// wireless papers at their milder setting (000 section 3.2: good for 1 s, bad for 40 ms on average).
    fn wifi_cafe() -> Self {
        let bursts = Periods::Random { good: Duration::from_secs(1), bad: ms(40) };
        let up = direction(kbit(5000), ms(10), 128 * KBYTE);
        Self { bursts: Some(bursts), ..Self::of(up, direction(kbit(10_000), ms(10), 128 * KBYTE)) }
    }

    /// Walking through a building from one base station to the next: the good one, gone for 0.3 s on average every 30 s
    /// (chosen; hand-offs of 802.11 take tens to hundreds of milliseconds, Mishra, Shin and Arbaugh 2003).
    fn wifi_roam() -> Self {
        Self { outages: Some(Periods::Random { good: Duration::from_secs(30), bad: ms(300) }), ..Self::wifi_good() }
    }

    /// A cellular link used at rest: about 5 Mbit/s up and 12 down, 70 ms both ways (WebPageTest's "LTE" has 12 each
    /// way), wandering at half of Sprout's pace, never to 0. Deep queues: NSDI 2013 reports delays of seconds.
    fn lte(seed: u64) -> Self {
        Self::cellular([200..=600, 500..=1500], [50, 100], ms(35), seed)
    }

    /// A cellular link used while driving: Sprout's own figures, 0 to 1000 packets a second (12 Mbit/s) and 200 per
    /// square root of a second, and outages for 5 % of the time; half of both on the way up.
    fn lte_drive(seed: u64) -> Self {
        Self::cellular([0..=500, 0..=1000], [100, 200], ms(35), seed)
    }

    /// 768 kbit/s up, 1.6 Mbit/s down, 300 ms both ways: WebPageTest's "3G".
    fn umts() -> Self {
        Self::of(direction(kbit(768), ms(150), 128 * KBYTE), direction(kbit(1600), ms(150), 128 * KBYTE))
    }

    /// The edge of a 2G cell: 200 kbit/s up, 240 down, 840 ms both ways (WebPageTest's "Edge"), and the loss that its
    /// link layer leaves: 1 %, and bad periods of 160 ms every 5 s (chosen; the longest of the wireless papers).
    fn edge_lossy() -> Self {
        let lossy = |rate| Direction { loss_ppm: 10_000, ..direction(kbit(rate), ms(420), 64 * KBYTE) };
        let bursts = Periods::Random { good: Duration::from_secs(5), bad: ms(160) };
        Self { bursts: Some(bursts), ..Self::of(lossy(200), lossy(240)) }
    }

    /// A geostationary satellite: 600 ms both ways (477 ms of it the speed of light, APNIC 2022), 3 Mbit/s up and 20
    /// down (chosen: a ship's or a farm's subscription), queues of about one bandwidth-delay product.
    fn geo() -> Self {
        Self::of(direction(kbit(3000), ms(300), 256 * KBYTE), direction(kbit(20_000), ms(300), 1536 * KBYTE))
    }

    /// A satellite in low orbit: 50 ms both ways (median of a campaign in Belgium, APNIC 2022), 15 Mbit/s up and 100
    /// down (chosen, below what it and others report), and a change of satellite every 15 s that costs 140 ms (arXiv
    /// 2601.08439).
    fn leo() -> Self {
        let bursts = Periods::Random { good: Duration::from_secs(15), bad: ms(140) };
        let up = direction(kbit(15_000), ms(25), 256 * KBYTE);
        Self { bursts: Some(bursts), ..Self::of(up, direction(kbit(100_000), ms(25), KBYTE * KBYTE)) }
    }

    /// A link that comes and goes, as in a train: 1 Mbit/s up, 5 down, 60 ms both ways, for 20 s on average, and
    /// nothing for 4 s (all chosen).
    fn flaky() -> Self {
        let outages = Periods::Random { good: Duration::from_secs(20), bad: Duration::from_secs(4) };
        let up = direction(kbit(1000), ms(30), 128 * KBYTE);
        Self { outages: Some(outages), ..Self::of(up, direction(kbit(5000), ms(30), 128 * KBYTE)) }
    }

    /// A wire that is cut: nothing arrives, and nobody says so.
    fn down() -> Self {
        Self { outages: Some(Periods::always_bad()), ..Self::lan() }
    }

    fn cellular(
        packets_per_s: [std::ops::RangeInclusive<u32>; 2],
        volatility: [u32; 2],
        delay: Duration,
        seed: u64,
    ) -> Self {
        let [up_rates, down_rates] = packets_per_s;
        let direction = |packets_per_s, volatility, queue_bytes, seed| {
            let trace = Cellular { packets_per_s, volatility }.trace(TRACE_LENGTH, seed);
            Direction { rate: Rate::Trace(Arc::new(trace)), ..direction(1, delay, queue_bytes) }
        };
        let up = direction(up_rates, volatility[0], 512 * KBYTE, seed);
        Self::of(up, direction(down_rates, volatility[1], KBYTE * KBYTE, !seed))
    }

    fn of(up: Direction, down: Direction) -> Self {
        Self { up, down, bursts: None, outages: None, retransmission: None, seed: 0 }
    }
}

fn direction(bytes_per_s: u64, delay: Duration, queue_bytes: u64) -> Direction {
    Direction { rate: Rate::constant(bytes_per_s), delay, queue_bytes, loss_ppm: 0, receiver: None }
}

/// Converts kbit/s to bytes per second.
const fn kbit(per_s: u64) -> u64 {
    per_s * 125
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
