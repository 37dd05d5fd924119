//! Modules of kernels that call NVSHMEM.
//!
//! Kernels are not emulated. Invariant: a module is finalized at most as often as it was
//! initialized.

use core::ffi::{c_int, c_void};
use std::ffi::CStr;

use peerweave_fake_common::driver;

use crate::abi::{Code, Result, fail, invalid};
use crate::call::{self, exports};
use crate::job::live;
use crate::settings;

/// The variable in which a module stores the version of NVSHMEM with which it was linked.
const VERSION: &CStr = c"nvshmemi_device_lib_version_d";

fn initialize(module: *mut c_void, find: fn(usize, &CStr) -> Result<u64>) -> c_int {
    call::code(|| {
        let world = live();
        if module.is_null() {
            return invalid("the module is null");
        }
        if !settings::get().any_module {
            find(module.addr(), VERSION).or_else(|failure| fail(Code::INTERNAL, failure.text))?;
        }
        world.modules().push(module.addr());
        Ok(())
    })
}

fn finalize(module: *mut c_void) -> c_int {
    call::code(|| {
        let world = live();
        let mut modules = world.modules();
        match modules.iter().position(|known| *known == module.addr()) {
            Some(index) => {
                modules.swap_remove(index);
                Ok(())
            }
            None => invalid(format!("module {:#x} was not initialized", module.addr())),
        }
    })
}

exports! {
    fn nvshmemx_cumodule_init(module: *mut c_void) -> c_int {
        initialize(module, |module, name| Ok(driver::global_of_module(module, name)?))
    }

    fn nvshmemx_cumodule_finalize(module: *mut c_void) -> c_int {
        finalize(module)
    }

    fn nvshmemx_culibrary_init(library: *mut c_void) -> c_int {
        initialize(library, |library, name| Ok(driver::global_of_library(library, name)?))
    }

    fn nvshmemx_culibrary_finalize(library: *mut c_void) -> c_int {
        finalize(library)
    }
}
