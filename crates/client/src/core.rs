//! Decisions, without I/O: no executor, no files, no clock. Time and contents come in as arguments.

pub(crate) mod arrivals;
pub(crate) mod caller;
pub(crate) mod carriers;
pub(crate) mod content;
pub(crate) mod drain;
pub(crate) mod fids;
pub(crate) mod hearing;
pub(crate) mod hoard;
pub(crate) mod locks;
pub(crate) mod log;
pub(crate) mod outstanding;
pub(crate) mod overlay;
pub(crate) mod pauses;
pub(crate) mod prediction;
pub(crate) mod promises;
pub(crate) mod queue;
pub(crate) mod refresh;
pub(crate) mod replacement;
pub(crate) mod roaming;
pub(crate) mod rpc_statistics;
pub(crate) mod tail;
pub(crate) mod touched;
pub(crate) mod upload;
