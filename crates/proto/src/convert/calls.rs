//! Requests and replies.

use std::time::Duration;

use bytes::Bytes;

use super::conflicts::{outcome, outcome_to_message};
use super::nouns::{content_hash, id16, name};
use super::{Convert, Malformed, at_most, list, optional, required, to_messages, wire};
use crate::call::{
    ApplyReply, ApplyRequest, AttachReply, AttachRequest, BreakReply, BreakRequest, Broken, BrokenObject,
    CancelLockReply, DetachReply, DetachRequest, DirectoryChange, ErrorDetail, FetchReply, FetchRequest,
    GrantFidsReply, GrantFidsRequest, HeldLocks, InvalidateReply, InvalidateRequest, PullReply, PullRequest,
    ReadDirReply, RenewLeaseReply, RenewLeaseRequest, ResumeStoreReply, ResumeStoreRequest, StatFsReply, StatFsRequest,
    UnlockReply,
};
use crate::{
    ChangeNumber, ClientId, DataVersion, Generation, HistoryId, Incarnation, Name, OnConflict, Outcome, ServerEpoch,
    ServerId, VolumeName,
};

/// The most directories or objects one mutation changes: far above that of any mutation but one that is kept below a
/// path that has to be made.
const CHANGES_MAX: usize = Outcome::PLACED_MAX + 16;
const CLIENT_NAME_BYTES_MAX: usize = 255;
const ERROR_MESSAGE_BYTES_MAX: usize = 1000;

/// Implements `Convert` for messages without fields.
macro_rules! empty_messages {
    ($($name:ident),+) => {
        $(impl Convert for $name {
            type Message = wire::$name;
            const NAME: &'static str = stringify!($name);

            fn to_message(&self) -> wire::$name {
                wire::$name {}
            }

            fn from_message(_: wire::$name) -> Result<Self, Malformed> {
                Ok(Self)
            }
        })+
    };
}

empty_messages!(
    DetachRequest,
    DetachReply,
    GrantFidsRequest,
    ReadDirReply,
    StatFsRequest,
    UnlockReply,
    CancelLockReply
);

impl Convert for AttachRequest {
    type Message = wire::AttachRequest;
    const NAME: &'static str = "AttachRequest";

    fn to_message(&self) -> wire::AttachRequest {
        wire::AttachRequest {
            protocol_min: self.protocol_min,
            protocol_max: self.protocol_max,
            client: Bytes::copy_from_slice(&self.client.0),
            client_name: self.client_name.clone(),
            volume: self.volume.as_str().to_owned(),
            confirmed_below: self.confirmed_below.as_ref().map(Convert::to_message),
            session: self.session.map_or(0, |generation| generation.0),
            decides: self.decides,
            locks: (self.locks != HeldLocks::default()).then(|| self.locks.to_message()),
        }
    }

    fn from_message(message: wire::AttachRequest) -> Result<Self, Malformed> {
        if message.client_name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(Malformed::invalid("client_name", "longer than 255 bytes"));
        }
        Ok(Self {
            protocol_min: message.protocol_min,
            protocol_max: message.protocol_max,
            client: ClientId(id16(&message.client, "client")?),
            client_name: message.client_name,
            volume: VolumeName::new(&message.volume).map_err(|error| Malformed::invalid("volume", error))?,
            confirmed_below: optional(message.confirmed_below)?,
            session: (message.session != 0).then_some(Generation(message.session)),
            decides: message.decides,
            locks: optional(message.locks)?.unwrap_or_default(),
        })
    }
}

impl Convert for AttachReply {
    type Message = wire::AttachReply;
    const NAME: &'static str = "AttachReply";

    fn to_message(&self) -> wire::AttachReply {
        wire::AttachReply {
            protocol: self.protocol,
            server: Bytes::copy_from_slice(&self.server.0),
            epoch: self.epoch.0,
            history: self.history.0,
            incarnation: self.incarnation.0,
            generation: self.generation.0,
            change: self.change.0,
            root: Some(self.root.to_message()),
            fids: Some(self.fids.to_message()),
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            resumed: self.resumed,
            root_pending: self.root_pending,
            spare_lives: self.spare_lives,
            lock_grants: self.lock_grants,
            lost_locks: self.lost_locks.clone(),
            mark: self.mark.as_ref().map(Convert::to_message),
        }
    }

