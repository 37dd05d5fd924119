//! Copies of bytes by the threads of a scope, for any alignment. Long copies use vectors of 16
//! bytes, with eight vectors in flight for each thread.
//!
//! The memory of a peer is the far side of a copy, and local memory is the near side. The far side
//! is accessed by vectors of 16 bytes wherever possible, the near side by accesses that its
//! alignment permits. Invariant: each byte is copied by exactly one thread of the scope.

use crate::api::scope::Scope;
use crate::api::value::Side;
use crate::gpu::{self, Piece, Vector};

/// Size of a vector in bytes.
const VECTOR: usize = 16;

/// States whether the target (`To`) or the source (`From`) of a copy is in a peer's memory. If
/// target and source have different alignments, the copy accesses the peer's memory by whole
/// vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Far {
    To,
    From,
}

/// Copies `bytes` bytes. All threads of the scope call this function with the same arguments, and
/// synchronise afterwards.
///
/// # Safety
/// `from` is readable by accesses of kind `A`, and `to` is writable by accesses of kind `B`, for
/// `bytes` bytes. The two ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy<S: Scope, A: Side, B: Side>(to: *mut u8, from: *const u8, bytes: usize, far: Far) {
    let all = to as usize | from as usize | bytes;
    // Short messages are handled first, with at most two loads per thread, because every
    // instruction of a block's idle threads delays the threads that copy. SAFETY: in each arm both
    // addresses and the length are multiples of the piece. The piece of a thread lies within the
    // bytes (`own`). The caller promises the ranges.
    unsafe {
        if all.is_multiple_of(VECTOR) {
            if fits::<S>(bytes, VECTOR) {
                if let Some(skip) = own::<S>(bytes, VECTOR) {
                    B::store_vector(to.add(skip), A::load_vector(from.add(skip)));
                }
            } else if S::WIDE && fits::<S>(bytes, 2 * VECTOR) {
                // Each thread copies one vector, or two vectors if its second vector lies within
                // the bytes.
                let (first, second) = (S::rank() * VECTOR, (S::size() + S::rank()) * VECTOR);
                let held = A::load_vector(from.add(first));
                if second < bytes {
                    let more = A::load_vector(from.add(second));
                    B::store_vector(to.add(second), more);
                }
                B::store_vector(to.add(first), held);
            } else {
                vectors::<S, A, B, 8>(to, from, bytes / VECTOR);
            }
        } else if all.is_multiple_of(8) && fits::<S>(bytes, 8) {
            if let Some(skip) = own::<S>(bytes, 8) {
                B::store(to.add(skip).cast::<u64>(), A::load(from.add(skip).cast::<u64>()));
            }
        } else if all.is_multiple_of(4) && fits::<S>(bytes, 4) {
            if let Some(skip) = own::<S>(bytes, 4) {
                B::store(to.add(skip).cast::<u32>(), A::load(from.add(skip).cast::<u32>()));
            }
        } else {
            unaligned::<S, A, B>(to, from, bytes, far);
        }
    }
}

/// Returns whether the scope has enough threads for `bytes` bytes, if each thread copies at most
/// one piece of `piece` bytes.
#[inline(always)]
fn fits<S: Scope>(bytes: usize, piece: usize) -> bool {
    bytes <= S::size() * piece
}

/// Divides `bytes` bytes into pieces of `piece` bytes, one for each thread. Returns the offset of
/// this thread's piece; `None` if no bytes are left for this thread. [`fits`] must be true for the
/// arguments, so the offset fits in 32 bits.
#[inline(always)]
fn own<S: Scope>(bytes: usize, piece: usize) -> Option<usize> {
    let skip = S::rank() as u32 * piece as u32;
    (skip < bytes as u32).then_some(skip as usize)
}

/// Copies `N` vectors: vector `start + k * step` for each `k` below `N`. Loads all vectors before
/// it stores the first vector.
///
/// # Safety
/// As for [`copy`], for vectors with these indices.
#[inline(always)]
unsafe fn batch<A: Side, B: Side, const N: usize>(to: *mut u8, from: *const u8, start: usize, step: usize) {
    let mut held: [Vector; N] = [[0; 2]; N];
    let (skip, step) = (start * VECTOR, step * VECTOR);
    // Each address is computed from the previous address, by an addition that the compiler cannot
    // move. If the compiler could move the additions, it would keep all addresses in registers from
    // one batch to the next. The addresses would need twice as many registers as the vectors.
    let mut at = from.wrapping_add(skip);
    for (k, vector) in held.iter_mut().enumerate() {
        // SAFETY: the caller promises the vector with this index.
        *vector = unsafe { A::load_vector(at) };
        if k + 1 < N {
            at = gpu::advance(at.cast_mut(), step);
        }
    }
    let mut at = to.wrapping_add(skip);
    for (k, vector) in held.iter().enumerate() {
        // SAFETY: the caller promises the vector with this index.
        unsafe { B::store_vector(at, *vector) };
        if k + 1 < N {
            at = gpu::advance(at, step);
        }
    }
}

/// Copies `n` vectors, with `N` vectors in flight for each thread. `N` is 8, or 4 if registers are
/// scarce.
///
/// # Safety
/// As for [`copy`]. Both pointers are aligned to the size of a vector.
#[inline(always)]
unsafe fn vectors<S: Scope, A: Side, B: Side, const N: usize>(to: *mut u8, from: *const u8, n: usize) {
    let step = S::size();
    let mut at = S::rank();
    // SAFETY: in each line the last index of the batch is below `n`.
    unsafe {
        while at + (N - 1) * step < n {
            batch::<A, B, N>(to, from, at, step);
            at += N * step;
        }
        if N > 4 && at + 3 * step < n {
            batch::<A, B, 4>(to, from, at, step);
            at += 4 * step;
        }
        if at + step < n {
            batch::<A, B, 2>(to, from, at, step);
            at += 2 * step;
        }
        if at < n {
            batch::<A, B, 1>(to, from, at, step);
        }
    }
}

