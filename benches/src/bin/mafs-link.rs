//! `mafs-link`: runs a server command and a client command at the two ends of an emulated link.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mafs_arpc::link::{Profile, Rate, Retransmission, Trace};
use mafs_bench::link::{Counts, EmulatedLink};
use mafs_bench::process::exit_code;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The exit code of the program's own failures, as those of timeout(1) and env(1).
const FAILED: u8 = 125;
const KBYTE: u64 = 1024;
/// Interval at which `--verbose` tells the counts.
const VERBOSE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs two commands at the two ends of an emulated link, each in a network namespace of its own.
///
/// The server is 10.77.0.1, also in $MAFS_LINK_SERVER; the client, which starts at the same time, is 10.77.0.2. When
/// the client command has ended, everything else is ended too: the exit code is the client's, or 125 if there was no
/// link. The counts of packets go to standard error. Both see the same mounts and files as this process.
#[derive(Debug, Parser)]
#[command(name = "mafs-link", version)]
struct Arguments {
    /// A link by its name: lan, wifi-good, wifi-cafe, wifi-roam, lte, lte-drive, 3g, edge-lossy, geo, leo, flaky, down
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rate", "rtt"], required_unless_present = "rtt")]
    profile: Option<String>,
    /// The rate of both directions, in KB (1024 bytes) per second
    #[arg(long, value_name = "KB/s", value_parser = clap::value_parser!(u64).range(1..=2_000_000))]
    rate: Option<u64>,
    /// The round-trip time of an idle link, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=60_000))]
    rtt: Option<u64>,
    /// The size of the queue before each direction, in KB [default: the profile's, or 64]
    #[arg(long, value_name = "KB", value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    queue: Option<u64>,
    /// Bursts of errors both ways: bad periods so long on average, in milliseconds, after good ones of a second
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    bursts: Option<u64>,
    /// Send again what is lost, below the programs: `arq` by data and acknowledgement, `hold` as if that cost nothing
    #[arg(long, value_name = "HOW", value_parser = parse_arq)]
    arq: Option<Retransmission>,
    /// The seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The rate from the client, as a trace in Mahimahi's format
    #[arg(long, value_name = "FILE")]
    trace_up: Option<PathBuf>,
    /// The rate to the client, as a trace in Mahimahi's format
    #[arg(long, value_name = "FILE")]
    trace_down: Option<PathBuf>,
    /// Tell what is made, and the counts once a second
    #[arg(long, short)]
    verbose: bool,
    /// The command to run at the server's end, in the background
    #[arg(long, value_name = "SHELL COMMAND")]
    server: String,
    /// The command to run at the client's end
    #[arg(long, value_name = "SHELL COMMAND")]
    client: String,
}

impl Arguments {
    fn link(&self) -> io::Result<Profile> {
        let mut profile = match &self.profile {
            Some(name) => Profile::named(name, self.seed).map_err(io::Error::other)?,
            None => Profile { seed: self.seed, ..self.steady()? },
        };
        if let Some(bad) = self.bursts {
            profile.bursts = Profile::burst_errors(Duration::from_millis(bad), self.seed).bursts;
        }
        profile.retransmission = self.arq;
        for (direction, trace) in [(&mut profile.up, &self.trace_up), (&mut profile.down, &self.trace_down)] {
            if let Some(path) = trace {
                direction.rate = Rate::Trace(Arc::new(read_trace(path)?));
            }
            if let Some(queue) = self.queue {
                direction.queue_bytes = queue * KBYTE;
            }
        }
        Ok(profile)
    }

    fn steady(&self) -> io::Result<Profile> {
        let traced = self.trace_up.is_some() && self.trace_down.is_some();
        let rate = self.rate.or(traced.then_some(1)).ok_or_else(|| {
            io::Error::other("say how fast the link is: --rate KB/s, or --trace-up and --trace-down, or --profile NAME")
        })?;
        Ok(Profile::steady(rate * KBYTE, Duration::from_millis(self.rtt.unwrap_or_default())))
    }
}

fn parse_arq(how: &str) -> Result<Retransmission, String> {
    match how {
        "hold" => Ok(Retransmission::Hold),
        "arq" => Ok(Retransmission::Arq),
        _ => Err("one of hold, arq is wanted".to_owned()),
    }
}

fn read_trace(path: &Path) -> io::Result<Trace> {
    let named = |why: &dyn std::fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
    let text = fs::read(path).map_err(|error| named(&error))?;
    Trace::parse(&text).map_err(|error| named(&error))
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("mafs-link: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<u8> {
    let profile = arguments.link()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The signals come first: from then on none ends this process before it has removed what it made.
        let mut signals = Signals::new()?;
        let link = EmulatedLink::start(&profile)?;
        let code = commands(arguments, &link, &mut signals).await;
        for (direction, counts) in ["up", "down"].into_iter().zip(link.stop()) {
            eprintln!("mafs-link: {direction}: {counts}");
        }
        code
    })
}

