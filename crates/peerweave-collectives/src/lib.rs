//! The collectives of Peerweave as kernels, with their PTX.
//!
//! Every kernel takes one [`Call`], which contains the staging areas of the ranks, the operands and
//! the reduction. All ranks launch the same kernel with the same shape and the same count.
//! `peerweave-cuda` allocates the areas, chooses the kernel and its shape, and launches it.
//!
//! | algorithm | what travels | when |
//! |---|---|---|
//! | [`Algorithm::OneShot`] | each rank pushes all its lines to every rank, which reduces them | small |
//! | [`Algorithm::TwoShot`] | each rank pushes part `r` to rank `r`, which reduces it and pushes the result | medium |
//! | [`Algorithm::Chunked`] | as two-shot, in chunks through a ring, with flags instead of lines that announce themselves | large |
//!
//! reduce_scatter, [`scan`], all_gather and all_to_all have one separate algorithm, which pushes
//! lines to the rank that needs them. Messages between pairs of ranks are in [`transfer`]: send and
//! receive, broadcast, gather, scatter, and longer calls of all_gather and all_to_all. The kernels
//! of all_reduce also compute reduce and longer calls of reduce_scatter, if [`Call::results`] says
//! so. [`rms_norm`] has all_reduce with a residual and RMSNorm in one kernel.
//!
//! The kernels of [`combine`] reduce operands that lie on one device.
//!
//! # Lines
//! Small and medium messages travel in lines of 16 bytes, each written and read by one access. A
//! line that has not arrived holds the *sentinel*: 128 bits that the ranks draw at random when they
//! create their areas. So the data itself shows that it has arrived, and no fence is needed. Every
//! bit pattern can be sent. A line of data equals the sentinel with a probability of 2⁻¹²⁸; the
//! receiver then waits until its deadline and reports the sender. The receiver puts the sentinel
//! back after it has read a line. Launches alternate between two banks, so that no line is written
//! before the sentinel has been put back ([`mod@epoch`] explains why two banks are enough).
//!
//! # Results
//! Inputs are combined in the order of ranks, starting with rank 0, so that all ranks get the same
//! bits. 16-bit floats are combined in `f32` and rounded once. [`ReduceOp::PreMulSum`] rounds each
//! product to the element type before it travels.
//!
//! [`ReduceOp::PreMulSum`]: peerweave_types::ReduceOp::PreMulSum
#![no_std]
#![allow(
    clippy::needless_range_loop,
    reason = "indices are unrolled; an iterator would put an array of lines into the thread's memory"
)]

/// The README, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod all_reduce;
pub mod barrier;
mod call;
pub mod combine;
mod copy;
pub mod epoch;
pub mod exchange;
mod line;
mod push;
mod reduce;
pub mod reduce_scatter;
pub mod rms_norm;
pub mod scan;
pub mod transfer;
mod wait;

pub use call::{Algorithm, Call, MAX_RANKS, Results};

/// The PTX of all kernels. It is included once, because it is large and the compiler would keep a
/// copy for each module.
#[cfg(not(target_arch = "nvptx64"))]
static PTX: peerweave_device::launch::PtxImage = include!(concat!(env!("OUT_DIR"), "/peerweave_ptx.rs"));
pub use line::LINE_BYTES;
