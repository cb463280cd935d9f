//! Core: every decision of the file server, as plain functions over an index.
//!
//! Owns what a volume's index holds ([`tables`], [`node`], [`records`]), the meaning of each operation
//! ([`directory`], [`rename`]), exactly-once ([`replies`]), grants ([`clients`]), and what is promised, announced
//! and locked ([`promises`], [`pending`], [`locks`]). A decision reads the index through an [`overlay`] and comes out
//! as one batch, so the effect and the record of having done it are one transaction (invariant 2).
//!
//! Must not know tasks, sessions, files or clocks: times come from the records, contents come as [`NewContent`].

mod aliases;
pub(crate) mod announce;
mod aside;
pub(crate) mod changes;
pub(crate) mod clients;
mod conflict_name;
pub(crate) mod conflicts;
pub(crate) mod directory;
pub(crate) mod edit;
pub(crate) mod exclusive;
pub(crate) mod fids;
mod keep;
pub(crate) mod locks;
pub(crate) mod node;
pub(crate) mod overlay;
pub(crate) mod pending;
pub(crate) mod promises;
pub(crate) mod quota;
pub(crate) mod records;
pub(crate) mod refusal;
pub(crate) mod refused;
pub(crate) mod rename;
pub(crate) mod replies;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
mod trash;
mod way;
mod xattrs;

pub(crate) use edit::NewContent;
pub(crate) use node::{Content, ContentId, ContentSerial, Node, Place};
pub(crate) use overlay::{Overlay, Transaction};
pub(crate) use refusal::Refusal;
