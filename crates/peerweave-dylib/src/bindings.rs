//! Typed functions of a loaded library, each resolved at its first call.
//!
//! Invariant: a [`Symbol`] changes only once, from unknown to an address or from unknown to absent.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{Library, MissingSymbol};

/// The name of a function in a vendor's library, and the version that introduced the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SymbolInfo {
    /// Name of the function in the library.
    pub name: &'static str,
    /// Version of the library that introduced the function.
    pub since: &'static str,
}

impl SymbolInfo {
    #[doc(hidden)]
    pub const fn new(name: &'static str, since: &'static str) -> Self {
        Self { name, since }
    }
}

/// The address of a function. The address is looked up at the first call of the function.
/// [`bindings!`](crate::bindings) creates values of this type.
#[derive(Debug)]
pub struct Symbol(AtomicPtr<c_void>);

/// The value of a [`Symbol`] whose function the library lacks. No function has the address 1.
const ABSENT: *mut c_void = ptr::without_provenance_mut(1);

impl Symbol {
    /// Returns a symbol that has not been resolved yet.
    #[doc(hidden)]
    pub const fn unknown() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the address of the function `name` in `library`. The first successful call looks up
    /// the address, and later calls return the same address.
    ///
    /// # Errors
    /// [`MissingSymbol`] if the library lacks the function. All later calls then return this error,
    /// too.
    #[doc(hidden)]
    #[inline]
    pub fn get(&self, library: &Library, name: &'static CStr, since: &'static str) -> Result<NonNull<c_void>, MissingSymbol> {
        // Relaxed is enough, because a reader of the address needs no other data of the writer. The
        // address is inside a mapping that is older than `library` and is never unmapped.
        let address = self.0.load(Ordering::Relaxed);
        if address > ABSENT {
            // SAFETY: the address is greater than ABSENT, so it is not null.
            return Ok(unsafe { NonNull::new_unchecked(address) });
        }
        self.look_up(library, name, since)
    }

    #[cold]
    fn look_up(&self, library: &Library, name: &'static CStr, since: &'static str) -> Result<NonNull<c_void>, MissingSymbol> {
        let known_absent = self.0.load(Ordering::Relaxed) == ABSENT;
        // Two threads may both look up the function. Both find the same address.
        match library.symbol(name).filter(|_| !known_absent) {
            Some(address) => {
                self.0.store(address.as_ptr(), Ordering::Relaxed);
                Ok(address)
            }
            None => {
                self.0.store(ABSENT, Ordering::Relaxed);
                let name = name.to_str().expect("function names are ASCII, because they are identifiers");
                Err(MissingSymbol { product: library.product(), name, since, path: library.shared_path() })
            }
        }
    }
}

