//! Frames in a bidirectional gRPC stream, over TCP or a UNIX socket.
//!
//! HTTP/2's own flow control is set out of the way (the engine's window and credit rule), and so are its pings.

mod client;
mod greeting;
mod server;

use futures_util::{Stream, StreamExt};
use tonic::{Code, Status, Streaming};

pub use self::client::{connect, connect_over};
pub use self::server::Listener;
use super::Broken;
pub use super::address::{Address, ConnectError};
use crate::wire;

/// Returns the frames of a gRPC stream; its errors in words.
fn frames(stream: Streaming<wire::Frame>) -> impl Stream<Item = Result<wire::Frame, Broken>> + Send {
    stream.map(|frame| frame.map_err(|status| broken(&status)))
}

fn broken(status: &Status) -> Broken {
    match status.code() {
        Code::DataLoss => Broken::Damaged,
        _ => Broken::Lost(format!("the connection failed: {}", in_words(status))),
    }
}

/// Returns the message of a status, and of the innermost error behind it, which tells a reader most.
fn in_words(status: &Status) -> String {
    match std::error::Error::source(status).map(innermost) {
        Some(cause) if cause != status.message() => format!("{} ({cause})", status.message()),
        Some(_) | None => status.message().to_owned(),
    }
}

/// Returns the words of the last error in a chain of causes.
fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
