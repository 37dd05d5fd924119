//! Versions of NVSHMEM, and the functions of each.
//!
//! Module `settings` has the emulated version. Invariant: `since.txt` contains every function that
//! this library exports and that 3.3.24 lacks.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::LazyLock;

use peerweave_fake_common::since;

/// A version of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) i32, pub(crate) i32, pub(crate) i32);

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers: Vec<i32> = text.split('.').map(|number| number.parse().map_err(|_| ())).collect::<Result<_, _>>()?;
        match numbers[..] {
            [major, minor, patch] => Ok(Self(major, minor, patch)),
            _ => Err(()),
        }
    }
}

/// The version whose interface this library implements.
pub(crate) const NEWEST: Version = Version(3, 8, 0);

/// First version that reads layout 2 of the structs of initialization.
pub(crate) const INIT_LAYOUT_2: Version = Version(3, 6, 5);

static SINCE: LazyLock<HashMap<&'static str, Version>> = LazyLock::new(|| since(include_str!("../../since.txt")));

/// Returns whether this library exports the function.
pub(crate) fn known(function: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(function) else { return false };
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is one of this library, and the pointer is to room for the answer.
    if unsafe { libc::dladdr(known as *const core::ffi::c_void, info.as_mut_ptr()) } == 0 {
        return false;
    }
    // SAFETY: the call succeeded; its path is that of this library, which is open.
    let library = unsafe { libc::dlopen(info.assume_init().dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    // SAFETY: the library is open and the name a C string.
    function.starts_with("nvshmem") && !library.is_null() && !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
}

/// Returns whether a function was introduced after a version.
#[inline]
pub(crate) fn is_newer(function: &str, version: Version) -> bool {
    version < NEWEST && SINCE.get(function).is_some_and(|since| *since > version)
}
