//! Reports for people: `status` and `df`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mafs_arpc::{Loss, Peer, Rate};
use mafs_proto::{CmlOp, Fid, Instant, Name};
use serde::{Deserialize, Serialize};

use super::file::File;
use super::{HoardReport, Inner, LogReport, PrefetchReport};
use crate::core::content::fate::Refused;
use crate::core::queue::Queued;
use crate::remote::Link;

/// Everything `mafs-client status` shows. All sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// The server's address.
    pub server: String,
    /// The volume.
    pub volume: String,
    /// The emulated link to it, if there is one.
    pub profile: Option<String>,
    /// The carrier of the connection, or of the last: `tcp`, which means a UNIX socket too, or `quic`. `auto`: with
    /// that option there was none yet.
    #[serde(default)]
    pub carrier: String,
    /// Reason for this carrier, if there was a choice.
    #[serde(default)]
    pub carrier_why: String,
    /// Seconds since UDP was found to be blocked in this network, if that is why.
    #[serde(default)]
    pub udp_blocked_s: Option<u64>,
    /// Seconds until UDP is tried again, if that is why.
    #[serde(default)]
    pub udp_again_s: Option<u64>,
    /// Whether the server can be asked now.
    pub connected: bool,
    /// Whether the server is known to be out of reach: cached objects are used without it.
    #[serde(default)]
    pub disconnected: bool,
    /// Whether the user has ended the connection.
    #[serde(default)]
    pub by_hand: bool,
    /// Seconds since `connected` last changed.
    pub since_s: u64,
    /// Reason why not connected, empty if connected.
    pub why: String,
    /// Number of the attach that has the session; none while not connected.
    pub session: Option<u64>,
    /// Seconds for which known objects stay valid without another answer of the server.
    pub lease_s: u64,
    /// Smallest round trip of late in microseconds, if known.
    pub rtt_us: Option<u64>,
    /// Smoothed round trip in microseconds, with the time in queues.
    pub rtt_smoothed_us: Option<u64>,
    /// Bytes per second that this machine has been seen to send at most, of late.
    pub rate_bytes_per_s: Option<u64>,
    /// Loss of the bytes that this machine has sent since the connection began, in parts of a million; none over a
    /// UNIX socket.
    pub loss_ppm: Option<u32>,
    /// Bytes that may be on their way to the server at a time, so that urgent ones need not wait for more.
    pub window_bytes: u64,
    /// Bytes that are on their way: sent, and not acknowledged.
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// Bytes sent at a time.
    pub chunk_bytes: u64,
    /// Bytes waiting to be sent: Control, Fetch, Prefetch, Metadata, Store.
    pub queued_bytes: [u64; 5],
    /// Most bytes per second that are sent of each class, if the user has limited that.
    pub limits_bytes_per_s: [Option<u64>; 5],
    /// Files whose last content the server does not have yet.
    pub unsent_files: u64,
    /// Bytes of those files that have not arrived at the server.
    pub unsent_bytes: u64,
    /// Changes of names and attributes that the server does not have yet.
    pub unsent_changes: u64,
    /// The part of it that is in the modify log and waits to be sent, in order.
    pub log: LogReport,
    /// Announcements of changes that the server has acknowledged since the mount.
    #[serde(default)]
    pub announced_changes: u64,
    /// Opens since the mount that got a version before the newest that another client has announced.
    #[serde(default)]
    pub stale_reads: u64,
    /// Locks that programs hold.
    #[serde(default)]
    pub locks: u64,
    /// Those of the locks that this client has granted, while the server was out of reach.
    #[serde(default)]
    pub locks_here: u64,
    /// Files being fetched.
    pub fetching_files: u64,
    /// Up to five of the unsent files that were not refused: paths below the mount point.
    pub unsent: Vec<String>,
    /// Updates that the server refused: the file's path below the mount point (as last known), and the reason.
    pub refused: Vec<(String, String)>,
    /// Changes, of any client, that were in conflict and wait to be resolved, as last reported by the server. From 64
    /// on there may be more.
    #[serde(default)]
    pub conflicts: u64,
    /// Whether the kernel reads and writes cached files itself.
    pub passthrough: bool,
    /// Bytes in the cache.
    pub cache_bytes: u64,
    /// Limit of the bytes in the cache.
    pub cache_limit_bytes: u64,
    /// Bytes that must be freed on the cache's disk before files can grow: `minfree` holds.
    #[serde(default)]
    pub cache_short_bytes: u64,
    /// Files in the cache.
    pub cache_files: u64,
    /// Open files.
    pub open_files: u64,
    /// Objects that are to be in the cache.
    #[serde(default)]
    pub hoard: HoardReport,
    /// Files fetched because programs would open them next.
    #[serde(default)]
    pub prefetch: PrefetchReport,
    /// How often since the mount the server got other bytes of a content than this client has sent. The content was
    /// sent again.
    #[serde(default)]
    pub damaged_contents: u64,
    /// Connections since the mount that were ended because a frame was damaged on its way.
    #[serde(default)]
    pub damaged_connections: u64,
    /// Calls that the server has answered since the mount.
    pub calls: u64,
}

/// Most unsent files that a report names.
const UNSENT_NAMED_MAX: usize = 5;

