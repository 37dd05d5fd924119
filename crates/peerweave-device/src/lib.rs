//! Protocols by which PEs synchronise, and the API that kernels call. The protocols are written
//! once, and operate on words of memory that several PEs access.
//!
//! The protocols do not allocate or map memory, do not read a clock, and do not call the operating
//! system. The caller provides the words ([`Word`]) and a pause ([`Pause`]) that a waiter makes
//! between two polls. So the same code runs in the host backend, in kernels, and under a model
//! checker.
//!
//! | module | purpose | writer of a word |
//! |---|---|---|
//! | [`flag`] | a counter that only increases, and a wait for a value | one PE |
//! | [`barrier`] | arrival of a whole team: one word per rank in the memory of each rank | the rank to which the word belongs |
//! | [`sealed`] | a small payload from each rank to all ranks, in words that contain their epoch | the rank to which the word belongs |
//! | [`put_signal`] | data followed by a signal; waits for one or several signals | any PE |
//! | [`mailbox`] | a ring of messages from one rank to another | the sender for a message, the receiver for an answer |
//!
//! [`lines`] has the 16-byte lines whose content tells the receiver whether their data has arrived.
//! [`api`] has the functions that a kernel calls: methods of [`api::Context`] that use these
//! protocols. [`gpu`] has the primitives of the machine: indices, barriers of a block, shared
//! memory, and accesses with explicit order and scope. On GPUs the primitives are inline assembly
//! and intrinsics. On the host they call an executor, which `peerweave-grid` provides.
//!
//! # Epochs
//! Every rank counts the operations of a team. The count is the epoch of the operation, and is the
//! same on all ranks. If the words are initially zero, the first operation has epoch 1. Epochs are
//! never reset and may wrap. Two epochs are compared by their distance. The comparison is correct
//! if the epochs are less than 2⁶³ apart. In a barrier, a rank gets at most one epoch ahead of the
//! other ranks. In [`sealed`], each rank has `N` lines, and gets at most `N - 1` epochs ahead of
//! the other ranks.
//!
//! # Ordering
//! A function whose name ends in `_relaxed` orders nothing. For all other functions, a PE that
//! posts, arrives, publishes, signals or responds releases its earlier writes. A PE that observes
//! the new value of the word acquires these writes.
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use peerweave_device::{barrier, pause, word};
//!
//! // The word of rank `r` in the memory of rank `t` is `words[t][r]`.
//! let words = [const { [const { AtomicU64::new(0) }; 2] }; 2];
//! std::thread::scope(|team| {
//!     for rank in 0..2 {
//!         let words = &words;
//!         team.spawn(move || {
//!             let mut looks = 1_000_000;
//!             let mut pause = pause::from_fn(|| {
//!                 std::thread::yield_now();
//!                 looks -= 1;
//!                 if looks == 0 { Err("timed out") } else { Ok(()) }
//!             });
//!             for epoch in 1..=3 {
//!                 barrier::announce(&word::from_fn(2, |target| &words[target][rank]), epoch);
//!                 barrier::wait(&words[rank], epoch, &mut pause).unwrap();
//!             }
//!         });
//!     }
//! });
//! ```
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch, link_llvm_intrinsics))]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, reason = "barriers in arch/nvptx are intrinsics of LLVM"))]
#![deny(unsafe_code)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Only the modules with this attribute need `unsafe`: they access memory or call kernels.
#[allow(unsafe_code)]
pub mod api;
#[allow(unsafe_code)]
pub mod arch;
#[cfg(not(target_arch = "nvptx64"))]
#[allow(unsafe_code)]
pub mod launch;
#[allow(unsafe_code)]
pub mod lines;
#[allow(unsafe_code)]
pub mod network;
pub mod pause;
mod protocol;
mod shared;
pub mod word;

/// Plain data types that the host and kernels share.
pub use peerweave_types as types;

/// Primitives of the machine on which a kernel runs: indices, barriers of a block, shuffles, votes,
/// shared memory and time.
pub use arch as gpu;

/// The imports for a crate of kernels: `use peerweave_device::prelude::*;`.
///
/// The prelude exports the `Context` of kernels. The crate `peerweave` has a different `Context`,
/// which issues transfers on the host. In a file that also has `use peerweave::*;`, the name is
/// ambiguous. In such a file, import each item by name, or put the kernels into a separate module.
pub mod prelude {
    pub use crate::api::combine::{And, Max, Min, Or, Prod, Sum, Xor};
    pub use crate::api::{Context, EXCLUDE_NONE, Elements, Failed, SharedSlice};
    pub use crate::gpu;
    pub use peerweave_macros::{KernelArg, kernel};
    pub use peerweave_types::{
        Compare, DeviceSlice, Dim3, KernelArg, KernelTeam, Pe, Plain, Rank, ReduceOp, SignalOp, SymOffset, SymSlice,
    };
}

#[doc(hidden)]
pub use peerweave_macros::name_shared_array;

pub use pause::Pause;
pub use protocol::{barrier, flag, mailbox, put_signal, sealed};
pub use word::{Word, Words};

/// Declares the symbol of the dynamic shared memory, which the PTX of a crate must contain exactly
/// once. The first `#[kernel]` of a crate calls this macro. A crate whose kernels are all written
/// without `#[kernel]` must call the macro itself. On the host the macro expands to nothing.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! kernel_preamble {
    () => {
        // The module makes the directive an item, so that the macro can also be used among
        // statements.
        mod peerweave_kernel_preamble {
            ::core::arch::global_asm!(".extern .shared .align 128 .b8 peerweave_dynamic_shared[];");
        }
    };
}

/// Declares the symbol of the dynamic shared memory, which the PTX of a crate must contain exactly
/// once. The first `#[kernel]` of a crate calls this macro. A crate whose kernels are all written
/// without `#[kernel]` must call the macro itself. On the host the macro expands to nothing.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! kernel_preamble {
    () => {};
}
