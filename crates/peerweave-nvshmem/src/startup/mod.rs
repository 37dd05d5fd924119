//! Starts and ends NVSHMEM. A start uses a rendezvous, an id, MPI or a launcher, and first checks
//! the machine. The end reports memory that was not freed.

mod attempt;
pub(crate) mod finalize;
mod interface;
mod preflight;
mod ready;
mod start;
pub(crate) mod unique_id;
mod verdict;
