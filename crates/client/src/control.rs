//! The control socket: how commands talk to the daemon of a mount.
//!
//! JSON, one line per message, one answer per question, each with the version of this protocol. Only the user who runs
//! the daemon and root may connect. Lines are bounded, connections are bounded, and a command that goes away ends what
//! it waited for.

mod client;
mod line;
mod server;

use serde::{Deserialize, Serialize};

pub use client::{Client, ControlError};
pub use server::Server;

use crate::limit::ClassLimit;
use crate::vfs::{RpcStatistics, StatusReport};

/// The version of this protocol. Daemon and command must have the same: they come from one package.
pub const VERSION: u32 = 3;

/// What a command asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// What is going on?
    Status,
    /// What have calls taken?
    Statistics,
    /// Limit what travels of a class.
    Limit(ClassLimit),
    /// Answer when the server has everything that was written before now.
    Sync,
    /// Answer with the last status when the mount has ended and what could be sent has been.
    End,
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`] and [`Request::End`].
    Status(Box<MountStatus>),
    /// To [`Request::Statistics`].
    Statistics(Box<RpcStatistics>),
    /// To [`Request::Limit`].
    Limited,
    /// To [`Request::Sync`].
    Synced,
    /// The daemon cannot; why, in one line.
    Failed(String),
}

/// A mount and what is going on in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where, as [`printable_path`](crate::printable::printable_path) has it.
    pub mount_point: String,
    /// What, as `mount` takes it.
    pub target: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Version of the daemon's program.
    pub program_version: String,
    /// The rest.
    #[serde(flatten)]
    pub report: StatusReport,
}
