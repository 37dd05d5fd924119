//! Wraps every exported function: applies the rules, runs the body, logs the call.
//!
//! Invariant: no panic leaves an exported function; a panic ends the process with its message.

use std::sync::atomic::{AtomicBool, Ordering};

use super::values::{Arguments, Outcome};
use super::{faults, log, running};
use crate::abi::{Code, version};
use crate::settings;

/// Defines one exported function. The name can be composed of parts.
macro_rules! export {
    ([$($name:tt)*] ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        const _: () = {
            #[unsafe(export_name = concat!($($name)*))]
            extern "C" fn exported($($arg: $type),*) $(-> $result)? {
                $crate::call::entry::enter(concat!($($name)*), &[$((stringify!($arg), &$arg)),*], move || $body)
            }
        };
    };
}
pub(crate) use export;

/// Defines exported functions.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        $crate::call::export! { [stringify!($name)] ($($arg: $type),*) $(-> $result)? $body }
    )*};
}
pub(crate) use exports;

/// Whether an earlier request for an id has failed.
static GAVE_UP: AtomicBool = AtomicBool::new(false);

/// Runs the body of an exported function.
pub(crate) fn enter<R: Outcome>(name: &'static str, arguments: Arguments<'_>, body: impl FnOnce() -> R) -> R {
    let settings = settings::get();
    if version::is_newer(name, settings.version) {
        log::undefined(&format!(
            "{name} is newer than the emulated version {:?}; remove the name of the function from the library's symbol table",
            settings.version
        ));
    }
    let outside = running::set_function(name);
    let asks_for_an_id = name == "nvshmemx_get_uniqueid";
    if (asks_for_an_id || name == "nvshmemx_hostlib_init_attr") && GAVE_UP.load(Ordering::Relaxed) {
        log::undefined(&format!(
            "{name}: the plug-in was released when a request for an id failed, and NVSHMEM releases it again (3.4.5)"
        ));
    }
    let mut injected = None;
    if settings.any_rule && name != "nvshmemx_hostlib_init_attr" {
        injected = rules(name, running::own_pe());
    }
    let result = match injected {
        Some(code) => {
            GAVE_UP.fetch_or(asks_for_an_id, Ordering::Relaxed);
            R::injected(code)
        }
        None => std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
            .unwrap_or_else(|_| log::undefined(&format!("{name} panicked"))),
    };
    if settings.any_rule {
        // An effect that the body has not taken is applied here: the call has done its work, but
        // may be delayed or never return.
        running::take_effect().suffer();
    }
    running::set_function(outside);
    if settings.log.is_some() {
        log::call(name, arguments, &result.text());
    }
    result
}

/// Applies the rules to a call of a PE. Returns the code of the call if the call must fail.
pub(crate) fn rules(name: &str, pe: Option<i32>) -> Option<Code> {
    let (effect, injected) = faults::next(name, pe);
    running::set_effect(effect);
    if let Some(code) = injected {
        log::complain(&format!("{name}: an injected fault, code {}", code.0));
    }
    injected
}