/// Copies `n` integers of type `P`.
///
/// # Safety
/// As for [`copy`]. Both pointers are aligned to the size of `P`.
#[inline(always)]
unsafe fn pieces<S: Scope, A: Side, B: Side, P: Piece>(to: *mut u8, from: *const u8, n: usize) {
    let mut at = S::rank();
    while at < n {
        // SAFETY: the index is below the number of pieces.
        unsafe { B::store(to.cast::<P>().add(at), A::load(from.cast::<P>().add(at))) };
        at += S::size();
    }
}

/// Copies a few bytes. Each access reads or writes an integer of up to 8 bytes: the largest size
/// that divides both addresses and the length.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn few<S: Scope, A: Side, B: Side>(to: *mut u8, from: *const u8, bytes: usize) {
    let all = to as usize | from as usize | bytes;
    // SAFETY: the addresses and the length are multiples of the piece in each line.
    unsafe {
        if all.is_multiple_of(8) {
            pieces::<S, A, B, u64>(to, from, bytes / 8);
        } else if all.is_multiple_of(4) {
            pieces::<S, A, B, u32>(to, from, bytes / 4);
        } else if all.is_multiple_of(2) {
            pieces::<S, A, B, u16>(to, from, bytes / 2);
        } else {
            pieces::<S, A, B, u8>(to, from, bytes);
        }
    }
}

/// Reads 16 bytes, and returns them as a vector. Each load reads one integer of type `P`.
///
/// # Safety
/// `from` points to 16 bytes that accesses of kind `A` can read. `from` is aligned to the size of
/// `P`.
#[inline(always)]
unsafe fn gather<A: Side, P: Piece + Into<u64>>(from: *const u8) -> Vector {
    let per_half = 8 / size_of::<P>();
    let mut vector = [0; 2];
    for (half, word) in vector.iter_mut().enumerate() {
        for k in 0..per_half {
            // SAFETY: the piece lies within the 16 bytes.
            let piece: u64 = unsafe { A::load(from.cast::<P>().add(half * per_half + k)) }.into();
            *word |= piece << (8 * size_of::<P>() * k);
        }
    }
    vector
}

/// Writes a vector of 16 bytes. Each store writes one integer of type `P`. The function `cut`
/// converts a 64-bit word to type `P` by keeping its low bytes.
///
/// # Safety
/// `to` points to 16 bytes that accesses of kind `B` can write. `to` is aligned to the size of `P`.
#[inline(always)]
unsafe fn scatter<B: Side, P: Piece>(to: *mut u8, vector: Vector, cut: impl Fn(u64) -> P) {
    let per_half = 8 / size_of::<P>();
    for (half, word) in vector.iter().enumerate() {
        for k in 0..per_half {
            // SAFETY: the piece lies within the 16 bytes.
            unsafe { B::store(to.cast::<P>().add(half * per_half + k), cut(word >> (8 * size_of::<P>() * k))) };
        }
    }
}

/// Implements [`copy`] if an address or the length is not a multiple of 16 bytes. First copies the
/// bytes before the first 16-byte boundary in the peer's memory, then whole vectors of 16 bytes,
/// and then the remaining bytes.
///
/// This function is not inlined, and needs few registers. A kernel with large blocks must not call
/// a function that needs more registers than the kernel itself.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn unaligned<S: Scope, A: Side, B: Side>(to: *mut u8, from: *const u8, bytes: usize, far: Far) {
    let far_address = if far == Far::To { to as usize } else { from as usize };
    let head = (far_address.wrapping_neg() % VECTOR).min(bytes);
    let body = (bytes - head) / VECTOR;
    let tail = bytes - head - body * VECTOR;
    // SAFETY: head, body and tail lie within the bytes, one after the other. In the body the far
    // side is aligned to a vector, and the near side is aligned to the integer type of each line.
    unsafe {
        few::<S, A, B>(to, from, head);
        let (to, from) = (to.add(head), from.add(head));
        let near = if far == Far::To { from as usize } else { to as usize };
        if near % VECTOR == 0 {
            vectors::<S, A, B, 4>(to, from, body);
        } else {
            let mut at = S::rank();
            while at < body {
                let (to, from) = (to.add(at * VECTOR), from.add(at * VECTOR));
                if far == Far::To {
                    let vector = match near % 8 {
                        0 => [A::load(from.cast::<u64>()), A::load(from.cast::<u64>().add(1))],
                        4 => gather::<A, u32>(from),
                        2 | 6 => gather::<A, u16>(from),
                        _ => gather::<A, u8>(from),
                    };
                    B::store_vector(to, vector);
                } else {
                    let vector = A::load_vector(from);
                    match near % 8 {
                        0 => scatter::<B, u64>(to, vector, |word| word),
                        4 => scatter::<B, u32>(to, vector, |word| word as u32),
                        2 | 6 => scatter::<B, u16>(to, vector, |word| word as u16),
                        _ => scatter::<B, u8>(to, vector, |word| word as u8),
                    }
                }
                at += S::size();
            }
        }
        few::<S, A, B>(to.add(body * VECTOR), from.add(body * VECTOR), tail);
    }
}
