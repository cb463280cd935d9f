//! A network namespace of its own, with one end of a link in it, until it is dropped.
//!
//! Processes enter it through nsenter(1), not `ip netns exec`: that would also give them mounts of their own, and a
//! file system that is mounted inside could not be looked at from outside.
//!
//! A namespace's name tells its owner, so that the leftovers of a killed owner are found and removed by the next.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_arpc::link::PACKET_BYTES;
use rustix::process::{Pid, Signal, kill_process};
use tappers::Tun;

use crate::measure;
use crate::process;

/// Directory in which ip-netns(8) keeps the names.
const NAMES: &str = "/run/netns";
const PREFIX: &str = "mafs-link-";
/// The name of the device inside.
const DEVICE: &str = "link0";
const TUN: &str = "/dev/net/tun";

/// Packets that wait to be read out of the device. Far more than come while a thread is kept from running: a packet
/// that does not fit there is lost without being counted.
const WAITING_PACKETS: &str = "5000";

/// Variable with the algorithm that TCP uses inside, if not [`CONGESTION`].
const CONGESTION_VARIABLE: &str = "MAFS_LINK_CONGESTION";
/// Linux's own default, whatever this host has: measurements must not depend on that. BBR, for one, has 4 packets in
/// flight at most for 0.2 s of each 10 s (PROBE_RTT): at 1 MB/s and 20 ms a lookup then takes 130 ms, not 40.
const CONGESTION: &str = "cubic";
const CONGESTION_ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Limit of one of the commands here. Usually one takes milliseconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Time that processes have to end after TERM: a client of mafs sends for up to 8 s what the server does not have.
const TERM_LIMIT: Duration = Duration::from_secs(12);
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// A namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with nothing but loopback. The name is unique as long as `role` is within this process.
    pub(super) fn create(role: &str) -> io::Result<Self> {
        let pid = std::process::id();
        let namespace = Self { name: format!("{PREFIX}{pid}-{}-{role}", measure::started_at(pid)?) };
        ip(&["netns", "add", &namespace.name])?;
        // No router solicitations may come among the measured packets.
        let quiet = "! [ -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
        process::run(namespace.command("sh").args(["-c", quiet]), COMMAND_LIMIT)?;
        namespace.choose_congestion()?;
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn choose_congestion(&self) -> io::Result<()> {
        let name = env::var(CONGESTION_VARIABLE).unwrap_or_else(|_| CONGESTION.to_owned());
        allow_congestion(&name)?;
        let choose = "echo \"$1\" > /proc/sys/net/ipv4/tcp_congestion_control";
        let chosen = process::run(self.command("sh").args(["-c", choose, "sh", &name]), COMMAND_LIMIT);
        let unknown =
            format!("this kernel has no congestion control `{name}` for TCP: set {CONGESTION_VARIABLE} to another");
        chosen.map(drop).map_err(|_| io::Error::other(unknown))
    }

    /// Gives the namespace the end of a link with an address, and returns where its packets come out. `peer` is at
    /// the other end.
    pub(super) fn attach(&self, address: Ipv4Addr, peer: Ipv4Addr) -> io::Result<File> {
        let name = &self.name;
        let mut tun = Tun::new().map_err(|error| io::Error::new(error.kind(), format!("{TUN}: {error}")))?;
        tun.set_nonblocking(true)?;
        let outside = tun.name()?.name();
        let outside = outside.to_str().ok_or_else(|| io::Error::other("the device has no name"))?;
        // The device's file stays open here, so it works from outside wherever the device is.
        ip(&["link", "set", "dev", outside, "netns", name, "name", DEVICE])?;
        let (address, peer, mtu) = (address.to_string(), peer.to_string(), PACKET_BYTES.to_string());
        ip(&["-n", name, "address", "add", &address, "peer", &peer, "dev", DEVICE])?;
        ip(&["-n", name, "link", "set", "dev", DEVICE, "mtu", &mtu, "txqueuelen", WAITING_PACKETS, "up"])?;
        Ok(File::from(tun.as_fd().try_clone_to_owned()?))
    }

    /// Returns a command that runs inside.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Ends the processes that run inside: asks first, and kills those that are still there after that.
    pub(super) fn end_processes(&self) {
        for (signal, limit) in [(Signal::TERM, TERM_LIMIT), (Signal::KILL, KILL_LIMIT)] {
            let mut asked = Vec::new();
            let ended = process::wait_until(limit, "they have ended", || {
                let running = self.processes();
                for pid in running.iter().filter(|pid| !asked.contains(*pid)) {
                    let _ = kill_process(*pid, signal);
                }
                asked.clone_from(&running);
                Ok(running.is_empty())
            });
            if ended.is_ok() {
                return;
            }
        }
        eprintln!("processes in {} do not end; they are left", self.name);
    }

    fn processes(&self) -> Vec<Pid> {
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let Some(own) = identity(&self.path()) else { return Vec::new() };
        // A process that has ended, but whose status nobody has asked for, is in no namespace.
        let inside = |pid: &i32| identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(own);
        process::all_pids().filter(inside).filter_map(Pid::from_raw).collect()
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }
}

