//! `mount TARGET DIR [-o OPTIONS] [-f]`.

use std::cell::Cell;
use std::path::PathBuf;

use mafs_arpc::carrier::Address;
use mafs_client::daemon::{Daemon, DaemonError, Mount, cache_directory};
use mafs_client::options::{MountOptions, Target};
use mafs_client::remote::{Connector, Proto, auto_connector, grpc_connector, quic_connector};
use mafs_client::runtime_dir::RuntimeDir;

use super::background::{self, Readiness};
use super::{Exit, Failure, Stop, begin_daemon, run_daemon};

#[derive(clap::Args, Debug)]
pub(super) struct MountArgs {
    /// The volume to mount: host[:port]:/volume, or unix:/socket:/volume.
    target: String,
    /// The mount point: an empty directory.
    dir: PathBuf,
    /// Options, with commas between them.
    #[arg(
        short,
        long = "options",
        value_name = "OPTIONS",
        allow_hyphen_values = true,
        long_help = "Options, with commas between them:\n  \
            ro, rw               changes are refused, or not [rw]\n  \
            soft, hard           calls that need the server fail after the deadline, or wait [soft]\n  \
            timeo=N, retrans=N   the deadline is their product, timeo in tenths of a second [70, 3]\n  \
            fg, bg               a mount that cannot be made yet fails, or is tried again in the background [fg]\n  \
            retry=N              minutes to go on trying if the server cannot be reached [0; with bg 10000]\n  \
            disconnected=auto|off  what is cached is used while the server is out of reach, or not [auto]\n  \
            lock=local|fail|strict  meanwhile this client grants locks, nobody does, or a lock waits for it [local]\n  \
            nolock               locks hold among the programs of this machine only\n  \
            cache=DIR            directory of the caches [/var/cache/mafs or ~/.cache/mafs]\n  \
            cachesize=SIZE       the most that is kept there [10G]\n  \
            minfree=SIZE         what stays free on its disk [1G]\n  \
            passthrough=auto|off the kernel reads and writes cached files itself where it may, or never [auto]\n  \
            prefetch=auto|off    what will be opened next is fetched before that, or not [auto]\n  \
            awake=auto|off       a virtual machine's processors stay awake while requests come in bursts [auto]\n  \
            writeback=NAME       when the server gets changes: sirp, async, sync; to compare: sirp-c [sirp]\n  \
            close=NAME           close waits until the server knows: auto (if quick), logged, announced [auto]\n  \
            stale=error|serve    an open whose newest version does not come fails, or gets the one before [error]\n  \
            pull_timeout=S       seconds without progress that an open waits for it [30]\n  \
            fsync=auto|local|server  where fsync makes content durable; auto: at the server if that is quick [auto]\n  \
            fsync_wait=MS        milliseconds that fsync=auto and unlocking wait [500]\n  \
            classes=NAME         who goes first on a slow link; to compare: paper, one, none [waiting]\n  \
            reserve=N            percent of what is sent that writing back gets after a minute of waiting [5]\n  \
            proto=auto|quic|tcp  what carries everything: QUIC where UDP gets through, only QUIC, or TCP [auto]\n  \
            profile=NAME         everything travels over an emulated link, such as geo (a satellite) or 3g [none]\n  \
            sloppy               options that are not known are ignored\n\
            and those of mount(8): dev suid exec noatime sync dirsync, with and without `no`."
    )]
    options: Vec<String>,
    /// Stay in the foreground and log to stderr.
    #[arg(short, long)]
    foreground: bool,
    /// Set by `mount` itself: tell on stdout when the mount can be used.
    #[arg(long, hide = true)]
    report_readiness: bool,
}

/// Mounts; in the background unless told otherwise, and then only returns when the mount can be used.
pub(super) fn run(args: &MountArgs) -> Result<Exit, Failure> {
    let usage = |error: &dyn std::error::Error| Failure::new(Exit::MountUsage, error);
    let target: Target = args.target.parse().map_err(|error| usage(&error))?;
    let options = MountOptions::parse(args.options.iter().map(String::as_str)).map_err(|error| usage(&error))?;
    if let (Proto::Quic, Address::Unix(path)) = (options.proto, &target.address) {
        let socket = path.display();
        let why = format!("the mount option `proto=quic` needs a host, and {socket} is a UNIX socket: leave it out");
        return Err(Failure::new(Exit::MountUsage, why));
    }
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::MountFailed, error))?;
    if !args.foreground && !args.report_readiness {
        return background::launch(&args.dir, &runtime_dir);
    }
    begin_daemon("info");
    let readiness = if args.report_readiness { Readiness::report() } else { Readiness::silent() };
    let mount = Mount {
        server: target.address.to_string(),
        volume: target.volume,
        directory: std::path::absolute(&args.dir).map_err(|error| Failure::new(Exit::MountFailed, error))?,
        options,
    };
    let connector = connector(target.address, &mount)?;
    let serving = async {
        let mut stop = Stop::listen()?;
        let (has_said, in_background) = (Cell::new(false), mount.options.background);
        let delayed = |why: &str| {
            if in_background {
                let notice = format!("{}: {why}: tried again in the background", mount.source());
                has_said.set(readiness.ready(Some(&notice)));
            }
        };
        let abandoned = async {
            readiness.abandoned().await;
            if has_said.get() {
                std::future::pending::<()>().await;
            }
        };
        let daemon = tokio::select! {
            started = Daemon::start(&mount, connector, &runtime_dir, delayed) => started.map_err(failed)?,
            () = stop.asked() => return Err(Failure::new(Exit::MountFailed, "stopped before the mount was there")),
            () = abandoned => {
                return Err(Failure::new(Exit::MountFailed, "nobody waits for the mount any more"));
            }
        };
        let is_wanted = has_said.get() || readiness.ready(apart(&mount, &daemon).as_deref());
        let stopped = async {
            if is_wanted {
                stop.asked().await;
            }
        };
        daemon.run(stopped).await.map_err(failed)?;
        Ok(Exit::Ok)
    };
    let outcome = run_daemon(serving);
    if let Err(failure) = &outcome {
        readiness.failed(failure);
    }
    outcome
}

/// Builds the connector by which the server is reached.
fn connector(address: Address, mount: &Mount) -> Result<Connector, Failure> {
    let link = mount.options.profile;
    let cache = || cache_directory(mount).map_err(|error| Failure::new(Exit::MountFailed, error));
    Ok(match (mount.options.proto, address) {
        (Proto::Quic, Address::Tcp(host_port)) => quic_connector(host_port, link, cache()?),
        (Proto::Auto, Address::Tcp(host_port)) => auto_connector(host_port, link, cache()?),
        (Proto::Tcp, address) | (Proto::Quic | Proto::Auto, address @ Address::Unix(_)) => {
            grpc_connector(address, link)
        }
    })
}

/// Returns the notice for the user if a mount begins without its server.
fn apart(mount: &Mount, daemon: &Daemon) -> Option<String> {
    let status = daemon.vfs().status();
    let notice = || format!("{}: {}: mounted with what is in the cache", mount.source(), status.why);
    status.disconnected.then(notice)
}

fn failed(error: DaemonError) -> Failure {
    Failure::new(Exit::MountFailed, error)
}
