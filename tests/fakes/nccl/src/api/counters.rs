//! Counters for tests: live objects, and calls of the library.
//!
//! The tests decide which counts indicate a leak. Invariant: a count of live objects is taken from
//! the objects themselves.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use super::resources::memory;
use crate::comm::counters::{COLLECTIVES, LEFT_BEHIND};
use crate::comm::{Comm, live, window};

/// Returns a count by its name: `communicators`, `windows`, `redops`, `registrations`,
/// `device_comms`, `allocations`, `allocated_bytes`, `graph_launches` (in graphs that exist),
/// `left_behind` (objects that were not destroyed before their communicator ended), `collectives`
/// (calls so far) and `busy` (communicators on which a call is running). Returns -1 for any other
/// name.
///
/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn peerweave_fake_nccl_count(name: *const c_char) -> i64 {
    // SAFETY: the caller promises a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let live = live();
    let sum = |count: &dyn Fn(&Comm) -> usize| live.iter().map(|comm| count(comm)).sum::<usize>() as i64;
    match name.to_bytes() {
        b"communicators" => live.len() as i64,
        b"windows" => window::count(),
        b"redops" => sum(&|comm| comm.state().redops.iter().flatten().count()),
        b"registrations" => sum(&|comm| comm.state().registered.len()),
        b"device_comms" => sum(&|comm| comm.state().device_comms.len()),
        b"allocations" => memory::count().0,
        b"allocated_bytes" => memory::count().1,
        b"graph_launches" => sum(&|comm| comm.persistent.load(Ordering::Acquire) as usize),
        b"left_behind" => LEFT_BEHIND.load(Ordering::Relaxed) as i64,
        b"busy" => sum(&|comm| usize::from(comm.is_busy())),
        b"collectives" => COLLECTIVES.load(Ordering::Relaxed) as i64,
        _ => -1,
    }
}
