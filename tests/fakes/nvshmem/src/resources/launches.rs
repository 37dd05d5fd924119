//! Functions that prepare and launch kernels: regions, queue pairs, cooperative launches.
//!
//! Kernels are not emulated. Invariant: the number of a region is never reused.

use core::ffi::{c_int, c_void};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, fail, invalid};
use crate::call::{self, exports};
use crate::job::live;

static NEXT_REGION: AtomicU64 = AtomicU64::new(1);
static REGIONS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn regions() -> MutexGuard<'static, BTreeSet<u64>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an error, because no kernel can run; ignores the other arguments.
fn no_kernel(kernel: *const c_void) -> c_int {
    call::code(|| fail(Code::LAUNCH_FAILED, format!("kernel {:#x}: kernels are not supported", kernel.addr())))
}

exports! {
    fn nvshmemx_region_start(handle: *mut u64, attributes: *const c_void) -> c_int {
        call::code(|| {
            live();
            if handle.is_null() || attributes.is_null() {
                return invalid("the handle or the attributes are null");
            }
            let region = NEXT_REGION.fetch_add(1, Ordering::Relaxed);
            regions().insert(region);
            // SAFETY: the caller guarantees that `handle` points to a handle.
            unsafe { handle.write(region) };
            Ok(())
        })
    }

    fn nvshmemx_region_stop(handle: u64) -> c_int {
        call::code(|| {
            live();
            if regions().remove(&handle) { Ok(()) } else { invalid(format!("region {handle} does not exist")) }
        })
    }

    fn nvshmemx_region_is_active(hints: u32, active: *mut c_int) -> c_int {
        let _ = hints;
        call::code(|| {
            live();
            // SAFETY: the caller guarantees that `active` points to a number.
            unsafe { active.write(c_int::from(!regions().is_empty())) };
            Ok(())
        })
    }

    fn nvshmemx_qp_create(count: c_int, handles: *mut *mut c_int) -> c_int {
        call::code(|| {
            live();
            if count < 1 || handles.is_null() {
                return invalid(format!("{count} queue pairs: expected at least 1, and an output that is not null"));
            }
            // Numbers 0 and 1 are the queue pair of the host and the default queue pair. The new
            // pairs live as long as the process, as in NVSHMEM.
            let pairs: &'static mut [c_int] = Vec::leak((2..count + 2).collect());
            // SAFETY: the caller guarantees that `handles` points to a pointer.
            unsafe { handles.write(pairs.as_mut_ptr()) };
            Ok(())
        })
    }

    fn nvshmemx_collective_launch(kernel: *const c_void) -> c_int {
        no_kernel(kernel)
    }

    fn nvshmemx_collective_launch_attr(attributes: *const c_void, kernel: *const c_void) -> c_int {
        let _ = attributes;
        no_kernel(kernel)
    }

    fn nvshmemx_collective_launch_query_gridsize(kernel: *const c_void) -> c_int {
        no_kernel(kernel)
    }
}
