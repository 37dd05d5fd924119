//! Counters for tests: live objects, and calls of the library.
//!
//! Tests decide which counts indicate a leak. Invariant: a count of live objects is the number of
//! objects in their own table.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

use super::state::peek;
use super::world::World;

/// Number of puts, gets, signals and atomics.
pub(crate) static TRANSFERS: AtomicU64 = AtomicU64::new(0);

/// Number of collectives over data, barriers and syncs.
pub(crate) static COLLECTIVES: AtomicU64 = AtomicU64::new(0);

/// Number of objects that existed when the job ended.
pub(crate) static LEFT_BEHIND: AtomicU64 = AtomicU64::new(0);

/// Returns a count by its name; -1 for an unknown name. The documentation of the crate lists the
/// names.
///
/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn peerweave_fake_nvshmem_count(name: *const c_char) -> i64 {
    // SAFETY: the caller promises a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let world = peek();
    let alive = |count: &dyn Fn(&World) -> usize| world.as_deref().map_or(0, count) as i64;
    match name.to_bytes() {
        b"allocations" => alive(&|world| world.memory().allocations.len()),
        b"allocated_bytes" => alive(&|world| world.memory().allocations.values().sum()),
        b"teams" => alive(&|world| world.teams.made()),
        b"registrations" => alive(&|world| world.memory().registered.len()),
        b"symmetric_registrations" => alive(&|world| world.memory().regions.iter().skip(1).flatten().count()),
        b"modules" => alive(&|world| world.modules().len()),
        b"pending" => alive(&|world| world.pending.count() + world.sent.count()),
        b"transfers" => TRANSFERS.load(Ordering::Relaxed) as i64,
        b"collectives" => COLLECTIVES.load(Ordering::Relaxed) as i64,
        b"left_behind" => LEFT_BEHIND.load(Ordering::Relaxed) as i64,
        _ => -1,
    }
}
