//! Names: of directory entries, symlink targets and volumes.

use std::fmt;

use bytes::Bytes;

/// The reason why bytes are not a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidName {
    /// No bytes at all.
    #[error("a name is empty")]
    Empty,
    /// More bytes than the limit.
    #[error("a name is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// `.` or `..`, which every directory has by itself.
    #[error("`.` and `..` are not names of entries")]
    Dots,
    /// A byte that the kind of name cannot hold.
    #[error("a name holds the byte {0:#04x}")]
    Byte(u8),
}

/// The name of a directory entry: 1 to 255 bytes, any but `/` and NUL, neither `.` nor `..`. Need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

impl Name {
    /// NAME_MAX of Linux.
    pub const BYTES_MAX: usize = 255;

    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidName`] says which rule `bytes` breaks.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidName> {
        let bytes = bytes.into();
        match &bytes[..] {
            [] => Err(InvalidName::Empty),
            b"." | b".." => Err(InvalidName::Dots),
            long if long.len() > Self::BYTES_MAX => Err(InvalidName::TooLong { limit: Self::BYTES_MAX }),
            good => match good.iter().find(|byte| matches!(byte, 0 | b'/')) {
                Some(byte) => Err(InvalidName::Byte(*byte)),
                None => Ok(Self(bytes)),
            },
        }
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Copies the name to bytes of its own: the bytes of a parsed name keep the message it came in in memory.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// The target of a symlink: 1 to 4,095 bytes, any but NUL.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SymlinkTarget(Bytes);

impl SymlinkTarget {
    /// PATH_MAX of Linux without its NUL.
    pub const BYTES_MAX: usize = 4095;

    /// Parses a target.
    ///
    /// # Errors
    /// [`InvalidName`] says which rule `bytes` breaks.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidName> {
        without_nul(bytes.into(), Self::BYTES_MAX).map(Self)
    }

    /// Returns the bytes of the target.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

/// Checks bytes of which none may be NUL: 1 to `limit` bytes.
pub(crate) fn without_nul(bytes: Bytes, limit: usize) -> Result<Bytes, InvalidName> {
    match &bytes[..] {
        [] => Err(InvalidName::Empty),
        long if long.len() > limit => Err(InvalidName::TooLong { limit }),
        good if good.contains(&0) => Err(InvalidName::Byte(0)),
        _ => Ok(bytes),
    }
}

/// The name of a volume: 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot, so that it is a safe file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeName(String);

impl VolumeName {
    /// The longest volume name.
    pub const BYTES_MAX: usize = 64;

    /// Parses a volume name.
    ///
    /// # Errors
    /// [`InvalidName`] says which rule `name` breaks.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.len() > Self::BYTES_MAX {
            return Err(InvalidName::TooLong { limit: Self::BYTES_MAX });
        }
        if name.starts_with('.') {
            return Err(InvalidName::Dots);
        }
        match name.bytes().find(|byte| !(byte.is_ascii_alphanumeric() || b"._-".contains(byte))) {
            Some(byte) => Err(InvalidName::Byte(byte)),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_any_bytes_but_slash_and_nul() {
        assert!(Name::new(vec![0xff, b'\n', b' ']).is_ok());
        assert!(Name::new(vec![b'x'; 255]).is_ok());
        assert_eq!(Name::new(vec![b'x'; 256]), Err(InvalidName::TooLong { limit: 255 }));
        assert_eq!(Name::new(&b"a/b"[..]), Err(InvalidName::Byte(b'/')));
        assert_eq!(Name::new(&b"a\0"[..]), Err(InvalidName::Byte(0)));
        assert_eq!(Name::new(&b".."[..]), Err(InvalidName::Dots));
        assert!(Name::new(&b"..."[..]).is_ok());
        assert_eq!(Name::new(&b""[..]), Err(InvalidName::Empty));
    }

    #[test]
    fn volume_names_are_safe_file_names() {
        assert!(VolumeName::new("home-2.x_Y").is_ok());
        for bad in ["", ".home", "a/b", "a b", "é"] {
            assert!(VolumeName::new(bad).is_err(), "{bad:?}");
        }
    }
}
