//! Keeping a connection: connect, attach, hold, and again.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::{CallError, Config, Incoming, Payload, Peer};
use mafs_proto::call::{AttachReply, AttachRequest};
use mafs_proto::{Call, Class, FsError, PROTOCOL_MAX, PROTOCOL_MIN, Wire};
use tokio::time::timeout;

use super::{Link, RemoteError, Shared, detail};
use crate::core::backoff::Backoff;

/// Connecting and attaching take a few round trips; a server that needs longer is not there.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Holds the connection `first` until it ends, then makes the next one, until the link is closed.
pub(super) async fn keep(shared: Arc<Shared>, first: (Peer, Incoming)) {
    let mut connection = Some(first);
    let mut backoff = Backoff::default();
    let mut number = 0;
    let mut link = shared.link.subscribe();
    loop {
        if let Some((peer, incoming)) = connection.take() {
            backoff.reset();
            number += 1;
            shared.set_link(Link::Up(peer.clone(), number));
            let why = hold(&peer, incoming).await;
            tracing::info!(why, "disconnected");
            shared.set_link(Link::Down(why));
        }
        let closed = link.wait_for(|link| matches!(link, Link::Closed));
        if timeout(backoff.next_delay(), closed).await.is_ok() {
            return;
        }
        match attach(&shared).await {
            Ok(attached) => {
                tracing::info!("connected");
                connection = Some(attached);
            }
            Err(error) => {
                tracing::debug!(%error, "not connected");
                shared.set_link(Link::Down(error.to_string()));
            }
        }
    }
}

/// Waits for the end of a connection. The server makes no calls in this protocol version; those of a newer one are
/// refused.
async fn hold(peer: &Peer, mut incoming: Incoming) -> String {
    let refuse_calls = async {
        while let Some(call) = incoming.next().await {
            call.reply(FsError::NoMethod.number(), bytes::Bytes::new(), Payload::None);
        }
        peer.closed().await
    };
    tokio::select! {
        why = peer.closed() => why,
        why = refuse_calls => why,
    }
}

/// Makes a connection and attaches the volume.
pub(super) async fn attach(shared: &Shared) -> Result<(Peer, Incoming), RemoteError> {
    let carrier = match timeout(CONNECT_WAIT, (shared.config.connector)()).await {
        Ok(connected) => connected.map_err(|error| RemoteError::Unreachable(error.to_string()))?,
        Err(_) => return Err(RemoteError::Unreachable(format!("no connection within {} s", CONNECT_WAIT.as_secs()))),
    };
    let (peer, incoming) = Peer::start(carrier, Config::default(), Arc::clone(&shared.clock));
    let request = AttachRequest {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        client: shared.config.client,
        client_name: shared.config.client_name.clone(),
        volume: shared.config.volume.clone(),
        confirmed_below: Some(shared.ids().outstanding.confirmed_below()),
    };
    let call = mafs_arpc::Call {
        class: Class::Control,
        timeout: Some(CONNECT_WAIT),
        method: AttachRequest::METHOD.number(),
        body: request.encode(),
        payload: Payload::None,
    };
    let reply = peer.call(call).reply().await.map_err(|error| match error {
        CallError::DeadlineExceeded(_) => RemoteError::TimedOut(error.to_string()),
        CallError::Disconnected(_) | CallError::Busy | CallError::Cancelled | CallError::TooLarge(_) => {
            RemoteError::Unreachable(error.to_string())
        }
    })?;
    if reply.status != 0 {
        return Err(RemoteError::refused(FsError::from_number(reply.status), &detail(reply.body)));
    }
    let reply = AttachReply::decode(reply.body).map_err(|why| RemoteError::malformed(&why))?;
    take_in(shared, &reply)?;
    Ok((peer, incoming))
}

/// Checks what the server granted and makes it durable before any record is made of it.
fn take_in(shared: &Shared, reply: &AttachReply) -> Result<(), RemoteError> {
    if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&reply.protocol) {
        let message = format!(
            "the server chose protocol version {}, this client speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}",
            reply.protocol
        );
        return Err(RemoteError::refused(FsError::ProtocolMismatch, &message));
    }
    (shared.on_attach)(reply).map_err(RemoteError::Unreachable)?;
    let mut ids = shared.ids();
    ids.outstanding.begin_life(reply.incarnation);
    ids.fids = Some(reply.fids);
    Ok(())
}
