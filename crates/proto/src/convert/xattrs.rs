//! Extended attributes.

use bytes::Bytes;

use super::{Convert, Malformed, wire};
use crate::{Fid, XattrMode, XattrName, XattrValue, Xattrs};

pub(super) fn xattr_name(bytes: Bytes) -> Result<XattrName, Malformed> {
    XattrName::new(bytes).map_err(|error| Malformed::invalid("name", error))
}

pub(super) fn xattr_value(bytes: Bytes) -> Result<XattrValue, Malformed> {
    XattrValue::new(bytes).ok_or_else(|| Malformed::invalid("value", "longer than 65,536 bytes"))
}

pub(super) fn mode(number: i32) -> Result<XattrMode, Malformed> {
    match wire::XattrMode::try_from(number) {
        Ok(wire::XattrMode::Either) => Ok(XattrMode::Either),
        Ok(wire::XattrMode::Create) => Ok(XattrMode::Create),
        Ok(wire::XattrMode::Replace) => Ok(XattrMode::Replace),
        Err(_) => Err(Malformed::invalid("mode", number)),
    }
}

pub(super) fn set_xattr_to_message(fid: Fid, name: &XattrName, value: &XattrValue, mode: XattrMode) -> wire::SetXattr {
    let mode = match mode {
        XattrMode::Either => wire::XattrMode::Either,
        XattrMode::Create => wire::XattrMode::Create,
        XattrMode::Replace => wire::XattrMode::Replace,
    };
    wire::SetXattr { fid: Some(fid.to_message()), name: name.to_bytes(), value: value.to_bytes(), mode: mode.into() }
}

impl Convert for Xattrs {
    type Message = wire::Xattrs;
    const NAME: &'static str = "Xattrs";

    fn to_message(&self) -> wire::Xattrs {
        let xattrs = self.iter().map(|(name, value)| wire::Xattr { name: name.to_bytes(), value: value.to_bytes() });
        wire::Xattrs { xattrs: xattrs.collect() }
    }

    fn from_message(message: wire::Xattrs) -> Result<Self, Malformed> {
        if message.xattrs.len() > Self::COUNT_MAX {
            return Err(Malformed::invalid("xattrs", format_args!("{} entries", message.xattrs.len())));
        }
        let mut xattrs = Self::default();
        for wire::Xattr { name, value } in message.xattrs {
            let set = xattrs.set(xattr_name(name)?, xattr_value(value)?, XattrMode::Create);
            set.map_err(|error| Malformed::invalid("xattrs", error))?;
        }
        Ok(xattrs)
    }
}
