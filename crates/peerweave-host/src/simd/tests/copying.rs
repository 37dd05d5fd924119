//! Tests of copying and zeroing: results are compared with those of safe slices.

use super::super::copy::{Copy, CopyStreaming, SHORT_BYTES, Zero};
use super::super::{Isa, copy, copy_streaming, copy_strided, fill_zero};
use super::{Guarded, Random};
use proptest::prelude::*;

const FEW: bool = cfg!(miri);

/// Copies `len` bytes with every instruction set, by ordinary and by streaming copies. Compares the
/// results with the source.
#[track_caller]
fn check_copy(len: usize, from: usize, to: usize, random: &mut Random) {
    let bytes = random.bytes(len);
    let run = |name: &str, f: &dyn Fn(*mut u8, *const u8)| {
        let (mut source, mut target) = (Guarded::new(&bytes, from), Guarded::new(&vec![0; len], to));
        f(target.as_mut_ptr(), source.as_mut_ptr());
        let what = format!("{name}, {len} bytes from {from} to {to}");
        assert!(target.content() == bytes, "{what}: the copy differs from the source");
        target.assert_guards(&what);
        source.assert_guards(&what);
    };
    // SAFETY: both buffers have `len` bytes, and no other code accesses them.
    run("copy", &|dst, src| unsafe { copy(dst, src, len) });
    // SAFETY: as above.
    run("copy_streaming", &|dst, src| unsafe { copy_streaming(dst, src, len) });
    for isa in Isa::available() {
        if len > SHORT_BYTES {
            // SAFETY: as above, and the length is more than `SHORT_BYTES`.
            run(isa.name(), &|dst, src| unsafe { isa.enter(Copy { dst, src, bytes: len }) });
        }
        // SAFETY: as above.
        run(isa.name(), &|dst, src| unsafe { isa.enter(CopyStreaming { dst, src, bytes: len }) });
    }
}

/// Zeroes memory with every instruction set, and checks the result.
#[track_caller]
fn check_zero(len: usize, at: usize, random: &mut Random) {
    let bytes = random.bytes(len);
    let run = |name: &str, f: &dyn Fn(*mut u8)| {
        let mut target = Guarded::new(&bytes, at);
        f(target.as_mut_ptr());
        let what = format!("{name}, {len} bytes at {at}");
        assert!(target.content().iter().all(|&byte| byte == 0), "{what}: a byte is not zero");
        target.assert_guards(&what);
    };
    // SAFETY: the buffer has `len` bytes, and no other code accesses it.
    run("fill_zero", &|dst| unsafe { fill_zero(dst, len) });
    for isa in Isa::available() {
        // SAFETY: as above.
        run(isa.name(), &|dst| unsafe { isa.enter(Zero { dst, bytes: len }) });
    }
}

#[test]
fn short_copies_are_correct_at_several_alignments() {
    let mut random = Random(4);
    for len in (0..=300).step_by(if FEW { 61 } else { 1 }) {
        for (from, to) in [(0, 0), (0, 1), (1, 0), (3, 3), (8, 40), (63, 62), (31, 33)] {
            check_copy(len, from, to, &mut random);
        }
        check_zero(len, random.below(64), &mut random);
    }
}

#[test]
fn copies_are_correct_at_lengths_around_rep_movsb_thresholds() {
    let mut random = Random(5);
    let borders: &[usize] = if FEW {
        &[257]
    } else {
        &[511, 512, 1025, 4096, (32 << 10) - 1, 32 << 10, (32 << 10) + 77, (1 << 20) - 1, 1 << 20, (1 << 20) + 65]
    };
    for &len in borders {
        for (from, to) in [(0, 0), (5, 5), (5, 6), (0, 32)] {
            check_copy(len, from, to, &mut random);
        }
        check_zero(len, 0, &mut random);
        check_zero(len, 13, &mut random);
    }
}

#[test]
fn strided_copy_writes_exactly_the_strided_elements() {
    let mut random = Random(6);
    for element in [1usize, 2, 3, 4, 8, 12, 16, 40] {
        for (to_stride, from_stride, count) in [(1, 1, 9), (1, 3, 10), (4, 1, 11), (3, 5, 7), (2, 2, 0), (2, 9, 1)] {
            let from = random.bytes(element * from_stride * count);
            let old = random.bytes(element * to_stride * count);
            let (mut source, mut target) = (Guarded::new(&from, 1), Guarded::new(&old, 2));
            // SAFETY: both buffers have `count` elements at their strides, and no other code
            // accesses them.
            unsafe { copy_strided(target.as_mut_ptr(), to_stride, source.as_mut_ptr(), from_stride, element, count) };
            let mut expected = old.clone();
            for i in 0..count {
                expected[i * to_stride * element..][..element].copy_from_slice(&from[i * from_stride * element..][..element]);
            }
            assert_eq!(target.content(), expected, "{element} bytes, strides {to_stride} and {from_stride}, {count} elements");
            target.assert_guards(&"copy_strided");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if FEW { 4 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copies_and_zero_fills_of_any_length_are_exact(len in 0usize..5000, from in 0usize..64, to in 0usize..64, seed in 1u64..) {
        let mut random = Random(seed);
        let len = if FEW { len % 100 } else { len };
        check_copy(len, from, to, &mut random);
        check_zero(len, to, &mut random);
    }
}
