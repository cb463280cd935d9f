//! Records of the modify log.

use super::nouns::{kind, kind_number, mode, name, size, target};
use super::xattrs::{self, xattr_name, xattr_value};
use super::{Convert, Malformed, list, optional, required, to_messages, wire};
use crate::{Base, CmlOp, CmlRecord, DataVersion, Kind, Mode, Removed, RenameMode, SetAttr};

type WireOp = wire::cml_record::Op;

impl Convert for CmlRecord {
    type Message = wire::CmlRecord;
    const NAME: &'static str = "CmlRecord";

    fn to_message(&self) -> wire::CmlRecord {
        wire::CmlRecord {
            id: Some(self.id.to_message()),
            depends_on: to_messages(&self.depends_on),
            time: Some(self.time.to_message()),
            uid: self.uid,
            gid: self.gid,
            removes: self.removes.map_or(0, |removed| removed.version.0),
            alone: self.removes.is_some_and(|removed| removed.alone),
            op: Some(op_to_message(&self.op)),
        }
    }

    fn from_message(message: wire::CmlRecord) -> Result<Self, Malformed> {
        Ok(Self {
            id: required(message.id, "id")?,
            depends_on: list(message.depends_on, Self::DEPENDS_ON_MAX, "depends_on")?,
            time: required(message.time, "time")?,
            uid: message.uid,
            gid: message.gid,
            removes: (message.removes != 0)
                .then_some(Removed { version: DataVersion(message.removes), alone: message.alone }),
            op: op_from_message(message.op.ok_or(Malformed::Missing("op"))?)?,
        })
    }
}

impl Convert for Base {
    type Message = wire::Base;
    const NAME: &'static str = "Base";

    fn to_message(&self) -> wire::Base {
        let base = match self {
            Self::Version(version) => wire::base::Base::DataVersion(version.0),
            Self::Record(id) => wire::base::Base::Record(id.to_message()),
        };
        wire::Base { base: Some(base) }
    }

    fn from_message(message: wire::Base) -> Result<Self, Malformed> {
        Ok(match message.base.ok_or(Malformed::Missing("base"))? {
            wire::base::Base::DataVersion(version) => Self::Version(DataVersion(version)),
            wire::base::Base::Record(id) => Self::Record(Convert::from_message(id)?),
        })
    }
}

fn set_attr_from_message(message: &wire::SetAttr) -> Result<SetAttr, Malformed> {
    Ok(SetAttr {
        mode: message.mode.map(mode).transpose()?,
        uid: message.uid,
        gid: message.gid,
        atime: optional(message.atime)?,
        mtime: optional(message.mtime)?,
    })
}

fn op_to_message(op: &CmlOp) -> WireOp {
    match op {
        CmlOp::Create { parent, name, fid, kind, mode, rdev } => WireOp::Create(wire::Create {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
            kind: kind_number(*kind),
            mode: u32::from(mode.bits()),
            rdev: *rdev,
        }),
        CmlOp::MakeDir { parent, name, fid, mode } => WireOp::MakeDir(wire::MakeDir {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
            mode: u32::from(mode.bits()),
        }),
        CmlOp::SymLink { parent, name, fid, target } => WireOp::SymLink(wire::SymLink {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
            target: target.to_bytes(),
        }),
        CmlOp::Link { parent, name, fid } => WireOp::Link(wire::Link {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
        }),
        CmlOp::Remove { parent, name, fid } => WireOp::Remove(wire::Remove {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
        }),
        CmlOp::RemoveDir { parent, name, fid } => WireOp::RemoveDir(wire::RemoveDir {
            parent: Some(parent.to_message()),
            name: name.to_bytes(),
            fid: Some(fid.to_message()),
        }),
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode } => {
            WireOp::Rename(wire::Rename {
                from_parent: Some(from_parent.to_message()),
                from_name: from_name.to_bytes(),
                to_parent: Some(to_parent.to_message()),
                to_name: to_name.to_bytes(),
                fid: Some(fid.to_message()),
                replaced: replaced.as_ref().map(Convert::to_message),
                mode: rename_mode_number(*mode),
            })
        }
        CmlOp::SetAttr { fid, set } => WireOp::SetAttr(wire::SetAttr {
            fid: Some(fid.to_message()),
            mode: set.mode.map(Mode::bits).map(u32::from),
            uid: set.uid,
            gid: set.gid,
            atime: set.atime.as_ref().map(Convert::to_message),
            mtime: set.mtime.as_ref().map(Convert::to_message),
        }),
        CmlOp::SetXattr { fid, name, value, mode } => {
            WireOp::SetXattr(xattrs::set_xattr_to_message(*fid, name, value, *mode))
        }
        CmlOp::RemoveXattr { fid, name } => {
            WireOp::RemoveXattr(wire::RemoveXattr { fid: Some(fid.to_message()), name: name.to_bytes() })
        }
        CmlOp::Store { fid, base, size, mtime } => WireOp::Store(wire::Store {
            fid: Some(fid.to_message()),
            base: Some(base.to_message()),
            size: *size,
            mtime: Some(mtime.to_message()),
        }),
    }
}

