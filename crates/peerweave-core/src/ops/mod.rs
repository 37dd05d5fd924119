//! The operations that a world, a team or a stream offers. Each checks its arguments by `check` and
//! hands the result over by `call.rs`.

mod atomic;
mod collective;
mod collective_blocking;
mod group;
mod launch;
mod local;
mod one_sided;
mod order;
mod signal;
mod team;

pub use group::{BlockingGroup, Group};
pub use launch::{LaunchArg, LaunchArgs, LaunchShape};
