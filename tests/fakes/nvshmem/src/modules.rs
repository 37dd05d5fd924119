//! Modules of kernels that call NVSHMEM, regions, queue pairs, cooperative launches.
//!
//! Kernels are not emulated. Invariant: a module is finalized at most as often as it was
//! initialized.

use core::ffi::{c_int, c_void};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::{Code, Result, fail, invalid};
use crate::world::World;
use crate::{call, driver, settings, world};

/// The variable in which a module stores the version of NVSHMEM with which it was linked.
const VERSION: &CStr = c"nvshmemi_device_lib_version_d";

fn tell(module: *mut c_void, find: fn(usize, &CStr) -> Result<u64>) -> c_int {
    call::code(|| {
        let world = world::live();
        if module.is_null() {
            return invalid("no module");
        }
        if !settings::get().any_module {
            find(module.addr(), VERSION).or_else(|failure| fail(Code::INTERNAL, failure.text))?;
        }
        modules(&world).push(module.addr());
        Ok(())
    })
}

fn tell_off(module: *mut c_void) -> c_int {
    call::code(|| {
        let world = world::live();
        let mut modules = modules(&world);
        match modules.iter().position(|known| *known == module.addr()) {
            Some(index) => {
                modules.swap_remove(index);
                Ok(())
            }
            None => invalid(format!("module {:#x} was not initialized", module.addr())),
        }
    })
}

fn modules(world: &World) -> std::sync::MutexGuard<'_, Vec<usize>> {
    world.modules.lock().unwrap_or_else(PoisonError::into_inner)
}

static NEXT_REGION: AtomicU64 = AtomicU64::new(1);
static REGIONS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn regions() -> std::sync::MutexGuard<'static, BTreeSet<u64>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

exports! {
    fn nvshmemx_cumodule_init(module: *mut c_void) -> c_int {
        tell(module, |module, name| Ok(driver::global_of_module(module, name)?))
    }

    fn nvshmemx_cumodule_finalize(module: *mut c_void) -> c_int {
        tell_off(module)
    }

    fn nvshmemx_culibrary_init(library: *mut c_void) -> c_int {
        tell(library, |library, name| Ok(driver::global_of_library(library, name)?))
    }

    fn nvshmemx_culibrary_finalize(library: *mut c_void) -> c_int {
        tell_off(library)
    }

    fn nvshmemx_region_start(handle: *mut u64, attributes: *const c_void) -> c_int {
        call::code(|| {
            world::live();
            if handle.is_null() || attributes.is_null() {
                return invalid("a null pointer");
            }
            let region = NEXT_REGION.fetch_add(1, Ordering::Relaxed);
            regions().insert(region);
            // SAFETY: guaranteed by the caller: it points to a handle.
            unsafe { handle.write(region) };
            Ok(())
        })
    }

    fn nvshmemx_region_stop(handle: u64) -> c_int {
        call::code(|| {
            world::live();
            if regions().remove(&handle) { Ok(()) } else { invalid(format!("region {handle} does not exist")) }
        })
    }

    fn nvshmemx_region_is_active(hints: u32, active: *mut c_int) -> c_int {
        let _ = hints;
        call::code(|| {
            world::live();
            // SAFETY: guaranteed by the caller: it points to a number.
            unsafe { active.write(c_int::from(!regions().is_empty())) };
            Ok(())
        })
    }

    fn nvshmemx_qp_create(count: c_int, handles: *mut *mut c_int) -> c_int {
        call::code(|| {
            world::live();
            if count < 1 || handles.is_null() {
                return invalid(format!("invalid request for {count} queue pairs"));
            }
            // The first are the host's and the default one. They live as long as the process, as
            // NVSHMEM's do.
            let pairs: &'static mut [c_int] = Vec::leak((2..count + 2).collect());
            // SAFETY: guaranteed by the caller: it points to a pointer.
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

/// Returns an error, because no kernel can run; ignores the other arguments.
fn no_kernel(kernel: *const c_void) -> c_int {
    call::code(|| fail(Code::LAUNCH_FAILED, format!("kernel {:#x}: kernels are not supported", kernel.addr())))
}
