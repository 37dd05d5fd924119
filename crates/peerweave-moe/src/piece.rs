//! Accesses to consecutive lines of 16 bytes on the host. The lines are read or written together:
//! the thread does not let other threads run between the lines.
//!
//! Other PEs may access the memory at the same time. So each half of a line is read and written by
//! one relaxed atomic access, or by an instruction that has the same effects.

use peerweave_device::gpu::Vector;
use peerweave_device::lines::LINE_BYTES;

const LINE: u64 = LINE_BYTES as u64;

#[inline(always)]
fn pointer(address: u64) -> *mut Vector {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// Reads consecutive lines.
///
/// # Safety
/// The address is aligned to 16 bytes. The memory at the address contains as many lines as the
/// slice, and this thread can access these lines. Other threads access these lines only by relaxed
/// atomic accesses of their halves.
#[inline(always)]
pub(crate) unsafe fn load(from: u64, into: &mut [Vector]) {
    for (index, line) in into.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the line.
        *line = unsafe { access::load(pointer(from + LINE * index as u64)) };
    }
}

/// Writes consecutive lines.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn store(to: u64, lines: &[Vector]) {
    for (index, line) in lines.iter().enumerate() {
        // SAFETY: the caller guarantees the line.
        unsafe { access::store(pointer(to + LINE * index as u64), *line) };
    }
}

/// Like [`store`], but the writes bypass the caches if the processor supports such writes. A write
/// that bypasses the caches does not first read the memory into a cache. [`end_streaming`] orders
/// these writes before later writes.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn store_streaming(to: u64, lines: &[Vector]) {
    for (index, line) in lines.iter().enumerate() {
        // SAFETY: the caller guarantees the line.
        unsafe { access::store_streaming(pointer(to + LINE * index as u64), *line) };
    }
}

/// Ensures that this thread's earlier writes by [`store_streaming`] become visible before its later
/// writes.
#[inline(always)]
pub(crate) fn end_streaming() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has the instruction.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// Prefetches consecutive lines that will be read soon.
#[inline(always)]
pub(crate) fn prefetch(from: u64, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for at in (from..from + LINE * lines as u64).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch affects only the caches, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::with_exposed_provenance(at as usize)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (from, lines);
}

/// Calls the closure `with` and returns its result. On a processor with AVX2, the closure is
/// compiled with AVX2 instructions.
#[inline(always)]
pub(crate) fn vectorised<R>(with: impl FnOnce() -> R) -> R {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        #[target_feature(enable = "avx2")]
        fn by_avx2<R>(with: impl FnOnce() -> R) -> R {
            with()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions.
            return unsafe { by_avx2(with) };
        }
    }
    with()
}

/// Accesses of one line through a 16-byte vector register, which every x86-64 processor has.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod access {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;
    use peerweave_device::gpu::Vector;

    /// Reads the 16 bytes at `from`.
    ///
    /// # Safety
    /// As for [`super::load`], for 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn load(from: *const Vector) -> Vector {
        let value: __m128i;
        // SAFETY: reads exactly the line that the caller guarantees. Other threads cannot
        // distinguish the access from relaxed loads of two halves. The value is two plain numbers.
        unsafe {
            asm!("movdqa {value}, xmmword ptr [{from}]", from = in(reg) from, value = out(xmm_reg) value,
                options(readonly, nostack, preserves_flags));
            core::mem::transmute(value)
        }
    }

    macro_rules! stores {
        ($($name:ident $what:literal $instruction:literal;)*) => {$(
            #[doc = concat!("Writes the line at `to` by ", $what, ".")]
            ///
            /// # Safety
            /// As for [`super::store`], for one line.
            #[inline(always)]
            pub(super) unsafe fn $name(to: *mut Vector, value: Vector) {
                // SAFETY: writes exactly the line that the caller guarantees. Other threads cannot
                // distinguish the access from relaxed stores of two halves, which may become
                // visible late.
                unsafe {
                    let value: __m128i = core::mem::transmute(value);
                    asm!($instruction, to = in(reg) to, value = in(xmm_reg) value, options(nostack, preserves_flags));
                }
            }
        )*};
    }

    stores! {
        store "an ordinary store" "movdqa xmmword ptr [{to}], {value}";
        store_streaming "a store that bypasses the caches" "movntdq xmmword ptr [{to}], {value}";
    }
}

/// Accesses to one line without assembly: one atomic access in Rust for each half of the line.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod access {
    use core::sync::atomic::{AtomicU64, Ordering};
    use peerweave_device::gpu::Vector;

    /// Returns references to the two halves of a line. `line` is the address of the line.
    ///
    /// # Safety
    /// As for [`super::load`], for one line. The line remains accessible for the lifetime `'a`.
    #[inline(always)]
    unsafe fn halves<'a>(line: *const Vector) -> [&'a AtomicU64; 2] {
        let low = line.cast::<u64>().cast_mut();
        // SAFETY: the caller guarantees an aligned line.
        unsafe { [AtomicU64::from_ptr(low), AtomicU64::from_ptr(low.add(1))] }
    }

    /// Reads the 16 bytes at `from`.
    ///
    /// # Safety
    /// As for [`super::load`], for 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn load(from: *const Vector) -> Vector {
        // SAFETY: guaranteed by the caller.
        unsafe { halves(from) }.map(|half| half.load(Ordering::Relaxed))
    }

    /// Writes the line at `to`.
    ///
    /// # Safety
    /// As for [`super::store`], for one line.
    #[inline(always)]
    pub(super) unsafe fn store(to: *mut Vector, value: Vector) {
        // SAFETY: guaranteed by the caller.
        let [low, high] = unsafe { halves(to) };
        low.store(value[0], Ordering::Relaxed);
        high.store(value[1], Ordering::Relaxed);
    }

    pub(super) use store as store_streaming;
}
