//! Bulk copies: the host has none, and every copy is made by the thread itself.

/// There are no bulk copies on the host. Nothing else here may be called.
pub const AVAILABLE: bool = false;

/// Alignment of addresses, and divisor of sizes, in bytes.
pub const ALIGN: usize = 16;

/// Every address is one of plain memory.
pub fn is_shared(_pointer: *const u8) -> bool {
    false
}

/// Every address can be reached as global memory can.
pub fn is_global(_pointer: *const u8) -> bool {
    true
}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn shared_address(_pointer: *const u8) -> u32 {
    0
}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn init(_barrier: u32) {}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn invalidate(_barrier: u32) {}

/// Orders nothing: there is no copy unit.
pub fn fence_shared() {}

/// Orders nothing: there is no copy unit.
pub fn fence_global() {}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn start_load(_to: u32, _from: *const u8, _bytes: u32, _barrier: u32) {}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn test(_barrier: u32, _parity: u32) -> bool {
    true
}

/// Never called.
///
/// # Safety
/// Not to be called.
pub unsafe fn start_store(_to: *mut u8, _from: u32, _bytes: u32) {}

/// Nothing is outstanding.
pub fn commit() {}

/// Nothing is outstanding.
pub fn wait_read<const PENDING: usize>() {}

/// Nothing is outstanding.
pub fn wait_written() {}
