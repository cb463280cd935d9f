//! The mafs file server: keeps volumes, applies every record exactly once, serves what is committed.
//!
//! [`Server`] is the whole of it, over any [`Storage`] and any carrier; the binary `mafs-server`, the client's
//! quickstart and the simulator are three users of it. Decisions are in `core` (pure), what lies on disk in `store`,
//! one volume being served in `volume`, one connection in `session` and `service`.
//!
//! Knows nothing of clients' caches, of FUSE or of links.

pub mod admin;
pub mod cli;
mod config;
mod core;
mod error;
mod listen;
mod server;
mod service;
mod session;
mod slot;
mod store;
pub mod verify;
mod volume;

pub use config::ServerConfig;
pub use error::ServerError;
pub use listen::{DEFAULT_PORT, ListenAddress};
pub use server::Server;
pub use store::{DirStorage, MemoryStorage, Storage, default_data_dir};
