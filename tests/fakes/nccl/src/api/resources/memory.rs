//! `ncclMemAlloc` and registered buffers.
//!
//! Windows are in module `windows`. Invariant: memory that is freed or deregistered was allocated
//! or registered before, with the same start or handle.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Out, driver, invalid, not_null};
use crate::call::exports;
use crate::comm::CommPtr;

static ALLOCATIONS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

fn allocations() -> MutexGuard<'static, HashMap<usize, usize>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of allocations, and their bytes.
pub(crate) fn count() -> (i64, i64) {
    let all = allocations();
    (all.len() as i64, all.values().sum::<usize>() as i64)
}

/// Granularity of allocations. NCCL rounds up to the granularity of physical memory; this value
/// suffices for all alignments here.
const GRANULARITY: usize = 2 << 20;

exports! {
    /// Allocates memory of the current device, aligned for windows.
    fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        if ptr.is_null() || size == 0 {
            return invalid("ncclMemAlloc: ptr is null or size is 0");
        }
        let bytes = size.next_multiple_of(GRANULARITY);
        let pointer = driver::allocate(bytes)?;
        allocations().insert(pointer, bytes);
        Out(ptr).set(std::ptr::with_exposed_provenance_mut(pointer));
        Ok(())
    }

    /// Frees memory.
    fn ncclMemFree(ptr: *mut c_void) {
        if ptr.is_null() {
            return Ok(());
        }
        if allocations().remove(&ptr.addr()).is_none() {
            return invalid("ncclMemFree: the pointer was not returned by ncclMemAlloc");
        }
        Ok(driver::free(ptr.addr())?)
    }

    /// Registers a buffer of a communicator.
    fn ncclCommRegister(comm: CommPtr, buff: *mut c_void, size: usize, handle: *mut *mut c_void) {
        let comm = comm.ready()?;
        not_null(buff, "buff")?;
        not_null(handle, "handle")?;
        if size == 0 {
            return invalid("ncclCommRegister: size is 0, expected at least 1");
        }
        driver::as_allocations_do()?;
        let token = Box::into_raw(Box::new(buff.addr()));
        comm.state().registered.insert(token.expose_provenance(), size);
        Out(handle).set(token.cast());
        Ok(())
    }

    /// Deregisters a buffer.
    fn ncclCommDeregister(comm: CommPtr, handle: *mut c_void) {
        let comm = comm.ready()?;
        if comm.state().registered.remove(&handle.addr()).is_none() {
            return invalid("Deregister: handle is not valid");
        }
        // SAFETY: the handle was made by `ncclCommRegister` and is forgotten only once.
        drop(unsafe { Box::from_raw(handle.cast::<usize>()) });
        Ok(())
    }
}
