//! The command line of `mafs-client`: turns arguments into calls of the library, and results into text and an exit
//! code.

mod background;
mod conflicts;
mod connection;
mod exit;
mod handoff;
mod hoard;
mod limit;
mod mount;
mod queue;
mod reach;
mod record;
mod signals;
mod state;
mod stats;
mod status;
mod status_text;
mod sync;
mod umount;
mod verify;
mod warmup;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
#[cfg(feature = "quickstart")]
use mafs_arpc::link::ProfileName;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

pub(crate) use exit::{Exit, Failure};
pub(crate) use signals::Stop;
#[cfg(feature = "quickstart")]
pub(crate) use status_text::one_line;

/// The mafs cache manager: mounts volumes of a mafs server and keeps their files on this machine.
#[derive(Parser, Debug)]
#[command(name = "mafs-client", version, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Try mafs on this machine: a server and a mount in one process, until Ctrl-C.
    #[cfg(feature = "quickstart")]
    Quickstart {
        /// The directory where the files appear; made if it is missing.
        #[arg(default_value = "./mafs")]
        dir: PathBuf,
        /// Put an emulated link between the two, such as geo (a satellite), 3g or flaky: what mafs is like on it.
        #[arg(long, value_name = "NAME")]
        link: Option<ProfileName>,
    },
    /// Mount a volume.
    Mount(mount::MountArgs),
    /// Unmount, and wait until the client has ended; says what it could not send. With --flush only if it could send
    /// everything.
    Umount(umount::UmountArgs),
    /// Show what is going on: connection, unsent files, cache.
    Status(status::StatusArgs),
    /// Show what calls to the server have taken.
    Stats(stats::StatsArgs),
    /// Limit what travels of a class, such as stores to 64 KiB per second; at once, and until the mount ends.
    Limit(limit::LimitArgs),
    /// End the connection to the server by hand, and make none until `reconnect` or the end of the mount: what is
    /// cached can be used, changes wait, and the rest fails at once.
    Disconnect(connection::ConnectionArgs),
    /// Undo `disconnect`, and wait for a connection. A connection that was lost otherwise is tried again at once.
    Reconnect(connection::ConnectionArgs),
    /// Say that the network is about to change, such as the cell of a modem: for some seconds nothing is taken for out
    /// of reach, whatever becomes of the link, and whoever needs the server waits.
    Handoff(handoff::HandoffArgs),
    /// Wait until the server has everything that was written before, or everything of some files.
    Sync(sync::SyncArgs),
    /// Show the modify log: what the server does not have, in the order in which it gets it; pause it, or change the
    /// order.
    Queue(queue::QueueArgs),
    /// Show which parts of files are in the cache, and which the server does not have.
    State(state::StateArgs),
    /// Show what was in conflict with what others have done, and resolve it.
    Conflicts(conflicts::ConflictsArgs),
    /// Fetch files and everything below directories, and keep them here whatever becomes of the cache.
    Pin(hoard::PinArgs),
    /// Undo `pin`: keep these files no longer because of it.
    Unpin(hoard::PinArgs),
    /// Say what is to be here whatever becomes of the connection, and what it is worth beside other files.
    Hoard(hoard::HoardArgs),
    /// Fetch everything below some paths into the cache once.
    Warmup(warmup::WarmupArgs),
    /// Drop what the cache has of files, as far as the server has it and nobody uses it. Pinned files stay.
    Evict(warmup::EvictArgs),
    /// Read what is cached and say what is not what the server has; that is dropped and fetched again. Ends with exit
    /// code 8 if something is damaged.
    Verify(verify::VerifyArgs),
}

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Printing fails only if nobody reads it.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Ok,
                _ if arguments.get(1).is_some_and(|command| command == "mount" || command == "umount") => {
                    Exit::MountUsage
                }
                _ => Exit::Usage,
            }
            .into();
        }
    };
    match cli.command.run() {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("mafs-client: {}", failure.message);
            failure.exit.into()
        }
    }
}

impl Command {
    fn run(self) -> Result<Exit, Failure> {
        match self {
            #[cfg(feature = "quickstart")]
            Self::Quickstart { dir, link } => crate::quickstart::run(&dir, link),
            Self::Mount(args) => mount::run(&args),
            Self::Umount(args) => umount::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Limit(args) => limit::run(&args),
            Self::Disconnect(args) => connection::disconnect(&args),
            Self::Reconnect(args) => connection::reconnect(&args),
            Self::Handoff(args) => handoff::run(&args),
            Self::Sync(args) => sync::run(&args),
            Self::Queue(args) => queue::run(args),
            Self::State(args) => state::run(&args),
            Self::Conflicts(args) => conflicts::run(args),
            Self::Pin(args) => hoard::pin(&args),
            Self::Unpin(args) => hoard::unpin(&args),
            Self::Hoard(args) => hoard::run(&args),
            Self::Warmup(args) => warmup::run(&args),
            Self::Evict(args) => warmup::evict(&args),
            Self::Verify(args) => verify::run(&args),
        }
    }
}

/// Prepares a daemon process: starts its log, limits its memory, and allows it many descriptors.
pub(crate) fn begin_daemon(default_level: &str) {
    start_log(default_level);
    if let Err(error) = mafs_durable::limit_arenas(mafs_durable::LargeBlocks::Keep) {
        tracing::warn!(%error, "takes more memory than it needs");
    }
    if let Err(error) = allow_descriptors() {
        tracing::warn!(%error, "programs can have few files open at a time");
    }
}

/// Raises the limit of descriptors: each file that a program has open takes one here too, and most systems give a
/// process 1,024 at first, fewer than one program may have.
fn allow_descriptors() -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// Starts the log, which goes to stderr; `MAFS_LOG` selects its messages in the syntax of tracing's `EnvFilter`.
fn start_log(default_level: &str) {
    use std::io::IsTerminal;
    let filter = EnvFilter::try_from_env("MAFS_LOG").unwrap_or_else(|_| EnvFilter::new(default_level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
}

/// Runs a daemon to its end. Session threads answer what is cached, so few workers do for the rest.
pub(crate) fn run_daemon<T>(daemon: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
    let ended = mafs_arpc::run_to_end(workers, daemon);
    ended.map_err(|error| Failure::new(Exit::System, format!("cannot start: {error}")))?
}

/// Formats a listing as JSON, for programs.
fn json_text<T: serde::Serialize + ?Sized>(listing: &T) -> Result<String, Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot be written as JSON: {error}"));
    serde_json::to_string_pretty(listing).map(|text| text + "\n").map_err(failed)
}

/// Builds the runtime of a command that only asks a daemon.
fn command_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))
}
