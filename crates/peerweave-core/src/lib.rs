//! The portable API of Peerweave, all of its validation, and the contract that a backend fulfils.

pub mod backend;
mod error;

pub use error::{Error, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
