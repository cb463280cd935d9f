//! `limit [DIR] CLASS=RATE|off`.

use std::path::PathBuf;

use mafs_client::limit::ClassLimit;
use mafs_client::runtime_dir::RuntimeDir;

use super::reach::daemons_of;
use super::{Exit, Failure, command_runtime};

#[derive(clap::Args, Debug)]
#[command(allow_missing_positional = true)]
pub(super) struct LimitArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// The class (fetch, prefetch, metadata or store) and its limit in bytes per second in each direction, from 1k on:
    /// store=64k. Or store=off for no limit. A limit lasts until it is changed, or the mount ends.
    #[arg(value_name = "CLASS=RATE|off")]
    limit: ClassLimit,
}

/// Limits the traffic of a class for one mount, or for each.
pub(super) fn run(args: &LimitArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let daemons = daemons_of(&runtime_dir, args.dir.as_deref()).await?;
        for mut daemon in daemons {
            let place = &daemon.status.mount_point;
            let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
            daemon.client.limit(args.limit).await.map_err(failed)?;
        }
        Ok(Exit::Ok)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(arguments: &[&str]) -> Option<LimitArgs> {
        match Cli::try_parse_from(["mafs-client", "limit"].iter().chain(arguments)).ok()?.command {
            Command::Limit(args) => Some(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_limit_comes_last_and_the_mount_point_may_be_left_out() {
        let args = parse(&["store=64k"]).unwrap();
        assert_eq!((args.dir, args.limit.to_string()), (None, "store=65536".to_owned()));
        let args = parse(&["/mnt/a=b", "fetch=off"]).unwrap();
        assert_eq!((args.dir, args.limit.to_string()), (Some("/mnt/a=b".into()), "fetch=off".to_owned()));
        for wrong in [&[][..], &["/mnt"], &["store=64k", "/mnt"], &["control=1M"], &["/mnt", "store=64k", "fetch=1M"]] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
