//! Defines exported functions.

use core::ffi::c_int;

/// An exported function of the driver.
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    /// The version of the driver that introduced the function.
    pub(crate) since: c_int,
    pub(crate) address: fn() -> *const (),
}

/// Defines exported functions.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
                $crate::calls::call(stringify!($name), move || -> $crate::abi::Result { $body })
            }
        )*
    };
}

/// Defines exported functions of the driver, and the list of them that `cuGetProcAddress` reads.
///
/// The number before a function is the version of the driver that introduced it.
macro_rules! exports {
    ($($(#[$doc:meta])* $since:literal fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $crate::calls::functions! {
            $($(#[$doc])* fn $name($($arg: $type),*) $body)*
        }
        /// The exports of this module.
        pub(crate) const SYMBOLS: &[$crate::calls::Symbol] = &[
            $($crate::calls::Symbol { name: stringify!($name), since: $since, address: || $name as *const () },)*
        ];
    };
}

pub(crate) use {exports, functions};
