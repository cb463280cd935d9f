//! The simulator: the real client and the real server in one thread, in virtual time, from one seed.
//!
//! Storage is memory that can lose what was not synced, the link is the memory carrier, the clock is tokio's paused
//! one. A [`World`] holds both ends and can kill or power off either; a [`Model`] is the reference: a plain tree that
//! says what every operation must answer. [`run`] drives both with the same random operations and compares.

mod clock;
mod link;
mod machine;
mod model;
mod operation;
mod random;
mod run;
mod world;

pub use clock::VirtualClock;
pub use machine::Machine;
pub use model::{Model, Snapshot};
pub use operation::{Operation, Outcome};
pub use random::Random;
pub use run::{Faults, run};
pub use world::{Crash, World};
