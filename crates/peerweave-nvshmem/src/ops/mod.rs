//! The operations of a context and its teams: memory, transfers, signals, collectives and modules.
//! Each call checks its arguments, records the memory that it uses, and then calls NVSHMEM.

mod addresses;
mod allocate;
mod atomics;
mod collective;
mod enqueue;
pub(crate) mod module;
mod register;
mod rma;
mod rma_blocking;
pub(crate) mod signal;
mod wait_words;
