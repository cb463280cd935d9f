//! The variants that the paper compares: priorities or none, synchronous or asynchronous writeback (papers/003,
//! section 4.3).

use mafs_arpc::Scheduling;
use mafs_client::vfs::Writeback;

/// One way to run a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// Scheduling at both ends.
    pub(crate) scheduling: Scheduling,
    pub(crate) writeback: Writeback,
}

/// The paper's four; the others are compared with the first. `none` is plain gRPC, as in M2: no classes and no
/// window.
pub(crate) const VARIANTS: [Variant; 4] = [
    Variant { name: "none+sync", scheduling: Scheduling::Off, writeback: Writeback::Sync },
    Variant { name: "none+async", scheduling: Scheduling::Off, writeback: Writeback::Async },
    Variant { name: "prio+sync", scheduling: Scheduling::Classes, writeback: Writeback::Sync },
    Variant { name: "prio+async", scheduling: Scheduling::Classes, writeback: Writeback::Async },
];
