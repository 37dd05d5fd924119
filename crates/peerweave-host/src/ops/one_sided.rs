//! Puts, gets, signals and atomics: accesses to the segment of the target PE, which is mapped in
//! this process.
//!
//! No operation of this file waits. At intervals, an operation checks that its target is alive
//! (`sync/target.rs`). On x86-64, the stores that the module `simd` makes become visible in order.
//! On other processors a fence orders them. Streaming stores are followed by a fence. So a put is
//! complete when it returns, `fence` is a release fence, and `quiet` is a full fence.

use crate::ops::shared::Shared;
use crate::ops::tuning::STREAMING_COPY;
use crate::simd;
use crate::sync::target;
use peerweave_core::Error;
use peerweave_core::backend::{
    Atomic, AtomicKind, Direction, Fill, Get, GetElement, Op, Outcome, Put, PutElement, Signal, Strided,
};
use peerweave_device::put_signal;
use peerweave_types::DType;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[inline]
fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the core has checked that each range is in one live allocation or one buffer of the
    // caller, and that the ranges do not overlap. The callers below exclude a copy of a range onto
    // itself.
    unsafe { super::copy::copy(to, from, bytes) };
}

impl Shared {
    /// Runs an operation that waits for no PE.
    ///
    /// # Errors
    /// [`Error::Peer`] if the target PE has died or left. Only some calls check this: see
    /// `sync/target.rs`.
    #[inline]
    pub(crate) fn run_one_sided(&self, op: &Op) -> Result<Outcome, Error> {
        if target::check_is_due() { self.run_checked(op) } else { self.access::<false>(op) }
    }

    /// Checks the target of an operation, then runs the operation.
    #[cold]
    #[inline(never)]
    fn run_checked(&self, op: &Op) -> Result<Outcome, Error> {
        self.check_target_of(op)?;
        self.access::<true>(op)
    }

    /// Returns an error if the target PE of the operation has died or left. `quiet` is an
    /// exception: its targets are all PEs of the job, and only the death of a PE is an error.
    fn check_target_of(&self, op: &Op) -> Result<(), Error> {
        let pe = match op {
            Op::Put(put) => put.pe,
            Op::Get(get) => get.pe,
            Op::Strided(strided) => strided.pe,
            Op::PutElement(put) => put.pe,
            Op::GetElement(get) => get.pe,
            Op::Signal(signal) => signal.pe,
            Op::Atomic(atomic) => atomic.pe,
            Op::Quiet => return self.peers.check_targets(op.call_name()),
            _ => return Ok(()),
        };
        self.peers.check_target(op.call_name(), pe.index())
    }

