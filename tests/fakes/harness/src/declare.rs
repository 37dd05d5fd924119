//! A macro by which tests declare functions of a fake library.

/// Declares functions of a library in the search path, as a C program would. The library is loaded
/// at the first call. The crate that calls the macro must depend on `libloading`.
///
/// The functions are not marked `unsafe`, to keep tests short. Nevertheless, every pointer that a
/// test passes must be valid for the call.
#[macro_export]
macro_rules! library {
    ($table:ident = $file:literal: $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        static $table: std::sync::LazyLock<libloading::Library> = std::sync::LazyLock::new(|| {
            // SAFETY: the fake library's initialisers do nothing.
            unsafe { libloading::Library::new($file) }.expect("the fake library is in the search path")
        });
        $(
            pub fn $name($($arg: $type),*) $(-> $result)? {
                type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                let name = stringify!($name).as_bytes();
                // SAFETY: the caller of the macro declares the function's signature.
                let function = unsafe { $table.get::<Function>(name) }.expect(stringify!($name));
                // SAFETY: the test passes arguments that are valid for the function.
                unsafe { function($($arg),*) }
            }
        )*
    };
}
