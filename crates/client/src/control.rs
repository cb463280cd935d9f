//! The control socket: how commands talk to the daemon of a mount.
//!
//! JSON, one line per message, one answer per question, each with the version of this protocol. Only the user who runs
//! the daemon and root may connect. Lines and connections are bounded. A command that goes away ends the request that
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

/// A command's question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Ask for the mount's status.
    Status,
    /// Ask for the statistics of calls, by class.
    Statistics,
    /// Limit the traffic of a class.
    Limit(ClassLimit),
    /// Answer when the server has everything that was written before now.
    Sync(SyncRequest),
    /// Ask how much is left for the [`Request::Sync`] with this number.
    Progress(u64),
    /// Ask for the changes that wait to be sent.
    Queue(QueuePage),
    /// Hold back contents that are sent in the background, or end that.
    Pause(bool),
    /// Send these records of the log before others.
    First(Vec<(u64, u64)>),
    /// Ask how much of the object at this path below the mount point is here, and how much of it the server lacks.
    State(Vec<u8>),
    /// Ask for the conflicts. The daemon asks the server.
    Conflicts,
    /// List the changes no more that the server has refused about this path below the mount point.
    Dismiss(Vec<u8>),
    /// End the connection, and make none until [`Request::Reconnect`]. Answer with the status when it has ended.
    Disconnect,
    /// End [`Request::Disconnect`], and answer when there is a connection.
    Reconnect,
    /// The network is about to change: take the server for out of reach after so many milliseconds at the earliest.
    Handoff(u64),
    /// Ask or change something about the hoard.
    Hoard(HoardRequest),
    /// Read the cached contents at this path below the mount point, and say which are damaged.
    Verify(Vec<u8>),
    /// Answer with the last status when the mount has ended, after it has sent what it could.
    End,
}

/// The objects that are to be at the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncRequest {
    /// The object at this path below the mount point, with what is below it; empty for everything.
    pub below: Vec<u8>,
    /// A number of the command's choice, for [`Request::Progress`].
    pub ticket: u64,
}

/// The daemon's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Answer to [`Request::Status`], [`Request::Disconnect`] and [`Request::End`].
    Status(Box<MountStatus>),
    /// Answer to [`Request::Statistics`].
    Statistics(Box<RpcStatistics>),
    /// Answer to [`Request::Limit`].
    Limited,
    /// Answer to [`Request::Sync`].
    Synced,
    /// Answer to [`Request::Progress`]; none if nobody waits with this number.
    Progress(Option<SyncProgress>),
    /// Answer to [`Request::Queue`].
    Queue(Box<QueueReport>),
    /// Answer to [`Request::Pause`].
    Paused,
    /// Answer to [`Request::First`]: the records that are not in the log.
    First(Vec<(u64, u64)>),
    /// Answer to [`Request::State`].
    State(Box<ObjectReport>),
    /// Answer to [`Request::Conflicts`].
    Conflicts(Box<ConflictsReport>),
    /// Answer to [`Request::Dismiss`]: the number of changes.
    Dismissed(u64),
    /// Answer to [`Request::Reconnect`].
    Reconnected,
    /// Answer to [`Request::Handoff`].
    HandingOff,
    /// Answer to [`Request::Hoard`].
    Hoard(Box<HoardResponse>),
    /// Answer to [`Request::Verify`].
    Verified(Box<Verified>),
    /// Answer to [`Request::Sync`], [`Request::State`], [`Request::Verify`] and [`Request::Hoard`]: this client knows
    /// no object by the path.
    Unknown,
    /// The server is out of reach, and the request needs it; the reason, in one line.
    OutOfReach(String),
    /// The daemon cannot do it; the reason, in one line.
    Failed(String),
}

/// A mount and what is going on in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mount point, as [`printable_path`](crate::printable::printable_path) has it.
    pub mount_point: String,
    /// The target, as `mount` takes it.
    pub target: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Version of the daemon's program.
    pub program_version: String,
    /// The rest.
    #[serde(flatten)]
    pub report: StatusReport,
}
