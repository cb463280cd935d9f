//! An emulated link between two network namespaces, in real time: the bench's way to any network, for any program.
//!
//! Each namespace has a TUN device with an address; what one host sends comes out of its device here, is offered to the
//! link model of `mafs_arpc::link`, and goes into the other device when it arrives. So programs on both sides see a
//! network and know nothing of mafs. Needs root, `/dev/net/tun`, iproute2 and util-linux.

mod carrier;
mod namespace;
mod way;

use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mafs_arpc::BootClock;
use mafs_arpc::link::Profile;
use mafs_proto::Clock;

use self::carrier::Carrier;
use self::namespace::Namespace;
pub use self::way::Counts;

/// Variable that tells programs on both sides the server's address.
pub const SERVER_VARIABLE: &str = "MAFS_LINK_SERVER";

/// A link with a host at each end. Dropping it ends all that runs on the two hosts, and removes them.
#[derive(Debug)]
pub struct EmulatedLink {
    // The carriers are first, because the devices go with their namespaces.
    carriers: [Carrier; 2],
    client: Namespace,
    server: Namespace,
}

impl EmulatedLink {
    /// The server's address, on every link: a namespace sees one only.
    pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// The client's address.
    pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    /// Makes a link whose time begins now, and removes what earlier ones have left that were killed.
    ///
    /// # Errors
    /// The need that this machine lacks; or the part of the link that could not be made.
    pub fn start(profile: &Profile) -> io::Result<Self> {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        namespace::check_needs()?;
        namespace::remove_dead();
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let client = Namespace::create(&format!("{number}-client"))?;
        let server = Namespace::create(&format!("{number}-server"))?;
        let at_client = Arc::new(client.attach(Self::CLIENT, Self::SERVER)?);
        let at_server = Arc::new(server.attach(Self::SERVER, Self::CLIENT)?);
        let [up, down] = profile.links(BootClock.now());
        let carriers = [Carrier::start(up, &at_client, &at_server)?, Carrier::start(down, &at_server, &at_client)?];
        Ok(Self { carriers, client, server })
    }

    /// Returns a command that runs on the server's host, with the mounts of this process.
    #[must_use]
    pub fn server_command(&self, program: impl AsRef<OsStr>) -> Command {
        with_address(self.server.command(program))
    }

    /// Returns a command that runs on the client's host, with the mounts of this process.
    #[must_use]
    pub fn client_command(&self, program: impl AsRef<OsStr>) -> Command {
        with_address(self.client.command(program))
    }

    /// Returns the names of the namespaces: the server's, the client's.
    #[must_use]
    pub fn namespaces(&self) -> [&str; 2] {
        [self.server.name(), self.client.name()]
    }

    /// Returns the counts of packets so far: up, down.
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        [self.carriers[0].counts(), self.carriers[1].counts()]
    }

    /// Makes a black hole of the link: packets vanish both ways, and nothing is refused; or a link again.
    pub fn set_unplugged(&self, unplugged: bool) {
        self.carriers.iter().for_each(|carrier| carrier.set_unplugged(unplugged));
    }

    /// Makes a network of the link that lets no UDP through: its packets vanish both ways; or a link for all again.
    pub fn set_udp_blocked(&self, blocked: bool) {
        self.carriers.iter().for_each(|carrier| carrier.set_udp_blocked(blocked));
    }

    /// Ends all that runs on the hosts, the client's first, and returns the counts of packets.
    #[must_use]
    pub fn stop(self) -> [Counts; 2] {
        self.end_processes();
        self.counts()
    }

    fn end_processes(&self) {
        self.client.end_processes();
        self.server.end_processes();
    }
}

impl Drop for EmulatedLink {
    /// Ends the processes while packets are still carried: a client may want to say good-bye to its server.
    fn drop(&mut self) {
        self.end_processes();
    }
}

fn with_address(mut command: Command) -> Command {
    command.env(SERVER_VARIABLE, EmulatedLink::SERVER.to_string());
    command
}
