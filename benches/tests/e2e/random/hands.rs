//! Processes that do what they are told: each is a `hands.py`, reached over a UNIX socket. Knows no model.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mafs_bench::measure::state;
use mafs_bench::process::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The longest that one answer may take: a call waits for a server that is at hand.
const LIMIT: Duration = Duration::from_secs(60);

const SCRIPT: &str = include_str!("hands.py");

/// The place where processes come from, and where they report.
pub(super) struct Crew {
    directory: TempDir,
    listener: UnixListener,
    children: Vec<Child>,
}

/// One process.
pub(super) struct Hands {
    pid: u32,
    lines: UnixStream,
    answers: BufReader<UnixStream>,
}

/// Result of an operation: `ok` with numbers or the name of an error, and the bytes that were read.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) data: Vec<u8>,
}

impl Crew {
    pub(super) fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("mafs-").tempdir_in("/tmp")?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        listener.set_nonblocking(true)?;
        Ok(Self { directory, listener, children: Vec::new() })
    }

    /// Starts a process that works in a directory.
    pub(super) fn start(&mut self, directory: &Path) -> io::Result<Hands> {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).arg(self.directory.path().join("socket"));
        self.children.push(command.current_dir(directory).stdin(Stdio::null()).spawn()?);
        self.accept()
    }

    /// Makes a child of a process, with all that its parent has open.
    pub(super) fn fork(&mut self, parent: &mut Hands) -> io::Result<Hands> {
        parent.tell(&["fork".to_owned()])?;
        parent.answer()?;
        self.accept()
    }

    fn accept(&self) -> io::Result<Hands> {
        let mut accepted = None;
        wait_until(LIMIT, "the process connects", || match self.listener.accept() {
            Ok((stream, _)) => Ok(accepted.replace(stream).is_none()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        })?;
        let lines = accepted.ok_or_else(|| io::Error::other("nobody has connected"))?;
        lines.set_nonblocking(false)?;
        lines.set_read_timeout(Some(LIMIT))?;
        let mut answers = BufReader::new(lines.try_clone()?);
        let mut greeting = String::new();
        answers.read_line(&mut greeting)?;
        let pid = greeting.trim_end().parse().map_err(io::Error::other)?;
        Ok(Hands { pid, lines, answers })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Hands {
    /// Sends lines, as many as a socket holds.
    pub(super) fn tell(&mut self, lines: &[String]) -> io::Result<()> {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.lines.write_all(lines.as_bytes())
    }

    /// Returns the answer to the first line that has not been answered.
    pub(super) fn answer(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let gone = || io::Error::other("the process has ended by itself");
        let (length, text) = line.trim_end().split_once(' ').ok_or_else(gone)?;
        let mut data = vec![0; length.parse().map_err(io::Error::other)?];
        self.answers.read_exact(&mut data)?;
        Ok(Answer { text: text.to_owned(), data })
    }

    /// Ends the process without closing anything, by itself or by a signal, and waits until the kernel has done so.
    pub(super) fn end(mut self, killed: bool) -> io::Result<()> {
        match i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            Some(pid) if killed => kill_process(pid, Signal::KILL)?,
            _ => self.tell(&["exit".to_owned()])?,
        }
        wait_until(LIMIT, "the process has ended", || Ok(matches!(state(self.pid), None | Some('Z' | 'X'))))
    }
}
