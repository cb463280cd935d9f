//! Targets: a volume of a server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use mafs_arpc::carrier::grpc::Address;
use mafs_proto::VolumeName;

/// The port of a target that names none.
pub const PORT_DEFAULT: u16 = 6237;

/// `host[:port]:/volume` or `unix:/socket:/volume`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The server's address.
    pub address: Address,
    /// One of its volumes.
    pub volume: VolumeName,
}

/// The reason why a text is not a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}: {why}; a target is host[:port]:/volume, for example fileserver:/home")]
pub struct InvalidTarget {
    text: String,
    why: String,
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let invalid = |why: String| InvalidTarget { text: text.to_owned(), why };
        let (server, volume) = text.rsplit_once(":/").ok_or_else(|| invalid("the `:/volume` is missing".to_owned()))?;
        if volume.trim_end_matches('/').contains('/') {
            return Err(invalid("directories below a volume cannot be mounted yet".to_owned()));
        }
        let volume = VolumeName::new(volume.trim_end_matches('/'))
            .map_err(|error| invalid(format!("`{volume}` is not the name of a volume ({error})")))?;
        let address = match server.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Address::Unix(PathBuf::from(path)),
            Some(_) => return Err(invalid("the path of a socket must be absolute".to_owned())),
            None => Address::Tcp(host_and_port(server).map_err(invalid)?),
        };
        Ok(Self { address, volume })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:/{}", self.address, self.volume)
    }
}

/// Returns `host:port` with the default port filled in. IPv6 addresses are in brackets, so that a colon means a port.
fn host_and_port(server: &str) -> Result<String, String> {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("the `]` is missing")?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| format!("`{address}` is not an IPv6 address"))?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or("only a port can follow the `]`")?),
            };
            (format!("[{address}]"), port)
        }
        None => match server.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err("an IPv6 address needs brackets".to_owned()),
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (server.to_owned(), None),
        },
    };
    let is_host = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'@';
    if host.is_empty() || !host.bytes().all(is_host) {
        return Err(format!("`{host}` is not the name of a host"));
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(text) => match text.parse() {
            Ok(port) if port > 0 => port,
            Ok(_) | Err(_) => return Err(format!("`{text}` is not a port")),
        },
    };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_name_a_server_and_a_volume() {
        for (text, address) in [
            ("host:/home", "host:6237"),
            ("host:99:/home", "host:99"),
            ("10.0.0.1:/home/", "10.0.0.1:6237"),
            ("[::1]:/home", "[::1]:6237"),
            ("[fe80::1]:99:/home", "[fe80::1]:99"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.address, Address::Tcp(address.to_owned()), "{text}");
            assert_eq!(target.volume.as_str(), "home");
            assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
        }
        let local: Target = "unix:/run/a:/b:/home".parse().unwrap();
        assert_eq!(local.address, Address::Unix(PathBuf::from("/run/a:/b")));
        assert_eq!(local.to_string(), "unix:/run/a:/b:/home");
    }

    #[test]
    fn what_is_not_a_target_says_why() {
        for (text, expected) in [
            ("host", "`:/volume` is missing"),
            ("/home", "`:/volume` is missing"),
            (":/home", "not the name of a host"),
            ("host:/", "not the name of a volume"),
            ("host:/a b", "not the name of a volume"),
            ("host:/home/sub", "cannot be mounted yet"),
            ("host:0:/home", "`0` is not a port"),
            ("host:port:/home", "`port` is not a port"),
            ("::1:/home", "needs brackets"),
            ("[::1:/home", "`]` is missing"),
            ("[::1]x:/home", "only a port"),
            ("[host]:/home", "not an IPv6 address"),
            ("a b:/home", "not the name of a host"),
            ("unix:run/x:/home", "must be absolute"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn proptest_what_parses_is_written_so_that_it_parses_to_the_same(
            text in r"(unix:)?[a-z/\[\]:0-9. ]{0,12}(:[0-9]{0,6})?:/[a-z./]{0,6}",
        ) {
            if let Ok(target) = text.parse::<Target>() {
                proptest::prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
    }
}
