//! Stubs of the bulk copies. The host has no copy unit, so the threads copy the bytes themselves.

/// Whether bulk copies are available: always false on the host. The functions whose documentation
/// says "never called" must not be called.
pub const AVAILABLE: bool = false;

/// Required alignment of addresses and sizes, in bytes.
pub const ALIGN: usize = 16;

/// Returns `false`, because every address of the host is an address of ordinary memory.
pub fn is_shared(_pointer: *const u8) -> bool {
    false
}

/// Returns `true`, because every address of the host can be accessed like global memory.
pub fn is_global(_pointer: *const u8) -> bool {
    true
}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn shared_address(_pointer: *const u8) -> u32 {
    0
}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn init(_barrier: u32) {}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn invalidate(_barrier: u32) {}

/// Orders nothing, because there is no copy unit.
pub fn fence_shared() {}

/// Orders nothing, because there is no copy unit.
pub fn fence_global() {}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn start_load(_to: u32, _from: *const u8, _bytes: u32, _barrier: u32) {}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn test(_barrier: u32, _parity: u32) -> bool {
    true
}

/// Not available on the host: never called.
///
/// # Safety
/// Not available on the host: never called.
pub unsafe fn start_store(_to: *mut u8, _from: u32, _bytes: u32) {}

/// Does nothing, because no copy is outstanding.
pub fn commit() {}

/// Does nothing, because no copy is outstanding.
pub fn wait_read<const PENDING: usize>() {}

/// Does nothing, because no copy is outstanding.
pub fn wait_written() {}
