//! This host's network: tells that it has changed, and whether anything goes to the server.
//!
//! The kernel says that a link, an address or a route has changed, and the content of its message is not used: the
//! client asks afterwards for the way between the two ends of a connection ([`Way`]). So nothing is kept that could be
//! out of date, and a flood of messages costs a look now and then.

mod changes;
mod route;

use std::fmt;
use std::net::{SocketAddr, UdpSocket};

use mafs_arpc::carrier::Ends;
use mafs_arpc::watch;

pub use self::changes::HostNetwork;
use self::route::Route;
pub use crate::core::roaming::Way;

/// The network below a connection.
pub trait Network: fmt::Debug + Send + Sync {
    /// Notifies of changes, and of possible suspends of this host. A burst of them counts as one.
    fn watch(&self) -> watch::Receiver<()>;

    /// Whether anything goes from one end of a connection to the other.
    fn way(&self, ends: Ends) -> Way;
}

/// A network of which nothing is known.
#[derive(Debug)]
pub struct UnwatchedNetwork(watch::Sender<()>);

impl Default for UnwatchedNetwork {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl Network for UnwatchedNetwork {
    fn watch(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }

    fn way(&self, _: Ends) -> Way {
        Way::Open
    }
}

/// Asks the kernel for the way between two ends.
fn way_of(ends: Ends) -> Way {
    judge(&route::to(ends.remote), || ends.local.is_none_or(is_here))
}

/// Judges the way by what is known of a route, and by whether the connection's own address is still this host's.
fn judge(route: &Route, is_here: impl FnOnce() -> bool) -> Way {
    match route {
        Route::None => Way::Closed("no route leads to the server".to_owned()),
        Route::Over { link, is_running: false } => Way::Closed(format!("the link {link} is down")),
        Route::Over { is_running: true, .. } | Route::Unknown => {
            if is_here() {
                Way::Open
            } else {
                Way::Moved
            }
        }
    }
}

/// Whether this host has an address. Other reasons why the address cannot be used do not count.
fn is_here(mut address: SocketAddr) -> bool {
    address.set_port(0);
    !UdpSocket::bind(address).is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_down_closes_the_way_and_a_lost_address_moves_it() {
        let up = Route::Over { link: "eth0".to_owned(), is_running: true };
        let down = Route::Over { link: "eth0".to_owned(), is_running: false };
        assert_eq!(judge(&up, || true), Way::Open);
        assert_eq!(judge(&up, || false), Way::Moved);
        assert_eq!(judge(&Route::Unknown, || true), Way::Open, "who is not told kills nothing");
        assert_eq!(judge(&Route::Unknown, || false), Way::Moved);
        for closed in [down, Route::None] {
            assert!(matches!(judge(&closed, || true), Way::Closed(_)), "{closed:?}");
            assert!(matches!(judge(&closed, || false), Way::Closed(_)), "{closed:?}");
        }
    }

    #[test]
    fn this_host_has_its_own_addresses_and_no_others() {
        assert!(is_here(([127, 0, 0, 1], 7).into()));
        // RFC 5737 keeps this address for documentation.
        assert!(!is_here(([192, 0, 2, 1], 7).into()));
    }
}
