//! Content: the state of one file's content in the cache, as a pure machine.
//!
//! Events come in (a look at the container, an open, a close, an answer), and what follows from them comes out as
//! values. Nothing here touches a file, a clock or the network, and nobody but the machine changes its fields.

pub(crate) mod arrival;
pub(crate) mod basis;
pub(crate) mod edits;
pub(crate) mod fate;
pub(crate) mod stat;
pub(crate) mod users;
pub(crate) mod watch;
