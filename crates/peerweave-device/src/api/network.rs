//! Access to PEs whose memory is not mapped. On GPUs the functions of this module call NVSHMEM's
//! device library, through the wrappers of [`crate::network`]. On the host they call an executor
//! that emulates a network.
//!
//! If a kernel for GPUs is compiled without the feature `nvshmem`, each function of this module is
//! empty. Such a kernel reaches no PE over the network ([`Reach::Network`](super::context::Reach)),
//! so it needs no function of this module.

#[cfg(target_arch = "nvptx64")]
use super::scope::Kind;
use super::scope::Scope;
use crate::gpu::Vector;
use peerweave_types::{Plain, SignalOp, nvshmem};

/// On GPUs, calls the wrapper `$name` of [`crate::network`]. On the host, evaluates the expression
/// `$host`.
macro_rules! call {
    ($name:ident($($argument:expr),*); $host:expr) => {{
        #[cfg(all(target_arch = "nvptx64", feature = "nvshmem"))]
        // SAFETY: the addresses are in this PE's symmetric memory, or in memory that NVSHMEM can
        // read, as the caller's views promise. Builds that compile this call are linked with the
        // wrapper.
        unsafe {
            crate::network::functions::$name($($argument),*)
        }
        #[cfg(all(target_arch = "nvptx64", not(feature = "nvshmem")))]
        {
            $(let _ = $argument;)*
            Default::default()
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $(let _ = $argument;)*
            $host
        }
    }};
}
pub(super) use call;

/// Makes one call of a scope (a thread, a warp or a block). On GPUs, each thread of the scope calls
/// the wrapper for this scope: `$thread`, `$warp` or `$block`. On the host, only the first thread
/// of the scope makes the call `$host`.
macro_rules! by_scope {
    ($scope:ident: $thread:ident, $warp:ident, $block:ident ($($argument:expr),*); $host:expr) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            match $scope::KIND {
                Kind::Thread => call!($thread($($argument),*); ()),
                Kind::Warp => call!($warp($($argument),*); ()),
                Kind::Block => call!($block($($argument),*); ()),
            }
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $(let _ = $argument;)*
            emulated::by_first::<$scope>($host);
        }
    }};
}

/// Network operations of kernels that run on the host. The executor carries out these operations on
/// an emulated network.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod emulated {
    use super::super::scope::{Kind, Scope};
    use crate::arch::executor;
    use crate::network::call::{Atomic, Call};

    /// Makes the executor carry out `call` on its emulated network. For the result, see
    /// [`Executor::network`](crate::arch::Executor::network).
    pub(in super::super) fn now(call: Call) -> u64 {
        executor().network(call)
    }

    /// Makes one call for all threads of the scope. As in NVSHMEM, all threads of the scope
    /// synchronise before and after the call.
    pub(in super::super) fn by_first<S: Scope>(call: Call) {
        S::sync();
        if matches!(S::KIND, Kind::Thread) || S::rank() == 0 {
            now(call);
        }
        S::sync();
    }

    /// Applies an atomic operation to a word of `bytes` bytes at a PE. Returns the previous value
    /// of the word if the operation fetches that value; otherwise the result is unspecified.
    pub(in super::super) fn atomic(word: u64, bytes: usize, operation: Atomic, pe: i32) -> u64 {
        now(Call::Atomic { word, bytes, operation, pe: pe as u32 })
    }
}

#[cfg(not(target_arch = "nvptx64"))]
use crate::network::call::{Atomic, Call, Signal as HostSignal};

/// Returns whether this build of the kernel can reach PEs over the network. On GPUs the result is a
/// constant.
#[inline(always)]
pub(super) fn available() -> bool {
    #[cfg(target_arch = "nvptx64")]
    {
        cfg!(feature = "nvshmem")
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::arch::executor().has_network()
    }
}

