//! Whether the caller of a waiting operation is to be let go, as /proc tells it.
//!
//! The kernel lets a process that waits for a FUSE answer go only when the answer comes: until then it is in state D
//! and even SIGKILL stays pending (measured). A default SIGTERM, SIGINT or SIGHUP shows up as a pending SIGKILL of
//! every thread.
//!
//! execve(2) closes descriptors, and so waits for us, with a lock held that every reader of the process's `stat` waits
//! for: a daemon that reads it of a process in execve waits for itself (measured: for ever). `status` needs no such
//! lock, and tells whether the thread has given up its memory. An exiting thread has, before it closes files; a thread
//! in execve never has.

const SIGHUP: u32 = 1;
const SIGINT: u32 = 2;
const SIGQUIT: u32 = 3;
const SIGKILL: u32 = 9;
const SIGTERM: u32 = 15;

/// `PF_EXITING` of the kernel's task flags.
const EXITING: u64 = 0x4;

/// Whether the thread `pid` has a signal pending that ends it or that it has asked to be interrupted by, or is being
/// ended by one. `false` if it cannot be seen: pid 0 is a thread of the kernel or of another pid namespace.
pub(super) fn is_killed(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let status = read("status");
    interrupts(&status) || (is_without_memory(&status) && dies_by_signal(&read("stat")))
}

/// Whether the thread `pid` is killed, or has a signal pending that its program handles. Such a signal interrupts
/// every system call that may wait for another program. alarm(2) around a lock is how programs bound that wait.
pub(super) fn is_interrupted(pid: u32) -> bool {
    let status = if pid == 0 { String::new() } else { std::fs::read_to_string(status_of(pid)).unwrap_or_default() };
    is_handled(&status) || is_killed(pid)
}

/// Whether a signal is pending that is not blocked and that the program handles.
fn is_handled(status: &str) -> bool {
    let pending = mask(status, "SigPnd:") | mask(status, "ShdPnd:");
    pending & mask(status, "SigCgt:") & !mask(status, "SigBlk:") != 0
}

fn status_of(pid: u32) -> String {
    format!("/proc/{pid}/status")
}

fn is_without_memory(status: &str) -> bool {
    !status.lines().any(|line| line.starts_with("VmSize:"))
}

/// Whether a signal is pending that stops the wait: SIGKILL always, the other signals people stop programs with if they
/// are neither blocked nor ignored.
fn interrupts(status: &str) -> bool {
    let pending = mask(status, "SigPnd:") | mask(status, "ShdPnd:");
    let deaf = mask(status, "SigBlk:") | mask(status, "SigIgn:");
    let stops = bit(SIGTERM) | bit(SIGINT) | bit(SIGHUP) | bit(SIGQUIT);
    pending & (bit(SIGKILL) | (stops & !deaf)) != 0
}

/// Whether the thread exits because of a signal: it closes its files on the way out, and no signal is pending any
/// more. A thread that exits by itself waits for its close as it would have done before exiting.
fn dies_by_signal(stat: &str) -> bool {
    // The second field is the command in brackets and may hold anything, spaces and brackets included.
    let Some((_, after_command)) = stat.rsplit_once(')') else { return false };
    let field =
        |number: usize| after_command.split_ascii_whitespace().nth(number - 3).and_then(|text| text.parse().ok());
    let flags: u64 = field(9).unwrap_or(0);
    let exit_code: u64 = field(52).unwrap_or(0);
    flags & EXITING != 0 && exit_code & 0x7f != 0
}

fn mask(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).unwrap_or(0)
}

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, shared: u64, blocked: u64, ignored: u64) -> String {
        format!(
            "Name:\tcat (x)\nSigQ:\t1/2\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t0000000000000000\n"
        )
    }

    #[test]
    fn a_pending_kill_interrupts_whatever_is_blocked() {
        assert!(interrupts(&status(bit(SIGKILL), 0, u64::MAX, u64::MAX)));
        assert!(interrupts(&status(0, bit(SIGKILL), 0, 0)));
    }

    #[test]
    fn other_signals_interrupt_unless_blocked_or_ignored() {
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
            assert!(interrupts(&status(0, bit(signal), 0, 0)));
            assert!(!interrupts(&status(0, bit(signal), bit(signal), 0)));
            assert!(!interrupts(&status(0, bit(signal), 0, bit(signal))));
        }
        let (usr1, child) = (10, 17);
        assert!(!interrupts(&status(bit(usr1), bit(child), 0, 0)));
        assert!(!interrupts(&status(0, 0, 0, 0)));
    }

    #[test]
    fn a_handled_signal_ends_the_wait_for_others() {
        let alarm = bit(14);
        let status = |blocked: u64, handled: u64| {
            status(0, alarm, blocked, 0).replace("SigCgt:\t0000000000000000", &format!("SigCgt:\t{handled:016x}"))
        };
        assert!(is_handled(&status(0, alarm)));
        assert!(!is_handled(&status(alarm, alarm)));
        assert!(!is_handled(&status(0, 0)));
        assert!(!is_handled(&status(0, bit(10))));
        assert!(!is_interrupted(0));
    }

    #[test]
    fn unreadable_tables_mean_no() {
        assert!(!interrupts(""));
        assert!(!interrupts("SigPnd:\tnothing\n"));
        assert!(!dies_by_signal(""));
        assert!(!dies_by_signal("7 (a) D"));
        assert!(!is_killed(0));
        assert!(!is_killed(u32::MAX));
        assert!(!is_killed(std::process::id()));
    }

    #[test]
    fn a_thread_with_memory_may_be_in_execve() {
        assert!(!is_without_memory(&std::fs::read_to_string("/proc/self/status").unwrap()));
        assert!(is_without_memory("Name:\tcat\nState:\tD (disk sleep)\nThreads:\t1\n"));
    }

    #[test]
    fn a_thread_that_exits_by_itself_is_not_killed() {
        let stat = |flags: u64, exit_code: u64| {
            let between = "0 ".repeat(52 - 9 - 1);
            format!("7 (a) b) (c) D 1 1 1 0 -1 {flags} {between}{exit_code}\n")
        };
        assert!(dies_by_signal(&stat(EXITING | 0x400, 9)));
        assert!(!dies_by_signal(&stat(EXITING, 0)));
        assert!(!dies_by_signal(&stat(EXITING, 1 << 8)), "exit status 1");
        assert!(!dies_by_signal(&stat(0, 9)));
    }
}
