//! Conflicts, and the objects that are kept of them.

use bytes::Bytes;

use super::nouns::{mode, name, optional_object};
use super::{Convert, Malformed, list, optional, required, to_messages, wire};
use crate::call::{ConflictsReply, ConflictsRequest};
use crate::{ClientId, Conflict, ConflictKind, DataVersion, Name, Origin, Outcome, PlacedName, Removals};

/// The most bytes of a host name, as elsewhere.
const CLIENT_NAME_BYTES_MAX: usize = 255;

pub(super) fn outcome_to_message(outcome: &Outcome) -> (u32, Vec<wire::PlacedName>) {
    let number = match outcome {
        Outcome::AsSaid => 0,
        Outcome::WasSo => 1,
        Outcome::Elsewhere(_) => 2,
        Outcome::Trashed(_) => 3,
        Outcome::SetAside(_) => 4,
    };
    (number, to_messages(outcome.placed()))
}

pub(super) fn outcome(number: u32, placed: Vec<wire::PlacedName>) -> Result<Outcome, Malformed> {
    let mut placed: Vec<PlacedName> = list(placed, Outcome::PLACED_MAX, "placed")?;
    match number {
        0 => Ok(Outcome::AsSaid),
        1 => Ok(Outcome::WasSo),
        2 => Ok(Outcome::Elsewhere(placed)),
        3 => Ok(Outcome::Trashed(placed)),
        4 => placed.pop().map(Outcome::SetAside).ok_or(Malformed::Missing("placed")),
        other => Err(Malformed::invalid("outcome", format_args!("{other} is none"))),
    }
}

fn path_to_message(path: &[Name]) -> Vec<Bytes> {
    path.iter().map(Name::to_bytes).collect()
}

fn path(names: Vec<Bytes>, names_max: usize) -> Result<Vec<Name>, Malformed> {
    if names.len() > names_max {
        return Err(Malformed::invalid("path", format_args!("{} names", names.len())));
    }
    names.into_iter().map(name).collect()
}

impl Convert for Origin {
    type Message = wire::Origin;
    const NAME: &'static str = "Origin";

    fn to_message(&self) -> wire::Origin {
        wire::Origin {
            directory: Some(self.directory.to_message()),
            name: self.name.to_bytes(),
            path: path_to_message(&self.path),
            mode: u32::from(self.mode.bits()),
            uid: self.uid,
            gid: self.gid,
        }
    }

    fn from_message(message: wire::Origin) -> Result<Self, Malformed> {
        Ok(Self {
            directory: required(message.directory, "directory")?,
            name: name(message.name)?,
            path: path(message.path, Self::DEPTH_MAX)?,
            mode: mode(message.mode)?,
            uid: message.uid,
            gid: message.gid,
        })
    }
}

impl Convert for Removals {
    type Message = wire::Removals;
    const NAME: &'static str = "Removals";

    fn to_message(&self) -> wire::Removals {
        wire::Removals { count: self.count, up_to: Some(self.up_to.to_message()), path: path_to_message(&self.path) }
    }

    fn from_message(message: wire::Removals) -> Result<Self, Malformed> {
        Ok(Self {
            count: message.count,
            up_to: required(message.up_to, "up_to")?,
            path: path(message.path, Origin::DEPTH_MAX)?,
        })
    }
}

impl Convert for PlacedName {
    type Message = wire::PlacedName;
    const NAME: &'static str = "PlacedName";

    fn to_message(&self) -> wire::PlacedName {
        wire::PlacedName { directory: Some(self.directory.to_message()), name: self.name.to_bytes() }
    }

    fn from_message(message: wire::PlacedName) -> Result<Self, Malformed> {
        Ok(Self { directory: required(message.directory, "directory")?, name: name(message.name)? })
    }
}

impl Convert for Conflict {
    type Message = wire::Conflict;
    const NAME: &'static str = "Conflict";

    fn to_message(&self) -> wire::Conflict {
        wire::Conflict {
            place: Some(self.place.to_message()),
            kind: self.kind.number(),
            mine: Some(self.mine.to_message()),
            directory: Some(self.wanted.directory.to_message()),
            name: self.wanted.name.to_bytes(),
            path: path_to_message(&self.path),
            client: Bytes::copy_from_slice(&self.client.0),
            client_name: self.client_name.clone(),
            uid: self.uid,
            time: Some(self.time.to_message()),
            base: self.base.map_or(0, |version| version.0),
            mine_now: self.mine_now.as_ref().map(Convert::to_message),
            theirs_now: self.theirs_now.as_ref().map(Convert::to_message),
        }
    }

    fn from_message(message: wire::Conflict) -> Result<Self, Malformed> {
        let kind = ConflictKind::ALL.into_iter().find(|kind| kind.number() == message.kind);
        let client = message.client[..].try_into();
        if message.client_name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(Malformed::invalid("client_name", "longer than 255 bytes"));
        }
        Ok(Self {
            place: required(message.place, "place")?,
            kind: kind.ok_or_else(|| Malformed::invalid("kind", format_args!("{} is none", message.kind)))?,
            mine: required(message.mine, "mine")?,
            wanted: PlacedName { directory: required(message.directory, "directory")?, name: name(message.name)? },
            path: path(message.path, Outcome::PLACED_MAX)?,
            client: ClientId(client.map_err(|_| Malformed::invalid("client", "not 16 bytes"))?),
            client_name: message.client_name,
            uid: message.uid,
            time: required(message.time, "time")?,
            base: (message.base != 0).then_some(DataVersion(message.base)),
            mine_now: optional_object(message.mine_now)?,
            theirs_now: optional_object(message.theirs_now)?,
        })
    }
}

impl Convert for ConflictsRequest {
    type Message = wire::ConflictsRequest;
    const NAME: &'static str = "ConflictsRequest";

    fn to_message(&self) -> wire::ConflictsRequest {
        wire::ConflictsRequest { after: self.after.as_ref().map(Convert::to_message) }
    }

    fn from_message(message: wire::ConflictsRequest) -> Result<Self, Malformed> {
        Ok(Self { after: optional(message.after)? })
    }
}

impl Convert for ConflictsReply {
    type Message = wire::ConflictsReply;
    const NAME: &'static str = "ConflictsReply";

    fn to_message(&self) -> wire::ConflictsReply {
        wire::ConflictsReply { conflicts: to_messages(&self.conflicts), end: self.end }
    }

    fn from_message(message: wire::ConflictsReply) -> Result<Self, Malformed> {
        Ok(Self { conflicts: list(message.conflicts, Self::CONFLICTS_MAX, "conflicts")?, end: message.end })
    }
}