/// Adds an algorithm to the kernel's list. Namespaces may choose only from this list, which need not have all that
/// the kernel knows.
fn allow_congestion(name: &str) -> io::Result<()> {
    let allowed = fs::read_to_string(CONGESTION_ALLOWED)?;
    if allowed.split_whitespace().any(|one| one == name) {
        return Ok(());
    }
    // The kernel refuses an algorithm that it does not know; the error is reported when the algorithm is chosen.
    let _ = fs::write(CONGESTION_ALLOWED, format!("{} {name}", allowed.trim()));
    Ok(())
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end_processes();
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprintln!("cannot remove the network namespace {}: {error}", self.name);
        }
    }
}

/// Removes the namespaces of killed owners, with the processes left in them.
pub(super) fn remove_dead() {
    for entry in fs::read_dir(NAMES).into_iter().flatten().flatten() {
        if let Some(name) = entry.file_name().to_str().filter(|name| is_dead(name)) {
            drop(Namespace { name: name.to_owned() });
        }
    }
}

/// Tells whether this is the name of a namespace of ours whose owner is gone.
fn is_dead(name: &str) -> bool {
    let owner = name.strip_prefix(PREFIX).map(|rest| rest.split('-'));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let Some(mut parts) = owner else { return false };
    let (Some(pid), Some(started)) = (number(parts.next()), number(parts.next())) else { return false };
    u32::try_from(pid).ok().and_then(|pid| measure::started_at(pid).ok()) != Some(started)
}

/// Checks the needs of a link; the error names one that is not there, in one line.
pub(super) fn check_needs() -> io::Result<()> {
    let missing = |what: &str| Err(io::Error::other(format!("an emulated link needs {what}")));
    if !rustix::process::geteuid().is_root() {
        return missing("root, for devices and network namespaces of its own: run it as root");
    }
    if !Path::new(TUN).exists() {
        return missing("/dev/net/tun: load the module tun, or give this container the device");
    }
    for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
        if process::run(Command::new(program).arg("-V"), COMMAND_LIMIT).is_err() {
            return missing(&format!("the program {program}: install {package}"));
        }
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    process::run(Command::new("ip").args(arguments), COMMAND_LIMIT).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_the_dead_are_leftovers() {
        let pid = std::process::id();
        let started = measure::started_at(pid).unwrap();
        assert!(!is_dead(&format!("{PREFIX}{pid}-{started}-0-server")));
        assert!(is_dead(&format!("{PREFIX}{pid}-{}-0-server", started + 1)), "another process with this number");
        assert!(is_dead(&format!("{PREFIX}{}-1-0-server", u32::MAX)));
        for foreign in ["blue", "mafs-link-", "mafs-link-red-1-0", "mafs-link-1"] {
            assert!(!is_dead(foreign), "{foreign}");
        }
    }
}
