//! The generated frames and service. A frame is hostile until `engine::Frame::parse` has seen it.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::use_self, clippy::unwrap_used)]

include!(concat!(env!("OUT_DIR"), "/mafs.arpc.v1.rs"));
