//! `stats --rpc DIR [INTERVAL]`: what calls have taken, by class, as nfsiostat shows it for NFS.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::HumanBytes;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{ClassStatistics, Durations, RpcStatistics};
use mafs_proto::Class;

use super::reach::daemon_of;
use super::{Exit, Failure, command_runtime};

#[derive(clap::Args, Debug)]
pub(super) struct StatsArgs {
    /// Calls to the server, by class.
    #[arg(long, required = true)]
    rpc: bool,
    /// The mount point, or anything below it.
    dir: PathBuf,
    /// Show every so many seconds the calls of these seconds, until Ctrl-C. Without it: all since the mount.
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
    /// For programs: one JSON array per look, the five classes in their order, durations as counts by microseconds.
    #[arg(long)]
    json: bool,
}

/// Shows the statistics once, or again and again.
pub(super) fn run(args: &StatsArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let mut daemon = daemon_of(&runtime_dir, &args.dir).await?;
        let mut before = RpcStatistics::default();
        loop {
            let now = daemon.client.statistics().await.map_err(|error| Failure::new(Exit::NoDaemon, error))?;
            let shown = std::array::from_fn(|class| now[class].since(&before[class]));
            let text = if args.json { json(&shown)? } else { table(&shown) };
            // The reader has seen enough.
            let unread = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).is_err();
            let Some(interval) = args.interval.filter(|_| !unread) else { return Ok(Exit::Ok) };
            before = now;
            tokio::time::sleep(Duration::from_secs(interval)).await;
        }
    })
}

fn json(statistics: &RpcStatistics) -> Result<String, Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot be written as JSON: {error}"));
    serde_json::to_string(statistics).map(|text| text + "\n").map_err(failed)
}

/// Formats a line for each class, below the names of the columns.
fn table(statistics: &RpcStatistics) -> String {
    let mut text = format!(
        "{:<9}{:>9}{:>8}{:>12}{:>12}{:>20}{:>20}\n{:>50}{:>20}{:>20}\n",
        "class",
        "calls",
        "retries",
        "sent",
        "received",
        "queued (ms)",
        "served (ms)",
        "",
        "p50      p99",
        "p50      p99"
    );
    for (class, of) in Class::ALL.into_iter().zip(statistics) {
        let ClassStatistics { calls, retries, sent_bytes, received_bytes, queued, served } = of;
        let (sent, received) = (HumanBytes(*sent_bytes).to_string(), HumanBytes(*received_bytes).to_string());
        // Writing to a string cannot fail.
        let _ = write!(text, "{class:<9}{calls:>9}{retries:>8}{sent:>12}{received:>12}");
        let _ = writeln!(text, "{}{}", times(queued), times(served));
    }
    text
}

/// Formats the median and the 99th percentile.
fn times(durations: &Durations) -> String {
    let ms = |percent| match durations.percentile(percent) {
        Some(time) => format!("{:.1}", time.as_secs_f64() * 1000.0),
        None => "-".to_owned(),
    };
    format!("{:>11}{:>9}", ms(50), ms(99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_class() {
        let mut statistics = RpcStatistics::default();
        statistics[1] = serde_json::from_str(
            r#"{"calls":3,"retries":1,"sent_bytes":120,"received_bytes":5242880,
                "queued":{"0":2,"40960":1},"served":{"20480":3}}"#,
        )
        .unwrap();
        let text = table(&statistics);
        assert_eq!(text.lines().count(), 7);
        let fetch = "fetch            3       1       120 B    5.00 MiB        0.0     41.0       20.5     20.5";
        assert!(text.contains(fetch), "{text}");
        let store = "store            0       0         0 B         0 B          -        -          -        -";
        assert!(text.contains(store), "{text}");
    }
}
