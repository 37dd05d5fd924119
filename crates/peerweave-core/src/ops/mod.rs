//! The operations of a world, a team or a stream. Each checks its arguments by `check` and passes
//! the result to `call.rs`.

mod address;
mod all_to_all_strided;
mod atomic;
mod collective;
mod collective_blocking;
mod collective_v;
mod context;
mod exchange_counts;
mod group;
mod launch;
mod local;
mod lock;
mod one_sided;
mod order;
mod reduce_with;
mod rms_norm;
mod scan;
mod signal;
mod team;
mod wait;
mod wait_vector;

pub use context::Context;
pub use group::{BlockingGroup, Group};
pub use launch::{LaunchArg, LaunchArgs, LaunchShape};
pub use lock::{Lock, LockGuard};
