//! Tests of the engine, with two engines over a model of a link.

mod adaptive;
mod bursts;
mod calls;
mod gate;
mod gated;
mod hostile;
mod limit;
mod liveness;
mod notice;
mod pair;
mod priority;
mod reserve;
mod robustness;
mod tcp;
mod window;
