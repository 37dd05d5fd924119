//! Copies to and from memory that other threads and PEs may access at the same time. The copies do
//! not order other accesses. To order accesses, use signals, barriers or tickets.
//!
//! Invariant: shared memory is accessed only by relaxed atomic operations, in aligned words, and in
//! single bytes at both ends. The result of a concurrent access is therefore a mixture of old and
//! new bytes, not undefined behavior. Every mixture of bytes is a valid `Element`.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Divides a memory range into three parts: single bytes, aligned words, and the remaining single
/// bytes. The range starts at `at`, and has the length `bytes`. Returns the number of bytes before
/// the words, and the number of words.
#[inline]
fn split(at: *const u8, bytes: usize) -> (usize, usize) {
    let head = (at as usize).wrapping_neg() % WORD;
    if head >= bytes { (bytes, 0) } else { (head, (bytes - head) / WORD) }
}

/// Copies `bytes` bytes from shared memory, to memory that no other thread accesses during the
/// copy.
///
/// # Safety
/// `from` is valid for atomic reads of `bytes` bytes. `into` is valid for writes of `bytes` bytes,
/// and no other thread accesses them.
#[inline]
pub(crate) unsafe fn read(from: *mut u8, into: *mut u8, bytes: usize) {
    let (head, words) = split(from, bytes);
    let byte = |i: usize| {
        // SAFETY: `i < bytes`; the caller guarantees that `from` is valid for atomic reads and
        // `into` for writes there.
        unsafe { into.add(i).write(AtomicU8::from_ptr(from.add(i)).load(Relaxed)) }
    };
    (0..head).for_each(byte);
    for word in 0..words {
        let i = head + word * WORD;
        // SAFETY: `i + WORD <= bytes`, and `from + i` is aligned to a word by `split`; `into` need
        // not be, hence the unaligned write.
        unsafe { into.add(i).cast::<u64>().write_unaligned(AtomicU64::from_ptr(from.add(i).cast()).load(Relaxed)) };
    }
    (head + words * WORD..bytes).for_each(byte);
}

/// Copies `bytes` bytes to shared memory, from memory that no thread writes during the copy.
///
/// # Safety
/// `from` is valid for reads of `bytes` bytes, and no thread writes there. `to` is valid for atomic
/// writes of `bytes` bytes.
#[inline]
pub(crate) unsafe fn write(from: *const u8, to: *mut u8, bytes: usize) {
    let (head, words) = split(to, bytes);
    let byte = |i: usize| {
        // SAFETY: `i < bytes`; the caller guarantees that `from` is valid for reads and `to` for
        // atomic writes there.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(from.add(i).read(), Relaxed) }
    };
    (0..head).for_each(byte);
    for word in 0..words {
        let i = head + word * WORD;
        // SAFETY: `i + WORD <= bytes`, and `to + i` is aligned to a word by `split`; `from` need
        // not be, hence the unaligned read.
        unsafe { AtomicU64::from_ptr(to.add(i).cast()).store(from.add(i).cast::<u64>().read_unaligned(), Relaxed) };
    }
    (head + words * WORD..bytes).for_each(byte);
}

/// The source of a [`copy`]. Each variant says how the copy reads the source.
#[derive(Clone, Copy)]
pub(crate) enum Reading {
    /// Memory that other threads and PEs may access during the copy. The copy reads this memory
    /// with relaxed atomic operations.
    Shared(*mut u8),
    /// Memory that the caller passed to an operation. The caller may have borrowed the memory as
    /// `&[T]`, so the copy must not use atomic operations. The copy uses volatile reads instead. If
    /// another thread changes the memory during the copy, these reads return a mixture of old and
    /// new bytes.
    Named(*const u8),
}

/// Copies `bytes` bytes to shared memory. If the ranges overlap, the result is unspecified.
///
/// # Safety
/// `from` is valid for reads of `bytes` bytes, of the kind that the variant of [`Reading`] states.
/// `to` is valid for atomic writes of `bytes` bytes.
pub(crate) unsafe fn copy(from: Reading, to: *mut u8, bytes: usize) {
    let mut stage = [0u8; 1024];
    let mut done = 0;
    while done < bytes {
        let now = stage.len().min(bytes - done);
        // SAFETY: `done + now <= bytes`, so both ranges are valid; `stage` is local to this
        // function and has room for `now` bytes.
        unsafe {
            match from {
                Reading::Shared(from) => read(from.add(done), stage.as_mut_ptr(), now),
                Reading::Named(from) => {
                    stage[..now].iter_mut().zip(done..).for_each(|(byte, i)| *byte = from.add(i).read_volatile());
                }
            }
            write(stage.as_ptr(), to.add(done), now);
        }
        done += now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_at_any_alignment_writes_no_byte_outside_the_range() {
        for start in 0..9 {
            for bytes in 0..40 {
                let source: Vec<u8> = (0..bytes as u8).map(|i| i + 1).collect();
                let mut shared = [0u8; 64];
                let mut back = vec![0u8; bytes];
                // SAFETY: `start + bytes < 64`; only this test accesses the three buffers.
                unsafe {
                    write(source.as_ptr(), shared.as_mut_ptr().add(start), bytes);
                    read(shared.as_mut_ptr().add(start), back.as_mut_ptr(), bytes);
                }
                assert_eq!(back, source);
                assert!(shared[..start].iter().chain(&shared[start + bytes..]).all(|&b| b == 0));
            }
        }
    }
}
