//! `handoff [DIR] [--for SECONDS]`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use mafs_client::runtime_dir::RuntimeDir;

use super::reach::daemons_of;
use super::{Exit, Failure, command_runtime};

#[derive(clap::Args, Debug)]
pub(super) struct HandoffArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// The time that the change may take, 1 to 60 seconds from now.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 5, value_parser = seconds())]
    seconds: u64,
}

/// Parses the seconds: long enough for a cell to change, and no longer than a user can mean.
fn seconds() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=60)
}

/// Tells one mount, or each, that the network is about to change.
pub(super) fn run(args: &HandoffArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        for mut daemon in daemons_of(&runtime_dir, args.dir.as_deref()).await? {
            let place = &daemon.status.mount_point;
            let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
            daemon.client.hand_off(Duration::from_secs(args.seconds)).await.map_err(failed)?;
        }
        Ok(Exit::Ok)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(arguments: &[&str]) -> Option<(Option<PathBuf>, u64)> {
        match Cli::try_parse_from(["mafs-client", "handoff"].iter().chain(arguments)).ok()?.command {
            Command::Handoff(args) => Some((args.dir, args.seconds)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handoff_has_a_bounded_time() {
        assert_eq!(parse(&[]), Some((None, 5)));
        assert_eq!(parse(&["/mnt", "--for", "60"]), Some((Some("/mnt".into()), 60)));
        for wrong in ["0", "61", "-1", "x"] {
            assert_eq!(parse(&["--for", wrong]), None, "{wrong}");
        }
    }
}
