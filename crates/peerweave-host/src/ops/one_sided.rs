//! Puts, gets, signals and atomics: plain accesses to the target's segment, which is mapped here.
//!
//! Nothing here waits. Ordering: ordinary stores of the kernels become visible in order on x86-64; elsewhere a fence is issued. Streaming stores
//! end with their own fence. So a put is complete when it returns, fence is a release fence, and quiet a full one.

use crate::ops::shared::Shared;
use crate::ops::tuning::STREAMING_COPY;
use crate::simd;
use peerweave_core::backend::{Atomic, AtomicKind, Direction, Get, Outcome, Put, Signal, Strided};
use peerweave_device::put_signal;
use peerweave_types::{DType, SymOffset};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[inline]
fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: both ranges were checked by the core: inside one live allocation or one buffer of the caller; a put or get onto itself is
    // excluded by the callers below, and other overlap by the core.
    unsafe {
        if bytes >= STREAMING_COPY {
            simd::copy_streaming(to, from, bytes);
        } else {
            simd::copy(to, from, bytes);
        }
    }
}

impl Shared {
    #[inline]
    pub(crate) fn put(&self, put: &Put) -> Outcome {
        let to = self.segments.symmetric(put.pe.index(), put.target);
        let from = self.address(put.source).cast_const();
        if !std::ptr::eq(to, from) {
            copy(to, from, put.bytes);
        }
        if let Some((at, value, op)) = put.signal {
            self.signal(&Signal { pe: put.pe, at, value, op });
        }
        Outcome::Done
    }

    #[inline]
    pub(crate) fn get(&self, get: &Get) -> Outcome {
        let from = self.segments.symmetric(get.pe.index(), get.source).cast_const();
        let to = self.address(get.target);
        if !std::ptr::eq(to, from) {
            copy(to, from, get.bytes);
        }
        Outcome::Done
    }

    pub(crate) fn strided(&self, op: &Strided) -> Outcome {
        let remote = self.segments.symmetric(op.pe.index(), op.remote);
        let local = self.address(op.local);
        // SAFETY: the core has checked that the last element at either stride lies in its buffer, and that the two do not overlap.
        unsafe {
            match op.direction {
                Direction::Send => {
                    simd::copy_strided(remote, op.remote_stride, local, op.local_stride, op.element_bytes, op.count);
                }
                Direction::Receive => {
                    simd::copy_strided(local, op.local_stride, remote, op.remote_stride, op.element_bytes, op.count);
                }
            }
        }
        Outcome::Done
    }

    /// Changes a signal word, after everything that this thread wrote before.
    #[inline]
    pub(crate) fn signal(&self, signal: &Signal) -> Outcome {
        // The kernels' stores are made by instructions that Rust's memory model does not know: nothing but a fence orders them.
        fence(Ordering::Release);
        put_signal::put_with_signal(|| {}, self.word(signal.pe.index(), signal.at), signal.value, signal.op);
        Outcome::Done
    }

    #[inline]
    pub(crate) fn word(&self, pe: usize, at: SymOffset) -> &AtomicU64 {
        self.segments.word(pe, at)
    }

    pub(crate) fn fence(&self) -> Outcome {
        fence(Ordering::Release);
        Outcome::Done
    }

    pub(crate) fn quiet(&self) -> Outcome {
        fence(Ordering::SeqCst);
        Outcome::Done
    }

    #[inline]
    pub(crate) fn atomic(&self, atomic: &Atomic) -> Outcome {
        let at = self.segments.symmetric(atomic.pe.index(), atomic.at);
        let old = match atomic.dtype.size_bytes() {
            8 => {
                debug_assert!(at.addr().is_multiple_of(8));
                // SAFETY: a live, aligned element (checked by the core) that is only accessed atomically or by `simd`.
                atomic_word(unsafe { &*at.cast::<AtomicU64>() }, atomic)
            }
            4 => {
                debug_assert!(at.addr().is_multiple_of(4));
                // SAFETY: as above.
                u64::from(atomic_half(unsafe { &*at.cast::<AtomicU32>() }, atomic))
            }
            _ => panic!("peerweave-core bug: an atomic operation on {}", atomic.dtype),
        };
        match atomic.kind {
            AtomicKind::Set | AtomicKind::Add | AtomicKind::Inc | AtomicKind::And | AtomicKind::Or | AtomicKind::Xor => {
                Outcome::Done
            }
            _ => Outcome::Word(old),
        }
    }
}

macro_rules! atomic_operation {
    ($name:ident, $atomic:ty, $word:ty) => {
        /// Returns the old value. Atomics are sequentially consistent: what was put before them is visible to who sees them.
        #[inline]
        fn $name(word: &$atomic, op: &Atomic) -> $word {
            let operand = op.operand as $word;
            let order = Ordering::SeqCst;
            debug_assert!(!matches!(op.dtype, DType::F32 | DType::F64) || is_for_floats(op.kind));
            match op.kind {
                AtomicKind::Fetch => word.load(order),
                AtomicKind::Set => {
                    word.store(operand, Ordering::Release);
                    0
                }
                AtomicKind::Swap => word.swap(operand, order),
                AtomicKind::CompareSwap => {
                    word.compare_exchange(op.compare as $word, operand, order, order).unwrap_or_else(|found| found)
                }
                AtomicKind::Add | AtomicKind::FetchAdd => word.fetch_add(operand, order),
                AtomicKind::Inc | AtomicKind::FetchInc => word.fetch_add(1, order),
                AtomicKind::And | AtomicKind::FetchAnd => word.fetch_and(operand, order),
                AtomicKind::Or | AtomicKind::FetchOr => word.fetch_or(operand, order),
                AtomicKind::Xor | AtomicKind::FetchXor => word.fetch_xor(operand, order),
            }
        }
    };
}

atomic_operation!(atomic_word, AtomicU64, u64);
atomic_operation!(atomic_half, AtomicU32, u32);

fn is_for_floats(kind: AtomicKind) -> bool {
    matches!(kind, AtomicKind::Fetch | AtomicKind::Set | AtomicKind::Swap)
}
