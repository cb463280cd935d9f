//! Going to the background without fork: this program starts itself again, and waits until that child says on its
//! stdout that the mount can be used, or why it cannot.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mafs_client::mount_point::{self, MountPointError};
use mafs_client::runtime_dir::RuntimeDir;
use tokio::io::Interest;
use tokio::net::unix::pipe;

use super::{Exit, Failure};

const READY: &str = "ready";
/// Begins the line of a mount that can be used when there is a notice for the user, which follows.
const READY_BUT: &str = "ready, but ";

/// A log larger than this is put aside at the next mount.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The longest message a child can have: a line with two paths in it.
const MESSAGE_BYTES_MAX: u64 = 16 * 1024;

/// Starts the daemon for `directory` with the arguments of this process, and waits until it has mounted.
pub(super) fn launch(directory: &Path, runtime_dir: &RuntimeDir) -> Result<Exit, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::MountFailed, error);
    let mount_point = mount_point::resolve(directory).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(&MountPointError::Missing(directory.to_path_buf())),
        _ => failed(&error),
    })?;
    let log_path = runtime_dir.log(&mount_point);
    if std::fs::metadata(&log_path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        // If it cannot be put aside it grows on.
        let _ = std::fs::rename(&log_path, log_path.with_extension("log.old"));
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.map_err(|error| failed(&format!("{}: {error}", log_path.display())))?;
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--report-readiness")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(&error))?;
    let mut message = String::new();
    if let Some(stdout) = child.stdout.take() {
        // A message that cannot be read counts as none.
        let _ = BufReader::new(stdout.take(MESSAGE_BYTES_MAX)).read_line(&mut message);
    }
    match message.trim_end() {
        READY => Ok(Exit::Ok),
        notice if notice.starts_with(READY_BUT) => {
            eprintln!("mafs-client: {}", &notice[READY_BUT.len()..]);
            Ok(Exit::Ok)
        }
        "" => Err(failed(&format!("the client has ended before the mount was there: see {}", log_path.display()))),
        why => Err(failed(&why)),
    }
}

/// The child's side: tells the process that started it how the mount goes.
#[derive(Clone, Copy)]
pub(super) struct Readiness {
    is_awaited: bool,
}

impl Readiness {
    /// Makes one for a child whose parent waits for a line on stdout. Leaves the parent's terminal.
    pub(super) fn report() -> Self {
        // Fails only for the leader of a process group, which is not a child of `launch`.
        let _ = rustix::process::setsid();
        Self { is_awaited: true }
    }

    /// Makes one for a process from which nobody awaits a line.
    pub(super) fn silent() -> Self {
        Self { is_awaited: false }
    }

    /// Tells that the mount can be used, or will be, with a `notice` for the user. Returns `false` if the waiting
    /// process has gone.
    pub(super) fn ready(self, notice: Option<&str>) -> bool {
        // A daemon must not keep another file system busy. Every path was made absolute before.
        if self.is_awaited
            && let Err(error) = std::env::set_current_dir("/")
        {
            tracing::warn!(%error, "stays in its working directory");
        }
        match notice {
            Some(notice) => self.say(&format!("{READY_BUT}{}", notice.replace('\n', " "))),
            None => self.say(READY),
        }
    }

    /// Waits until the process that waited for the mount has gone: its end of the pipe is closed.
    pub(super) async fn abandoned(self) {
        let pipe = || pipe::Sender::from_owned_fd(std::io::stdout().as_fd().try_clone_to_owned()?);
        let gone = match self.is_awaited.then(pipe) {
            Some(Ok(pipe)) => pipe.ready(Interest::ERROR).await.is_ok(),
            Some(Err(_)) | None => false,
        };
        if !gone {
            std::future::pending::<()>().await;
        }
    }

    /// Tells why the mount has failed.
    pub(super) fn failed(self, failure: &Failure) {
        self.say(&failure.message);
    }

    fn say(self, line: &str) -> bool {
        if !self.is_awaited {
            return true;
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_ok()
    }
}
