//! `verify [PATH...] [--json]`.

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use mafs_client::control::Client;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::Verified;
use serde::Serialize;

use super::hoard::failure;
use super::status_text::counted;
use super::sync::{Target, targets};
use super::{Exit, Failure, command_runtime, json_text};

#[derive(clap::Args, Debug)]
pub(super) struct VerifyArgs {
    /// Mount points, or files and directories below them. All mounts of this user if none is given.
    paths: Vec<PathBuf>,
    /// For programs: an array with one object for each path, in their order.
    #[arg(long)]
    json: bool,
}

/// The result of verifying one path.
#[derive(Serialize)]
struct Shown {
    path: String,
    #[serde(flatten)]
    verified: Verified,
}

/// Has the daemons read the cached contents of the paths, one after the other.
pub(super) fn run(args: &VerifyArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let targets = targets(&args.paths, &runtime_dir).await?;
        if targets.is_empty() {
            return Err(Failure::new(Exit::NoDaemon, "this user has mounted nothing"));
        }
        let (mut exit, mut all) = (Exit::Ok, Vec::new());
        for target in targets {
            let shown = verify(target).await?;
            if shown.verified.damaged_files > 0 {
                exit = Exit::Damage;
            }
            // The reader may have seen enough.
            if !args.json && std::io::stdout().write_all(describe(&shown).as_bytes()).is_err() {
                return Ok(exit);
            }
            all.push(shown);
        }
        if args.json {
            let text = json_text(&all)?;
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
        Ok(exit)
    })
}

async fn verify(Target { name, socket, below }: Target) -> Result<Shown, Failure> {
    let verified = async { Client::connect(&socket).await?.verify(below).await };
    match verified.await {
        Ok(verified) => Ok(Shown { path: name, verified }),
        Err(error) => Err(failure(&name, &error)),
    }
}

/// Formats one line, and one for each damaged file that is named.
fn describe(Shown { path, verified }: &Shown) -> String {
    let Verified { files, bytes, damaged_files, damaged } = verified;
    let read = format!("{path}: {}, {} read", counted(*files, "cached file"), HumanBytes(*bytes));
    if *damaged_files == 0 {
        return format!("{read}, all as the server has them\n");
    }
    let mut text = format!("{read}, {damaged_files} damaged\n");
    for content in damaged {
        let what = if content.dropped { "dropped, is fetched again" } else { "in use, so it stays" };
        text += &format!("  {}: {what}\n", content.path);
    }
    match damaged_files.saturating_sub(damaged.len() as u64) {
        0 => text,
        more => text + &format!("  and {more} more\n"),
    }
}

#[cfg(test)]
mod tests {
    use mafs_client::vfs::DamagedContent;

    use super::*;

    #[test]
    fn what_is_damaged_is_named_with_what_becomes_of_it() {
        let shown = |verified| describe(&Shown { path: "/mnt".to_owned(), verified });
        let intact = Verified { files: 2, bytes: 2048, ..Verified::default() };
        assert_eq!(shown(intact.clone()), "/mnt: 2 cached files, 2.00 KiB read, all as the server has them\n");
        let content = |path: &str, dropped| DamagedContent { path: path.to_owned(), dropped };
        let damaged = vec![content("a", true), content("b/c", false)];
        let expected = "/mnt: 2 cached files, 2.00 KiB read, 3 damaged\n  a: dropped, is fetched again\n  \
                        b/c: in use, so it stays\n  and 1 more\n";
        assert_eq!(shown(Verified { damaged_files: 3, damaged, ..intact }), expected);
    }
}
