//! Extended attributes: names, values, and all that one object has.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::name::without_nul;
use crate::{FsError, InvalidName};

/// The name of an extended attribute, its namespace (`user.`) included: 1 to 255 bytes, any but NUL. Need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Bytes);

impl XattrName {
    /// XATTR_NAME_MAX of Linux.
    pub const BYTES_MAX: usize = 255;

    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidName`] says which rule `bytes` breaks.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidName> {
        without_nul(bytes.into(), Self::BYTES_MAX).map(Self)
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Display for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// The value of an extended attribute: 0 to 65,536 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XattrValue(Bytes);

impl XattrValue {
    /// XATTR_SIZE_MAX of Linux. All attributes of one object together can hold less: [`Xattrs::BYTES_MAX`].
    pub const BYTES_MAX: usize = 64 * 1024;

    /// Parses a value; `None` if it is too long.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= Self::BYTES_MAX).then_some(Self(bytes))
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

/// Whether the attribute that is set may, must or must not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// The attribute may exist.
    Either,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

/// All extended attributes of one object, at most [`Xattrs::BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Xattrs {
    values: BTreeMap<XattrName, XattrValue>,
    bytes: usize,
}

impl Xattrs {
    /// The most bytes of names and values, [`Xattrs::OVERHEAD_BYTES`] added for each. So their wire form is smaller
    /// than this, and fits one value of an index (64 KB) with something beside it.
    pub const BYTES_MAX: usize = 64_000;

    /// The bytes an attribute counts for besides its name and value: above the dozen bytes that its wire form adds.
    pub const OVERHEAD_BYTES: usize = 16;

    /// The most attributes there can be.
    pub(crate) const COUNT_MAX: usize = Self::BYTES_MAX / Self::OVERHEAD_BYTES;

    /// Returns the value of an attribute.
    #[must_use]
    pub fn get(&self, name: &XattrName) -> Option<&XattrValue> {
        self.values.get(name)
    }

    /// Lists names and values, in the order of the names' bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&XattrName, &XattrValue)> {
        self.values.iter()
    }

    /// Whether there are no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets an attribute.
    ///
    /// # Errors `Exists` and `NoXattr` if `mode` says so, `NoSpace` if there would be too many bytes; nothing is
    /// changed then.
    pub fn set(&mut self, name: XattrName, value: XattrValue, mode: XattrMode) -> Result<(), FsError> {
        let old = self.values.get(&name);
        match (mode, old) {
            (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
            (XattrMode::Replace, None) => return Err(FsError::NoXattr),
            (XattrMode::Either, _) | (XattrMode::Create, None) | (XattrMode::Replace, Some(_)) => {}
        }
        let bytes = self.bytes - old.map_or(0, |old| cost(&name, old)) + cost(&name, &value);
        if bytes > Self::BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        self.bytes = bytes;
        self.values.insert(name, value);
        Ok(())
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoXattr` if there is none of this name.
    pub fn remove(&mut self, name: &XattrName) -> Result<(), FsError> {
        let old = self.values.remove(name).ok_or(FsError::NoXattr)?;
        self.bytes -= cost(name, &old);
        Ok(())
    }
}

/// Returns the bytes an attribute counts for.
fn cost(name: &XattrName, value: &XattrValue) -> usize {
    name.0.len() + value.0.len() + Xattrs::OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wire;

    fn name(text: &str) -> XattrName {
        XattrName::new(text.as_bytes().to_vec()).unwrap()
    }

    fn value(size: usize) -> XattrValue {
        XattrValue::new(vec![7; size]).unwrap()
    }

    #[test]
    fn names_hold_any_bytes_but_nul() {
        assert!(XattrName::new(vec![0xff, b'/', b'\n']).is_ok());
        assert!(XattrName::new(vec![b'x'; 255]).is_ok());
        assert_eq!(XattrName::new(vec![b'x'; 256]), Err(InvalidName::TooLong { limit: 255 }));
        assert_eq!(XattrName::new(&b"user.a\0"[..]), Err(InvalidName::Byte(0)));
        assert_eq!(XattrName::new(&b""[..]), Err(InvalidName::Empty));
    }

    #[test]
    fn values_have_the_limit_of_linux() {
        assert!(XattrValue::new(vec![0; 65_536]).is_some());
        assert_eq!(XattrValue::new(vec![0; 65_537]), None);
    }

    #[test]
    fn the_mode_says_whether_an_attribute_may_exist() {
        let mut xattrs = Xattrs::default();
        assert_eq!(xattrs.set(name("user.a"), value(1), XattrMode::Replace), Err(FsError::NoXattr));
        assert_eq!(xattrs.set(name("user.a"), value(1), XattrMode::Create), Ok(()));
        assert_eq!(xattrs.set(name("user.a"), value(2), XattrMode::Create), Err(FsError::Exists));
        assert_eq!(xattrs.get(&name("user.a")), Some(&value(1)));
        assert_eq!(xattrs.set(name("user.a"), value(2), XattrMode::Replace), Ok(()));
        assert_eq!(xattrs.set(name("user.a"), value(3), XattrMode::Either), Ok(()));
        assert_eq!(xattrs.get(&name("user.a")), Some(&value(3)));
        assert_eq!(xattrs.remove(&name("user.a")), Ok(()));
        assert_eq!(xattrs.remove(&name("user.a")), Err(FsError::NoXattr));
        assert_eq!(xattrs, Xattrs::default());
    }

    #[test]
    fn the_sum_is_bounded_and_replacing_gives_room_back() {
        let mut xattrs = Xattrs::default();
        let all = Xattrs::BYTES_MAX - Xattrs::OVERHEAD_BYTES - "user.a".len();
        assert_eq!(xattrs.set(name("user.a"), value(all + 1), XattrMode::Either), Err(FsError::NoSpace));
        assert_eq!(xattrs.set(name("user.a"), value(all), XattrMode::Either), Ok(()));
        assert_eq!(xattrs.set(name("user.b"), value(0), XattrMode::Either), Err(FsError::NoSpace));
        assert_eq!(xattrs.set(name("user.a"), value(all - 100), XattrMode::Either), Ok(()));
        assert_eq!(xattrs.set(name("user.b"), value(78), XattrMode::Either), Ok(()));
        assert_eq!(xattrs.set(name("user.c"), value(0), XattrMode::Either), Err(FsError::NoSpace));
    }

    #[test]
    fn the_wire_form_is_smaller_than_the_bound() {
        let mut small = Xattrs::default();
        while small.set(name(&format!("u.{}", small.values.len())), value(0), XattrMode::Either).is_ok() {}
        let mut large = Xattrs::default();
        let all = Xattrs::BYTES_MAX - Xattrs::OVERHEAD_BYTES - 255;
        large.set(name(&"n".repeat(255)), value(all), XattrMode::Either).unwrap();
        for full in [small, large] {
            assert!(full.bytes > Xattrs::BYTES_MAX - 30);
            assert!(full.encode().len() <= Xattrs::BYTES_MAX, "{}", full.encode().len());
        }
    }
}
