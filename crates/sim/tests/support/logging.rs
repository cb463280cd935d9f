//! The log of clients and server in virtual time, if `MAFS_LOG` asks for it in the syntax of tracing's `EnvFilter`.

use std::fmt;

use tokio::time::Instant;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Has events written to stderr, each with the time since the first of its thread.
pub(crate) fn start() {
    let Ok(filter) = EnvFilter::try_from_env("MAFS_LOG") else { return };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_timer(SinceFirst).with_ansi(false);
    // Every run of a test asks for it; the first one counts.
    let _ = log.with_writer(std::io::stderr).try_init();
}

thread_local! {
    static FIRST: Instant = Instant::now();
}

/// Writes the virtual time since the first event of a thread.
struct SinceFirst;

impl FormatTime for SinceFirst {
    fn format_time(&self, to: &mut Writer<'_>) -> fmt::Result {
        write!(to, "{:?}", FIRST.with(Instant::elapsed))
    }
}