    fn from_message(message: wire::AttachReply) -> Result<Self, Malformed> {
        Ok(Self {
            protocol: message.protocol,
            server: ServerId(id16(&message.server, "server")?),
            epoch: ServerEpoch(message.epoch),
            history: HistoryId(message.history),
            incarnation: Incarnation(message.incarnation),
            spare_lives: message.spare_lives,
            generation: Generation(message.generation),
            change: ChangeNumber(message.change),
            root: required(message.root, "root")?,
            fids: required(message.fids, "fids")?,
            lease: Duration::from_millis(u64::from(message.lease_ms)),
            resumed: message.resumed,
            root_pending: message.root_pending,
            lock_grants: message.lock_grants,
            lost_locks: at_most(message.lost_locks, HeldLocks::LOCKS_MAX, "lost_locks")?,
            mark: optional(message.mark)?,
        })
    }
}

impl Convert for GrantFidsReply {
    type Message = wire::GrantFidsReply;
    const NAME: &'static str = "GrantFidsReply";

    fn to_message(&self) -> wire::GrantFidsReply {
        wire::GrantFidsReply { fids: Some(self.fids.to_message()) }
    }

    fn from_message(message: wire::GrantFidsReply) -> Result<Self, Malformed> {
        Ok(Self { fids: required(message.fids, "fids")? })
    }
}

impl Convert for FetchRequest {
    type Message = wire::FetchRequest;
    const NAME: &'static str = "FetchRequest";

    fn to_message(&self) -> wire::FetchRequest {
        wire::FetchRequest {
            fid: Some(self.fid.to_message()),
            data_version: self.data_version.map_or(0, |version| version.0),
            offset: self.offset,
        }
    }

    fn from_message(message: wire::FetchRequest) -> Result<Self, Malformed> {
        Ok(Self {
            fid: required(message.fid, "fid")?,
            data_version: (message.data_version != 0).then_some(DataVersion(message.data_version)),
            offset: message.offset,
        })
    }
}

impl Convert for FetchReply {
    type Message = wire::FetchReply;
    const NAME: &'static str = "FetchReply";

    fn to_message(&self) -> wire::FetchReply {
        wire::FetchReply {
            object: Some(self.object.to_message()),
            hash: Bytes::copy_from_slice(&self.hash.0),
            change: self.change.0,
            pending: self.pending,
        }
    }

    fn from_message(message: wire::FetchReply) -> Result<Self, Malformed> {
        Ok(Self {
            object: required(message.object, "object")?,
            hash: content_hash(&message.hash)?,
            change: ChangeNumber(message.change),
            pending: message.pending,
        })
    }
}

impl Convert for ApplyRequest {
    type Message = wire::ApplyRequest;
    const NAME: &'static str = "ApplyRequest";

    fn to_message(&self) -> wire::ApplyRequest {
        wire::ApplyRequest {
            record: Some(self.record.to_message()),
            confirmed_below: self.confirmed_below.as_ref().map(Convert::to_message),
            content_offset: self.content_offset,
            comes_again: self.comes_again,
            announces: self.announces,
            asks: self.on_conflict == OnConflict::Ask,
            origin: if let OnConflict::Keep(origin) = &self.on_conflict { Some(origin.to_message()) } else { None },
            removals: self.removals.as_ref().map(Convert::to_message),
            lock_lost: self.lock_lost,
        }
    }

    fn from_message(message: wire::ApplyRequest) -> Result<Self, Malformed> {
        let on_conflict = match (optional(message.origin)?, message.asks) {
            (Some(origin), _) => OnConflict::Keep(origin),
            (None, true) => OnConflict::Ask,
            (None, false) => OnConflict::Refuse,
        };
        Ok(Self {
            on_conflict,
            record: required(message.record, "record")?,
            confirmed_below: optional(message.confirmed_below)?,
            content_offset: message.content_offset,
            comes_again: message.comes_again,
            announces: message.announces,
            removals: optional(message.removals)?,
            lock_lost: message.lock_lost,
        })
    }
}

impl Convert for ResumeStoreRequest {
    type Message = wire::ResumeStoreRequest;
    const NAME: &'static str = "ResumeStoreRequest";

    fn to_message(&self) -> wire::ResumeStoreRequest {
        wire::ResumeStoreRequest { fid: Some(self.fid.to_message()) }
    }

    fn from_message(message: wire::ResumeStoreRequest) -> Result<Self, Malformed> {
        Ok(Self { fid: required(message.fid, "fid")? })
    }
}

impl Convert for ResumeStoreReply {
    type Message = wire::ResumeStoreReply;
    const NAME: &'static str = "ResumeStoreReply";

    fn to_message(&self) -> wire::ResumeStoreReply {
        wire::ResumeStoreReply { bytes: self.bytes, hash: Bytes::copy_from_slice(&self.hash.0) }
    }

