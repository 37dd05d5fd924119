//! Finds functions by name. Invariant: `cuGetProcAddress` never finds a name that a test has
//! removed.

use core::ffi::{c_char, c_int};

use super::{devices, memory, streams};
use crate::abi::{Code, In, Out, Result};
use crate::calls::settings::{VARIABLES, variable};
use crate::calls::{Symbol, exports};
use crate::machine::features::version as driver_version;

const ALL: &[&[Symbol]] = &[
    SYMBOLS,
    devices::context::SYMBOLS,
    devices::device::SYMBOLS,
    devices::library::SYMBOLS,
    devices::peer::SYMBOLS,
    memory::copy::SYMBOLS,
    memory::host::SYMBOLS,
    memory::ipc::SYMBOLS,
    memory::managed::SYMBOLS,
    memory::multicast::SYMBOLS,
    memory::plain::SYMBOLS,
    memory::pointer::SYMBOLS,
    memory::pool::SYMBOLS,
    memory::sharing::SYMBOLS,
    memory::virtual_memory::SYMBOLS,
    streams::capture::SYMBOLS,
    streams::event::SYMBOLS,
    streams::graph::SYMBOLS,
    streams::launch::SYMBOLS,
    streams::module::SYMBOLS,
    streams::refused::SYMBOLS,
    streams::stream::SYMBOLS,
    streams::user_object::SYMBOLS,
    streams::value::SYMBOLS,
];

/// `CUdriverProcAddressQueryResult`.
const FOUND: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;

fn is_missing(name: &str) -> bool {
    VARIABLES.get(variable::MISSING).is_some_and(|names| names.split(',').any(|missing| missing.trim() == name))
}

/// Returns the newest form of a function for a program of `version`: `cuMemAlloc` is found as
/// `cuMemAlloc_v2`.
fn find(name: &str, version: c_int) -> core::result::Result<&'static Symbol, c_int> {
    let version = version.min(driver_version());
    let form = |symbol: &Symbol| match symbol.name.strip_prefix(name) {
        Some("") => Some(0),
        Some(tail) => tail.strip_prefix("_v").and_then(|number| number.parse::<u32>().ok()),
        None => None,
    };
    let forms = || ALL.iter().copied().flatten().filter(|symbol| form(symbol).is_some() && !is_missing(symbol.name));
    let newest = forms().filter(|symbol| symbol.since <= version).max_by_key(|symbol| (symbol.since, form(symbol)));
    newest.ok_or_else(|| if forms().next().is_some() { VERSION_NOT_SUFFICIENT } else { SYMBOL_NOT_FOUND })
}

fn proc_address(name: &In<c_char>, function: &Out<usize>, version: c_int, flags: u64, status: &Out<c_int>) -> Result {
    function.required()?;
    // The flags are LEGACY_STREAM and PER_THREAD_DEFAULT_STREAM. The per-thread variants of
    // functions are not implemented.
    if flags & !3 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    match find(&name.text()?, version) {
        Ok(symbol) => {
            status.set_if_wanted(FOUND);
            function.set((symbol.address)() as usize)
        }
        Err(why) => {
            status.set_if_wanted(why);
            function.set(0)?;
            Err(Code::NOT_FOUND)
        }
    }
}

exports! {
    11030 fn cuGetProcAddress(name: In<c_char>, function: Out<usize>, version: c_int, flags: u64) {
        proc_address(&name, &function, version, flags, &Out::nowhere())
    }

    12000 fn cuGetProcAddress_v2(name: In<c_char>, function: Out<usize>, version: c_int, flags: u64, status: Out<c_int>) {
        proc_address(&name, &function, version, flags, &status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_name_resolves_to_the_newest_version() {
        assert_eq!(find("cuMemAlloc", 13000).map(|symbol| symbol.name), Ok("cuMemAlloc_v2"));
        assert_eq!(find("cuCtxSynchronize", 12000).map(|symbol| symbol.name), Ok("cuCtxSynchronize"));
        assert_eq!(find("cuCtxSynchronize", 13000).map(|symbol| symbol.name), Ok("cuCtxSynchronize_v2"));
        assert_eq!(find("cuGetProcAddress", 12000).map(|symbol| symbol.name), Ok("cuGetProcAddress_v2"));
    }

    #[test]
    fn lookup_for_an_old_cuda_version_omits_newer_functions() {
        assert_eq!(find("cuMulticastCreate", 12000).map(|symbol| symbol.name), Err(VERSION_NOT_SUFFICIENT));
        assert_eq!(find("cuNothing", 13000).map(|symbol| symbol.name), Err(SYMBOL_NOT_FOUND));
    }
}
