//! The papers' figures, measured again: `cargo bench --bench figures -- m1`, `m2`, `m3`, `m4`, `w1`, `w2`, `w3` or
//! `all` in virtual time and, as root, `-- m2-real` and `-- w1-real` over real mounts and `mafs-link`, W1 with sshfs
//! beside where it is installed; `-- control` shows how long urgent calls wait beside an upload, over real mounts,
//! and `-- step` shows that when the link's rate changes.
//!
//! Prints tables; `target/figures/` has CSV, SVG and an `index.html`. `MAFS_FIGURE_SEEDS` is how many seeds (3; of M2
//! 9, of M4 20, of W1 to W3 10), `MAFS_FIGURE_THREADS` how many worlds at once (as many as there are processors),
//! `MAFS_FIGURE_RATES` which bandwidths of those over real mounts (all).

mod control;
mod files;
mod jobs;
mod m1;
mod m2;
mod m3;
mod m4;
mod plain;
mod plot;
mod real;
mod simulated;
mod sshfs;
mod step;
mod table;
mod variant;
mod w1;
mod w1_real;
mod w3;
mod workload;

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use files::Files;
use mafs_proto::Instant;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if !env::args().any(|argument| argument == "--bench") {
        println!("measures nothing unless run by `cargo bench --bench figures -- all`");
        return Ok(());
    }
    let wanted: Option<u64> = env::var("MAFS_FIGURE_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds = wanted.unwrap_or(3);
    if let Some((role, of)) = arguments.split_first().filter(|(role, _)| role.starts_with("as-")) {
        return play(role, of);
    }
    let figures = arguments.iter().flat_map(|argument| match argument.as_str() {
        "all" => vec!["m1", "m2", "m3", "m4", "w1", "w2", "w3"],
        figure => vec![figure],
    });
    for figure in figures {
        match figure {
            "m1" => m1::measure(&directory(), seeds)?,
            "m2" => m2::simulated(&directory(), wanted.unwrap_or(m2::SEEDS))?,
            "m3" => m3::measure(&directory(), seeds)?,
            "m4" => m4::measure(&directory(), wanted.unwrap_or(m4::SEEDS))?,
            "w1" => w1::measure(&directory(), wanted.unwrap_or(w1::SEEDS))?,
            "w2" => w1::measure_blocks(&directory(), wanted.unwrap_or(w1::SEEDS))?,
            "w3" => w3::measure(&directory(), wanted.unwrap_or(w1::SEEDS))?,
            "m2-real" => m2::real(&directory(), seeds)?,
            "w1-real" => w1_real::measure(&directory(), wanted.unwrap_or(w1::SEEDS))?,
            "control" => control::measure(&directory())?,
            "step" => step::measure(&directory())?,
            other => {
                return Err(io::Error::other(format!(
                    "there is no figure `{other}`: m1 to m4, w1 to w3, all of these, m2-real, w1-real, control or step"
                )));
            }
        }
    }
    table::write_index(&directory())
}

/// Plays the role of this program as a process at one end of an emulated link.
fn play(role: &str, arguments: &[String]) -> io::Result<()> {
    let unknown = || io::Error::other(format!("nothing is played `{role}` with {arguments:?}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match (role, arguments) {
        ("as-populate", [mount]) => runtime.block_on(workload::populate(&Files::Mounted(mount.into()))),
        ("as-warm", [mount]) => runtime.block_on(workload::warm(&Files::Mounted(mount.into()))),
        ("as-processes", [foreground, background, seed, mount]) => {
            let (foreground, background) = (foreground.parse()?, background.parse()?);
            let seed = seed.parse().map_err(io::Error::other)?;
            let files = Files::Mounted(mount.into());
            let outcome = runtime.block_on(workload::run(&files, foreground, background, seed))?;
            println!("{}", outcome.to_line());
            Ok(())
        }
        ("as-control-populate", [mount]) => control::populate(Path::new(mount)),
        ("as-control", [both, mount]) => control::play(Path::new(mount), both == "both"),
        ("as-step-populate", [mount]) => step::populate(Path::new(mount)),
        ("as-step", [began, mount]) => step::play(Path::new(mount), Instant(began.parse().map_err(io::Error::other)?)),
        ("as-w1-populate", [runs, mount]) => {
            w1_real::populate(Path::new(mount), runs.parse().map_err(io::Error::other)?)
        }
        ("as-w1", [runs, mount]) => w1_real::play(Path::new(mount), runs.parse().map_err(io::Error::other)?),
        ("as-plain-server", [address]) => runtime.block_on(plain::serve(address)),
        ("as-plain-upload", [address, bytes]) => {
            let bytes = bytes.parse().map_err(io::Error::other)?;
            runtime.block_on(plain::upload(address, bytes))
        }
        _ => Err(unknown()),
    }
}

/// Returns the rates in `MAFS_FIGURE_RATES` (KB per second, with commas), or all.
fn chosen(all: &[u64]) -> io::Result<Vec<u64>> {
    let Ok(text) = env::var("MAFS_FIGURE_RATES") else { return Ok(all.to_vec()) };
    let wrong = || io::Error::other(format!("MAFS_FIGURE_RATES is {text:?}: some of {all:?} are wanted, with commas"));
    text.split(',').map(|rate| rate.parse().ok().filter(|rate| all.contains(rate)).ok_or_else(wrong)).collect()
}

/// Returns the directory of the figures: beside the profile's directory that this program lies in.
fn directory() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    program.ancestors().nth(3).unwrap_or(Path::new("target")).join("figures")
}
