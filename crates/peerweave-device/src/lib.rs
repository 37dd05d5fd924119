//! The protocols by which PEs synchronise, written once, over words of memory that several PEs
//! access.
//!
//! Nothing here allocates, maps memory, reads a clock or knows what a process is: the caller brings
//! the words ([`Word`]) and decides what a waiter does between two looks ([`Pause`]). So the same
//! code runs in the host backend, in kernels, and under a model checker that tries its
//! interleavings.
//!
//! | module | what it does | who writes a word |
//! |---|---|---|
//! | [`flag`] | a counter that only grows, and a wait for it | one PE |
//! | [`barrier`] | arrival of a whole team: one word per rank in the memory of each | each rank its own |
//! | [`sealed`] | a small payload from each rank to all, in words that validate themselves | each rank its own |
//! | [`put_signal`] | data, then a signal; waits for one or several signals | anybody |
//! | [`mailbox`] | a ring of messages from one rank to another | the sender the messages, the receiver the answers |
//!
//! [`api`] is what a kernel calls: methods of [`api::Context`], built on these protocols. [`gpu`]
//! is the machine beneath: indices, barriers of a block, shared memory, and accesses that state
//! their order and scope. Its leaf for GPUs is inline assembly; the one for the host asks an
//! executor, which `peerweave-grid` provides.
//!
//! # Epochs
//! Operations of a team are counted. The count of an operation is its epoch: 1 for the first where
//! the words start as zeros, and one more for each that follows, on every rank alike. Epochs are
//! never reset and may wrap: they are compared by their distance, which is right while two of them
//! are less than 2⁶³ apart. No rank is ever more than one epoch ahead of another.
//!
//! # Ordering
//! Every name that says nothing else is strong: what a PE wrote before it posted, arrived,
//! published, signalled, pushed or acknowledged is visible to the PE that saw it do so.
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

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Where accesses are made is the one place, beside the calls of kernels, that needs `unsafe`.
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

/// Plain data that host and kernels share.
pub use peerweave_types as types;

/// The machine that a kernel runs on: indices, barriers of a block, shuffles, votes, shared memory,
/// time.
pub use arch as gpu;

/// The imports of a crate of kernels: `use peerweave_device::prelude::*;`.
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

/// Declares what a crate of kernels needs once in its PTX. `#[kernel]` writes it beside every
/// kernel; a kernel that is written by hand does so itself. Nothing on the host.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! kernel_preamble {
    () => {
        // In a module: the directive is an item, and stands where statements may.
        mod peerweave_kernel_preamble {
            ::core::arch::global_asm!(".extern .shared .align 128 .b8 peerweave_dynamic_shared[];");
        }
    };
}

/// Declares what a crate of kernels needs once in its PTX. `#[kernel]` writes it beside every
/// kernel; a kernel that is written by hand does so itself. Nothing on the host.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! kernel_preamble {
    () => {};
}
