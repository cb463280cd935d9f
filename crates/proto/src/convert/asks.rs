//! Questions to the server: about the status of objects, the meaning of names, entries of directories, and extended
//! attributes.

use super::nouns::{name, optional_object};
use super::{Convert, Malformed, list, required, to_messages, wire};
use crate::call::{
    GetStatusReply, GetStatusRequest, GetXattrsReply, GetXattrsRequest, LookupReply, LookupRequest, ReadDirPage,
    ReadDirRequest,
};
use crate::{ChangeNumber, DataVersion, Name};

impl Convert for GetStatusRequest {
    type Message = wire::GetStatusRequest;
    const NAME: &'static str = "GetStatusRequest";

    fn to_message(&self) -> wire::GetStatusRequest {
        wire::GetStatusRequest {
            fids: to_messages(&self.fids),
            settled: self.settled,
            unanswered: to_messages(&self.unanswered),
        }
    }

    fn from_message(message: wire::GetStatusRequest) -> Result<Self, Malformed> {
        Ok(Self {
            fids: list(message.fids, Self::FIDS_MAX, "fids")?,
            settled: message.settled,
            unanswered: list(message.unanswered, Self::RECORDS_MAX, "unanswered")?,
        })
    }
}

impl Convert for GetStatusReply {
    type Message = wire::GetStatusReply;
    const NAME: &'static str = "GetStatusReply";

    fn to_message(&self) -> wire::GetStatusReply {
        wire::GetStatusReply {
            objects: to_messages(&self.objects),
            change: self.change.0,
            pending: to_messages(&self.pending),
            stale: self.stale,
            applied: to_messages(&self.applied),
        }
    }

    fn from_message(message: wire::GetStatusReply) -> Result<Self, Malformed> {
        Ok(Self {
            objects: list(message.objects, GetStatusRequest::FIDS_MAX, "objects")?,
            change: ChangeNumber(message.change),
            pending: list(message.pending, GetStatusRequest::FIDS_MAX, "pending")?,
            stale: message.stale,
            applied: list(message.applied, GetStatusRequest::RECORDS_MAX, "applied")?,
        })
    }
}

impl Convert for LookupRequest {
    type Message = wire::LookupRequest;
    const NAME: &'static str = "LookupRequest";

    fn to_message(&self) -> wire::LookupRequest {
        wire::LookupRequest {
            parent: Some(self.parent.to_message()),
            name: self.name.to_bytes(),
            unanswered: to_messages(&self.unanswered),
        }
    }

    fn from_message(message: wire::LookupRequest) -> Result<Self, Malformed> {
        Ok(Self {
            parent: required(message.parent, "parent")?,
            name: name(message.name)?,
            unanswered: list(message.unanswered, GetStatusRequest::RECORDS_MAX, "unanswered")?,
        })
    }
}

impl Convert for LookupReply {
    type Message = wire::LookupReply;
    const NAME: &'static str = "LookupReply";

    fn to_message(&self) -> wire::LookupReply {
        wire::LookupReply {
            object: self.object.as_ref().map(Convert::to_message),
            parent_version: self.parent_version.0,
            change: self.change.0,
            pending: self.pending.as_ref().map(Convert::to_message),
            name_pending: self.name_pending,
            applied: to_messages(&self.applied),
        }
    }

    fn from_message(message: wire::LookupReply) -> Result<Self, Malformed> {
        Ok(Self {
            object: optional_object(message.object)?,
            parent_version: DataVersion(message.parent_version),
            change: ChangeNumber(message.change),
            pending: optional_object(message.pending)?,
            name_pending: message.name_pending,
            applied: list(message.applied, GetStatusRequest::RECORDS_MAX, "applied")?,
        })
    }
}

impl Convert for ReadDirRequest {
    type Message = wire::ReadDirRequest;
    const NAME: &'static str = "ReadDirRequest";

    fn to_message(&self) -> wire::ReadDirRequest {
        wire::ReadDirRequest {
            fid: Some(self.fid.to_message()),
            after: self.after.as_ref().map(Name::to_bytes).unwrap_or_default(),
            entries_max: self.entries_max,
            unanswered: to_messages(&self.unanswered),
        }
    }

    fn from_message(message: wire::ReadDirRequest) -> Result<Self, Malformed> {
        if !(1..=Self::ENTRIES_MAX).contains(&message.entries_max) {
            return Err(Malformed::invalid("entries_max", format_args!("{} is not 1 to 1024", message.entries_max)));
        }
        Ok(Self {
            fid: required(message.fid, "fid")?,
            after: if message.after.is_empty() { None } else { Some(name(message.after)?) },
            entries_max: message.entries_max,
            unanswered: list(message.unanswered, GetStatusRequest::RECORDS_MAX, "unanswered")?,
        })
    }
}

impl Convert for ReadDirPage {
    type Message = wire::ReadDirPage;
    const NAME: &'static str = "ReadDirPage";

    fn to_message(&self) -> wire::ReadDirPage {
        wire::ReadDirPage {
            directory: Some(self.directory.to_message()),
            entries: to_messages(&self.entries),
            end: self.end,
            change: self.change.0,
            pending: to_messages(&self.pending),
            applied: to_messages(&self.applied),
        }
    }

    fn from_message(message: wire::ReadDirPage) -> Result<Self, Malformed> {
        let count_max = ReadDirRequest::ENTRIES_MAX as usize;
        Ok(Self {
            directory: required(message.directory, "directory")?,
            entries: list(message.entries, count_max, "entries")?,
            end: message.end,
            change: ChangeNumber(message.change),
            pending: list(message.pending, count_max, "pending")?,
            applied: list(message.applied, GetStatusRequest::RECORDS_MAX, "applied")?,
        })
    }
}

impl Convert for GetXattrsRequest {
    type Message = wire::GetXattrsRequest;
    const NAME: &'static str = "GetXattrsRequest";

    fn to_message(&self) -> wire::GetXattrsRequest {
        wire::GetXattrsRequest {
            fid: Some(self.fid.to_message()),
            settled: self.settled,
            unanswered: to_messages(&self.unanswered),
        }
    }

    fn from_message(message: wire::GetXattrsRequest) -> Result<Self, Malformed> {
        Ok(Self {
            fid: required(message.fid, "fid")?,
            settled: message.settled,
            unanswered: list(message.unanswered, GetStatusRequest::RECORDS_MAX, "unanswered")?,
        })
    }
}

impl Convert for GetXattrsReply {
    type Message = wire::GetXattrsReply;
    const NAME: &'static str = "GetXattrsReply";

    fn to_message(&self) -> wire::GetXattrsReply {
        wire::GetXattrsReply {
            object: Some(self.object.to_message()),
            xattrs: Some(self.xattrs.to_message()),
            change: self.change.0,
            pending: self.pending,
            applied: to_messages(&self.applied),
        }
    }

    fn from_message(message: wire::GetXattrsReply) -> Result<Self, Malformed> {
        Ok(Self {
            object: required(message.object, "object")?,
            xattrs: required(message.xattrs, "xattrs")?,
            change: ChangeNumber(message.change),
            pending: message.pending,
            applied: list(message.applied, GetStatusRequest::RECORDS_MAX, "applied")?,
        })
    }
}
