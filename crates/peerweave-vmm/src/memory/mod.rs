//! Virtual memory of this process's devices: physical memory, reserved addresses, mappings.

pub(crate) mod access;
pub(crate) mod buffer;
pub(crate) mod descriptor;
pub(crate) mod mapping;
pub(crate) mod physical;
pub(crate) mod reservation;
pub(crate) mod streams;
