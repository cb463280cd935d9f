//! Caller: the user that asks for an operation.

/// Owner of created objects, in whose name a content is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// fsuid.
    pub uid: u32,
    /// fsgid.
    pub gid: u32,
}
