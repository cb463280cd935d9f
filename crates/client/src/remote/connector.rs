//! How connections are made.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mafs_arpc::BootClock;
use mafs_arpc::carrier::Carrier;
use mafs_arpc::carrier::grpc::{self, Address, ConnectError};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::link::ProfileName;

/// Makes connections to the server.
pub type Connector = Arc<dyn Fn() -> BoxFuture<'static, Result<Carrier, ConnectError>> + Send + Sync>;

/// What is random in an emulated link is the same in every mount, so that what has been seen is seen again.
const LINK_SEED: u64 = 1;

/// Connects over gRPC; over an emulated link if one is given, whose time begins now.
#[must_use]
pub fn grpc_connector(address: Address, link: Option<ProfileName>) -> Connector {
    let link = link.map(|name| Shaper::new(name.profile(LINK_SEED), Arc::new(BootClock)));
    Arc::new(move || {
        let (address, link) = (address.clone(), link.clone());
        Box::pin(async move {
            match link {
                Some(link) => grpc::connect_over(&link, &address).await,
                None => grpc::connect(&address).await,
            }
        })
    })
}