/// Runs both commands until the client's has ended, or a signal comes.
async fn commands(arguments: &Arguments, link: &EmulatedLink, signals: &mut Signals) -> io::Result<u8> {
    let mut server = shell(link.server_command("sh"), &arguments.server);
    // The terminal's Ctrl-C is for the client; the server ends when that has.
    let mut server = server.process_group(0).stdin(std::process::Stdio::null()).spawn()?;
    let mut client = shell(link.client_command("sh"), &arguments.client).spawn()?;
    let mut story = arguments.verbose.then(|| Story::begin(link));
    let mut server_runs = true;
    loop {
        tokio::select! {
            status = client.wait() => return Ok(to_u8(exit_code(status?))),
            number = signals.next() => return Ok(to_u8(128 + number)),
            () = ended(&mut server), if server_runs => server_runs = false,
            () = Story::next(&mut story) => Story::tell(link.counts()),
        }
    }
}

fn shell(command: std::process::Command, line: &str) -> Command {
    let mut command = Command::from(command);
    command.args(["-c", line]);
    command
}

/// Reports how the server command ended: a user who waits for its answers would wonder.
async fn ended(server: &mut Child) {
    if let Ok(status) = server.wait().await {
        eprintln!("mafs-link: the server command has ended: {status}");
    }
}

fn to_u8(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

/// The output of `--verbose`, once a second.
struct Story {
    interval: Interval,
}

impl Story {
    fn begin(link: &EmulatedLink) -> Self {
        let [server, client] = link.namespaces();
        eprintln!(
            "mafs-link: server {} in namespace {server}, client {} in {client}",
            EmulatedLink::SERVER,
            EmulatedLink::CLIENT
        );
        let mut interval = interval(VERBOSE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { interval }
    }

    async fn next(story: &mut Option<Self>) {
        match story {
            Some(story) => drop(story.interval.tick().await),
            None => std::future::pending().await,
        }
    }

    fn tell([up, down]: [Counts; 2]) {
        eprintln!("mafs-link: up: {up}\nmafs-link: down: {down}");
    }
}

/// The signals that end a program.
struct Signals {
    streams: [(i32, Signal); 3],
}

impl Signals {
    fn new() -> io::Result<Self> {
        let stream = |kind: SignalKind| Ok::<_, io::Error>((kind.as_raw_value(), signal(kind)?));
        let streams =
            [stream(SignalKind::interrupt())?, stream(SignalKind::terminate())?, stream(SignalKind::hangup())?];
        Ok(Self { streams })
    }

    /// Returns the number of the next signal.
    async fn next(&mut self) -> i32 {
        let [interrupt, terminate, hangup] = &mut self.streams;
        tokio::select! {
            _ = interrupt.1.recv() => interrupt.0,
            _ = terminate.1.recv() => terminate.0,
            _ = hangup.1.recv() => hangup.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(options: &str) -> Result<Profile, String> {
        let words = ["mafs-link", "--server", "true", "--client", "true"].into_iter().chain(options.split_whitespace());
        let arguments = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
        arguments.link().map_err(|error| error.to_string())
    }

    #[test]
    fn links_are_named_or_described() {
        assert_eq!(link("--profile 3g --seed 7").unwrap().seed, 7);
        let plain = link("--rate 64 --rtt 20").unwrap();
        assert_eq!((plain.up.delay, plain.up.queue_bytes), (Duration::from_millis(10), 64 * KBYTE));
        assert!(matches!(plain.down.rate, Rate::Steps { first: 65_536, .. }));
        assert_eq!(link("--profile lan --bursts 80").unwrap().retransmission, None);
        assert_eq!(link("--profile lan --arq=arq").unwrap().retransmission, Some(Retransmission::Arq));
        assert_eq!(link("--profile lan --arq hold").unwrap().retransmission, Some(Retransmission::Hold));
        assert_eq!(link("--profile lan --queue 9").unwrap().up.queue_bytes, 9 * KBYTE);
    }

    #[test]
    fn traces_replace_the_rate_of_their_direction() {
        let directory = tempfile::tempdir().unwrap();
        let (good, bad) = (directory.path().join("good"), directory.path().join("bad"));
        fs::write(&good, "1\n2\n").unwrap();
        fs::write(&bad, "1\nx\n").unwrap();
        let options =
            |up: &Path, down: &Path| format!("--rtt 1 --trace-up {} --trace-down {}", up.display(), down.display());
        let traced = link(&options(&good, &good)).unwrap();
        assert!(matches!((traced.up.rate, traced.down.rate), (Rate::Trace(_), Rate::Trace(_))));
        let error = link(&options(&good, &bad)).unwrap_err();
        assert!(error.contains("bad: line 2 of the trace is `x`"), "{error}");
        let one = link(&format!("--profile 3g --trace-down {}", good.display())).unwrap();
        assert!(matches!((one.up.rate, one.down.rate), (Rate::Steps { .. }, Rate::Trace(_))));
    }

    #[test]
    fn what_is_no_link_is_told() {
        for (options, why) in [
            ("", "--profile"),
            ("--profile fast", "no link profile is called `fast`: use one of lan, "),
            ("--profile 3g --rate 5", "cannot be used with"),
            ("--rtt 5", "say how fast the link is"),
            ("--rate 0 --rtt 5", "0"),
            ("--profile lan --arq always", "one of hold, arq is wanted"),
            ("--rtt 1 --trace-up /nowhere --trace-down /nowhere", "/nowhere: No such file"),
        ] {
            let error = link(options).unwrap_err();
            assert!(error.contains(why), "{options}: {error}");
        }
    }
}