#[inline]
pub(super) fn put<S: Scope>(to: u64, from: u64, bytes: usize, pe: u32, nbi: bool) {
    let (length, number) = (bytes as u64, pe as i32);
    if nbi {
        by_scope!(S: peerweave_nvshmem_put_nbi_thread, peerweave_nvshmem_put_nbi_warp, peerweave_nvshmem_put_nbi_block
            (to, from, length, number); Call::Put { to, from, bytes, pe, nbi, signal: None })
    } else {
        by_scope!(S: peerweave_nvshmem_put_thread, peerweave_nvshmem_put_warp, peerweave_nvshmem_put_block
            (to, from, length, number); Call::Put { to, from, bytes, pe, nbi, signal: None })
    }
}

#[inline]
pub(super) fn get<S: Scope>(to: u64, from: u64, bytes: usize, pe: u32, nbi: bool) {
    let (length, number) = (bytes as u64, pe as i32);
    if nbi {
        by_scope!(S: peerweave_nvshmem_get_nbi_thread, peerweave_nvshmem_get_nbi_warp, peerweave_nvshmem_get_nbi_block
            (to, from, length, number); Call::Get { to, from, bytes, pe, nbi })
    } else {
        by_scope!(S: peerweave_nvshmem_get_thread, peerweave_nvshmem_get_warp, peerweave_nvshmem_get_block
            (to, from, length, number); Call::Get { to, from, bytes, pe, nbi })
    }
}

/// A change of a signal word on another PE. `op` states whether the change sets the word to `value`
/// or adds `value` to the word. `word` is the address that the signal word has in this PE's own
/// heap: as in NVSHMEM, the word has the same offset in the heap of the other PE.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    pub(super) word: u64,
    pub(super) value: u64,
    pub(super) op: SignalOp,
}

#[inline]
pub(super) fn put_signal<S: Scope>(to: u64, from: u64, bytes: usize, signal: Signal, pe: u32, nbi: bool) {
    let (length, number, Signal { word, value, op }) = (bytes as u64, pe as i32, signal);
    let code = nvshmem::signal_op(op);
    if nbi {
        by_scope!(S: peerweave_nvshmem_put_signal_nbi_thread, peerweave_nvshmem_put_signal_nbi_warp,
            peerweave_nvshmem_put_signal_nbi_block (to, from, length, word, value, code, number);
            Call::Put { to, from, bytes, pe, nbi, signal: Some(HostSignal { word, value, op }) })
    } else {
        by_scope!(S: peerweave_nvshmem_put_signal_thread, peerweave_nvshmem_put_signal_warp,
            peerweave_nvshmem_put_signal_block (to, from, length, word, value, code, number);
            Call::Put { to, from, bytes, pe, nbi, signal: Some(HostSignal { word, value, op }) })
    }
}

#[inline]
pub(super) fn signal(signal: Signal, pe: u32) {
    let (Signal { word, value, op }, number) = (signal, pe as i32);
    call!(peerweave_nvshmem_signal_op(word, value, nvshmem::signal_op(op), number); {
        let operation = match op {
            SignalOp::Set => Atomic::Set(value),
            SignalOp::Add => Atomic::Add(value),
        };
        emulated::atomic(word, 8, operation, number);
    })
}

/// Writes `value` to one element on `pe` over the network, in words of `unit::<T>()` bytes. `to` is
/// the address in this PE's own heap that corresponds to the element.
#[inline]
pub(super) fn p<T: Plain>(to: u64, value: T, pe: u32) {
    let (from, pe) = ((&raw const value).cast::<u8>(), pe as i32);
    let unit = unit::<T>();
    let mut done = 0;
    while done < size_of::<T>() {
        // SAFETY: the word lies within the value, aligned to the unit, and all its bytes are
        // initialised (`Plain`).
        let word = unsafe { read(from.add(done), unit) };
        write_word(to + done as u64, word, unit, pe);
        done += unit;
    }
}