    /// Runs a one-sided operation. `CHECKED` states whether the caller has already checked that the
    /// target PE is alive. If `CHECKED` is false, this function checks the target before a long put
    /// or get. The check takes little time compared with such a copy.
    #[inline]
    fn access<const CHECKED: bool>(&self, op: &Op) -> Result<Outcome, Error> {
        match op {
            Op::Put(Put { bytes: STREAMING_COPY.., .. }) | Op::Get(Get { bytes: STREAMING_COPY.., .. }) if !CHECKED => {
                return self.run_checked(op);
            }
            Op::Put(put) => self.put(put),
            Op::Get(get) => self.get(get),
            Op::Strided(strided) => self.strided(strided),
            Op::PutElement(put) => self.put_element(put),
            Op::GetElement(get) => return Ok(self.get_element(get)),
            Op::Copy(op) => copy(self.address(op.target), self.address(op.source), op.bytes),
            Op::Fill(fill) => self.fill(fill),
            Op::Signal(signal) => self.signal(signal),
            Op::Atomic(atomic) => return Ok(self.atomic(atomic)),
            Op::Fence => fence(Ordering::Release),
            Op::Quiet => fence(Ordering::SeqCst),
            Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_) | Op::Wait(_) | Op::Launch(_) => {
                unreachable!("the operation may wait for other PEs, expected a one-sided operation")
            }
        }
        Ok(Outcome::Done)
    }

    #[inline]
    fn put(&self, put: &Put) {
        let to = self.peers.segments.symmetric(put.pe.index(), put.target);
        let from = self.address(put.source).cast_const();
        if !std::ptr::eq(to, from) {
            copy(to, from, put.bytes);
        }
        if let Some((at, value, op)) = put.signal {
            self.signal(&Signal { pe: put.pe, at, value, op });
        }
    }

    #[inline]
    fn get(&self, get: &Get) {
        let from = self.peers.segments.symmetric(get.pe.index(), get.source).cast_const();
        let to = self.address(get.target);
        if !std::ptr::eq(to, from) {
            copy(to, from, get.bytes);
        }
    }

    #[inline]
    fn put_element(&self, put: &PutElement) {
        let to = self.peers.segments.symmetric(put.pe.index(), put.target);
        copy(to, (&raw const put.bits).cast(), put.element_bytes);
    }

    #[inline]
    fn get_element(&self, get: &GetElement) -> Outcome {
        let mut bits = 0u64;
        let from = self.peers.segments.symmetric(get.pe.index(), get.source);
        copy((&raw mut bits).cast(), from, get.element_bytes);
        Outcome::Word(bits)
    }

    /// Sets every element of a range in the memory of this PE to one value.
    pub(crate) fn fill(&self, fill: &Fill) {
        const CHUNK_BYTES: usize = 4096;
        let (to, size) = (self.address(fill.target), fill.element_bytes);
        let bytes = fill.count * size;
        if fill.bits == 0 {
            // SAFETY: the core has checked that the elements are in one live allocation or buffer.
            return unsafe { simd::fill_zero(to, bytes) };
        }
        let (mut chunk, element) = ([0u8; CHUNK_BYTES], &fill.bits.to_ne_bytes()[..size]);
        for part in chunk[..bytes.min(CHUNK_BYTES)].chunks_exact_mut(size) {
            part.copy_from_slice(element);
        }
        for start in (0..bytes).step_by(CHUNK_BYTES) {
            copy(to.wrapping_add(start), chunk.as_ptr(), CHUNK_BYTES.min(bytes - start));
        }
    }

    fn strided(&self, op: &Strided) {
        let remote = self.peers.segments.symmetric(op.pe.index(), op.remote);
        let local = self.address(op.local);
        // SAFETY: the core has checked that the last element at either stride is in its buffer, and
        // that the buffers do not overlap.
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
    }

    /// Changes a signal word. All earlier writes of this thread become visible before the change.
    #[inline]
    fn signal(&self, signal: &Signal) {
        // Rust's memory model does not cover the vector stores of `simd`, so a fence orders them.
        fence(Ordering::Release);
        put_signal::signal(self.peers.segments.word(signal.pe.index(), signal.at), signal.value, signal.op);
    }

    #[inline]
    fn atomic(&self, atomic: &Atomic) -> Outcome {
        // As in `signal`.
        fence(Ordering::Release);
        let at = self.peers.segments.symmetric(atomic.pe.index(), atomic.at);
        let old = match atomic.dtype.size_bytes() {
            8 => {
                debug_assert!(at.addr().is_multiple_of(8));
                // SAFETY: the core has checked that this is a live, aligned element. It is only
                // accessed atomically or by `simd`.
                atomic_word(unsafe { &*at.cast::<AtomicU64>() }, atomic)
            }
            4 => {
                debug_assert!(at.addr().is_multiple_of(4));
                // SAFETY: as above.
                u64::from(atomic_half(unsafe { &*at.cast::<AtomicU32>() }, atomic))
            }
            _ => panic!("peerweave-core bug: {} elements have no atomic operations", atomic.dtype),
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
        /// Performs an atomic operation on `word`. Returns the old value, or 0 for `Set`. `Set` is
        /// a release store. All other operations are sequentially consistent. If another PE sees
        /// the new value, that PE also sees the puts that this PE made before this operation.
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
