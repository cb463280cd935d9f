//! End to end: the real server, the real client and a real mount, used as people use them.
//!
//! Everything here needs root, `/dev/fuse` and the programs that a test names, so it is ignored unless asked for. The
//! bodies take a directory: most run on a plain local one as well, which shows that a body asks for nothing but a
//! file system.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a step that fails is a test that fails")]

mod announced;
mod by_hand;
mod cli;
mod conflicts;
mod dbench;
mod directories;
mod disconnected;
mod docs;
mod edge;
mod everyday;
mod fetching;
mod flips;
mod fsx;
mod full_disk;
mod hoard;
mod idle;
mod kill;
mod link;
mod locks;
mod long_queue;
mod memory;
mod operations;
mod ordinary_user;
mod passthrough;
mod pjdfstest;
mod posix;
mod postgres;
mod power_cuts;
mod profile;
mod projects;
mod quic;
mod random;
mod readers;
mod roaming;
mod set_id;
mod shell;
mod stress;
mod trash;
mod two_clients;
mod uplink;
mod waiting;
mod xattrs;

use std::fmt::Debug;
use std::str::FromStr;

/// The number in an environment variable, or `default`.
fn number_from_env<T: FromStr<Err: Debug>>(variable: &str, default: T) -> T {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}
