//! Errors: why a server cannot start, or an administrator's command cannot be done.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use mafs_durable::{KvError, LoggedIndexError};
use mafs_proto::VolumeName;

/// The error of everything that is not a call of a client. Each is one line: what failed, on what, what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process uses the data directory.
    #[error("{} is in use by another mafs-server: stop that one first", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds something that no server has put there.
    #[error("{} is not empty and not a mafs data directory (it holds {found:?}): choose another", path.display())]
    NotDataDirectory {
        /// The directory.
        path: PathBuf,
        /// Something in it.
        found: OsString,
    },
    /// There is something else than a directory.
    #[error("{} is not a directory: choose another path", path.display())]
    NotDirectory {
        /// The path of the other object.
        path: PathBuf,
    },
    /// There is a data directory already.
    #[error("{0} is a mafs data directory already: serve it with `mafs-server run --data {0}`", path.display())]
    Initialised {
        /// The directory.
        path: PathBuf,
    },
    /// There is no data directory yet.
    #[error("{} is not a mafs data directory: make one with `mafs-server init`", path.display())]
    NotInitialised {
        /// The directory.
        path: PathBuf,
    },
    /// No `--data`, and no default for this user.
    #[error("there is no default data directory without a home directory: give one with --data")]
    NoDataDirectory,
    /// The data directory has another layout.
    #[error("the data directory has format {found}, this version knows {known}: use the version that wrote it")]
    Format {
        /// Its format.
        found: u32,
        /// The format that this build knows.
        known: u32,
    },
    /// A file of the data directory makes no sense.
    #[error("{path} is damaged: {why}: restore it from a backup")]
    Damaged {
        /// The file, below the data directory.
        path: String,
        /// The kind of damage.
        why: String,
    },
    /// A volume's journal or index cannot be opened.
    #[error("the volume {name} cannot be opened: {}{}", volume_trouble(name, source), volume_advice(source))]
    Volume {
        /// The volume.
        name: VolumeName,
        /// The reason.
        source: LoggedIndexError,
    },
    /// No volume has this name.
    #[error("there is no volume {0}: `mafs-server volume list` shows those that are")]
    NoVolume(VolumeName),
    /// A volume has this name already.
    #[error("the volume {0} exists already: choose another name")]
    VolumeExists(VolumeName),
    /// The volume to be removed is not empty.
    #[error("the volume {name} holds {objects} files and directories: remove it with --force")]
    VolumeNotEmpty {
        /// The volume.
        name: VolumeName,
        /// Objects beside the root.
        objects: u64,
    },
    /// An address that nobody can listen on.
    #[error("{address:?} is no address to listen on: {why}: write 127.0.0.1:6237 or unix:/PATH, for example")]
    BadAddress {
        /// As given.
        address: String,
        /// The fault of the address.
        why: String,
    },
    /// An address that others could reach.
    #[error(
        "{address} is reachable from other machines and the connection is not encrypted yet: listen on a loopback \
         address or a UNIX socket, or accept the risk with --insecure"
    )]
    NotLoopback {
        /// The address.
        address: String,
    },
    /// The disk or the network failed.
    #[error("cannot {what}: {source}{}", io_advice(source))]
    Io {
        /// The act that failed.
        what: String,
        /// The reason of the failure.
        source: io::Error,
    },
}

impl ServerError {
    /// Tells whether what the disk holds is wrong, so that to try again does not help.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Volume { source, .. } => is_damage(source),
            _ => false,
        }
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

/// Names a remedy for a failure of the disk or the network, if one is certain to help.
fn io_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": run mafs-server as a user who may",
        io::ErrorKind::AddrInUse => ": stop who has it, or choose another with --listen",
        io::ErrorKind::AddrNotAvailable => ": choose an address of this machine",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free some space",
        _ => "",
    }
}

/// Describes the trouble of a volume, by the names of its files below the data directory.
fn volume_trouble(name: &VolumeName, error: &LoggedIndexError) -> String {
    match error {
        LoggedIndexError::Damaged { segment, offset, why } => {
            format!("its journal is damaged in volumes/{name}/journal/{segment} at byte {offset} ({why})")
        }
        other => other.to_string(),
    }
}

fn volume_advice(error: &LoggedIndexError) -> &'static str {
    match error {
        error if is_damage(error) => ": restore it from a backup",
        LoggedIndexError::Io(error) | LoggedIndexError::Index(KvError::Io(error)) => io_advice(error),
        _ => "",
    }
}

fn is_damage(error: &LoggedIndexError) -> bool {
    matches!(
        error,
        LoggedIndexError::Damaged { .. }
            | LoggedIndexError::Malformed { .. }
            | LoggedIndexError::Unrecoverable { .. }
            | LoggedIndexError::Shortened { .. }
            | LoggedIndexError::Index(KvError::Damaged(_))
    )
}
