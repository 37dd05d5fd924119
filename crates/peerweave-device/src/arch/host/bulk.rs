//! Stubs of the functions for bulk copies. The host has no copy unit (TMA), so the threads copy the
//! bytes themselves.

/// Whether bulk copies are available: always false on the host. Functions whose documentation says
/// "never called" must not be called on the host.
pub const AVAILABLE: bool = false;

/// Required alignment of addresses and sizes, in bytes.
pub const ALIGN: usize = 16;

/// Returns `false`, because every address on the host is an address of ordinary memory.
pub fn is_shared(_pointer: *const u8) -> bool {
    false
}

/// Returns `true`, because every address on the host can be accessed like global memory.
pub fn is_global(_pointer: *const u8) -> bool {
    true
}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn shared_address(_pointer: *const u8) -> u32 {
    0
}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn init(_barrier: u32) {}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn invalidate(_barrier: u32) {}

/// Orders nothing, because the host has no bulk copies.
pub fn fence_shared() {}

/// Orders nothing, because the host has no bulk copies.
pub fn fence_global() {}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn start_load(_to: u32, _from: *const u8, _bytes: u32, _barrier: u32) {}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn test(_barrier: u32, _parity: u32) -> bool {
    true
}

/// Never called, because the host has no bulk copies.
///
/// # Safety
/// This function must not be called.
pub unsafe fn start_store(_to: *mut u8, _from: u32, _bytes: u32) {}

/// Does nothing, because no bulk copy is ever outstanding on the host.
pub fn commit() {}

/// Does nothing, because no bulk copy is ever outstanding on the host.
pub fn wait_read<const PENDING: usize>() {}

/// Does nothing, because no bulk copy is ever outstanding on the host.
pub fn wait_written() {}
