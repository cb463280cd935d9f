//! Programs: the name of the program that opens a file, as /proc tells it, to predict its next opens.
//!
//! A name is asked for once a second of each thread, not at each open: that would be half of an open of a cached file.
//! A thread that runs another program within that time keeps the name of the one before, the next time as well.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use crate::vfs::Program;

/// The most threads whose name is remembered.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// The time for which a name is remembered.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The programs of threads that have opened something lately.
pub(super) struct Programs {
    known: Mutex<LruCache<u32, (Program, Instant)>>,
}

impl Default for Programs {
    fn default() -> Self {
        Self { known: Mutex::new(LruCache::new(KNOWN_MAX)) }
    }
}

impl Programs {
    /// Returns the program that the thread `pid` runs. All threads that cannot be seen count as running one program.
    pub(super) fn of(&self, pid: u32) -> Program {
        if let Some((program, since)) = self.known().get(&pid).copied()
            && since.elapsed() < KNOWN_FOR
        {
            return program;
        }
        let program = program_of(pid);
        self.known().put(pid, (program, Instant::now()));
        program
    }

    fn known(&self) -> MutexGuard<'_, LruCache<u32, (Program, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a thread's program from `comm`. Unlike `stat`, this file may be read of a thread in execve (`caller.rs`): the
/// name has a lock of its own.
fn program_of(pid: u32) -> Program {
    // Pid 0 is a thread of the kernel or of another pid namespace.
    let name = if pid == 0 { Vec::new() } else { std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default() };
    Program::named(name.strip_suffix(b"\n").unwrap_or(&name))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::thread;

    use super::*;

    /// Starts a program and waits until it goes by its own name, a little after its start.
    fn sleeping() -> Child {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).unwrap() != "sleep\n" {
            thread::yield_now();
        }
        child
    }

    #[test]
    fn processes_of_one_program_are_one_and_what_cannot_be_seen_is_another() {
        let mut sleeps = [(); 2].map(|()| sleeping());
        let programs = Programs::default();
        let [one, other] = [0, 1].map(|at| programs.of(sleeps[at].id()));
        sleeps.iter_mut().for_each(|sleep| sleep.kill().unwrap());
        for sleep in &mut sleeps {
            sleep.wait().unwrap();
        }
        assert_eq!((one, other), (Program::named(b"sleep"), Program::named(b"sleep")));
        assert_ne!(programs.of(std::process::id()), one);
        assert_eq!(programs.of(sleeps[0].id()), one, "it is remembered for a second");
        assert_eq!(Programs::default().of(sleeps[0].id()), Program::default(), "it is gone");
        assert_eq!((programs.of(0), programs.of(u32::MAX)), (Program::default(), Program::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_asked_for_again_after_a_second() {
        let programs = Programs::default();
        let mut child = sleeping();
        assert_eq!(programs.of(child.id()), Program::named(b"sleep"));
        child.kill().unwrap();
        child.wait().unwrap();
        tokio::time::advance(KNOWN_FOR).await;
        assert_eq!(programs.of(child.id()), Program::default());
    }
}
