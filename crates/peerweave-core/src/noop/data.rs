//! Runs operations of the no-op backend that need no other PE. The operations use the memory of the
//! simulated PEs.
#![allow(unsafe_code)]

use super::Noop;
use crate::arguments::shared_bytes::{self, Reading};
use crate::backend::TeamId;
use crate::backend::{
    Atomic, AtomicKind, Collective, CollectiveKind, Direction, NormScale, Op, Outcome, Place, PointToPoint, Quantization,
    RmsNorm, Strided, Until, WaitMode, WaitUntil,
};
use crate::{Error, Result, Timeout};
use peerweave_types::{DType, Pe, ReduceOp, Scalar, SignalOp, SymOffset, bf16, f16};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The symmetric memory of all simulated PEs, one PE after the other.
#[derive(Debug)]
pub(super) struct Heap {
    /// The address of a boxed slice of `len` words, which the destructor of [`Heap`] frees.
    words: *mut u64,
    len: usize,
    /// The start of PE 0's symmetric memory: the first address in the slice `words` that has the
    /// alignment [`Heap::align`].
    base: *mut u8,
    /// The number of bytes of symmetric memory per PE.
    bytes: usize,
}

// SAFETY: shared: the words. Synchronised: every access is atomic ([B4] of `Noop`). A violation
// would be caught by: `concurrent_atomic_adds_lose_no_update` in tests/lifecycle.rs, under
// ThreadSanitizer.
unsafe impl Send for Heap {}
// SAFETY: as for Send.
unsafe impl Sync for Heap {}

impl Heap {
    pub(super) const PAGE: usize = 4096;

    /// Returns the alignment of a PE's symmetric memory, in bytes. The memory has `bytes` bytes.
    pub(super) fn align(bytes: usize) -> usize {
        // The memories of the PEs are contiguous, so the size of one memory determines the
        // alignment of the next memory.
        (1 << bytes.trailing_zeros()).clamp(Self::PAGE, 2 << 20)
    }

    pub(super) fn new(n_pes: usize, bytes: usize) -> Self {
        let align = Self::align(bytes);
        let len = n_pes
            .checked_mul(bytes)
            .and_then(|all| all.checked_add(align))
            .expect("the heaps of all PEs fit in the address space")
            / size_of::<u64>();
        let words = Box::into_raw(vec![0u64; len].into_boxed_slice()).cast::<u64>();
        let base = words.cast::<u8>();
        let base = base.wrapping_add(base.align_offset(align));
        Self { words, len, base, bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn address(&self, pe: Pe, at: SymOffset) -> *mut u8 {
        self.base.wrapping_add(pe.index() * self.bytes + at.0 as usize)
    }

    pub(super) fn zero(&self, pe: Pe, at: SymOffset, bytes: usize) {
        let zeros = [0u8; 4096];
        for start in (0..bytes).step_by(zeros.len()) {
            let to = self.address(pe, at.plus(start as u64));
            // SAFETY: the caller allocated `bytes` at `at`, which lie in the symmetric memory of
            // `pe`; `zeros` has at least as many bytes as are written.
            unsafe { shared_bytes::write(zeros.as_ptr(), to, zeros.len().min(bytes - start)) };
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: this is the box that `new` made. The backend, which owns the heap, is dropped
        // last ([B2]).
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.words, self.len)) });
    }
}

/// Copies `bytes` bytes from `from` to `to`. Each range lies in the heap, or in ordinary memory:
/// memory that an operation accesses, a value in the operation, or a local variable of this module.
fn copy(from: Reading, to: *mut u8, bytes: usize) {
    // SAFETY: each address is from `Noop::at`, `Noop::reading` or `Noop::place`, or is that of a
    // local variable or of a value in the operation, which outlives this call. Memory of the heap
    // is allocated. The contract of `run` and `submit` says that ordinary memory is valid for the
    // accesses of the operation. Both ranges have at least `bytes` bytes.
    unsafe { shared_bytes::copy(from, to, bytes) }
}

