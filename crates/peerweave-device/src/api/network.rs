//! The path to PEs whose memory is not mapped: calls of NVSHMEM's device library, by the table of
//! wrappers.
//!
//! Without the feature `nvshmem`, and on the host, no PE is reached so
//! ([`Reach::Network`](super::context::Reach) is never made) and each function here is empty.

use super::scope::{Kind, Scope};
use peerweave_types::{Plain, SignalOp, nvshmem};

/// Calls a wrapper of the table, or gives nothing where there are none.
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {{
        #[cfg(all(target_arch = "nvptx64", feature = "nvshmem"))]
        // SAFETY: the addresses are of this PE's symmetric memory, or of memory that NVSHMEM can
        // read, as the caller's views promise; the wrapper is linked where this path is compiled.
        unsafe {
            crate::network::functions::$name($($argument),*)
        }
        #[cfg(not(all(target_arch = "nvptx64", feature = "nvshmem")))]
        {
            $(let _ = $argument;)*
            Default::default()
        }
    }};
}
pub(super) use call;

/// The wrapper for a scope.
macro_rules! by_scope {
    ($scope:ident: $thread:ident, $warp:ident, $block:ident ($($argument:expr),*)) => {
        match $scope::KIND {
            Kind::Thread => call!($thread($($argument),*)),
            Kind::Warp => call!($warp($($argument),*)),
            Kind::Block => call!($block($($argument),*)),
        }
    };
}
pub(super) use by_scope;

#[inline]
pub(super) fn put<S: Scope>(to: u64, from: u64, bytes: usize, pe: u32, nbi: bool) {
    let (bytes, pe) = (bytes as u64, pe as i32);
    if nbi {
        by_scope!(S: peerweave_nvshmem_put_nbi_thread, peerweave_nvshmem_put_nbi_warp, peerweave_nvshmem_put_nbi_block
            (to, from, bytes, pe))
    } else {
        by_scope!(S: peerweave_nvshmem_put_thread, peerweave_nvshmem_put_warp, peerweave_nvshmem_put_block (to, from, bytes, pe))
    }
}

#[inline]
pub(super) fn get<S: Scope>(to: u64, from: u64, bytes: usize, pe: u32, nbi: bool) {
    let (bytes, pe) = (bytes as u64, pe as i32);
    if nbi {
        by_scope!(S: peerweave_nvshmem_get_nbi_thread, peerweave_nvshmem_get_nbi_warp, peerweave_nvshmem_get_nbi_block
            (to, from, bytes, pe))
    } else {
        by_scope!(S: peerweave_nvshmem_get_thread, peerweave_nvshmem_get_warp, peerweave_nvshmem_get_block (to, from, bytes, pe))
    }
}

/// A signal that follows a put: where, what, how.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    pub(super) word: u64,
    pub(super) value: u64,
    pub(super) op: SignalOp,
}

#[inline]
pub(super) fn put_signal<S: Scope>(to: u64, from: u64, bytes: usize, signal: Signal, pe: u32, nbi: bool) {
    let (bytes, pe, Signal { word, value, op }) = (bytes as u64, pe as i32, signal);
    let op = nvshmem::signal_op(op);
    if nbi {
        by_scope!(S: peerweave_nvshmem_put_signal_nbi_thread, peerweave_nvshmem_put_signal_nbi_warp,
            peerweave_nvshmem_put_signal_nbi_block (to, from, bytes, word, value, op, pe))
    } else {
        by_scope!(S: peerweave_nvshmem_put_signal_thread, peerweave_nvshmem_put_signal_warp, peerweave_nvshmem_put_signal_block
            (to, from, bytes, word, value, op, pe))
    }
}

#[inline]
pub(super) fn signal(signal: Signal, pe: u32) {
    let (Signal { word, value, op }, pe) = (signal, pe as i32);
    call!(peerweave_nvshmem_signal_op(word, value, nvshmem::signal_op(op), pe))
}