/// Declares a struct whose methods call the functions of a library. Each function is resolved at
/// its first call.
///
/// In the declaration, write before each function the version that introduced the function, as a
/// string literal. The struct has these functions and constants:
/// - `new(Library)` creates the struct without resolving a function.
/// - `unsafe fn name(&self, ..) -> Result<R, MissingSymbol>` calls the declared function `name`.
/// - `SYMBOLS` lists all declared functions, each with its version.
/// - `has(name)` returns whether the library has the function.
/// - `missing()` returns the declared functions that the library lacks.
/// - `library()` returns the library.
///
/// Calling a resolved function costs one relaxed load more than a call through a function pointer.
/// The crate's documentation has an example.
#[macro_export]
macro_rules! bindings {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Api:ident {
            $(
                $(#[$function_attribute:meta])*
                $since:literal fn $name:ident ( $( $argument:ident : $type:ty ),* $(,)? ) $( -> $return:ty )?;
            )*
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the fields have the names of the vendor's functions")]
        #[derive(Debug)]
        $visibility struct $Api {
            library: $crate::Library,
            $( $name: $crate::Symbol, )*
        }

        #[allow(dead_code, non_snake_case, clippy::too_many_arguments, reason = "the vendor chose the names and parameters, and a crate need not call every function")]
        impl $Api {
            /// All declared functions, each with the version that introduced it.
            $visibility const SYMBOLS: &'static [$crate::SymbolInfo] =
                &[ $( $crate::SymbolInfo::new(stringify!($name), $since), )* ];

            /// Creates the struct without resolving a function.
            $visibility const fn new(library: $crate::Library) -> Self {
                Self { library, $( $name: $crate::Symbol::unknown(), )* }
            }

            /// Returns the library that has the functions.
            $visibility const fn library(&self) -> &$crate::Library {
                &self.library
            }

            /// Returns whether the library has a function of this name. Returns `false` for names
            /// that are not declared here.
            $visibility fn has(&self, name: &str) -> bool {
                $( if name == stringify!($name) { return self.$name.get(&self.library, $crate::bindings!(@c $name), $since).is_ok(); } )*
                false
            }

            /// Returns the declared functions that the library lacks.
            $visibility fn missing(&self) -> ::std::vec::Vec<$crate::SymbolInfo> {
                Self::SYMBOLS.iter().copied().filter(|symbol| !self.has(symbol.name)).collect()
            }

            $(
                $(#[$function_attribute])*
                ///
                /// # Errors
                /// `MissingSymbol` if the library lacks the function.
                ///
                /// # Safety
                /// The caller must meet the requirements in the vendor's documentation.
                #[inline]
                $visibility unsafe fn $name(&self $(, $argument: $type)*)
                    -> ::core::result::Result<$crate::bindings!(@return $($return)?), $crate::MissingSymbol>
                {
                    let address = self.$name.get(&self.library, $crate::bindings!(@c $name), $since)?;
                    // SAFETY: the address is that of the function of this name, and the declaration
                    // states its signature.
                    let function = unsafe {
                        ::core::mem::transmute::<
                            ::core::ptr::NonNull<::core::ffi::c_void>,
                            unsafe extern "C" fn($($type),*) $( -> $return )?,
                        >(address)
                    };
                    // SAFETY: the caller meets the requirements of the function.
                    ::core::result::Result::Ok(unsafe { function($($argument),*) })
                }
            )*
        }
    };
    (@return) => { () };
    (@return $return:ty) => { $return };
    (@c $name:ident) => {
        const {
            match ::core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::{c_double, c_int};

    use crate::{Search, Visibility};

    crate::bindings! {
        /// Some functions of libm, and a function that does not exist.
        struct Math {
            /// Returns the cosine of `radians`.
            "C89" fn cos(radians: c_double) -> c_double;
            /// Returns `value` times two to the power `exponent`.
            "C99" fn scalbn(value: c_double, exponent: c_int) -> c_double;
            /// A function that no library has.
            "C42" fn no_such_function(value: c_double);
        }
    }

    fn math() -> Math {
        // SAFETY: a library of this name is the system's math library.
        const SEARCH: Search = unsafe { Search::new("libm", "TEST_LIBM_PATH", &["libm.so.6"]) };
        Math::new(SEARCH.open(Visibility::Local).expect("every Linux has libm"))
    }

    #[test]
    fn bound_functions_return_correct_results() {
        let math = math();
        // SAFETY: the signatures are those of the C standard.
        let results = unsafe { (math.cos(0.0), math.scalbn(1.5, 4), math.cos(0.0)) };
        assert_eq!(results, (Ok(1.0), Ok(24.0), Ok(1.0)));
    }

    #[test]
    fn every_call_of_a_function_that_the_library_lacks_fails() {
        let math = math();
        for _ in 0..2 {
            // SAFETY: nothing is called.
            let error = unsafe { math.no_such_function(0.0) }.expect_err("the call fails, because libm lacks no_such_function");
            assert_eq!((error.product, error.name, error.since), ("libm", "no_such_function", "C42"));
            assert_eq!(&*error.path, math.library().path());
        }
        assert!(math.has("cos") && !math.has("no_such_function") && !math.has("not bound"));
    }

    #[test]
    fn declared_functions_that_the_library_lacks_are_listed() {
        let missing: Vec<_> = math().missing().iter().map(|symbol| (symbol.name, symbol.since)).collect();
        assert_eq!(missing, [("no_such_function", "C42")]);
        assert_eq!(Math::SYMBOLS.len(), 3);
    }
}
