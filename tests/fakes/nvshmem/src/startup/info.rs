//! Queries that are allowed before the initialization: versions, the name, thread support.

use core::ffi::{c_char, c_int};

use crate::call::exports;
use crate::settings;

fn name() -> String {
    let version = settings::get().version;
    format!("NVSHMEM v{}.{}.{}", version.0, version.1, version.2)
}

exports! {
    fn nvshmem_query_thread(provided: *mut c_int) {
        const SERIALIZED: c_int = 2;
        // SAFETY: the caller guarantees that `provided` points to a number.
        unsafe { provided.write(SERIALIZED) };
    }

    fn nvshmem_info_get_version(major: *mut c_int, minor: *mut c_int) {
        // SAFETY: the caller guarantees that the pointers are to numbers.
        unsafe {
            major.write(1);
            minor.write(3);
        }
    }

    fn nvshmem_info_get_name(text: *mut c_char) {
        let name = name();
        // SAFETY: the caller guarantees room for the longest name that NVSHMEM allows, and this
        // name is shorter.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), text, name.len());
            text.add(name.len()).write(0);
        }
    }

    fn nvshmemx_vendor_get_version_info(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) {
        let version = settings::get().version;
        // SAFETY: the caller guarantees that the pointers are to numbers.
        unsafe {
            major.write(version.0);
            minor.write(version.1);
            patch.write(version.2);
        }
    }
}
