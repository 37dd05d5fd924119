//! Declaration of shared memory of a fixed size.

/// Declares an array in the shared memory of the block, and returns a view of the array:
/// `shared_array!(TILE: [f32; 256])`.
///
/// The view is a [`SharedSlice`](crate::api::SharedSlice). All threads of a block that execute the
/// same declaration get the same memory. The initial content of the memory is unspecified. The
/// symbol in the PTX consists of the crate, the name, and the number of earlier declarations of
/// that name in the crate. So the symbol does not change if the declaration is moved to another
/// line.
///
/// ```
/// use peerweave_device::prelude::*;
///
/// let tile = peerweave_device::shared_array!(TILE: [f32; 256]);
/// tile.write(3, 1.5);
/// gpu::sync_threads();
/// assert_eq!((tile.read(3), tile.len()), (1.5, 256));
/// ```
#[macro_export]
macro_rules! shared_array {
    ($name:ident: [$t:ty; $n:expr]) => {
        $crate::name_shared_array! { $crate, $name, [$t; $n] }
    };
}

/// Implements [`shared_array`]. The argument `$symbol` comes from the procedural macro
/// `name_shared_array`, which gives each declaration a number.
#[doc(hidden)]
#[macro_export]
macro_rules! shared_array_named {
    ($symbol:literal: [$t:ty; $n:expr]) => {{
        #[cfg(target_arch = "nvptx64")]
        mod declaration {
            #[allow(unused_imports)]
            use super::*;
            ::core::arch::global_asm!(
                concat!(".shared .align 128 .b8 ", $symbol, "[{}];"),
                const ::core::mem::size_of::<[$t; $n]>(),
            );
        }
        #[cfg(target_arch = "nvptx64")]
        let pointer = {
            let address: u64;
            // SAFETY: converts the address of a symbol to a generic address; touches no memory.
            unsafe {
                ::core::arch::asm!(
                    concat!("{{ .reg .b64 a; mov.u64 a, ", $symbol, "; cvta.shared.u64 {}, a; }}"),
                    out(reg64) address,
                    options(pure, nomem, nostack),
                );
            }
            address as *mut $t
        };
        #[cfg(not(target_arch = "nvptx64"))]
        let pointer = {
            // The address of this static identifies the declaration. The address of a constant
            // would not be unique.
            static SITE: ::core::sync::atomic::AtomicU8 = ::core::sync::atomic::AtomicU8::new(0);
            let (bytes, align) = (::core::mem::size_of::<[$t; $n]>(), ::core::mem::align_of::<$t>());
            $crate::gpu::executor().fixed_shared((&raw const SITE).addr(), bytes, align).cast::<$t>()
        };
        const { assert!(::core::mem::align_of::<$t>() <= 128, "the alignment of the element type exceeds 128 bytes") };
        // SAFETY: the pointer is to shared memory of this block with the size and alignment of the
        // array. Only views from this declaration access that memory.
        unsafe { $crate::api::SharedSlice::<$t>::from_raw(pointer, $n) }
    }};
}
