//! The address of a server, and the reasons why there is no connection to it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The address on which a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A `host:port`, resolved when connecting.
    Tcp(String),
    /// A UNIX socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host_port) => f.write_str(host_port),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host's name has no address.
    #[error("cannot find the host of {address}: {source}: check its name")]
    UnknownHost {
        /// The address that was to be resolved.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {address}: {source}{}", advice(source))]
    Unreachable {
        /// The address of the server.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A program takes connections and says nothing: a server that hangs, or none of ours.
    #[error("{address} takes connections but does not answer: it hangs, or is no mafs server")]
    Silent {
        /// The address of the server.
        address: String,
    },
    /// No answer comes back. Over UDP nothing tells that no server is there.
    #[error(
        "nothing answers at {address} over UDP: is mafs-server running there, and is UDP let through? \
         `proto=tcp` needs none"
    )]
    NoAnswer {
        /// The address of the server.
        address: String,
    },
    /// The server is not the one that was there before, or somebody is in between.
    #[error(
        "{address} is not the server that it was: its key has the fingerprint {shown}, and {known} is known. Either \
         it was set up anew, or somebody is in between. If its log says the new one too, remove {noted_in}"
    )]
    OtherKey {
        /// The address of the server.
        address: String,
        /// The fingerprint that is known.
        known: String,
        /// The fingerprint that the server shows.
        shown: String,
        /// The place where the known one is noted.
        noted_in: String,
    },
    /// A program answers, but does not speak this protocol.
    #[error("{address} answers, but not as a mafs server ({why}): is the port right?")]
    NotMafs {
        /// The address of the server.
        address: String,
        /// The difference to a mafs server's answer.
        why: String,
    },
}

/// Advises what to look at if nobody answers.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ": is mafs-server running there?",
        _ => "",
    }
}
