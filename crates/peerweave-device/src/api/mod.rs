//! Operations that kernels call, as methods of [`Context`].
//!
//! ```text
//!  team/      barriers and collectives of a team
//!  sync/      fences, signals, waits
//!  memory/    put, get, atomic operations, multicast
//!  context    the context of a kernel, numbers of PEs, addresses of heaps
//!  network    access to PEs whose memory is not mapped
//!  failed     the error of an operation           report   failure reports, pauses of waits
//!  scope      a thread, a warp or a block         views    views of memory
//!  bits       element types of atomic operations  value    loads and stores of elements
//! ```

mod bits;
mod context;
mod failed;
mod memory;
#[cfg_attr(
    not(all(target_arch = "nvptx64", feature = "nvshmem")),
    allow(clippy::if_same_then_else, reason = "in builds without NVSHMEM, the branches for thread, warp and block are equal")
)]
mod network;
mod report;
pub mod scope;
mod sync;
mod team;
mod value;
mod views;

pub use bits::{KernelAdd, KernelAtomic, KernelInteger};
pub use context::Context;
pub use failed::Failed;
pub use memory::MulticastSlice;
pub use sync::{AwaitedWords, EXCLUDE_NONE};
pub use team::combine;
pub use views::{Elements, SharedSlice, Source, Target};
