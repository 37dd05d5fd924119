//! Checks that copies and reductions leave no vector registers in a state that slows down SSE code
//! of their caller.

use super::super::Isa;
use super::super::reduce::reduce_on;
use super::super::{Input, Stores, copy, copy::Copy, copy::CopyStreaming, copy::Zero};
use peerweave_types::{DType, ReduceOp};

/// Functions that check the state of vector registers. Tests of whole operations also use them.
#[allow(unreachable_pub, reason = "the items are public in the other crate that includes this file")]
#[path = "../../../../../tests/src/run/vector_state.rs"]
mod vector_state;

use vector_state::{clean, is_observable, upper_halves_in_use};

fn assert_clean(what: &dyn std::fmt::Display, work: impl FnOnce()) {
    clean();
    work();
    let dirty = upper_halves_in_use();
    clean();
    assert!(!dirty, "the upper halves of vector registers are in use after {what}");
}

#[test]
fn upper_halves_of_registers_are_zero_after_simd_functions() {
    if !is_observable() {
        println!("not run: this processor does not report which upper halves are in use");
        return;
    }
    #[repr(align(64))]
    struct Lines([u8; 1 << 15]);
    let (mut a, mut b) = (Box::new(Lines([1; 1 << 15])), Box::new(Lines([0; 1 << 15])));
    let (a, b) = (a.0.as_mut_ptr(), b.0.as_mut_ptr());
    for isa in Isa::available() {
        for count in [1, 3, 8, 15, 64, 100, 1000] {
            let what = |kernel: &str| format!("{kernel} of {count} on {}", isa.name());
            // SAFETY: both buffers are larger than the number of accessed bytes and aligned to a
            // cache line. They do not overlap.
            let copied = || unsafe { copy(b, a, count) };
            assert_clean(&what("copy"), copied);
            // SAFETY: as above.
            let moved = || unsafe { isa.enter(Copy { dst: b, src: a, bytes: 64 + count }) };
            assert_clean(&what("large copy"), moved);
            // SAFETY: as above.
            let streamed = || unsafe { isa.enter(CopyStreaming { dst: b, src: a, bytes: 64 + count }) };
            assert_clean(&what("streaming copy"), streamed);
            // SAFETY: as above.
            let zeroed = || unsafe { isa.enter(Zero { dst: b, bytes: count }) };
            assert_clean(&what("zero"), zeroed);
            for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.into_iter().map(move |op| (dtype, op))) {
                if !op.accepts(dtype) {
                    continue;
                }
                let inputs = [Input { at: a, scalar: 1 }, Input { at: b, scalar: 1 }];
                for stores in [Stores::Cached, Stores::Streaming] {
                    let what = what(&format!("{op:?} of {dtype:?}"));
                    // SAFETY: as above. An output may be the same range as an input.
                    let reduced = || unsafe { reduce_on(isa, dtype, op, &inputs, &[b], count, stores) };
                    assert_clean(&what, reduced);
                }
            }
        }
    }
}