pub(super) fn perform(noop: &Noop, op: &Op) -> Result<Outcome> {
    match op {
        Op::Collective(op) => collective(noop, op),
        Op::PointToPoint(_) | Op::Launch(_) | Op::Fence | Op::Quiet => return Ok(Outcome::Done),
        Op::Group(ops) => return group(noop, ops),
        Op::Put(op) => {
            copy(noop.reading(op.source, op.bytes), noop.at(op.pe, op.target, op.bytes), op.bytes);
            if let Some((at, value, how)) = op.signal {
                signal(noop, op.pe, at, value, how);
            }
        }
        Op::Get(op) => copy(Reading::Shared(noop.at(op.pe, op.source, op.bytes)), noop.place(op.target, op.bytes), op.bytes),
        Op::Strided(op) => strided(noop, op),
        Op::PutElement(op) => {
            let from = Reading::Named((&raw const op.bits).cast());
            copy(from, noop.at(op.pe, op.target, op.element_bytes), op.element_bytes);
        }
        Op::GetElement(op) => {
            let mut bits = 0u64;
            let from = noop.at(op.pe, op.source, op.element_bytes);
            // SAFETY: `Noop::at` checks that `from` lies in the heap. The element is at most as
            // long as the word.
            unsafe { shared_bytes::read(from, (&raw mut bits).cast(), op.element_bytes) };
            return Ok(Outcome::Word(bits));
        }
        Op::Copy(op) => copy(noop.reading(op.source, op.bytes), noop.place(op.target, op.bytes), op.bytes),
        Op::Fill(op) => {
            let from = Reading::Named((&raw const op.bits).cast());
            let to = noop.place(op.target, op.count * op.element_bytes);
            (0..op.count).for_each(|i| copy(from, to.wrapping_add(i * op.element_bytes), op.element_bytes));
        }
        Op::Signal(op) => signal(noop, op.pe, op.at, op.value, op.op),
        Op::Wait(op) => return wait(noop, op),
        Op::Atomic(op) => return Ok(atomic(noop, op)),
    }
    Ok(Outcome::Done)
}

/// Runs a collective if the team has one rank. If the team has more ranks, does nothing.
fn collective(noop: &Noop, op: &Collective) {
    if noop.members(op.team).len() != 1 {
        return;
    }
    // The only rank has no ranks before it, so its result does not change.
    if op.kind == CollectiveKind::ExclusiveScan {
        return;
    }
    let (Some(mut send), Some(mut recv)) = (op.send, op.recv) else { return };
    let size = op.element_bytes();
    if let Some(norm) = op.rms_norm() {
        return rms_norm(noop, op, norm);
    }
    if op.kind == CollectiveKind::AllToAllStrided {
        let [source, dest] = op.strides();
        for i in 0..op.count {
            let [from, to] = [send.plus(i * source * size), recv.plus(i * dest * size)];
            copy(noop.reading(from, size), noop.place(to, size), size);
        }
        return;
    }
    let mut count = op.count;
    if let Some(counts) = &op.counts {
        (send, recv) = (send.plus(counts.send_offsets[0] * size), recv.plus(counts.recv_offsets[0] * size));
        count = counts.recv_counts[0];
    }
    let bytes = count * size;
    let to = noop.place(recv, bytes);
    if send != recv {
        copy(noop.reading(send, bytes), to, bytes);
    }
    if op.kind.reduces() && op.op == ReduceOp::PreMulSum {
        scale(op.dtype, to, count, op.scalar);
    }
}

/// Runs an all-reduce with RMSNorm for a team with one rank.
fn rms_norm(noop: &Noop, op: &Collective, norm: &RmsNorm) {
    let (Some(send), Some(recv)) = (op.send, op.recv) else { return };
    let bytes = norm.hidden * norm.element_bytes;
    let read = |place: Place, bytes: usize| {
        let mut found = vec![0; bytes];
        copy(noop.reading(place, bytes), found.as_mut_ptr(), bytes);
        found
    };
    let write = |place: Place, from: &[u8]| copy(Reading::Named(from.as_ptr()), noop.place(place, from.len()), from.len());
    let weight = read(norm.weight, bytes);
    let mut output = vec![0; norm.hidden * norm.output_bytes()];
    for row in 0..op.count / norm.hidden {
        let sum = read(send.plus(row * bytes), bytes);
        let residual = norm.residual.plus(row * bytes);
        let mut x = read(residual, bytes);
        let scale = norm.row(op.dtype, &sum, &mut x, &weight, &mut output);
        write(residual, &x);
        write(recv.plus(row * output.len()), &output);
        if let Some(Quantization { scale: NormScale::Rows(scales), .. }) = norm.quantization {
            write(scales.plus(row * size_of::<f32>()), &scale.to_le_bytes());
        }
    }
}

