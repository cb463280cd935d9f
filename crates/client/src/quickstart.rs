//! `quickstart [DIR]`: a server and a mount in one process, to try mafs with one command. The files are there the next
//! time.
//!
//! The only place of this crate that knows the server.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mafs_arpc::BootClock;
use mafs_arpc::carrier::grpc::{Address, Listener};
use mafs_arpc::link::ProfileName;
use mafs_client::control::Client;
use mafs_client::daemon::{Daemon, DaemonError, Mount};
use mafs_client::fuse::check_available;
use mafs_client::mount_point::{is_alive, mafs_mount_at, prepare, resolve, unmount_lazily};
use mafs_client::options::MountOptions;
use mafs_client::remote::grpc_connector;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_proto::VolumeName;
use mafs_server::{DirStorage, Server, ServerConfig, ServerError};
use tokio::sync::Notify;

use crate::cli::{Exit, Failure, Stop, begin_daemon, one_line, run_daemon};

/// The volume that every server has from the start.
const VOLUME: &str = "home";

/// The name of the server in this process, for the mount table and `status`.
const SERVER: &str = "quickstart";

/// The time between two looks at the live status, and the looks for each line where the last line cannot be
/// overwritten.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS_PER_LINE: u32 = 20;

/// Serves and mounts until TERM or INT, or until somebody unmounts.
pub(crate) fn run(directory: &Path, link: Option<ProfileName>) -> Result<Exit, Failure> {
    begin_daemon("warn");
    run_daemon(async {
        let mut stop = Stop::listen()?;
        check_available().map_err(failed)?;
        let runtime_dir = RuntimeDir::open().map_err(failed)?;
        let data = data_directory()?;
        let storage = match DirStorage::open(&data.join("server")) {
            Err(ServerError::InUse { .. }) => return Err(in_use(&data, &runtime_dir).await),
            other => Arc::new(other.map_err(failed)?),
        };
        let place = Place::make(directory, &runtime_dir)?;
        let server = Server::open(storage, Arc::new(BootClock), ServerConfig::default()).map_err(failed)?;
        let outcome = serve(&server, &place, &data, link, &runtime_dir, &mut stop).await;
        server.shutdown().await;
        place.leave();
        outcome.map(|()| {
            println!("Unmounted. The files are kept in {} and are there the next time.", data.display());
            Exit::Ok
        })
    })
}

async fn serve(
    server: &Arc<Server>,
    place: &Place,
    data: &Path,
    link: Option<ProfileName>,
    runtime_dir: &RuntimeDir,
    stop: &mut Stop,
) -> Result<(), Failure> {
    // The socket is in the runtime directory, which is private and has a short path, as sockets need.
    let socket = runtime_dir.server_socket(data);
    let listener = Listener::bind_unix(socket.clone()).map_err(failed)?;
    let serving = tokio::spawn(Arc::clone(server).serve(listener));
    let mount = Mount {
        server: SERVER.to_owned(),
        volume: VolumeName::new(VOLUME).map_err(failed)?,
        directory: place.path.clone(),
        options: MountOptions { cache: Some(data.join("cache")), profile: link, ..MountOptions::default() },
    };
    let started = Daemon::start(&mount, grpc_connector(Address::Unix(socket.clone()), link), runtime_dir, |_| ()).await;
    let outcome = match started {
        Ok(daemon) => {
            greet(daemon.mount_point());
            let vfs = daemon.vfs().clone();
            let showing = tokio::spawn(show(move || one_line(&vfs.status())));
            let outcome = run_until_stopped(daemon, stop).await;
            showing.abort();
            // Waits until the bar is gone from the terminal.
            let _ = showing.await;
            outcome
        }
        Err(error) => Err(error),
    };
    serving.abort();
    let _ = std::fs::remove_file(socket);
    outcome.map_err(|error: DaemonError| failed(error))
}

