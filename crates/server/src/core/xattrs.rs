//! Extended attributes: records set and remove those of one object.
//!
//! All attributes of an object are one value of the index, under its fid and the status version that made them.

use mafs_proto::{Fid, FsError, XattrMode, XattrName, XattrValue, Xattrs};

use super::Refusal;
use super::edit::Edit;

/// Sets an attribute.
pub(super) fn set(
    edit: &mut Edit<'_, '_>,
    fid: Fid,
    name: &XattrName,
    value: &XattrValue,
    mode: XattrMode,
) -> Result<(), Refusal> {
    change(edit, fid, name, |xattrs| xattrs.set(name.clone(), value.clone(), mode))
}

/// Removes an attribute.
pub(super) fn remove(edit: &mut Edit<'_, '_>, fid: Fid, name: &XattrName) -> Result<(), Refusal> {
    change(edit, fid, name, |xattrs| xattrs.remove(name))
}

fn change(
    edit: &mut Edit<'_, '_>,
    fid: Fid,
    name: &XattrName,
    change: impl FnOnce(&mut Xattrs) -> Result<(), FsError>,
) -> Result<(), Refusal> {
    let mut xattrs = match edit.look(fid)?.status.xattrs {
        None => Xattrs::default(),
        Some(version) => {
            let xattrs = edit.transaction().xattrs(fid, version)?;
            xattrs.ok_or_else(|| Refusal::damaged(&format!("the attributes of {fid} are missing")))?
        }
    };
    change(&mut xattrs).map_err(|error| Refusal::new(error, format!("{name} of the object {fid}: {error}")))?;
    edit.put_xattrs(fid, &xattrs)
}
