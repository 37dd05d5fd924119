//! Wraps every exported function: injects faults, logs the call, sets the text of its error.
//!
//! Invariant: no panic leaves an exported function; a panic ends the process with its message.

use std::time::Duration;

use peerweave_fake_common::call_line;

use super::alone::Alone;
use super::faults;
use super::kinds::{is_enqueued, is_grouped};
use super::values::Arguments;
use crate::abi::{Code, Fail, Result, version};
use crate::groups::group;
use crate::report::{errors, log};
use crate::settings;

/// Exports functions whose body returns a [`Result`] and whose C result is its code.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
            $crate::call::entry::enter(stringify!($name), &[$((stringify!($arg), &$arg)),*], move || -> $crate::abi::Result { $body })
        }
    )*};
}
pub(crate) use exports;

/// Records the failure of a call as the asynchronous error of the non-blocking communicators among
/// its arguments. Every later call on these communicators returns this error, as in NCCL.
fn keep(arguments: Arguments<'_>, code: Code) {
    let comms = arguments.iter().filter_map(|(_, argument)| argument.comm()?.peek());
    comms.filter(|comm| !comm.config.blocking).for_each(|comm| comm.set_async_error(code));
}

/// Runs the body of an exported function.
pub(crate) fn enter(function: &'static str, arguments: Arguments<'_>, body: impl FnOnce() -> Result) -> i32 {
    let settings = settings::get();
    if version::is_newer(function, settings.version) {
        eprintln!(
            "fake nccl: {function} is newer than the emulated version {}; remove the name of the function from the library's symbol table",
            settings.version
        );
        std::process::abort();
    }
    let _alone = Alone::new(function, arguments);
    let mut result = Ok(());
    if settings.any_rule {
        let (effect, injected) = faults::next(function, arguments);
        faults::set_effect(effect);
        if effect.slow_ms > 0 && !is_enqueued(function) {
            std::thread::sleep(Duration::from_millis(effect.slow_ms));
        }
        if let Some(code) = injected {
            result = Err(Fail { code, text: format!("{function}: an injected fault") });
            group::on_injected(function);
        }
    }
    let result = result.and_then(|()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| {
            eprintln!("fake nccl: {function} panicked");
            std::process::abort()
        })
    });
    let code = match result {
        Ok(()) => Code::Success,
        Err(failure) => {
            if failure.code != Code::InProgress {
                errors::set(&failure.text);
                if is_grouped(function) {
                    group::note(failure.code);
                }
                if is_enqueued(function) {
                    keep(arguments, failure.code);
                }
            }
            failure.code
        }
    };
    if settings.any_rule {
        faults::take_effect();
    }
    if settings.log.is_some() {
        log_call(function, arguments, code);
    }
    code as i32
}

/// Logs a call: `process function(name=value, ...) = code`.
fn log_call(function: &str, arguments: Arguments<'_>, code: Code) {
    let shown = arguments.iter().map(|(name, argument)| {
        let mut value = String::new();
        argument.show(&mut value);
        (*name, value)
    });
    log::line(&call_line(function, shown, &(code as i32).to_string()));
}
