//! The tests of the whole system in a simulated world: one binary, for fifty would be linked one after the other. What
//! listens to events (`figures.rs`) has one of its own: whether anybody does is kept for all threads of a process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod announced;
mod announced_at_random;
mod apart;
mod aside;
mod background;
mod by_hand;
mod closing;
mod compiling;
mod contending;
mod contents;
mod contests;
mod disconnected;
mod exclusive;
mod fairness;
mod fleet;
mod fsync;
mod fsync_orders;
mod git;
mod hoard;
mod hour;
mod interrupted_fetches;
mod journeys;
mod kernel_cache;
mod limits;
mod listings;
mod locks;
mod locks_at_random;
mod locks_in_turn;
mod locks_kept;
mod many_sessions;
mod names_to_come;
mod one_client;
mod overtaken;
mod passthrough;
mod paused;
mod prediction;
mod promises;
mod ranges;
mod regressions;
mod replaying;
mod restart;
mod restored;
mod resume;
mod revalidation;
mod several_clients;
mod sharing;
mod support;
mod time_of_day;
mod trash;
mod troubles;
mod unplugged;
mod urgency;
mod xattrs;