    fn from_message(message: wire::ResumeStoreReply) -> Result<Self, Malformed> {
        Ok(Self { bytes: message.bytes, hash: content_hash(&message.hash)? })
    }
}

impl Convert for DirectoryChange {
    type Message = wire::DirectoryChange;
    const NAME: &'static str = "DirectoryChange";

    fn to_message(&self) -> wire::DirectoryChange {
        wire::DirectoryChange { fid: Some(self.fid.to_message()), before: self.before.0, after: self.after.0 }
    }

    fn from_message(message: wire::DirectoryChange) -> Result<Self, Malformed> {
        Ok(Self {
            fid: required(message.fid, "fid")?,
            before: DataVersion(message.before),
            after: DataVersion(message.after),
        })
    }
}

impl Convert for ApplyReply {
    type Message = wire::ApplyReply;
    const NAME: &'static str = "ApplyReply";

    fn to_message(&self) -> wire::ApplyReply {
        let (outcome, placed) = outcome_to_message(&self.outcome);
        wire::ApplyReply {
            change: self.change.0,
            directories: to_messages(&self.directories),
            objects: to_messages(&self.objects),
            hash: self.hash.map(|hash| Bytes::copy_from_slice(&hash.0)).unwrap_or_default(),
            exclusive: to_messages(&self.exclusive),
            outcome,
            placed,
        }
    }

    fn from_message(message: wire::ApplyReply) -> Result<Self, Malformed> {
        Ok(Self {
            change: ChangeNumber(message.change),
            directories: list(message.directories, CHANGES_MAX, "directories")?,
            objects: list(message.objects, CHANGES_MAX, "objects")?,
            hash: if message.hash.is_empty() { None } else { Some(content_hash(&message.hash)?) },
            exclusive: list(message.exclusive, CHANGES_MAX, "exclusive")?,
            outcome: outcome(message.outcome, message.placed)?,
        })
    }
}

impl Convert for StatFsReply {
    type Message = wire::StatFsReply;
    const NAME: &'static str = "StatFsReply";

    fn to_message(&self) -> wire::StatFsReply {
        wire::StatFsReply {
            bytes_total: self.bytes_total,
            bytes_free: self.bytes_free,
            bytes_unused: self.bytes_unused,
            files_total: self.files_total,
            files_free: self.files_free,
        }
    }

    fn from_message(message: wire::StatFsReply) -> Result<Self, Malformed> {
        Ok(Self {
            bytes_total: message.bytes_total,
            bytes_free: message.bytes_free,
            bytes_unused: message.bytes_unused.max(message.bytes_free),
            files_total: message.files_total,
            files_free: message.files_free,
        })
    }
}

impl Convert for RenewLeaseRequest {
    type Message = wire::RenewLeaseRequest;
    const NAME: &'static str = "RenewLeaseRequest";

    fn to_message(&self) -> wire::RenewLeaseRequest {
        wire::RenewLeaseRequest { undecided: self.undecided }
    }

    fn from_message(message: wire::RenewLeaseRequest) -> Result<Self, Malformed> {
        Ok(Self { undecided: message.undecided })
    }
}

impl Convert for RenewLeaseReply {
    type Message = wire::RenewLeaseReply;
    const NAME: &'static str = "RenewLeaseReply";

    fn to_message(&self) -> wire::RenewLeaseReply {
        let mark = self.mark.as_ref().map(Convert::to_message);
        wire::RenewLeaseReply { renewed: self.renewed, lock_grants: self.lock_grants, mark }
    }

    fn from_message(message: wire::RenewLeaseReply) -> Result<Self, Malformed> {
        let mark = optional(message.mark)?;
        Ok(Self { renewed: message.renewed, lock_grants: message.lock_grants, mark })
    }
}

impl Convert for BreakRequest {
    type Message = wire::BreakRequest;
    const NAME: &'static str = "BreakRequest";

    fn to_message(&self) -> wire::BreakRequest {
        let objects = if let Broken::Objects(objects) = &self.broken { to_messages(objects) } else { Vec::new() };
        let (all, recalled) = (self.broken == Broken::All, to_messages(&self.recalled));
        wire::BreakRequest { change: self.change.0, objects, all, recalled, wanted: to_messages(&self.wanted) }
    }

