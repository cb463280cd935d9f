//! The bench of mafs: the base of end-to-end tests and benchmarks.
//!
//! Runs the real `mafs-server` and `mafs-client` as processes, in a directory of their own, and looks at them from
//! outside like a user: through the mount, through `/proc`, through exit codes. The bench uses no other crate of
//! mafs, so that it knows only what users see. The exception is [`link`], which emulates the network between them by
//! arpc's link model.
//!
//! Everything started here is ended here: dropping a [`world::World`] unmounts and kills what it started. Every wait
//! has a limit; a call that hangs in a mount is ended by a [`watchdog::Watchdog`].

pub mod client;
pub mod conformance;
pub mod content;
pub mod daemon;
pub mod link;
pub mod measure;
pub mod mounted;
pub mod process;
pub mod programs;
pub mod report;
pub mod transcript;
pub mod tree;
pub mod watchdog;
pub mod world;
