//! Starting and ending NVSHMEM: by a rendezvous, an id, MPI or a launcher; what a machine must
//! have; what was left at the end.

pub(crate) mod finalize;
mod interface;
mod preflight;
mod start;
pub(crate) mod unique_id;
mod verdict;
