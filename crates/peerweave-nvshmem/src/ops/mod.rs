//! What a context and its teams do: memory, transfers, signals, collectives, modules. A call
//! checks, notes what it uses, and then calls NVSHMEM.

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
