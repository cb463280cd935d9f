//! Signals of a daemon: TERM and INT stop it in order, HUP (reserved for reading the configuration again) does nothing,
//! nor does XFSZ: a file beyond the limit of this process (ulimit -f) is an error of the operation that made it so.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, Failure};

/// A receiver of the signals that ask this process to end.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    _hang_up: Signal,
    _file_too_large: Signal,
}

impl Stop {
    /// Begins to catch signals, which no longer end the process. Must be called in a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::System, format!("no signals: {error}")));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            _hang_up: listen(SignalKind::hangup())?,
            _file_too_large: listen(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
        })
    }

    /// Waits for TERM or INT.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("stopping on TERM"),
            _ = self.interrupt.recv() => tracing::info!("stopping on INT"),
        }
    }
}
