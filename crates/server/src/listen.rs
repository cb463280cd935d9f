//! Listening: only where nobody else can hear, until the wire is encrypted.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;

use mafs_arpc::carrier::grpc::Listener;

use crate::ServerError;

/// The port of mafs.
pub const DEFAULT_PORT: u16 = 6237;

/// An address to listen on: `IP`, `IP:PORT`, `HOST:PORT`, `[IPv6]:PORT`, `unix:/PATH`, or `PORT` for 127.0.0.1:PORT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenAddress {
    /// TCP; port 0 means any that is free.
    Tcp(SocketAddr),
    /// A UNIX socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Tells whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Starts to listen; must be called in a tokio runtime. An address that others can reach needs `insecure`.
    ///
    /// # Errors
    /// `NotLoopback` without `insecure`, `BadAddress` if a socket's directory is missing, or errors of the system.
    pub async fn bind(&self, insecure: bool) -> Result<Listener, ServerError> {
        if !self.is_local() && !insecure {
            return Err(ServerError::NotLoopback { address: self.to_string() });
        }
        if let Self::Unix(path) = self
            && path.parent().is_some_and(|parent| !parent.is_dir())
        {
            let why = "the directory of the socket does not exist".to_owned();
            return Err(ServerError::BadAddress { address: self.to_string(), why });
        }
        let listener = match self {
            Self::Tcp(address) => Listener::bind_tcp(*address).await,
            Self::Unix(path) => Listener::bind_unix(path.clone()),
        };
        listener.map_err(|source| ServerError::io(format!("listen on {self}"), source))
    }
}

/// Takes the port of a TCP listener for UDP as well, for [`quic::Listener::over`].
///
/// # Errors
/// Errors of the system, in particular if another process has that port.
///
/// [`quic::Listener::over`]: mafs_arpc::carrier::quic::Listener::over
pub(crate) fn bind_udp(address: SocketAddr) -> Result<UdpSocket, ServerError> {
    UdpSocket::bind(address).map_err(|source| ServerError::io(format!("listen on {address} over UDP"), source))
}

impl FromStr for ListenAddress {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let bad = |why: &str| ServerError::BadAddress { address: text.to_owned(), why: why.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(bad("the path of a socket begins with /"))
            };
        }
        // The resolver would take a number for the 32 bits of an IPv4 address.
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().map_err(|_| bad("a port is at most 65535"))?;
            return Ok(Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(Self::Tcp(SocketAddr::new(ip, DEFAULT_PORT)));
        }
        let found = match text.rsplit_once(':') {
            Some(_) => text.to_socket_addrs(),
            None => (text, DEFAULT_PORT).to_socket_addrs(),
        };
        let first = found.map_err(|error| bad(&error.to_string()))?.next();
        first.map(Self::Tcp).ok_or_else(|| bad("the host has no address"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_without_a_port_gets_the_port_of_mafs() {
        assert_eq!(parse("127.0.0.1").to_string(), "127.0.0.1:6237");
        assert_eq!(parse("[::1]").to_string(), "[::1]:6237");
        assert_eq!(parse("::1").to_string(), "[::1]:6237");
        assert_eq!(parse("[::1]:99").to_string(), "[::1]:99");
        assert_eq!(parse("unix:/run/mafs").to_string(), "unix:/run/mafs");
    }

    #[test]
    fn a_number_is_a_port_of_this_machine() {
        assert_eq!(parse("7721").to_string(), "127.0.0.1:7721");
        assert_eq!(parse("0").to_string(), "127.0.0.1:0");
    }

    #[test]
    fn only_loopback_and_unix_sockets_are_local() {
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:/x"] {
            assert!(parse(local).is_local(), "{local}");
        }
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            assert!(!parse(open).is_local(), "{open}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in ["", "65536", "unix:", "unix:relative", "1.2.3.4:99999", "a b:1"] {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn an_open_address_needs_insecure() {
        let error = parse("0.0.0.0:0").bind(false).await.unwrap_err();
        assert!(matches!(error, ServerError::NotLoopback { .. }));
        assert!(error.to_string().contains("--insecure"));
    }
}
