//! Wraps every exported function, and writes the log: one line for each call, and one for each
//! failed call.

use core::cell::Cell;
use core::ffi::c_int;

use peerweave_fake_common::Log;

use super::faults::{Fate, ordered};
use super::settings::{VARIABLES, variable};
use crate::abi::{Code, Result};

static LOG: Log = Log::new(|| VARIABLES.get(variable::LOG));

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of the program. Calls of the driver inside that function return
/// `CUDA_ERROR_NOT_PERMITTED`.
pub(crate) fn as_host_function<T>(run: impl FnOnce() -> T) -> T {
    let before = IN_HOST_FUNCTION.replace(true);
    let value = run();
    IN_HOST_FUNCTION.set(before);
    value
}

/// Wraps the body of every exported function.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result) -> c_int {
    LOG.line(name);
    let code = match ordered(name) {
        Some(Fate::Fails(code)) => Some(code),
        Some(Fate::Late(time)) => {
            std::thread::sleep(time);
            None
        }
        None => None,
    };
    let result = match code {
        Some(code) => Err(code),
        None if IN_HOST_FUNCTION.get() && !name.starts_with("cuGetError") => Err(Code::NOT_PERMITTED),
        None => body(),
    };
    match result {
        Ok(()) => 0,
        Err(Code(code)) => {
            LOG.line(&format!("{name} = {code}"));
            code
        }
    }
}
