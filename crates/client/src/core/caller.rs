//! Who asks for an operation.

/// The owner of what is created, and in whose name a content is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// fsuid.
    pub uid: u32,
    /// fsgid.
    pub gid: u32,
}
