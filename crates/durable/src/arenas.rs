//! Arenas: how many heaps the C library's allocator spreads a daemon over.
//!
//! glibc gives each thread an arena of its own, up to eight for each core, and what is freed in one serves no other.
//! sled's pages are made by whichever thread reads them and freed by whichever drops the last of an epoch, so every
//! arena comes to hold the largest share it ever had. Measured on two cores, 60,000 names made and listed: a server of
//! 57 MB with the 16 arenas it may have, 41 MB with two, and a client of 103 and 77 MB; creates and listings took as
//! long. jemalloc with two arenas: 60 and 71 MB; mimalloc: 133 and 165 MB.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable's name; see mallopt(3). The library reads it when a program begins, so it is too late to set it for
/// this process; a call of mallopt() would need `unsafe`.
const VARIABLE: &str = "MALLOC_ARENA_MAX";

/// Number of arenas. One would make all threads wait for each other.
const ARENAS: &str = "2";

/// Blocks from 256 KB on have pages of their own, which go back when they are freed. Otherwise the library raises this
/// limit to the largest block freed so far, and what of sled's log buffers and large messages has been freed stays
/// behind in the arenas, in pieces.
const GIVE_BACK: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "262144"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// Treatment of large blocks of memory that are freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargeBlocks {
    /// The blocks are kept for the next: the writes of 1 MB that a client takes from the kernel cost 1.6 times the
    /// processor time if their memory is new each time.
    Keep,
    /// The blocks go back to the system: for a server, to which everything comes in small pieces.
    GiveBack,
}

/// Makes this process, a daemon, use few arenas: starts its program again in its place, with the same arguments,
/// unless the environment says how many there are to be. To be called before anything else is begun.
///
/// # Errors
/// If the program cannot be started. The process works on without.
pub fn limit_arenas(large: LargeBlocks) -> io::Result<()> {
    if env::var_os(VARIABLE).is_some() {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let mut again = Command::new(env::current_exe()?);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    if large == LargeBlocks::GiveBack {
        again.envs(GIVE_BACK);
    }
    Err(again.args(arguments).env(VARIABLE, ARENAS).exec())
}
