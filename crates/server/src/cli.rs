//! The command line of `mafs-server`.

mod run;
mod verify;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mafs_arpc::{Rate, Scheduling};
use mafs_proto::{VolumeName, parse_size};
use tracing_subscriber::EnvFilter;

use self::run::{Places, Udp};
use crate::admin::{self, Quota, VolumeChange, VolumeSummary};
use crate::{ListenAddress, ServerConfig, ServerError, default_data_dir};

/// The mafs file server.
#[derive(Parser, Debug)]
#[command(name = "mafs-server", version)]
pub struct Cli {
    /// Log more; MAFS_LOG chooses exactly what.
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a data directory, with a volume `home`.
    Init {
        /// Missing or empty.
        dir: PathBuf,
    },
    /// Serve a data directory; a missing or empty one is made first.
    Run(RunArgs),
    /// Manage volumes, while the server does not run.
    Volume {
        #[command(flatten)]
        data: DataArg,
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Read every file's content and say what is not as it was stored, while the server does not run. Changes nothing;
    /// ends with exit code 8 if something is damaged.
    Verify {
        #[command(flatten)]
        data: DataArg,
        /// Volumes [default: all].
        #[arg(value_parser = volume_name)]
        volumes: Vec<VolumeName>,
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args, Debug)]
struct RunArgs {
    #[command(flatten)]
    data: DataArg,
    /// Where to listen: IP:PORT, HOST:PORT, unix:/PATH, or PORT for 127.0.0.1:PORT; may be given several times.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6237")]
    listen: Vec<ListenAddress>,
    /// Also listen where other machines can connect, although the connection is not encrypted yet.
    #[arg(long)]
    insecure: bool,
    /// Listen on TCP alone; otherwise also on UDP, on the same port, for QUIC.
    #[arg(long)]
    no_quic: bool,
    /// Do not start if UDP cannot be had; otherwise a warning says so, and TCP alone serves.
    #[arg(long, conflicts_with = "no_quic")]
    quic: bool,
    /// Rate of the uplink in bytes per second, such as 2M: clients share it fairly, and none delays another [default:
    /// not known; each client gets what its way carries].
    #[arg(long, value_name = "RATE")]
    uplink: Option<Rate>,
    /// Order of what the server sends: `waiting`, by class; to compare with, `one`, all take turns, and `none`,
    /// without a window besides, as the mount option of that name has them.
    #[arg(long, value_name = "HOW", value_parser = scheduling, default_value = "waiting")]
    classes: Scheduling,
}

#[derive(clap::Args, Debug)]
struct DataArg {
    /// The data directory [default: /var/lib/mafs for root, else $XDG_DATA_HOME/mafs/server].
    #[arg(long = "data", value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    /// Add an empty volume.
    Add {
        /// 1 to 64 of A-Z a-z 0-9 . _ -, no dot first.
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// The most bytes its files may have together, such as 10G; `none`: as many as the disk holds.
        #[arg(long, value_name = "SIZE", value_parser = parse_quota, default_value = "none")]
        quota: Quota,
    },
    /// List the volumes.
    List {
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Change a volume.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Set {
        /// The volume.
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Take no changes.
        #[arg(long, group = "change", conflicts_with = "rw")]
        ro: bool,
        /// Take changes.
        #[arg(long, group = "change")]
        rw: bool,
        /// The most bytes its files may have together, such as 10G; `none`: as many as the disk holds.
        #[arg(long, value_name = "SIZE", value_parser = parse_quota, group = "change")]
        quota: Option<Quota>,
    },
    /// Remove a volume with everything in it.
    Rm {
        /// The volume.
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Also if it is not empty or cannot be opened.
        #[arg(long)]
        force: bool,
    },
}

/// Runs the command line of this process; the exit code is as the manual says: 0 ok, 1 failed, 2 usage, 6 not found,
/// 8 damage found, 75 try again.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log(cli.verbose);
    match cli.execute() {
        Ok(code) => code,
        Err(error) => {
            cli.report(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

impl Cli {
    fn execute(&self) -> Result<ExitCode, ServerError> {
        match &self.command {
            Command::Init { dir } => {
                admin::init(dir)?;
                print(&format!("{} is ready: start with `mafs-server run --data {0}`", dir.display()))?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Run(args) => {
                if let Err(error) = mafs_durable::limit_arenas(mafs_durable::LargeBlocks::GiveBack) {
                    tracing::warn!(%error, "takes more memory than it needs");
                }
                let storage = args.data.dir()?;
                let places = Places { addresses: &args.listen, insecure: args.insecure, udp: args.udp() };
                run::run(&storage, &places, args.config())?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Volume { data, command } => command.execute(&data.dir()?),
            Command::Verify { data, volumes, json } => verify::run(&data.dir()?, volumes, *json),
        }
    }

    /// Reports an error in one line; with `-v` the chain of causes below it.
    fn report(&self, error: &ServerError) {
        let mut stderr = std::io::stderr();
        let place = self.place_of(error).map(|dir| format!("{}: ", dir.display())).unwrap_or_default();
        let _ = writeln!(stderr, "mafs-server: {place}{error}");
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause.filter(|_| self.verbose) {
            let _ = writeln!(stderr, "  caused by: {error}");
            cause = error.source();
        }
    }

    /// Returns the data directory, for errors about something in it that do not name it.
    fn place_of(&self, error: &ServerError) -> Option<PathBuf> {
        let is_inside = matches!(
            error,
            ServerError::Format { .. }
                | ServerError::Damaged { .. }
                | ServerError::Volume { .. }
                | ServerError::NoVolume(_)
                | ServerError::VolumeExists(_)
                | ServerError::VolumeNotEmpty { .. }
        );
        let dir = || match &self.command {
            Command::Init { dir } => Some(dir.clone()),
            Command::Run(RunArgs { data, .. }) | Command::Volume { data, .. } | Command::Verify { data, .. } => {
                data.dir().ok()
            }
        };
        is_inside.then(dir)?
    }
}

fn scheduling(text: &str) -> Result<Scheduling, &'static str> {
    match text {
        "waiting" => Ok(Scheduling::Classes),
        "one" => Ok(Scheduling::OneClass),
        "none" => Ok(Scheduling::Off),
        _ => Err("it can be waiting, one or none"),
    }
}

fn volume_name(text: &str) -> Result<VolumeName, String> {
    let allowed = |_| "the name of a volume has 1 to 64 of A-Z a-z 0-9 . _ - and no dot first".to_owned();
    VolumeName::new(text).map_err(allowed)
}

impl RunArgs {
    fn config(&self) -> ServerConfig {
        let config = ServerConfig::default().with_scheduling(self.classes);
        self.uplink.map_or(config, |rate| config.with_uplink(rate))
    }

    fn udp(&self) -> Udp {
        match (self.quic, self.no_quic) {
            (true, _) => Udp::Required,
            (false, true) => Udp::Off,
            (false, false) => Udp::IfFree,
        }
    }
}

impl DataArg {
    fn dir(&self) -> Result<PathBuf, ServerError> {
        self.dir.clone().or_else(default_data_dir).ok_or(ServerError::NoDataDirectory)
    }
}

impl VolumeCommand {
    fn execute(&self, data: &std::path::Path) -> Result<ExitCode, ServerError> {
        match self {
            Self::Add { name, quota } => {
                admin::add_volume(data, name)?;
                admin::set_volume(data, name, VolumeChange { quota: Some(*quota), ..VolumeChange::default() })?;
            }
            Self::Set { name, ro, rw, quota } => {
                let read_only = (*ro || *rw).then_some(*ro);
                admin::set_volume(data, name, VolumeChange { read_only, quota: *quota })?;
            }
            Self::Rm { name, force } => admin::remove(data, name, *force)?,
            Self::List { json } => {
                let volumes = admin::volumes(data)?;
                print(&if *json { as_json(&volumes)? } else { as_table(&volumes) })?;
                let damaged = volumes.iter().any(|volume| volume.damage.is_some());
                return Ok(if damaged { ExitCode::from(DAMAGE_FOUND) } else { ExitCode::SUCCESS });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Parses `10G`, or `none`.
fn parse_quota(text: &str) -> Result<Quota, String> {
    match text {
        "none" => Ok(Quota::Unlimited),
        _ => parse_size(text).map(Quota::Bytes).map_err(|error| format!("{error}, or `none`")),
    }
}

fn as_json<T: serde::Serialize>(listing: &[T]) -> Result<String, ServerError> {
    serde_json::to_string_pretty(listing).map_err(|error| ServerError::io("write JSON", error.into()))
}

fn as_table(volumes: &[VolumeSummary]) -> String {
    let width = volumes.iter().map(|volume| volume.name.len()).chain([4]).max().unwrap_or_default();
    let mut lines = vec![format!("{:<width$}  {:>12}  {:>16}  {:>16}  STATE", "NAME", "OBJECTS", "BYTES", "QUOTA")];
    for volume in volumes {
        let state = match (&volume.damage, volume.read_only) {
            (Some(damage), _) => damage.as_str(),
            (None, true) => "read-only",
            (None, false) => "ok",
        };
        let quota = volume.quota_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        let (name, objects, used) = (&volume.name, volume.objects, volume.used_bytes);
        lines.push(format!("{name:<width$}  {objects:>12}  {used:>16}  {quota:>16}  {state}"));
    }
    lines.join("\n")
}

/// Prints a line for people or programs; a reader that has gone away (`| head`) is no error.
fn print(text: &str) -> Result<(), ServerError> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(ServerError::io("print", error)),
        _ => Ok(()),
    }
}

fn start_log(verbose: bool) {
    let default = if verbose { "mafs_server=debug,mafs_arpc=debug,mafs_durable=debug,info" } else { "info" };
    let filter = EnvFilter::try_from_env("MAFS_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
}

const DAMAGE_FOUND: u8 = 8;

fn exit_code(error: &ServerError) -> u8 {
    match error {
        ServerError::BadAddress { .. } | ServerError::NotLoopback { .. } | ServerError::NoDataDirectory => 2,
        ServerError::NoVolume(_) | ServerError::NotInitialised { .. } => 6,
        ServerError::Damaged { .. } | ServerError::Volume { .. } => DAMAGE_FOUND,
        ServerError::InUse { .. } => 75,
        ServerError::NotDataDirectory { .. }
        | ServerError::NotDirectory { .. }
        | ServerError::Initialised { .. }
        | ServerError::Format { .. }
        | ServerError::VolumeExists(_)
        | ServerError::VolumeNotEmpty { .. }
        | ServerError::Io { .. } => 1,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn set_needs_a_change_that_does_not_contradict_itself() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["mafs-server", "volume", "set", "v"], args].concat());
        assert!(parse(&["--ro"]).is_ok());
        assert!(parse(&["--rw", "--quota", "10G"]).is_ok());
        assert!(parse(&["--quota", "none"]).is_ok());
        assert!(parse(&["--quota", "much"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--ro", "--rw"]).is_err());
    }

    #[test]
    fn data_may_be_given_before_or_after_the_volume_command() {
        assert!(Cli::try_parse_from(["mafs-server", "volume", "--data", "/d", "list"]).is_ok());
        assert!(Cli::try_parse_from(["mafs-server", "volume", "list", "--data", "/d", "--json"]).is_ok());
    }

    #[test]
    fn an_uplink_is_a_rate() {
        let parse = |rate: &str| match Cli::try_parse_from(["mafs-server", "run", "--uplink", rate]) {
            Ok(Cli { command: Command::Run(args), .. }) => Ok(args.config().uplink().map(Rate::get)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(parse("2M"), Ok(Some(2 << 20)));
        for text in ["0", "1023", "fast", "2M/s", ""] {
            assert!(parse(text).unwrap_err().contains("from 1k on"), "{text}");
        }
        let Ok(Cli { command: Command::Run(args), .. }) = Cli::try_parse_from(["mafs-server", "run"]) else { panic!() };
        assert_eq!(args.config(), ServerConfig::default(), "without it nothing changes");
    }

    #[test]
    fn classes_are_as_the_mount_option_has_them() {
        let parse = |how: &str| match Cli::try_parse_from(["mafs-server", "run", "--classes", how]) {
            Ok(Cli { command: Command::Run(args), .. }) => Ok(args.config().scheduling()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(parse("waiting"), Ok(Scheduling::Classes));
        assert_eq!(parse("one"), Ok(Scheduling::OneClass));
        assert_eq!(parse("none"), Ok(Scheduling::Off));
        assert!(parse("paper").unwrap_err().contains("waiting, one or none"));
    }

    #[test]
    fn udp_is_wanted_required_or_left_out() {
        let parse = |args: &[&str]| match Cli::try_parse_from([&["mafs-server", "run"], args].concat()) {
            Ok(Cli { command: Command::Run(args), .. }) => Ok(args.udp()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(parse(&[]), Ok(Udp::IfFree));
        assert_eq!(parse(&["--quic"]), Ok(Udp::Required));
        assert_eq!(parse(&["--no-quic"]), Ok(Udp::Off));
        assert!(parse(&["--quic", "--no-quic"]).unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn every_error_has_the_exit_code_of_the_manual() {
        let name = VolumeName::new("v").unwrap();
        assert_eq!(exit_code(&ServerError::NoVolume(name.clone())), 6);
        assert_eq!(exit_code(&ServerError::VolumeExists(name)), 1);
        assert_eq!(exit_code(&ServerError::InUse { path: "/d".into() }), 75);
        assert_eq!(exit_code(&ServerError::NotLoopback { address: "0.0.0.0:1".to_owned() }), 2);
    }
}
