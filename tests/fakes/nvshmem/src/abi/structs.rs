//! Defines NVSHMEM's structs, version words and constants, in the layout of the library's callers.
//!
//! Invariant: sizes are those that the vendor's headers assert.

use core::ffi::{c_char, c_int, c_void};

/// Returns the version word at the start of a struct.
pub(crate) const fn word(layout: c_int, bytes: usize) -> c_int {
    (layout << 16) + bytes as c_int
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId {
    pub(crate) version: c_int,
    pub(crate) internal: [u8; 124],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueIdArgs {
    pub(crate) version: c_int,
    pub(crate) id: *mut UniqueId,
    pub(crate) rank: c_int,
    pub(crate) ranks: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InitArgs {
    pub(crate) version: c_int,
    pub(crate) uid: UniqueIdArgs,
    pub(crate) device: c_int,
    pub(crate) content: [c_char; 92],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InitAttr {
    pub(crate) version: c_int,
    pub(crate) mpi_comm: *mut c_void,
    pub(crate) args: InitArgs,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct TeamConfig {
    pub(crate) version: c_int,
    pub(crate) contexts: c_int,
    pub(crate) id: u64,
    pub(crate) padding: [c_char; 48],
}

const _: () = assert!(size_of::<UniqueId>() == 128 && size_of::<UniqueIdArgs>() == 24);
const _: () = assert!(size_of::<InitArgs>() == 128 && size_of::<InitAttr>() == 144 && size_of::<TeamConfig>() == 64);

/// `NVSHMEM_TEAM_CONFIG_MASK_*`.
pub(crate) const MASK_CONTEXTS: i64 = 1;
pub(crate) const MASK_ID: i64 = 2;

/// `NVSHMEMX_INIT_WITH_*`.
pub(crate) const WITH_MPI: u32 = 2;
pub(crate) const WITH_SHMEM: u32 = 4;
pub(crate) const WITH_ID: u32 = 8;

/// `NVSHMEM_SIGNAL_*`.
pub(crate) const SIGNAL_SET: c_int = 9;
pub(crate) const SIGNAL_ADD: c_int = 10;
