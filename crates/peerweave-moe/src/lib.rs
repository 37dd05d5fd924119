//! Mixture of experts, on shared memory and on GPUs: a dispatch sends each token to the PEs that
//! have its experts, and a combination sends the results back.
//!
//! [`Moe`] exchanges the tokens of one layer among the ranks of a team. The experts are divided
//! among the ranks in order. Each call of [`Moe::dispatch`] takes this rank's tokens, with `top_k`
//! experts and weights for each token. The call fills rows for the experts of this rank: first all
//! rows of the first expert, then all rows of the second expert, and so on. A grouped matrix
//! product takes rows in this order. [`Moe::combine`] takes one result for each row, and gives each
//! token the weighted sum of the token's results.
//!
//! A token is sent to a rank only once, even if several experts on that rank process the token.
//! That rank adds up the results of these experts, and sends one result back. No rank waits for
//! another rank before it sends, because every rank sends its whole routing table. Dispatches and
//! combinations need no barriers, because the memory of the receiver shows whether the data has
//! arrived. Each call launches Rust kernels through the portable API, so calls are stream-ordered.
//! The order of rows and of additions is the same in every run.
//!
//! ```
//! use peerweave::{Result, on_threads};
//! use peerweave_moe::{Moe, Received, Shape, Tokens};
//!
//! on_threads(2, |world| -> Result<()> {
//!     let stream = world.stream()?;
//!     // 4 experts, two on each rank; 1 expert for each token; 8 elements; at most 3 tokens.
//!     let shape = Shape::new(4, 1, 8, 3);
//!     let mut moe = Moe::<f32, f32>::new(&world, world.team(), &stream, shape)?;
//!
//!     let me = world.my_pe().get();
//!     let (rows, experts, weights) = (world.alloc::<f32>(2 * 8)?, world.alloc::<i32>(2)?, world.alloc::<f32>(2)?);
//!     rows.fill(me as f32 + 1.0)?;
//!     experts.copy_from(&[3, 0])?; // the first token of both ranks goes to rank 1, the second to rank 0
//!     weights.fill(0.5)?;
//!
//!     let (received, offsets) = (world.alloc::<f32>(moe.max_rows() * 8)?, world.alloc::<u32>(2 + 1)?);
//!     moe.dispatch(
//!         &Tokens { rows: &rows, scales: None, experts: &experts, weights: &weights },
//!         &Received { rows: &received, scales: None, offsets: &offsets },
//!     )?
//!     .wait()?;
//!     // Rank 0 has two rows for its first expert, expert 0.
//!     // Rank 1 has two rows for its second expert, expert 3.
//!     assert_eq!(offsets.to_vec()?, if me == 0 { [0, 2, 2] } else { [0, 0, 2] });
//!     assert_eq!((received.load(0)?, received.load(8)?), (1.0, 2.0));
//!
//!     // In this example, the experts return their inputs.
//!     let outputs = world.alloc::<f32>(2 * 8)?;
//!     moe.combine(&received, &outputs)?.wait()?;
//!     assert_eq!(outputs.load(15)?, 0.5 * (me as f32 + 1.0));
//!     moe.release()
//! })?
//! .into_iter()
//! .collect::<Result<()>>()
//! # .map_err(Into::<Box<dyn std::error::Error>>::into)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The kernels
//! | call | kernels |
//! |---|---|
//! | [`Moe::dispatch_send`] | `moe_dispatch_send` pushes the table and the tokens |
//! | [`Moe::dispatch_receive`] | `moe_dispatch_plan` waits for the tables and assigns a row to each token for each expert, `moe_dispatch_receive` waits for the tokens and copies them to their rows |
//! | [`Moe::combine_send`] | `moe_combine_send_*` adds up this rank's results for each token and pushes the sum |
//! | [`Moe::combine_receive`] | `moe_combine_receive_*` waits for the sums and adds them up |
//!
//! Tokens travel in lines of 16 bytes, and one access writes a line. Before the data of a line
//! arrives, the line holds the *sentinel*: 128 random bits. After the receiver has read the line,
//! it writes the sentinel to the line again. Every bit pattern can be sent. A line of data equals
//! the sentinel with a probability of 2⁻¹²⁸ (2⁻⁶³ on the host, where a line is two words). In this
//! case, the receiver waits until its deadline.
//!
//! ## Why two banks for tokens and one for results are enough
//! A dispatch writes into bank `n % 2` of other ranks, where `n` is the number of the dispatch. A
//! counter in device memory holds `n`, so that the dispatches of a replayed graph are counted too.
//! A rank sends dispatch `n + 2` after it has received the tables of dispatch `n + 1` from all
//! ranks. Before a rank sends its table of dispatch `n + 1`, the rank has received all of dispatch
//! `n` and has written the sentinel to all lines of that bank again.
//!
//! Results need no second bank, because there is a dispatch between two combinations. A rank that
//! sends a result has received a table from the receiver of the result. The receiver sent that
//! table after the receiver had completed the previous combination.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over indices are unrolled; an iterator would place the lines in local memory"
)]

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod call;
pub mod combine;
pub mod dispatch;
#[cfg(not(target_arch = "nvptx64"))]
mod explain;
mod layout;
mod line;
#[cfg(not(target_arch = "nvptx64"))]
mod moe;
mod piece;
#[cfg(not(target_arch = "nvptx64"))]
mod shape;
mod sums;

pub use layout::{
    Exchange, MAX_LOCAL_EXPERTS, MAX_RANKS, MAX_TOP_K, NO_SUCH_EXPERT, NOT_MAPPED, NOTHING, REPEATED_EXPERT, table_lines,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use moe::{Moe, Output, Received, Tokens};
#[cfg(not(target_arch = "nvptx64"))]
pub use shape::Shape;