/// Multiplies each of the `count` elements at `at` by a scalar.
fn scale(dtype: DType, at: *mut u8, count: usize, scalar: u64) {
    fn each<T: Scalar>(at: *mut u8, count: usize, times: impl Fn(T) -> T) {
        for i in 0..count {
            let at = at.wrapping_add(i * size_of::<T>());
            let mut value = T::default();
            // SAFETY: as for `copy`: `at` is element `i` of the `count` elements that the operation
            // names.
            unsafe {
                shared_bytes::read(at, (&raw mut value).cast(), size_of::<T>());
                value = times(value);
                shared_bytes::write((&raw const value).cast(), at, size_of::<T>());
            }
        }
    }
    macro_rules! by_type {
        ($($dtype:ident $t:ty: $times:expr;)*) => {
            match dtype {
                $(DType::$dtype => {
                    let (scalar, times) = (<$t>::from_word(scalar), $times as fn($t, $t) -> $t);
                    each::<$t>(at, count, |value| times(value, scalar));
                })*
                _ => panic!("peerweave-core bug: elements of type {dtype} cannot be reduced"),
            }
        };
    }
    by_type! {
        I8 i8: i8::wrapping_mul;
        U8 u8: u8::wrapping_mul;
        I16 i16: i16::wrapping_mul;
        U16 u16: u16::wrapping_mul;
        I32 i32: i32::wrapping_mul;
        U32 u32: u32::wrapping_mul;
        I64 i64: i64::wrapping_mul;
        U64 u64: u64::wrapping_mul;
        F16 f16: |a, b| a * b;
        BF16 bf16: |a, b| a * b;
        F32 f32: |a, b| a * b;
        F64 f64: |a, b| a * b;
    }
}

/// Runs the operations of a group in order, except messages from this PE to itself. These messages
/// are copied last. In each team, the nth message that this PE sends to itself goes to the nth
/// buffer in which this PE receives from itself.
fn group(noop: &Noop, ops: &[Op]) -> Result<Outcome> {
    let mut sends: HashMap<TeamId, Vec<&PointToPoint>> = HashMap::new();
    let mut receives: HashMap<TeamId, Vec<&PointToPoint>> = HashMap::new();
    for op in ops {
        match op {
            Op::PointToPoint(op) if noop.members(op.team)[op.peer.index()] == noop.job.my_pe => {
                let list = if op.direction == Direction::Send { &mut sends } else { &mut receives };
                list.entry(op.team).or_default().push(op);
            }
            op => drop(perform(noop, op)?),
        }
    }
    for (team, sends) in sends {
        for (send, receive) in std::iter::zip(sends, receives.remove(&team).unwrap_or_default()) {
            let bytes = send.count.min(receive.count) * send.dtype.size_bytes();
            copy(noop.reading(send.at, bytes), noop.place(receive.at, bytes), bytes);
        }
    }
    Ok(Outcome::Done)
}

fn strided(noop: &Noop, op: &Strided) {
    let size = op.element_bytes;
    for i in 0..op.count {
        let remote = noop.at(op.pe, op.remote.plus((i * op.remote_stride * size) as u64), size);
        let local = op.local.plus(i * op.local_stride * size);
        match op.direction {
            Direction::Send => copy(noop.reading(local, size), remote, size),
            Direction::Receive => copy(Reading::Shared(remote), noop.place(local, size), size),
        }
    }
}

fn word(noop: &Noop, pe: Pe, at: SymOffset) -> &AtomicU64 {
    let at = noop.at(pe, at, size_of::<u64>());
    assert!(at.cast::<u64>().is_aligned(), "peerweave-core bug: the word is not aligned");
    // SAFETY: the word lies in the heap, is allocated and aligned, and is only accessed atomically.
    // It lives as long as the backend, which is borrowed.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn signal(noop: &Noop, pe: Pe, at: SymOffset, value: u64, op: SignalOp) {
    let word = word(noop, pe, at);
    match op {
        SignalOp::Set => word.store(value, SeqCst),
        SignalOp::Add => drop(word.fetch_add(value, SeqCst)),
    }
}