/// Runs until the first stop signal, and then ends in order; the second ends the process.
async fn run_until_stopped(daemon: Daemon, stop: &mut Stop) -> Result<(), DaemonError> {
    let mount_point = daemon.mount_point().to_path_buf();
    let first = Notify::new();
    let impatient = async {
        stop.asked().await;
        let _ = writeln!(
            std::io::stderr(),
            "Unmounting. Ctrl-C again ends at once: what is not stored yet is stored the next time."
        );
        first.notify_one();
        stop.asked().await;
    };
    tokio::select! {
        outcome = daemon.run(first.notified()) => outcome,
        () = impatient => {
            // Nothing that close() has acknowledged is lost.
            let _ = unmount_lazily(&mount_point);
            std::process::exit(i32::from(Exit::Failed.code()))
        }
    }
}

/// The mount point, which is removed at the end if it was made here.
struct Place {
    path: PathBuf,
    is_ours: bool,
}

impl Place {
    fn make(directory: &Path, runtime_dir: &RuntimeDir) -> Result<Self, Failure> {
        // A dead mount can neither be entered nor made anew.
        if let Ok(path) = resolve(directory)
            && matches!(mafs_mount_at(&path), Ok(Some(_)))
            && !is_alive(&path, runtime_dir)
        {
            unmount_lazily(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        }
        let is_ours = !directory.exists();
        let of_directory = |error: std::io::Error| failed(format!("{}: {error}", directory.display()));
        if is_ours {
            std::fs::create_dir_all(directory).map_err(of_directory)?;
        }
        Ok(Self { path: prepare(directory, runtime_dir).map_err(failed)?, is_ours })
    }

    fn leave(&self) {
        // Fails if it is still mounted or not empty: then it stays.
        if self.is_ours {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// `$XDG_DATA_HOME/mafs/quickstart`, by default below `~/.local/share`.
fn data_directory() -> Result<PathBuf, Failure> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    let data = data.ok_or_else(|| failed("there is no home directory to keep files in: set HOME or XDG_DATA_HOME"))?;
    Ok(data.join("mafs/quickstart"))
}

/// Says which process uses the data.
async fn in_use(data: &Path, runtime_dir: &RuntimeDir) -> Failure {
    let mut holder = "another process".to_owned();
    for socket in runtime_dir.sockets().unwrap_or_default() {
        let Ok(mut client) = Client::connect(&socket).await else { continue };
        if let Ok(status) = client.status().await
            && status.report.server == SERVER
        {
            holder = format!("the quickstart at {} (process {})", status.mount_point, status.pid);
        }
    }
    failed(format!("the files in {} are in use by {holder}: stop that one first", data.display()))
}

fn greet(mount_point: &Path) {
    let program = std::env::current_exe().map_or_else(|_| "mafs-client".to_owned(), |path| path.display().to_string());
    let place = mount_point.display();
    let text = format!(
        "A mafs volume is mounted at {place}. Try in another terminal:\n\n    \
         seq 1000 > {place}/numbers\n    \
         git init {place}/project && ls -la {place}/project\n    \
         df -h {place}\n    \
         {program} status {place}\n\n\
         Ctrl-C unmounts.\n"
    );
    // A terminal that has gone does not end the mount.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Keeps one line about the mount up to date: in place on a terminal, otherwise a new line now and then if it has
/// changed.
async fn show(look: impl Fn() -> String) {
    if std::io::stderr().is_terminal() {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        let _clear = Clear(bar.clone());
        loop {
            bar.set_message(look());
            bar.tick();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    let mut last = String::new();
    loop {
        let line = look();
        if line != last {
            let _ = writeln!(std::io::stderr(), "{line}");
            last = line;
        }
        tokio::time::sleep(LOOK_EVERY * LOOKS_PER_LINE).await;
    }
}

/// Takes the line off the terminal when its task ends.
struct Clear(ProgressBar);

impl Drop for Clear {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_made_here_goes_again_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let run = RuntimeDir::at(&dir.path().join("run")).unwrap();
        let made = Place::make(&dir.path().join("a/b"), &run).unwrap();
        assert!(made.path.is_dir());
        made.leave();
        assert!(!made.path.exists());
        let found = Place::make(dir.path().join("a").as_path(), &run).unwrap();
        found.leave();
        assert!(found.path.is_dir());
    }
}
