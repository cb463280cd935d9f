//! `sync [DIR...] [--timeout T]`.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mafs_client::control::{Client, ControlError};
use mafs_client::runtime_dir::RuntimeDir;
use tokio::time::Instant;

use super::reach::{Reached, all_daemons, daemon_of};
use super::status_text::unsent;
use super::{Exit, Failure, command_runtime};

/// How often the bar moves.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What waits without `--timeout`: longer than any process lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(clap::Args, Debug)]
pub(super) struct SyncArgs {
    /// Mount points; all mounts of this user if none is given.
    dirs: Vec<PathBuf>,
    /// Give up after this long: 90, 90s, 5m or 1h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
}

/// Waits for one mount after the other.
pub(super) fn run(args: &SyncArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    let give_up = Instant::now() + args.timeout.unwrap_or(FOR_EVER);
    command_runtime()?.block_on(async {
        let mut daemons = Vec::new();
        for dir in &args.dirs {
            daemons.push(daemon_of(&runtime_dir, dir).await?);
        }
        if args.dirs.is_empty() {
            daemons = all_daemons(&runtime_dir).await?;
        }
        if daemons.is_empty() {
            return Err(Failure::new(Exit::NoDaemon, "this user has mounted nothing"));
        }
        let mut exit = Exit::Ok;
        for daemon in daemons {
            if let Err(failure) = sync(daemon, give_up).await {
                eprintln!("mafs-client: {}", failure.message);
                exit = failure.exit;
            }
        }
        Ok(exit)
    })
}

async fn sync(mut daemon: Reached, give_up: Instant) -> Result<(), Failure> {
    let place = daemon.status.mount_point.clone();
    let failed = |exit, why: &dyn std::fmt::Display| Failure::new(exit, format!("{place}: {why}"));
    let mut watching = Client::connect(&daemon.socket).await.map_err(|error| failed(Exit::NoDaemon, &error))?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(place.clone());
    let outcome = tokio::select! {
        outcome = daemon.client.sync() => outcome.map_err(|error| error.to_string()),
        () = tokio::time::sleep_until(give_up) => Err("the time given is over".to_owned()),
        error = show(&mut watching, &bar) => Err(error.to_string()),
    };
    bar.finish_and_clear();
    let Err(why) = outcome else { return Ok(()) };
    match watching.status().await {
        Ok(status) if status.report.unsent_files + status.report.unsent_changes > 0 => {
            Err(failed(Exit::Unsent, &format!("{why}; unsent: {}", unsent(&status.report))))
        }
        // It was over before an answer came, but there was nothing to send.
        Ok(_) if Instant::now() >= give_up => Ok(()),
        Ok(_) => Err(failed(Exit::Failed, &why)),
        Err(_) => Err(failed(Exit::NoDaemon, &why)),
    }
}

/// Moves the bar until the daemon does not answer any more.
async fn show(client: &mut Client, bar: &ProgressBar) -> ControlError {
    let mut progress = Progress::default();
    loop {
        match client.status().await {
            Ok(status) => {
                let (done, all) = progress.update(status.report.unsent_bytes);
                bar.set_length(all);
                bar.set_position(done);
            }
            Err(error) => return error,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Makes a bar's position and length out of what is unsent, which shrinks as files arrive and grows as others are
/// written.
#[derive(Default)]
struct Progress {
    most_unsent: u64,
}

impl Progress {
    /// Bytes that have arrived, and bytes in all.
    fn update(&mut self, unsent_bytes: u64) -> (u64, u64) {
        self.most_unsent = self.most_unsent.max(unsent_bytes);
        (self.most_unsent - unsent_bytes, self.most_unsent)
    }
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    match number.parse::<u32>() {
        Ok(number) if seconds > 0 => Ok(Duration::from_secs(u64::from(number) * seconds)),
        Ok(_) | Err(_) => Err("a time is a number of seconds, or a number with s, m or h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [("90", 90), ("0s", 0), ("5m", 300), ("1h", 3600)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "s", "-1", "1.5h", "1d", "99999999999"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn progress_never_exceeds_the_whole() {
        let mut progress = Progress::default();
        assert_eq!(progress.update(100), (0, 100));
        assert_eq!(progress.update(40), (60, 100));
        assert_eq!(progress.update(150), (0, 150), "more was written meanwhile");
        assert_eq!(progress.update(0), (150, 150));
    }
}
