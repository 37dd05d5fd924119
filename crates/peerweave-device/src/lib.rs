//! The protocols by which PEs synchronise, written once, on words of memory that several PEs
//! access.
//!
//! This crate neither allocates nor maps memory, reads no clock, and does not depend on processes.
//! The caller provides the words ([`Word`]) and the action of a waiter between two polls
//! ([`Pause`]). So the same code runs in the host backend, in kernels, and under a model checker
//! that explores its interleavings.
//!
//! | module | purpose | writer of a word |
//! |---|---|---|
//! | [`flag`] | a counter that only increases, and a wait for a value | one PE |
//! | [`barrier`] | arrival of a whole team: one word per rank in the memory of each rank | each rank its own word |
//! | [`sealed`] | a small payload from each rank to all, in words that validate themselves | each rank its own words |
//! | [`put_signal`] | data followed by a signal; waits for one or several signals | any PE |
//! | [`mailbox`] | a ring of messages from one rank to another | the sender the messages, the receiver the answers |
//!
//! [`api`] has the functions that a kernel calls: methods of [`api::Context`], built on these
//! protocols. [`gpu`] is the machine beneath: indices, barriers of a block, shared memory, and
//! accesses with explicit order and scope. Its module for GPUs is inline assembly; the module for
//! the host calls an executor, which `peerweave-grid` provides.
//!
//! # Epochs
//! Operations of a team are counted. The count of an operation is its epoch: 1 for the first
//! operation, if the words are initially zero, and one more for each later operation, equally on
//! every rank. Epochs are never reset and may wrap: they are compared by their distance, which is
//! correct while two epochs are less than 2⁶³ apart. No rank is ever more than one epoch ahead of
//! another.
//!
//! # Ordering
//! Every function without another order in its name is strong: earlier writes of a PE that posts,
//! arrives, publishes, signals, pushes or acknowledges are visible to a PE that observes it.
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
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, reason = "barriers are intrinsics: see arch/nvptx"))]
#![deny(unsafe_code)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Only this module, which makes the accesses, and the calls of kernels need `unsafe`.
#[allow(unsafe_code)]
pub mod api;
#[allow(unsafe_code)]
pub mod arch;
#[cfg(not(target_arch = "nvptx64"))]
#[allow(unsafe_code)]
pub mod launch;
#[allow(unsafe_code)]
pub mod network;
pub mod pause;
mod protocol;
mod shared;
pub mod word;

/// Plain data shared by host and kernels.
pub use peerweave_types as types;

/// The machine on which a kernel runs: indices, barriers of a block, shuffles, votes, shared
/// memory, time.
pub use arch as gpu;

/// The imports of a crate of kernels: `use peerweave_device::prelude::*;`.
///
/// Its `Context` is the one of kernels. In a file that also has `use peerweave::*;`, the name is
/// ambiguous: `peerweave::Context` issues transfers on the host. Import what is used by name there,
/// or put the kernels into a module of their own.
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

/// Declares the symbols that the PTX of a crate must contain once. `#[kernel]` generates it; a
/// crate with a hand-written kernel calls it. Empty on the host.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! kernel_preamble {
    () => {
        // The module makes the directive an item, so that the macro may be used where statements
        // are.
        mod peerweave_kernel_preamble {
            ::core::arch::global_asm!(".extern .shared .align 128 .b8 peerweave_dynamic_shared[];");
        }
    };
}

/// Declares the symbols that the PTX of a crate must contain once. `#[kernel]` generates it; a
/// crate with a hand-written kernel calls it. Empty on the host.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! kernel_preamble {
    () => {};
}
