//! The kernels that carry out Peerweave's collectives, with their PTX.
//!
//! Every collective kernel takes one [`Call`], with the addresses of the ranks' *staging areas* and
//! of the operands, and with the reduction. A staging area is memory of a rank to which the other
//! ranks push their data. All ranks launch a kernel with the same algorithm, the same shape and the
//! same count. `peerweave-cuda` allocates the areas, chooses a kernel and a shape, and launches the
//! kernel.
//!
//! | algorithm | movement of data | size of the input |
//! |---|---|---|
//! | [`Algorithm::OneShot`] | each rank pushes all its lines to every rank, and reduces the lines that it receives | small |
//! | [`Algorithm::TwoShot`] | each rank pushes part `r` to rank `r`, which reduces the part and pushes the result to every rank | medium |
//! | [`Algorithm::Chunked`] | as two-shot, but the data travels in chunks through a ring, and flags show that a chunk has arrived | large |
//!
//! reduce_scatter, [`scan`], all_gather and all_to_all each have one algorithm: every rank pushes
//! each line to the ranks that need it. The kernels of [`transfer`] send messages between pairs of
//! ranks. They carry out send and receive, broadcast, gather, scatter, and longer calls of
//! all_gather and all_to_all. The kernels of all_reduce also carry out reduce and longer calls of
//! reduce_scatter: [`Call::results`] selects the operation. A kernel of [`rms_norm`] carries out an
//! all_reduce, adds a residual, and computes RMSNorm.
//!
//! The kernels of [`combine`] reduce operands that lie on one device.
//!
//! # Lines
//! Small and medium messages travel in lines of 16 bytes. One access writes a line, and one access
//! reads a line. Until its data arrives, a line of a staging area holds the *sentinel*: 128 bits
//! that the ranks draw at random when they create their areas. So the content of a line shows
//! whether its data has arrived, and no fence is needed. Every bit pattern can be sent. A line of
//! data equals the sentinel with a probability of 2⁻¹²⁸. In this case, the receiver waits until its
//! deadline, and its failure report names the sender. The receiver puts the sentinel back after it
//! has read a line. A staging area has two *banks* of lines, which launches use alternately. So no
//! rank writes a line before the receiver has put the sentinel back ([`mod@epoch`] explains why two
//! banks are enough).
//!
//! # Results
//! Inputs are combined in the order of ranks, starting with rank 0, so that all ranks get the same
//! bits. 16-bit floats are combined in `f32`, and the result is rounded once. With
//! [`ReduceOp::PreMulSum`], each product is rounded to the element type before the product travels.
//!
//! [`ReduceOp::PreMulSum`]: peerweave_types::ReduceOp::PreMulSum
#![no_std]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over indices are unrolled; an iterator would place the lines in local memory"
)]

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod all_reduce;
pub mod barrier;
mod call;
pub mod combine;
pub mod epoch;
pub mod exchange;
mod line;
pub mod reduce_scatter;
pub mod rms_norm;
pub mod scan;
pub mod transfer;

pub use call::{Algorithm, Call, MAX_RANKS, Results};

/// The PTX of all kernels of this crate. The kernels share this static, because the PTX is large,
/// and otherwise the compiler would keep a copy of it for each module.
#[cfg(not(target_arch = "nvptx64"))]
static PTX: peerweave_device::launch::PtxImage = include!(concat!(env!("OUT_DIR"), "/peerweave_ptx.rs"));
pub use line::LINE_BYTES;
