//! Changes since a mark, and held objects.

use super::{Convert, Malformed, list, optional, required, to_messages, wire};
use crate::call::{Changed, ChangedObject, ChangedSinceReply, ChangedSinceRequest, HoldReply, HoldRequest, Mark};
use crate::{ChangeNumber, StatusVersion, VnodeId};

impl Convert for Mark {
    type Message = wire::Mark;
    const NAME: &'static str = "Mark";

    fn to_message(&self) -> wire::Mark {
        wire::Mark { change: self.change.0, tag: self.tag }
    }

    fn from_message(message: wire::Mark) -> Result<Self, Malformed> {
        if message.change == 0 {
            return Err(Malformed::invalid("change", "changes are counted from 1 on"));
        }
        Ok(Self { change: ChangeNumber(message.change), tag: message.tag })
    }
}

impl Convert for ChangedObject {
    type Message = wire::ChangedObject;
    const NAME: &'static str = "ChangedObject";

    fn to_message(&self) -> wire::ChangedObject {
        let version = self.version.map_or(0, |version| version.0.saturating_add(1));
        wire::ChangedObject { vnode: self.vnode.0, version_plus_one: version }
    }

    fn from_message(message: wire::ChangedObject) -> Result<Self, Malformed> {
        Ok(Self { vnode: VnodeId(message.vnode), version: message.version_plus_one.checked_sub(1).map(StatusVersion) })
    }
}

impl Convert for Changed {
    type Message = wire::Changed;
    const NAME: &'static str = "Changed";

    fn to_message(&self) -> wire::Changed {
        wire::Changed { objects: to_messages(&self.objects), through: Some(self.through.to_message()), more: self.more }
    }

    fn from_message(message: wire::Changed) -> Result<Self, Malformed> {
        Ok(Self {
            objects: list(message.objects, Self::OBJECTS_MAX, "objects")?,
            through: required(message.through, "through")?,
            more: message.more,
        })
    }
}

impl Convert for ChangedSinceRequest {
    type Message = wire::ChangedSinceRequest;
    const NAME: &'static str = "ChangedSinceRequest";

    fn to_message(&self) -> wire::ChangedSinceRequest {
        wire::ChangedSinceRequest { mark: Some(self.mark.to_message()) }
    }

    fn from_message(message: wire::ChangedSinceRequest) -> Result<Self, Malformed> {
        Ok(Self { mark: required(message.mark, "mark")? })
    }
}

impl Convert for ChangedSinceReply {
    type Message = wire::ChangedSinceReply;
    const NAME: &'static str = "ChangedSinceReply";

    fn to_message(&self) -> wire::ChangedSinceReply {
        wire::ChangedSinceReply { changed: self.changed.as_ref().map(Convert::to_message) }
    }

    fn from_message(message: wire::ChangedSinceReply) -> Result<Self, Malformed> {
        Ok(Self { changed: optional(message.changed)? })
    }
}

impl Convert for HoldRequest {
    type Message = wire::HoldRequest;
    const NAME: &'static str = "HoldRequest";

    fn to_message(&self) -> wire::HoldRequest {
        wire::HoldRequest { vnodes: self.vnodes.iter().map(|vnode| vnode.0).collect(), last: self.last }
    }

    fn from_message(message: wire::HoldRequest) -> Result<Self, Malformed> {
        if message.vnodes.len() > Self::OBJECTS_MAX {
            return Err(Malformed::invalid("vnodes", "more than 4,096"));
        }
        Ok(Self { vnodes: message.vnodes.into_iter().map(VnodeId).collect(), last: message.last })
    }
}

impl Convert for HoldReply {
    type Message = wire::HoldReply;
    const NAME: &'static str = "HoldReply";

    fn to_message(&self) -> wire::HoldReply {
        wire::HoldReply {}
    }

    fn from_message(_: wire::HoldReply) -> Result<Self, Malformed> {
        Ok(Self)
    }
}
