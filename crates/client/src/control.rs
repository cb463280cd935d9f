//! The control socket: how commands talk to the daemon of a mount.
//!
//! JSON, one line per message, one answer per question, each with the version of this protocol. Only the user who runs
//! the daemon and root may connect. Lines are bounded, connections are bounded, and a command that goes away ends what
//! it waited for.

mod client;
mod hoard;
mod line;
mod server;

use serde::{Deserialize, Serialize};

pub use client::{Client, ControlError};
pub use hoard::{HoardRequest, HoardResponse};
pub use server::Server;

use crate::limit::ClassLimit;
use crate::vfs::{
    ConflictsReport, ObjectReport, QueuePage, QueueReport, RpcStatistics, StatusReport, SyncProgress, Verified,
};

/// The version of this protocol. Daemon and command must have the same: they come from one package.
pub const VERSION: u32 = 8;

/// What a command asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// What is going on?
    Status,
    /// What have calls taken?
    Statistics,
    /// Limit what travels of a class.
    Limit(ClassLimit),
    /// Answer when the server has everything that was written before now.
    Sync(SyncRequest),
    /// How much is left of what the [`Request::Sync`] with this number waits for?
    Progress(u64),
    /// What waits for the server?
    Queue(QueuePage),
    /// Hold back contents that are sent in the background, or end that.
    Pause(bool),
    /// Send these records of the log before others.
    First(Vec<(u64, u64)>),
    /// What of the object at this path below the mount point is here, and what of it the server lacks?
    State(Vec<u8>),
    /// What is in conflict? The server is asked.
    Conflicts,
    /// List no more what the server has refused about this path below the mount point.
    Dismiss(Vec<u8>),
    /// End the connection, and make none until [`Request::Reconnect`]. Answer with the status when it has ended.
    Disconnect,
    /// End that, and answer when there is a connection.
    Reconnect,
    /// The network is about to change: take the server for out of reach after so many milliseconds at the earliest.
    Handoff(u64),
    /// About what is to be in the cache.
    Hoard(HoardRequest),
    /// Read the cached contents at this path below the mount point, and say which are damaged.
    Verify(Vec<u8>),
    /// Answer with the last status when the mount has ended and what could be sent has been.
    End,
}

/// What is to be at the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncRequest {
    /// The object at this path below the mount point, with what is below it; empty for everything.
    pub below: Vec<u8>,
    /// A number of the command's choice, for [`Request::Progress`].
    pub ticket: u64,
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`], [`Request::Disconnect`] and [`Request::End`].
    Status(Box<MountStatus>),
    /// To [`Request::Statistics`].
    Statistics(Box<RpcStatistics>),
    /// To [`Request::Limit`].
    Limited,
    /// To [`Request::Sync`].
    Synced,
    /// To [`Request::Progress`]; none if nobody waits with this number.
    Progress(Option<SyncProgress>),
    /// To [`Request::Queue`].
    Queue(Box<QueueReport>),
    /// To [`Request::Pause`].
    Paused,
    /// To [`Request::First`]: those that are not in the log.
    First(Vec<(u64, u64)>),
    /// To [`Request::State`].
    State(Box<ObjectReport>),
    /// To [`Request::Conflicts`].
    Conflicts(Box<ConflictsReport>),
    /// To [`Request::Dismiss`]: so many changes.
    Dismissed(u64),
    /// To [`Request::Reconnect`].
    Reconnected,
    /// To [`Request::Handoff`].
    HandingOff,
    /// To [`Request::Hoard`].
    Hoard(Box<HoardResponse>),
    /// To [`Request::Verify`].
    Verified(Box<Verified>),
    /// To [`Request::Sync`], [`Request::State`], [`Request::Verify`] and [`Request::Hoard`]: this client knows no
    /// object by this path.
    Unknown,
    /// The server is out of reach, and this needs it; why, in one line.
    OutOfReach(String),
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