/// Most paths looked up for one report; later refusals are shown with the path of their time.
const PATHS_MAX: usize = 100;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Inner {
    pub(super) fn status(&self) -> StatusReport {
        let (link, since) = self.remote.link();
        let now: Instant = self.clock.now();
        let (peer, why, session) = match link {
            Link::Up(connection) => (Some(connection.peer.clone()), String::new(), Some(connection.generation.0)),
            Link::Down(outage) => (None, outage.why, None),
            Link::Closed => (None, "unmounting".to_owned(), None),
        };
        let estimate = peer.as_ref().map_or_else(mafs_arpc::Estimate::default, Peer::estimate);
        let (cache_bytes, cache_files) = {
            let replacement = self.replacement();
            (replacement.used_bytes(), replacement.files() as u64)
        };
        self.look_at_all();
        let files = self.files().all();
        let open_files = self.files().handles() as u64;
        let announced_changes = self.replay.queue().announced();
        let (log, locks, carrier) = (self.log_report(), self.locks.counts(), self.remote.carrier());
        let mut report = StatusReport {
            server: self.settings.server.clone(),
            volume: self.settings.volume.to_string(),
            profile: self.settings.profile.map(|name| name.to_string()),
            carrier: carrier.proto.to_string(),
            carrier_why: carrier.why,
            udp_blocked_s: carrier.blocked.map(|(since, _)| since),
            udp_again_s: carrier.blocked.map(|(_, again)| again),
            connected: peer.is_some(),
            disconnected: self.remote.is_apart(),
            by_hand: self.remote.is_apart_by_hand(),
            since_s: now.since(since).as_secs(),
            why,
            session,
            lease_s: self.cache.index.lease_remaining().as_secs(),
            rtt_us: estimate.rtt_min.map(micros),
            rtt_smoothed_us: estimate.rtt.map(micros),
            rate_bytes_per_s: estimate.rate,
            loss_ppm: peer.and_then(|peer| peer.loss()).and_then(Loss::ppm),
            window_bytes: estimate.window_bytes,
            in_flight_bytes: estimate.unacknowledged_bytes,
            chunk_bytes: estimate.chunk_bytes,
            queued_bytes: estimate.queued_bytes,
            limits_bytes_per_s: self.remote.limits().map(|limit| limit.map(Rate::get)),
            unsent_files: 0,
            unsent_bytes: 0,
            unsent_changes: 0,
            announced_changes,
            stale_reads: self.stale_reads.load(Ordering::Relaxed),
            unsent: Vec::new(),
            log,
            locks: locks.held,
            locks_here: locks.here,
            fetching_files: 0,
            refused: Vec::new(),
            conflicts: self.known_conflicts(),
            passthrough: self.passthrough.load(Ordering::Relaxed),
            cache_bytes,
            cache_limit_bytes: self.settings.cache_limit_bytes,
            cache_short_bytes: self.disk_short_bytes(0),
            cache_files,
            open_files,
            hoard: self.hoard_report(),
            prefetch: self.prefetch_report(),
            damaged_contents: self.remote.damage().contents(),
            damaged_connections: self.remote.damage().connections(),
            calls: self.remote.calls(),
        };
        report.unsent_changes = report.log.changes;
        self.add_unsent(&files, &mut report);
        report
    }

    /// Adds the changes that the server lacks, and those that it has refused.
    fn add_unsent(&self, files: &[Arc<File>], report: &mut StatusReport) {
        let refused = self.replay.refused().clone();
        for (queued, reason) in refused.iter().take(PATHS_MAX) {
            report.refused.push((self.describe(queued), reason.to_string()));
        }
        let mut named = 0;
        for file in files {
            let state = file.state();
            report.fetching_files += u64::from(state.arrival().is_coming());
            if !state.is_dirty() {
                continue;
            }
            report.unsent_files += 1;
            let arrived = state.versions().sending().map_or(0, |content| content.arrived_bytes());
            report.unsent_bytes += state.stat().size().saturating_sub(arrived);
            let refused = state.fate().refused().cloned();
            drop(state);
            let mut path = || {
                let path = if named < PATHS_MAX { self.path_of(file.fid) } else { None };
                named += 1;
                path
            };
            if let Some(Refused { reason, path: last_path }) = refused {
                report.refused.push((path().unwrap_or(last_path), reason.to_string()));
            } else if report.unsent.len() < UNSENT_NAMED_MAX {
                report.unsent.push(path().unwrap_or_else(|| file.fid.to_string()));
            }
        }
    }
}

impl Inner {
    /// Describes a change of names or attributes for people: the kind of change, and its place.
    pub(super) fn describe(&self, queued: &Queued) -> String {
        let named = |verb: &str, parent: Fid, name: &Name| {
            let directory = self.path_of(parent).unwrap_or_else(|| parent.to_string());
            format!("{verb} {}/{name}", directory.trim_end_matches('/'))
        };
        match &queued.record.op {
            CmlOp::Create { parent, name, .. } | CmlOp::SymLink { parent, name, .. } => named("make", *parent, name),
            CmlOp::MakeDir { parent, name, .. } => named("make directory", *parent, name),
            CmlOp::Link { parent, name, .. } => named("link", *parent, name),
            CmlOp::Remove { parent, name, .. } | CmlOp::RemoveDir { parent, name, .. } => {
                named("remove", *parent, name)
            }
            CmlOp::Rename { to_parent, to_name, .. } => named("rename to", *to_parent, to_name),
            CmlOp::SetAttr { fid, .. }
            | CmlOp::SetXattr { fid, .. }
            | CmlOp::RemoveXattr { fid, .. }
            | CmlOp::Store { fid, .. } => {
                format!("change {}", self.path_of(*fid).unwrap_or_else(|| fid.to_string()))
            }
        }
    }
}
