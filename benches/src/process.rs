//! Processes: running a command within a time limit, and waiting for something to become true.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Limit of the part of a command line that goes into an error.
const DESCRIPTION_CHARS_MAX: usize = 200;

/// Result of a finished command.
#[derive(Debug)]
pub struct Finished {
    /// The command's exit status.
    pub status: ExitStatus,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the exit code, or 128 and the number of the signal, as a shell has it.
    #[must_use]
    pub fn code(&self) -> i32 {
        exit_code(self.status)
    }
}

/// Returns the exit code, or 128 and the number of the signal, as a shell has it.
#[must_use]
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// If the command cannot be started, fails, or takes longer than `limit`; with all it said.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<String> {
    let finished = finish(command, limit)?;
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    let what = format!("{}: {}\n{}{}", describe(command), finished.status, finished.stdout, finished.stderr);
    Err(io::Error::other(what))
}

/// Runs a command to its end, however that is.
///
/// # Errors
/// If the command cannot be started, or takes longer than `limit`: it is killed then.
pub fn finish(command: &mut Command, limit: Duration) -> io::Result<Finished> {
    // Files, not pipes: a command that says much must not wait for somebody to read it.
    let directory = tempfile::tempdir()?;
    let (stdout, stderr) = (directory.path().join("stdout"), directory.path().join("stderr"));
    command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
    let spawned = command.spawn();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", describe(command)));
    let mut child = spawned.map_err(named)?;
    let status = wait(&mut child, limit).map_err(|error| {
        // The child is not waited for: a process that hangs in a file system may survive even this until that is
        // unmounted.
        let _ = child.kill();
        named(error)
    })?;
    let said = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Finished { status, stdout: said(&stdout)?, stderr: said(&stderr)? })
}

/// Kills every process whose command line names `path`, such as daemons in the background.
pub fn kill_all_naming(path: &Path) {
    for pid in all_naming(path).filter_map(Pid::from_raw) {
        // The process may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the processes whose command line names `path`.
pub fn all_naming(path: &Path) -> impl Iterator<Item = i32> {
    let named = |pid: &i32| {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = path.as_os_str().as_bytes();
        command_line.windows(words.len()).any(|part| part == words)
    };
    all_pids().filter(named)
}

/// Returns all processes.
pub fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Waits until a child has ended, and no longer: a measurement of a command must not include pauses between looks at
/// it.
///
/// # Errors
/// `TimedOut` after `limit`; the child runs on.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit_at = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(limit_at.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)) {
            Ok(0) => {
                let text = format!("waited {limit:?} in vain until the process has ended");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Ok(_) => return child.wait(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until `condition` is true; looks every few milliseconds.
///
/// # Errors
/// `TimedOut` after `limit`, naming `what`; an error of the condition itself ends the wait at once.
pub fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !condition()? {
        if start.elapsed() > limit {
            let text = format!("waited {limit:?} in vain until {what}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    Ok(())
}

/// Returns the program and its arguments, cut short.
fn describe(command: &Command) -> String {
    let words: Vec<_> =
        [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ").chars().take(DESCRIPTION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_failing_command_is_an_error_with_what_it_said() {
        assert_eq!(run(Command::new("echo").arg("yes"), LONG).unwrap(), "yes\n");
        let error = run(Command::new("sh").args(["-c", "echo no >&2; exit 3"]), LONG).unwrap_err().to_string();
        assert!(error.contains("no\n") && error.contains('3'), "{error}");
        assert_eq!(finish(Command::new("sh").args(["-c", "exit 3"]), LONG).unwrap().code(), 3);
    }

    #[test]
    fn the_end_of_a_child_is_noticed_at_once_and_again() {
        // With pauses between looks the shortest of these took 35 ms.
        let shortest = (0..10).map(|_| {
            let start = Instant::now();
            let mut child = Command::new("sleep").arg("0.026").spawn().unwrap();
            assert!(wait(&mut child, LONG).unwrap().success());
            let took = start.elapsed();
            assert!(wait(&mut child, LONG).unwrap().success(), "asked once more");
            took
        });
        let shortest = shortest.min().unwrap();
        assert!((26..34).contains(&shortest.as_millis()), "{shortest:?}");
        let mut killed = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(wait(&mut killed, SOON).unwrap_err().kind(), io::ErrorKind::TimedOut);
        killed.kill().unwrap();
        assert_eq!(wait(&mut killed, LONG).unwrap().signal(), Some(9));
    }

    #[test]
    fn processes_are_found_by_a_path_of_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("tail");
        command.args(["-f", "/dev/null"]).arg(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The child's command line appears a moment after spawn() returns.
        wait_until(LONG, "the process is killed", || {
            kill_all_naming(directory.path());
            Ok(child.try_wait()?.is_some_and(|status| status.signal() == Some(9)))
        })
        .unwrap();
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let error = run(Command::new("sleep").arg("60"), SOON).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(wait_until(SOON, "never", || Ok(false)).is_err());
    }
}
