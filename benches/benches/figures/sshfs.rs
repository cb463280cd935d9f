//! sshfs over an emulated link, for comparison: sshd at the server's end, with a key and a configuration of its own.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_bench::daemon::Daemon;
use mafs_bench::link::EmulatedLink;
use mafs_bench::mounted::is_mounted;
use mafs_bench::process;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::real::RUN_LIMIT;

/// Tells a program that its mount is sshfs: a file that is closed is at the server.
pub(crate) const VARIABLE: &str = "MAFS_FIGURE_SSHFS";

/// sshd wants to be started by its whole path.
const SSHD: &str = "/usr/sbin/sshd";
const SSHFS: &str = "/usr/bin/sshfs";
const PORT: u16 = 6239;
const LIMIT: Duration = Duration::from_secs(60);

/// Tells whether this machine has what sshfs takes.
pub(crate) fn is_installed() -> bool {
    Path::new(SSHD).exists() && Path::new(SSHFS).exists()
}

/// Mounts a directory that `populate` has filled over a link that is made for it, runs this program with `arguments`
/// and the mount's directory at the client's end, and returns what it printed.
pub(crate) fn run(
    profile: &Profile,
    populate: impl FnOnce(&Path) -> io::Result<()>,
    arguments: &[String],
) -> io::Result<String> {
    let ends = Ends::new()?;
    populate(&ends.path("store"))?;
    let link = EmulatedLink::start(profile)?;
    let mut server = link.server_command(SSHD);
    server.args(["-D", "-e", "-f"]).arg(ends.path("sshd_config"));
    let server = Daemon::start("sshd", &mut server, &ends.path("sshd.log"))?;
    ends.mount(&link)?;
    let mut program = link.client_command(env::current_exe()?);
    program.env(VARIABLE, "1").arg("--bench").args(arguments).arg(ends.path("mount"));
    let printed = process::run(&mut program, RUN_LIMIT);
    drop(ends);
    server.signal(Signal::TERM)?;
    server.wait_end(LIMIT)?;
    printed
}

/// The files of both ends. A mount does not outlive them.
struct Ends {
    directory: TempDir,
}

impl Ends {
    fn new() -> io::Result<Self> {
        let ends = Self { directory: tempfile::tempdir()? };
        for name in ["store", "mount"] {
            fs::create_dir(ends.path(name))?;
        }
        for name in ["host_key", "key"] {
            let mut make = Command::new("ssh-keygen");
            process::run(make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(ends.path(name)), LIMIT)?;
        }
        // Separated privileges need this directory; Debian's service makes it otherwise.
        fs::create_dir_all("/run/sshd")?;
        let configuration = format!(
            "Port {PORT}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             Subsystem sftp internal-sftp\n",
            ends.path("host_key").display(),
            ends.path("key.pub").display()
        );
        fs::write(ends.path("sshd_config"), configuration)?;
        Ok(ends)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mount(&self, link: &EmulatedLink) -> io::Result<()> {
        let mut command = link.client_command(SSHFS);
        command.arg(format!("root@{}:{}", EmulatedLink::SERVER, self.path("store").display()));
        command.arg(self.path("mount")).args(["-p", &PORT.to_string(), "-o"]);
        command.arg(format!("IdentityFile={}", self.path("key").display()));
        command.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        // sshd has just been started. There is a second between attempts.
        command.args(["-o", "ConnectionAttempts=10"]);
        process::run(&mut command, LIMIT).map(drop)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if is_mounted(&self.path("mount")).unwrap_or(false) {
            let _ = unmount(self.path("mount"), UnmountFlags::DETACH);
        }
    }
}