/// Reads one element on `pe` over the network, in words of `unit::<T>()` bytes. `from` is the
/// address in this PE's own heap that corresponds to the element.
#[inline]
pub(super) fn g<T: Plain>(from: u64, pe: u32) -> T {
    // SAFETY: every bit pattern is a value of a `Plain` type.
    let mut value: T = unsafe { core::mem::zeroed() };
    let (to, pe) = ((&raw mut value).cast::<u8>(), pe as i32);
    let unit = unit::<T>();
    let mut done = 0;
    while done < size_of::<T>() {
        let word = read_word(from + done as u64, unit, pe);
        // SAFETY: the word lies within the value, aligned to the unit; every bit pattern is valid.
        unsafe { write(to.add(done), unit, word) };
        done += unit;
    }
    value
}

/// Reads 16 bytes of symmetric memory on a PE, as two words of 8 bytes.
#[inline]
pub(super) fn load_vector(from: u64, pe: u32) -> Vector {
    [read_word(from, 8, pe as i32), read_word(from + 8, 8, pe as i32)]
}

/// Writes the low `unit` bytes of `word` to symmetric memory on a PE.
#[inline]
fn write_word(at: u64, word: u64, unit: usize, pe: i32) {
    #[cfg(target_arch = "nvptx64")]
    match unit {
        8 => call!(peerweave_nvshmem_p64(at, word, pe); ()),
        4 => call!(peerweave_nvshmem_p32(at, word as u32, pe); ()),
        2 => call!(peerweave_nvshmem_p16(at, word as u16, pe); ()),
        _ => call!(peerweave_nvshmem_p8(at, word as u8, pe); ()),
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let bytes = word.to_le_bytes();
        let from = bytes.as_ptr().expose_provenance() as u64;
        emulated::now(Call::Put { to: at, from, bytes: unit, pe: pe as u32, nbi: false, signal: None });
    }
}

/// Reads a word of `unit` bytes from symmetric memory on a PE.
#[inline]
fn read_word(at: u64, unit: usize, pe: i32) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        match unit {
            8 => call!(peerweave_nvshmem_g64(at, pe); 0),
            4 => u64::from({
                let word: u32 = call!(peerweave_nvshmem_g32(at, pe); 0);
                word
            }),
            2 => u64::from({
                let word: u16 = call!(peerweave_nvshmem_g16(at, pe); 0);
                word
            }),
            _ => u64::from({
                let word: u8 = call!(peerweave_nvshmem_g8(at, pe); 0);
                word
            }),
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let mut bytes = [0; 8];
        let to = bytes.as_mut_ptr().expose_provenance() as u64;
        emulated::now(Call::Get { to, from: at, bytes: unit, pe: pe as u32, nbi: false });
        u64::from_le_bytes(bytes)
    }
}

/// Reads a word of `unit` bytes from local memory.
///
/// # Safety
/// `from` points to `unit` readable bytes, aligned to `unit`.
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

/// Writes a word of `unit` bytes to local memory.
///
/// # Safety
/// `to` points to `unit` writable bytes, aligned to `unit`.
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

/// Returns the size in bytes of the words in which a value of type `T` is transferred. This is the
/// largest size, up to 8 bytes, that divides the size and the alignment of `T`.
#[inline]
const fn unit<T>() -> usize {
    let both = size_of::<T>() | align_of::<T>() | 8;
    both & both.wrapping_neg()
}

/// Orders earlier puts of this PE before later puts of this PE to the same target PE. `me` is the
/// number of this PE.
#[inline]
pub(super) fn fence(me: u32) {
    let _ = me;
    call!(peerweave_nvshmem_fence(); {
        emulated::now(Call::Fence { me });
    })
}

/// Waits until the puts and gets of this PE are complete. `me` is the number of this PE.
#[inline]
pub(super) fn quiet(me: u32) {
    let _ = me;
    call!(peerweave_nvshmem_quiet(); {
        emulated::now(Call::Quiet { me });
    })
}
