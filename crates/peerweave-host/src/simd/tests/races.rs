//! Tests of memory that several threads access at the same time, some of them without
//! synchronization. Under miri these tests show that no access is a data race.

use super::super::{Input, Stores, copy, copy_streaming, reduce};
use peerweave_types::{DType, ReduceOp};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = if cfg!(miri) { 3 } else { 3000 };
const BYTES: usize = if cfg!(miri) { 100 } else { 4096 };

/// Returns memory that threads share by its address, like the symmetric heap, and never by a
/// reference to plain bytes.
fn shared() -> Vec<AtomicU8> {
    (0..BYTES).map(|_| AtomicU8::new(0)).collect()
}

fn at(memory: &[AtomicU8]) -> *mut u8 {
    memory.as_ptr().cast_mut().cast()
}

#[test]
fn racing_copy_reads_only_values_that_were_written() {
    let memory = shared();
    std::thread::scope(|scope| {
        for value in [0x11u8, 0x22] {
            let memory = &memory;
            scope.spawn(move || {
                let mut mine = vec![value; BYTES];
                for _ in 0..ROUNDS {
                    // SAFETY: both ranges have `BYTES` bytes. Other threads access them only with
                    // functions of `simd`.
                    unsafe { copy(at(memory), mine.as_mut_ptr(), BYTES) };
                }
            });
        }
        for _ in 0..ROUNDS {
            let mut seen = vec![0xffu8; BYTES];
            // SAFETY: as above.
            unsafe { copy(seen.as_mut_ptr(), at(&memory), BYTES) };
            assert!(seen.iter().all(|byte| [0, 0x11, 0x22].contains(byte)));
        }
    });
}

#[test]
fn reduction_outputs_match_each_other_despite_racing_writes() {
    let memory = shared();
    std::thread::scope(|scope| {
        let memory = &memory;
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let mut mine = vec![round as u8; BYTES];
                // SAFETY: as above.
                unsafe { copy(at(memory), mine.as_mut_ptr(), BYTES) };
            }
        });
        for _ in 0..ROUNDS {
            let (mut a, mut b) = (vec![0u8; BYTES], vec![0u8; BYTES]);
            let inputs = [Input { at: at(memory), scalar: 0 }; 2];
            // SAFETY: as above. No other thread accesses the outputs.
            unsafe { reduce(DType::U8, ReduceOp::Max, &inputs, &[a.as_mut_ptr(), b.as_mut_ptr()], BYTES, Stores::Cached) };
            assert_eq!(a, b);
        }
    });
}

#[test]
fn release_store_publishes_earlier_streaming_stores() {
    let (memory, round_written, round_read) = (shared(), AtomicUsize::new(0), AtomicUsize::new(0));
    let deadline = Instant::now() + Duration::from_secs(120);
    let wait_for = |word: &AtomicUsize, round| {
        while word.load(Ordering::Acquire) != round {
            assert!(Instant::now() < deadline, "round {round}: the other thread did not arrive");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let mut mine = vec![round as u8; BYTES];
                // SAFETY: both ranges have `BYTES` bytes. The reader waits for `round_written`.
                unsafe { copy_streaming(at(&memory), mine.as_mut_ptr(), BYTES) };
                round_written.store(round, Ordering::Release);
                wait_for(&round_read, round);
            }
        });
        for round in 1..=ROUNDS {
            wait_for(&round_written, round);
            let mut seen = vec![0u8; BYTES];
            // SAFETY: both ranges have `BYTES` bytes. The writer waits for `round_read`.
            unsafe { copy(seen.as_mut_ptr(), at(&memory), BYTES) };
            // This store is before the assertion, because a failed assertion must not leave the
            // writer waiting.
            round_read.store(round, Ordering::Release);
            assert!(seen.iter().all(|&byte| byte == round as u8), "round {round}: a byte is not the byte of this round");
        }
    });
}
