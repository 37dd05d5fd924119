//! What a kernel calls. See [`Context`].

mod atomic;
mod bits;
mod bulk;
mod collective;
pub mod combine;
mod context;
mod copy;
mod failed;
mod multicast;
#[cfg_attr(
    not(all(target_arch = "nvptx64", feature = "nvshmem")),
    allow(clippy::if_same_then_else, reason = "all calls are empty where there is no NVSHMEM")
)]
mod network;
mod order;
mod report;
mod rma;
pub mod scope;
mod signal;
mod team;
mod value;
mod views;
mod wait;

pub use bits::{KernelAdd, KernelAtomic, KernelInteger};
pub use context::Context;
pub use failed::Failed;
pub use multicast::MulticastSlice;
pub use views::{Elements, SharedSlice, Source, Target};
pub use wait::EXCLUDE_NONE;
