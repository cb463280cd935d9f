//! The simulator: real clients and the real server in one thread, in virtual time, from one seed.
//!
//! Storage is memory that can lose what was not synced, links are the memory carrier, the clock is tokio's paused one.
//! A [`World`] holds all of them and can kill or power off each, and cut off each client, loudly or silently. There are
//! three references. A [`Model`] is a plain tree that says what every operation must answer: [`run`] and
//! [`run_in_turns`] drive it and the clients with the same random operations, one at a time, and compare. A [`History`]
//! is of versions: it says what may be seen when operations of several clients overlap, as those of [`run_together`]
//! do, and of [`run_for`], where the links change instead. The versions of [`run_fleet`] say what each of several
//! clients may be shown that send in the background: what they have logged is announced, pulled and applied meanwhile.
//!
//! A [`kernel`] can stand between programs and a client, as on Linux; a [`script`] is what programs call then, and the
//! clients of [`run_above_kernel`] and [`run_fleet_above_kernels`] have one each.
//!
//! [`workload`] has the programs of the papers' figures, which are measured instead of judged.
//!
//! A run follows from its seed alone: tasks of one thread are woken in a fixed order, and nothing else is random.
//! `plants/run` shows what the runs find: it plants known bugs and names the test and the seed that find each.

mod act;
mod clock;
mod contention;
mod faults;
mod fleet;
mod history;
mod hour;
mod image;
pub mod kernel;
mod machine;
mod model;
mod network;
pub mod nfs;
mod operation;
mod run;
pub mod script;
pub mod stations;
mod step;
mod versions;
pub mod workload;
mod world;

pub use clock::VirtualClock;
pub use contention::run_together;
pub use faults::Faults;
pub use fleet::{run_fleet, run_fleet_above_kernels};
pub use history::{Attempt, Contests, History, Register, UpdateId};
pub use hour::{Hour, run_for};
pub use image::ServerImage;
pub use machine::{CacheImage, Machine};
pub use mafs_arpc::carrier::memory::Direction;
pub use model::{Model, Snapshot};
pub use network::{Connecting, Harm, Path, Silence, Way};
pub use operation::{Operation, Outcome};
pub use run::{run, run_above_kernel, run_in_background, run_in_turns};
pub use world::{BREAK_TIMEOUT, Crash, LEASE, LEASE_BIAS, World};
