//! The mafs cache manager: whole files on the local disk, kept in step with a file server.
//!
//! `fuse` (the kernel's edge) calls `vfs` (the operations), which stands on `cache` (the files on this disk) and
//! `remote` (the server). Decisions live in `core`, which is pure.

pub mod cache;
pub mod control;
mod core;
pub mod daemon;
mod file_name;
pub mod fuse;
pub mod hoard;
pub mod limit;
pub mod mount_point;
pub mod network;
pub mod options;
pub mod printable;
pub mod remote;
pub mod runtime_dir;
pub mod vfs;
