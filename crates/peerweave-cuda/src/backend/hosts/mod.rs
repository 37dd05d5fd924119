//! Collectives of teams whose members are on several hosts: Peerweave's kernels within a host, and
//! NCCL's messages between hosts.
//!
//! ```text
//!  explain.rs      how calls are carried out
//!  exchanges.rs    barriers, and collectives that move data
//!  reductions.rs   reductions and scans: operands are sent, and combined by the receiving ranks
//!  rails.rs        reductions and all_gather, first within each host
//!  combine.rs      the kernels that combine operands
//!  messages.rs     messages among ranks: within the host, and between hosts
//! ```
//!
//! NCCL only moves bytes. Reductions are computed by the kernels of `peerweave-collectives`, so
//! every type and reduction works, and all ranks get the same bits.
//!
//! Invariant: every rank enqueues the steps of a call, within the host and between hosts, in the
//! same order. So no step of a call waits for a later step of the same call.

mod combine;
mod exchanges;
mod explain;
mod messages;
mod rails;
mod reductions;

pub(crate) use explain::{describe, how};
pub(crate) use messages::check;
