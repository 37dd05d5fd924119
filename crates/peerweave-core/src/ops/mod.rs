//! Operations of a world, a team or a stream. Each operation checks its arguments with `check/` and
//! passes the result to `call.rs`.

mod collective;
mod launch;
mod lock;
mod one_sided;
mod team;

pub use collective::{BlockingGroup, Group};
pub use launch::{LaunchArg, LaunchArgs, LaunchShape};
pub use lock::{Lock, LockGuard};
pub use one_sided::Context;