    fn from_message(message: wire::BreakRequest) -> Result<Self, Malformed> {
        let objects = list(message.objects, Self::OBJECTS_MAX, "objects")?;
        Ok(Self {
            change: ChangeNumber(message.change),
            broken: if message.all { Broken::All } else { Broken::Objects(objects) },
            recalled: list(message.recalled, Self::OBJECTS_MAX, "recalled")?,
            wanted: list(message.wanted, Self::OBJECTS_MAX, "wanted")?,
        })
    }
}

impl Convert for BreakReply {
    type Message = wire::BreakReply;
    const NAME: &'static str = "BreakReply";

    fn to_message(&self) -> wire::BreakReply {
        wire::BreakReply { held: to_messages(&self.held) }
    }

    fn from_message(message: wire::BreakReply) -> Result<Self, Malformed> {
        Ok(Self { held: list(message.held, BreakRequest::OBJECTS_MAX, "held")? })
    }
}

impl Convert for BrokenObject {
    type Message = wire::BrokenObject;
    const NAME: &'static str = "BrokenObject";

    fn to_message(&self) -> wire::BrokenObject {
        let names = self.names.iter().map(Name::to_bytes).collect();
        wire::BrokenObject { fid: Some(self.fid.to_message()), names }
    }

    fn from_message(message: wire::BrokenObject) -> Result<Self, Malformed> {
        if message.names.len() > BreakRequest::NAMES_MAX {
            return Err(Malformed::invalid("names", format_args!("{} of one object", message.names.len())));
        }
        let names = message.names.into_iter().map(name).collect::<Result<_, _>>()?;
        Ok(Self { fid: required(message.fid, "fid")?, names })
    }
}

impl Convert for InvalidateRequest {
    type Message = wire::InvalidateRequest;
    const NAME: &'static str = "InvalidateRequest";

    fn to_message(&self) -> wire::InvalidateRequest {
        wire::InvalidateRequest {
            records: to_messages(&self.records),
            retracted: to_messages(&self.retracted),
            confirmed_below: self.confirmed_below.as_ref().map(Convert::to_message),
            settled: to_messages(&self.settled),
        }
    }

    fn from_message(message: wire::InvalidateRequest) -> Result<Self, Malformed> {
        Ok(Self {
            records: list(message.records, Self::RECORDS_MAX, "records")?,
            retracted: list(message.retracted, Self::RECORDS_MAX, "retracted")?,
            confirmed_below: optional(message.confirmed_below)?,
            settled: list(message.settled, Self::RECORDS_MAX, "settled")?,
        })
    }
}

impl Convert for InvalidateReply {
    type Message = wire::InvalidateReply;
    const NAME: &'static str = "InvalidateReply";

    fn to_message(&self) -> wire::InvalidateReply {
        wire::InvalidateReply { refused: to_messages(&self.refused), contested: to_messages(&self.contested) }
    }

    fn from_message(message: wire::InvalidateReply) -> Result<Self, Malformed> {
        Ok(Self {
            refused: list(message.refused, InvalidateRequest::RECORDS_MAX, "refused")?,
            contested: list(message.contested, InvalidateRequest::RECORDS_MAX, "contested")?,
        })
    }
}

impl Convert for PullRequest {
    type Message = wire::PullRequest;
    const NAME: &'static str = "PullRequest";

    fn to_message(&self) -> wire::PullRequest {
        wire::PullRequest { ids: to_messages(&self.ids) }
    }

    fn from_message(message: wire::PullRequest) -> Result<Self, Malformed> {
        Ok(Self { ids: list(message.ids, InvalidateRequest::RECORDS_MAX, "ids")? })
    }
}

impl Convert for PullReply {
    type Message = wire::PullReply;
    const NAME: &'static str = "PullReply";

    fn to_message(&self) -> wire::PullReply {
        wire::PullReply { missing: to_messages(&self.missing) }
    }

    fn from_message(message: wire::PullReply) -> Result<Self, Malformed> {
        Ok(Self { missing: list(message.missing, InvalidateRequest::RECORDS_MAX, "missing")? })
    }
}

impl Convert for ErrorDetail {
    type Message = wire::ErrorDetail;
    const NAME: &'static str = "ErrorDetail";

    fn to_message(&self) -> wire::ErrorDetail {
        let message = self.message.chars().take(ERROR_MESSAGE_BYTES_MAX / 4).collect();
        wire::ErrorDetail { message, progress: self.progress }
    }

    fn from_message(message: wire::ErrorDetail) -> Result<Self, Malformed> {
        if message.message.len() > ERROR_MESSAGE_BYTES_MAX {
            return Err(Malformed::invalid("message", "longer than 1,000 bytes"));
        }
        Ok(Self { message: message.message, progress: message.progress })
    }
}
