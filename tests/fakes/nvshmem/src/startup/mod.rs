//! Starts and ends NVSHMEM: ids, NVSHMEM's own variables, connection of the PEs, the heap. Also has
//! the queries that are allowed before NVSHMEM starts.
//!
//! MPI, SHMEM and PMI are not emulated. Invariant: either all PEs of a job are initialized, or no
//! initialization returns success.

mod attributes;
mod begin;
mod connect;
mod id;
mod info;
mod init;
mod options;
