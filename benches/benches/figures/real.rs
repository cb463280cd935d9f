//! Real programs over an emulated link: a server at one end, a mount at the other, and this program again, as the
//! processes that use it.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_bench::daemon::Daemon;
use mafs_bench::link::EmulatedLink;
use mafs_bench::mounted::is_mounted;
use mafs_bench::process;
use mafs_bench::programs::Programs;
use mafs_proto::Class;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::workload::Sent;

const START_LIMIT: Duration = Duration::from_secs(120);
const END_LIMIT: Duration = Duration::from_secs(60);
/// The longest run: everything waits for everything at 64 KB/s.
pub(crate) const RUN_LIMIT: Duration = Duration::from_secs(3600);

/// Factor by which a download beside an upload is larger: it does not end first.
pub(crate) const DOWNLOAD_TIMES: u64 = 4;

/// Variables with the directory of the client's control socket, and with the path of its program, for processes at
/// its end.
const RUNTIME_DIR: &str = "MAFS_RUNTIME_DIR";
const CLIENT: &str = "MAFS_FIGURE_CLIENT";

/// The place of the store, the cache and the mount of all runs.
pub(crate) struct Place {
    directory: TempDir,
    programs: Programs,
}

impl Place {
    pub(crate) fn new() -> io::Result<Self> {
        let place = Self { directory: tempfile::tempdir()?, programs: Programs::build()? };
        for name in ["store", "mount", "run"] {
            // The client wants its directory to itself.
            DirBuilder::new().mode(0o700).create(place.path(name))?;
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Removes a cache, so that the next mount with it begins with nothing.
    pub(crate) fn forget(&self, cache: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.path(cache)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Mounts over a link that is made for it, runs this program with `arguments` and the mount's directory at the
    /// client's end, and returns what it printed.
    pub(crate) fn run(
        &self,
        profile: &Profile,
        cache: &str,
        options: &str,
        arguments: &[String],
    ) -> io::Result<String> {
        self.run_between(profile, &[], (cache, options), arguments)
    }

    /// Runs like [`Self::run`], with `classes` at both ends.
    pub(crate) fn run_classes(
        &self,
        profile: &Profile,
        (cache, options): (&str, &str),
        classes: &str,
        arguments: &[String],
    ) -> io::Result<String> {
        let options = format!("classes={classes},{options}");
        self.run_between(profile, &["--classes", classes], (cache, &options), arguments)
    }

    fn run_between(
        &self,
        profile: &Profile,
        server_options: &[&str],
        (cache, options): (&str, &str),
        arguments: &[String],
    ) -> io::Result<String> {
        let link = EmulatedLink::start(profile)?;
        let mut server = link.server_command(self.programs.server());
        server.arg("run").args(server_options).arg("--data").arg(self.path("store"));
        server.args(["--listen", &format!("{}:6237", EmulatedLink::SERVER), "--insecure"]);
        let server = Daemon::start("mafs-server", &mut server, &self.path("server.log"))?;
        let mount = Mount { place: self, link: &link };
        mount.start(cache, options)?;
        let mut program = link.client_command(env::current_exe()?);
        program.env(RUNTIME_DIR, self.path("run")).env(CLIENT, self.programs.client());
        program.arg("--bench").args(arguments).arg(self.path("mount"));
        let printed = process::run(&mut program, RUN_LIMIT);
        mount.end()?;
        server.signal(Signal::TERM)?;
        server.wait_end(END_LIMIT)?;
        printed
    }
}

impl Place {
    /// Runs a plain upload, without mafs, to this program at the other end, with as plain a download beside it if
    /// `both`. Returns what the upload printed.
    pub(crate) fn run_plain(profile: &Profile, port: u16, bytes: u64, both: bool) -> io::Result<String> {
        let link = EmulatedLink::start(profile)?;
        let program = env::current_exe()?;
        let log = tempfile::NamedTempFile::new()?;
        let start = |mut command: Command, role: &[&str]| {
            Daemon::start("plain transfer", command.arg("--bench").args(role), log.path())
        };
        let at = |host| format!("{host}:{port}");
        let (up, down) = (at(EmulatedLink::SERVER), at(EmulatedLink::CLIENT));
        let _server = start(link.server_command(&program), &["as-plain-server", &up])?;
        let _download = if both {
            let server = start(link.client_command(&program), &["as-plain-server", &down])?;
            let longer = (DOWNLOAD_TIMES * bytes).to_string();
            Some((start(link.server_command(&program), &["as-plain-upload", &down, &longer])?, server))
        } else {
            None
        };
        let mut upload = link.client_command(&program);
        upload.args(["--bench", "as-plain-upload", &up, &bytes.to_string()]);
        process::run(&mut upload, RUN_LIMIT)
    }
}

/// A mount that does not outlive its use.
struct Mount<'a> {
    place: &'a Place,
    link: &'a EmulatedLink,
}

impl Mount<'_> {
    fn client(&self) -> Command {
        let mut command = self.link.client_command(self.place.programs.client());
        command.env(RUNTIME_DIR, self.place.path("run"));
        command
    }

    fn start(&self, cache: &str, options: &str) -> io::Result<()> {
        let mut command = self.client();
        command.arg("mount").arg(format!("{}:/home", EmulatedLink::SERVER)).arg(self.place.path("mount"));
        command.arg("-o").arg(format!("retry=1,cache={},{options}", self.place.path(cache).display()));
        process::run(&mut command, START_LIMIT).map(drop)
    }

    fn end(&self) -> io::Result<()> {
        process::run(self.client().arg("umount").arg("--flush=5m").arg(self.place.path("mount")), RUN_LIMIT).map(drop)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let mount = self.place.path("mount");
        if is_mounted(&mount).unwrap_or(false) {
            let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Returns the status of the mount at a directory, in its own words.
pub(crate) fn status(mount: &Path) -> io::Result<serde_json::Value> {
    ask(&["status", "--json"], mount)
}

/// Returns the traffic of the mount.
pub(crate) fn sent(mount: &Path) -> io::Result<Sent> {
    let classes = ask(&["stats", "--rpc", "--json"], mount)?;
    let number = |class: Class, name: &str| {
        let missing = || io::Error::other(format!("no {name} of {class}: {classes}"));
        classes[class.index()][name].as_u64().ok_or_else(missing)
    };
    let all = |name| Class::ALL.into_iter().map(|class| number(class, name)).sum::<io::Result<u64>>();
    let bytes = all("sent_bytes")? + all("received_bytes")?;
    let status = status(mount)?;
    let log_bytes = status["log"]["bytes"].as_u64().ok_or_else(|| io::Error::other(format!("no log: {status}")))?;
    Ok(Sent { calls: all("calls")?, bytes, stored_bytes: number(Class::Store, "sent_bytes")?, log_bytes })
}

/// Waits until the server has everything that was written.
pub(crate) fn sync(mount: &Path) -> io::Result<()> {
    tell(&["sync"], mount).map(drop)
}

fn ask(what: &[&str], mount: &Path) -> io::Result<serde_json::Value> {
    serde_json::from_str(&tell(what, mount)?).map_err(io::Error::other)
}

/// Runs the client's program. Returns what it printed.
fn tell(what: &[&str], mount: &Path) -> io::Result<String> {
    let client = env::var_os(CLIENT).ok_or_else(|| io::Error::other(format!("{CLIENT} is not set")))?;
    process::run(Command::new(client).args(what).arg(mount), RUN_LIMIT)
}
