//! A daemon under test: a child process with its log, ended at the latest when it is dropped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process;

/// The number of a log's last lines that are shown when something went wrong.
const LOG_LINES_SHOWN: usize = 30;

/// Limit of the time in which a daemon starts or stops. Longer than a lease, 62 s: a look into a directory may take
/// as long as the lease of a killed client that decides names there.
pub(crate) const DAEMON_LIMIT: Duration = Duration::from_secs(90);

/// Limit of the time in which a killed process ends.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Time that a killed process gets to end before it is helped.
const HELP_AFTER: Duration = Duration::from_secs(2);

/// A running child process.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command`, whose output is appended to `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &'static str, command: &mut Command, log: &Path) -> io::Result<Self> {
        let file: File = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{command:?}: {error}")))?;
        Ok(Self { name, child, log: log.to_path_buf() })
    }

    /// Returns the daemon's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready`, while the daemon runs.
    ///
    /// # Errors
    /// If the daemon ends meanwhile, or `limit` passes; with the end of its log.
    pub fn wait_ready(&mut self, limit: Duration, mut ready: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        let Self { name, child, log } = self;
        let what = format!("{name} is ready");
        process::wait_until(limit, &what, || match child.try_wait()? {
            Some(status) => Err(io::Error::other(format!("{name} ended: {status}"))),
            None => ready(),
        })
        .map_err(|error| io::Error::new(error.kind(), format!("{error}\n{}", log_end(log))))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the daemon has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or_else(|| io::Error::other("no process id"))?, signal)?)
    }

    /// Waits until the daemon has ended by itself.
    ///
    /// # Errors
    /// If `limit` passes; with the end of its log.
    pub fn wait_end(mut self, limit: Duration) -> io::Result<ExitStatus> {
        process::wait(&mut self.child, limit)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}\n{}", self.name, log_end(&self.log))))
    }

    /// Kills the daemon, as `kill -9` does, and waits until it is gone.
    ///
    /// # Errors
    /// If it does not go.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        process::wait(&mut self.child, KILL_LIMIT).map(|_| ())
    }

    /// Kills the daemon like [`Self::kill`], and calls `help` if it does not end by itself.
    ///
    /// # Errors
    /// If the daemon does not end even then.
    pub fn kill_helped(mut self, help: impl FnOnce()) -> io::Result<()> {
        self.child.kill()?;
        if process::wait(&mut self.child, HELP_AFTER).is_err() {
            help();
        }
        process::wait(&mut self.child, KILL_LIMIT).map(|_| ())
    }

    /// Returns the last lines of the daemon's log.
    #[must_use]
    pub fn log_end(&self) -> String {
        format!("--- log of {}\n{}", self.name, log_end(&self.log))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = process::wait(&mut self.child, KILL_LIMIT);
    }
}

fn log_end(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}
