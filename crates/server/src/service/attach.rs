//! Attach: which client may have a volume, and in which protocol version.

use std::ops::RangeInclusive;
use std::sync::Arc;

use mafs_arpc::blocking;
use mafs_proto::call::{AttachReply, AttachRequest};
use mafs_proto::{FsError, PROTOCOL_MAX, PROTOCOL_MIN};

use crate::core::Refusal;
use crate::server::Server;
use crate::session::{Attachment, Session};
use crate::volume::{Begun, Continued, Root, Ticket};

pub(super) async fn attach(
    server: &Arc<Server>,
    session: &Arc<Session>,
    request: AttachRequest,
) -> Result<AttachReply, Refusal> {
    let theirs = request.protocol_min..=request.protocol_max;
    let protocol = negotiate(PROTOCOL_MIN..=PROTOCOL_MAX, theirs).inspect_err(|refusal| {
        tracing::warn!(client = %request.client, name = request.client_name, "attach refused: {refusal}");
    })?;
    let volume = server.volume(&request.volume)?;
    let ticket = Ticket { client: request.client, generation: server.next_generation() };
    let name = request.client_name.clone();
    let continued = Continued { before: request.session, decides: request.decides, locks: request.locks };
    let Begun { granted, resumed, lost_locks } =
        volume.attach(ticket, name, request.confirmed_below, continued).await?;
    if granted.was_forgotten {
        tracing::warn!(
            volume = %volume.name(), client = %request.client, name = request.client_name,
            "a client knows of changes that this volume has lost: the end of its journal was damaged, or an older copy \
             restored"
        );
    }
    if let Some(before) = session.attach(Attachment { volume: Arc::clone(&volume), ticket }) {
        before.volume.detach(before.ticket).await;
    }
    // The mark comes before anything is looked at: promises of what changes from here on are broken.
    let mark = blocking(|| volume.caught_up(ticket))?;
    let Root { object: root, change, pending: root_pending } = blocking(|| volume.root(ticket))?;
    let (breaking, connection) = (Arc::clone(&volume), Arc::clone(session));
    tokio::spawn(async move { breaking.deliver_breaks(ticket, connection.peer()).await });
    let (pulling, connection) = (Arc::clone(&volume), Arc::clone(session));
    tokio::spawn(async move { pulling.deliver_pulls(ticket, connection.peer()).await });
    let (ending, connection) = (Arc::clone(&volume), Arc::clone(session));
    tokio::spawn(async move { ending.end_with_disk(connection.peer()).await });
    tracing::info!(
        volume = %volume.name(), client = %request.client, name = request.client_name, generation = ticket.generation.0,
        resumed, "attached"
    );
    Ok(AttachReply {
        protocol,
        server: server.id(),
        epoch: volume.epoch(),
        history: volume.file().history(),
        incarnation: granted.incarnation,
        spare_lives: granted.spare_lives,
        generation: ticket.generation,
        change,
        root,
        fids: granted.fids,
        lease: server.lease(),
        resumed,
        root_pending,
        lock_grants: volume.lock_grants(),
        lost_locks,
        mark,
    })
}

/// Returns the newest version that both speak.
fn negotiate(ours: RangeInclusive<u32>, theirs: RangeInclusive<u32>) -> Result<u32, Refusal> {
    let newest = *ours.end().min(theirs.end());
    if newest >= *ours.start().max(theirs.start()) {
        return Ok(newest);
    }
    let detail = format!(
        "the client speaks protocol versions {} to {}, the server {} to {}: update the older of the two",
        theirs.start(),
        theirs.end(),
        ours.start(),
        ours.end()
    );
    Err(Refusal::new(FsError::ProtocolMismatch, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        assert_eq!(negotiate(1..=3, 2..=9).unwrap(), 3);
        assert_eq!(negotiate(1..=3, 1..=1).unwrap(), 1);
    }

    #[test]
    fn a_mismatch_names_both_ranges() {
        let refusal = negotiate(1..=2, 3..=4).unwrap_err();
        assert_eq!(refusal.error, FsError::ProtocolMismatch);
        assert!(refusal.detail.contains("3 to 4") && refusal.detail.contains("1 to 2"), "{refusal}");
        assert!(negotiate(1..=2, RangeInclusive::new(2, 1)).is_err());
    }
}
