//! Wraps every exported function: injects faults, logs the call, sets the text of its error.
//!
//! Invariant: no panic leaves an exported function; a panic ends the process with its message.

use core::ffi::c_int;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use crate::abi::{Code, Result};
use crate::{faults, log, settings, version, world};

/// Defines one exported function. Its name can be composed of parts.
macro_rules! export {
    ([$($name:tt)*] ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        const _: () = {
            #[unsafe(export_name = concat!($($name)*))]
            extern "C" fn exported($($arg: $type),*) $(-> $result)? {
                $crate::call::enter(concat!($($name)*), &[$((stringify!($arg), &$arg)),*], move || $body)
            }
        };
    };
}

/// Defines exported functions.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        export! { [stringify!($name)] ($($arg: $type),*) $(-> $result)? $body }
    )*};
}

/// The form of an argument in the log.
pub(crate) trait Argument {
    /// Adds the argument to a line of the log.
    fn show(&self, line: &mut String);
}

/// The result of an exported function.
pub(crate) trait Outcome {
    /// Returns an injected failure.
    fn injected(code: Code) -> Self;
    /// Returns its form in the log.
    fn text(&self) -> String;
}

macro_rules! values {
    ($($type:ty = $zero:expr),*) => {$(
        impl Argument for $type {
            fn show(&self, line: &mut String) {
                let _ = write!(line, "{self}");
            }
        }
        impl Outcome for $type {
            fn injected(_code: Code) -> Self {
                $zero
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
values!(i8 = 0, u8 = 0, i16 = 0, u16 = 0, u32 = 0, i64 = 0, u64 = 0, isize = 0, usize = 0, f32 = 0.0, f64 = 0.0);
values!(f16 = f16::ZERO, bf16 = bf16::ZERO);

impl Argument for c_int {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{self}");
    }
}

impl Outcome for c_int {
    fn injected(code: Code) -> Self {
        code.0
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Outcome for () {
    fn injected(_code: Code) {}
    fn text(&self) -> String {
        "()".to_owned()
    }
}

impl<T> Argument for *const T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Argument for *mut T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Outcome for *mut T {
    fn injected(_code: Code) -> Self {
        std::ptr::null_mut()
    }
    fn text(&self) -> String {
        format!("{:#x}", self.addr())
    }
}

/// A function's arguments with their names.
pub(crate) type Arguments<'a> = &'a [(&'static str, &'a dyn Argument)];

thread_local! {
    static EFFECT: Cell<faults::Effect> = const { Cell::new(faults::Effect::NONE) };
    /// The number of the PE that an initialization will create.
    static WOULD_BE: Cell<Option<i32>> = const { Cell::new(None) };
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
}

/// Whether creating an id failed before.
static GAVE_UP: AtomicBool = AtomicBool::new(false);

/// Returns the injected effect on the operation of the running call.
pub(crate) fn take_effect() -> faults::Effect {
    EFFECT.replace(faults::Effect::NONE)
}

/// Returns the exported function that this thread runs.
pub(crate) fn function() -> &'static str {
    FUNCTION.get()
}

/// Applies the rules of initialization for a PE that is not initialized yet.
pub(crate) fn would_be(pe: i32) {
    WOULD_BE.set(Some(pe));
}

/// Runs the body of an exported function.
pub(crate) fn enter<R: Outcome>(name: &'static str, arguments: Arguments<'_>, body: impl FnOnce() -> R) -> R {
    version::check(name);
    let settings = settings::get();
    let outside = FUNCTION.replace(name);
    let asks_for_an_id = name == "nvshmemx_get_uniqueid";
    if (asks_for_an_id || name == "nvshmemx_hostlib_init_attr") && GAVE_UP.load(Ordering::Relaxed) {
        log::undefined(&format!(
            "{name}: the plug-in was released when a request for an id failed, and is released again (3.4.5)"
        ));
    }
    let mut injected = None;
    if settings.any_rule && name != "nvshmemx_hostlib_init_attr" {
        injected = rules(name);
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
        // An effect that no stream has taken applies here: the call does its work, but may not
        // return.
        take_effect().suffer();
    }
    FUNCTION.set(outside);
    if settings.log.is_some() {
        log::call(name, arguments, &result.text());
    }
    result
}

/// Applies the rules to a call; returns its code if it must fail.
pub(crate) fn rules(name: &str) -> Option<Code> {
    let pe = WOULD_BE.take().or_else(world::own_pe);
    let (effect, injected) = faults::next(name, pe);
    EFFECT.set(effect);
    if let Some(code) = injected {
        log::complain(&format!("{name}: an injected fault, code {}", code.0));
    }
    injected
}

/// Returns the code of a body that can fail; prints the text of a failure, as NVSHMEM does.
pub(crate) fn code(body: impl FnOnce() -> Result) -> c_int {
    match body() {
        Ok(()) => 0,
        Err(failure) => {
            log::complain(&format!("{}: {} (code {})", function(), failure.text, failure.code.0));
            failure.code.0
        }
    }
}

/// Handles a failure of a function without a code: prints it, and ends the process.
pub(crate) fn or_abort<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|failure| log::undefined(&format!("{}: {} (code {})", function(), failure.text, failure.code.0)))
}
