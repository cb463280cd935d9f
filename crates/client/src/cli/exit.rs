//! Exit codes, and errors that carry one.

use std::fmt;
use std::process::ExitCode;

/// The ways in which the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Done.
    Ok,
    /// Not done.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// No daemon.
    NoDaemon,
    /// The server does not have everything.
    Unsent,
    /// There are conflicts.
    Conflicts,
    /// There is no such file.
    NotFound,
    /// Something is not what was stored.
    Damage,
    /// As mount(8): the command line makes no sense.
    MountUsage,
    /// As mount(8): the system refuses something else than the mount.
    System,
    /// As mount(8): not mounted, or not unmounted.
    MountFailed,
}

impl Exit {
    /// Returns the number; see the manual's list.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed | Self::MountUsage => 1,
            Self::Usage | Self::System => 2,
            Self::NoDaemon => 3,
            Self::Unsent => 4,
            Self::Conflicts => 5,
            Self::NotFound => 6,
            Self::Damage => 8,
            Self::MountFailed => 32,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The reason why a command fails: one line for people, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }
}