fn op_from_message(op: WireOp) -> Result<CmlOp, Malformed> {
    Ok(match op {
        WireOp::Create(op) => CmlOp::Create {
            parent: required(op.parent, "parent")?,
            name: name(op.name)?,
            fid: required(op.fid, "fid")?,
            kind: match kind(op.kind)? {
                Kind::Directory | Kind::Symlink => {
                    return Err(Malformed::invalid("kind", "has an operation of its own"));
                }
                creatable @ (Kind::File | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice) => {
                    creatable
                }
            },
            mode: mode(op.mode)?,
            rdev: op.rdev,
        },
        WireOp::MakeDir(op) => CmlOp::MakeDir {
            parent: required(op.parent, "parent")?,
            name: name(op.name)?,
            fid: required(op.fid, "fid")?,
            mode: mode(op.mode)?,
        },
        WireOp::SymLink(op) => CmlOp::SymLink {
            parent: required(op.parent, "parent")?,
            name: name(op.name)?,
            fid: required(op.fid, "fid")?,
            target: target(op.target)?,
        },
        WireOp::Link(op) => {
            CmlOp::Link { parent: required(op.parent, "parent")?, name: name(op.name)?, fid: required(op.fid, "fid")? }
        }
        WireOp::Remove(op) => CmlOp::Remove {
            parent: required(op.parent, "parent")?,
            name: name(op.name)?,
            fid: required(op.fid, "fid")?,
        },
        WireOp::RemoveDir(op) => CmlOp::RemoveDir {
            parent: required(op.parent, "parent")?,
            name: name(op.name)?,
            fid: required(op.fid, "fid")?,
        },
        WireOp::Rename(op) => CmlOp::Rename {
            from_parent: required(op.from_parent, "from_parent")?,
            from_name: name(op.from_name)?,
            to_parent: required(op.to_parent, "to_parent")?,
            to_name: name(op.to_name)?,
            fid: required(op.fid, "fid")?,
            replaced: optional(op.replaced)?,
            mode: rename_mode(op.mode)?,
        },
        WireOp::SetAttr(op) => CmlOp::SetAttr { set: set_attr_from_message(&op)?, fid: required(op.fid, "fid")? },
        WireOp::SetXattr(op) => CmlOp::SetXattr {
            fid: required(op.fid, "fid")?,
            name: xattr_name(op.name)?,
            value: xattr_value(op.value)?,
            mode: xattrs::mode(op.mode)?,
        },
        WireOp::RemoveXattr(op) => CmlOp::RemoveXattr { fid: required(op.fid, "fid")?, name: xattr_name(op.name)? },
        WireOp::Store(op) => CmlOp::Store {
            fid: required(op.fid, "fid")?,
            base: required(op.base, "base")?,
            size: size(op.size)?,
            mtime: required(op.mtime, "mtime")?,
        },
    })
}

fn rename_mode(number: i32) -> Result<RenameMode, Malformed> {
    match wire::RenameMode::try_from(number) {
        Ok(wire::RenameMode::Replace) => Ok(RenameMode::Replace),
        Ok(wire::RenameMode::NoReplace) => Ok(RenameMode::NoReplace),
        Ok(wire::RenameMode::Exchange) => Ok(RenameMode::Exchange),
        Err(_) => Err(Malformed::invalid("mode", number)),
    }
}

fn rename_mode_number(mode: RenameMode) -> i32 {
    let message = match mode {
        RenameMode::Replace => wire::RenameMode::Replace,
        RenameMode::NoReplace => wire::RenameMode::NoReplace,
        RenameMode::Exchange => wire::RenameMode::Exchange,
    };
    message.into()
}