/// Writes one element, by the widest words that its size and alignment allow.
#[inline]
pub(super) fn p<T: Plain>(to: u64, value: T, pe: u32) {
    let (from, pe) = ((&raw const value).cast::<u8>(), pe as i32);
    let unit = unit::<T>();
    let mut done = 0;
    while done < size_of::<T>() {
        let at = to + done as u64;
        // SAFETY: the word lies within the value, aligned to the unit, and all its bytes are
        // initialised (`Plain`).
        let word = unsafe { read(from.add(done), unit) };
        match unit {
            8 => call!(peerweave_nvshmem_p64(at, word, pe)),
            4 => call!(peerweave_nvshmem_p32(at, word as u32, pe)),
            2 => call!(peerweave_nvshmem_p16(at, word as u16, pe)),
            _ => call!(peerweave_nvshmem_p8(at, word as u8, pe)),
        }
        done += unit;
    }
}

/// Reads one element, likewise.
#[inline]
pub(super) fn g<T: Plain>(from: u64, pe: u32) -> T {
    // SAFETY: every bit pattern is a value of a `Plain` type.
    let mut value: T = unsafe { core::mem::zeroed() };
    let (to, pe) = ((&raw mut value).cast::<u8>(), pe as i32);
    let unit = unit::<T>();
    let mut done = 0;
    while done < size_of::<T>() {
        let at = from + done as u64;
        let word: u64 = match unit {
            8 => call!(peerweave_nvshmem_g64(at, pe)),
            4 => u64::from({
                let word: u32 = call!(peerweave_nvshmem_g32(at, pe));
                word
            }),
            2 => u64::from({
                let word: u16 = call!(peerweave_nvshmem_g16(at, pe));
                word
            }),
            _ => u64::from({
                let word: u8 = call!(peerweave_nvshmem_g8(at, pe));
                word
            }),
        };
        // SAFETY: the word lies within the value, aligned to the unit; every bit pattern is valid.
        unsafe { write(to.add(done), unit, word) };
        done += unit;
    }
    value
}

/// Reads a word of `unit` bytes.
///
/// # Safety
/// The pointer is that of as many readable bytes, aligned to them.
#[inline]
unsafe fn read(from: *const u8, unit: usize) -> u64 {
    // SAFETY: the caller promises a readable word.
    unsafe {
        match unit {
            8 => from.cast::<u64>().read(),
            4 => u64::from(from.cast::<u32>().read()),
            2 => u64::from(from.cast::<u16>().read()),
            _ => u64::from(from.read()),
        }
    }
}

/// Writes a word of `unit` bytes.
///
/// # Safety
/// The pointer is that of as many writable bytes, aligned to them.
#[inline]
unsafe fn write(to: *mut u8, unit: usize, word: u64) {
    // SAFETY: the caller promises a writable word.
    unsafe {
        match unit {
            8 => to.cast::<u64>().write(word),
            4 => to.cast::<u32>().write(word as u32),
            2 => to.cast::<u16>().write(word as u16),
            _ => to.write(word as u8),
        }
    }
}

/// Bytes of the widest words, up to 8, of which a value consists.
#[inline]
const fn unit<T>() -> usize {
    let both = size_of::<T>() | align_of::<T>() | 8;
    both & both.wrapping_neg()
}

#[inline]
pub(super) fn fence() {
    call!(peerweave_nvshmem_fence())
}

#[inline]
pub(super) fn quiet() {
    call!(peerweave_nvshmem_quiet())
}

#[inline]
pub(super) fn barrier<S: Scope>(team: i32) {
    by_scope!(S: peerweave_nvshmem_barrier_thread, peerweave_nvshmem_barrier_warp, peerweave_nvshmem_barrier_block (team))
}

#[inline]
pub(super) fn sync<S: Scope>(team: i32) {
    by_scope!(S: peerweave_nvshmem_sync_thread, peerweave_nvshmem_sync_warp, peerweave_nvshmem_sync_block (team))
}