/// Returns the current value of a memory word for which `op` waits, zero-extended to 64 bits.
/// `index` is the index of the word among the words of `op`.
fn awaited(noop: &Noop, op: &WaitUntil, index: usize) -> u64 {
    let size = op.dtype.size_bytes();
    let at = noop.at(noop.job.my_pe, op.at.plus((index * size) as u64), size);
    assert!((at as usize).is_multiple_of(size), "peerweave-core bug: the word is not aligned");
    // SAFETY: the word lies in the heap, is allocated and aligned, has `size` bytes, and is only
    // accessed atomically. It lives as long as the backend, which is borrowed.
    unsafe {
        match size {
            2 => u64::from(AtomicU16::from_ptr(at.cast()).load(SeqCst)),
            4 => u64::from(AtomicU32::from_ptr(at.cast()).load(SeqCst)),
            8 => AtomicU64::from_ptr(at.cast()).load(SeqCst),
            _ => panic!("peerweave-core bug: a wait for words of type {}, expected an integer of 2, 4 or 8 bytes", op.dtype),
        }
    }
}

fn wait(noop: &Noop, op: &WaitUntil) -> Result<Outcome> {
    let value = |i: usize| awaited(noop, op, i);
    let looked_at: Vec<usize> = (0..op.count).filter(|&i| !op.excludes(i)).collect();
    let satisfied: Vec<usize> = looked_at.iter().copied().filter(|&i| op.holds(i, value(i))).collect();
    let over = match op.until {
        Until::All => satisfied.len() == looked_at.len(),
        Until::Any | Until::Some => !satisfied.is_empty() || looked_at.is_empty(),
    };
    if !over {
        return match op.mode {
            WaitMode::Test => Ok(Outcome::NotYet),
            // The wait fails at once: no other PE runs that could change the words.
            WaitMode::Wait => Err(Error::from(Timeout {
                word: op.unsatisfied(value),
                ..Timeout::new(op.call_name(), noop.team_name(TeamId::WORLD), Duration::ZERO, Vec::new())
            })),
        };
    }
    Ok(match op.until {
        Until::All => looked_at.last().map_or(Outcome::Done, |&i| Outcome::Word(value(i))),
        Until::Any => {
            let first = satisfied.iter().find(|&&i| i >= op.start).or(satisfied.first());
            Outcome::Indices(first.copied().into_iter().collect())
        }
        Until::Some => Outcome::Indices(satisfied),
    })
}

fn atomic(noop: &Noop, op: &Atomic) -> Outcome {
    let size = op.dtype.size_bytes();
    let at = noop.at(op.pe, op.at, size);
    assert!((at as usize).is_multiple_of(size), "peerweave-core bug: the element is not aligned");
    let new = |old: u64| match op.kind {
        AtomicKind::Fetch => old,
        AtomicKind::Set | AtomicKind::Swap => op.operand,
        AtomicKind::CompareSwap => {
            if old == op.compare {
                op.operand
            } else {
                old
            }
        }
        AtomicKind::Add | AtomicKind::FetchAdd => old.wrapping_add(op.operand),
        AtomicKind::Inc | AtomicKind::FetchInc => old.wrapping_add(1),
        AtomicKind::And | AtomicKind::FetchAnd => old & op.operand,
        AtomicKind::Or | AtomicKind::FetchOr => old | op.operand,
        AtomicKind::Xor | AtomicKind::FetchXor => old ^ op.operand,
    };
    let old = match op.dtype {
        DType::I32 | DType::U32 | DType::F32 => {
            // SAFETY: as in `word`, of 4 bytes.
            let element = unsafe { AtomicU32::from_ptr(at.cast()) };
            let update = |old: u32| Some(new(u64::from(old)) as u32);
            u64::from(element.fetch_update(SeqCst, SeqCst, update).unwrap_or_else(|old| old))
        }
        DType::I64 | DType::U64 | DType::F64 => {
            let element = word(noop, op.pe, op.at);
            element.fetch_update(SeqCst, SeqCst, |old| Some(new(old))).unwrap_or_else(|old| old)
        }
        other => panic!("peerweave-core bug: {other} elements have no atomic operations"),
    };
    match op.kind {
        AtomicKind::Set | AtomicKind::Add | AtomicKind::Inc | AtomicKind::And | AtomicKind::Or | AtomicKind::Xor => Outcome::Done,
        _ => Outcome::Word(old),
    }
}
