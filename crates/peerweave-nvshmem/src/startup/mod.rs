//! Start and end of NVSHMEM: initialisation by a rendezvous, an id, MPI or a launcher, checks of
//! the machine, and the report of finalize.

mod attempt;
pub(crate) mod finalize;
mod interface;
mod preflight;
mod ready;
mod start;
pub(crate) mod unique_id;
mod verdict;
