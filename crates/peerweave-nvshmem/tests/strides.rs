//! Tests that strides beyond the limits of NVSHMEM, or of CUDA's copies inside NVSHMEM, are refused
//! before the call.
#![cfg(target_os = "linux")]

mod common;

use common::{DEADLINE, device, fakes, misuse, rendezvous, settings, start};
use peerweave_nvshmem::{Context, MisuseKind, Strides, TeamConfig};

#[test]
fn strides_beyond_the_range_of_a_c_int_are_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let buffer = here.context.alloc::<u64>(4).expect("the memory is allocated");
        let own = here.context.pe();
        let strides = Strides { count: 2, source: 1, dest: 1 << 29 };
        let refused = misuse(here.context.put_strided(&buffer, &buffer, strides, own, &here.stream));
        assert!(matches!(refused, MisuseKind::OutOfRange { .. } | MisuseKind::Value { .. }), "{refused:?}");
        // A single element is accepted with any stride, even with a stride that CUDA's copies
        // refuse.
        let (low, high) =
            (buffer.slice(0..2).expect("the range is in bounds"), buffer.slice(2..4).expect("the range is in bounds"));
        low.copy_from(&here.stream, &[7, 8]).expect("the copy completes");
        for far in [1 << 29, usize::MAX] {
            let strides = Strides { count: 1, source: far, dest: far };
            here.context.put_strided(&high, &low, strides, own, &here.stream).expect("the work is enqueued");
            here.context.get_strided(&high, &low, strides, own, &here.stream).expect("the work is enqueued");
            here.stream.synchronize().expect("the stream completes");
            here.context.put_strided_blocking(&high, &low, strides, own).expect("the put completes");
            here.context.get_strided_blocking(&high, &low, strides, own).expect("the get completes");
        }
        assert_eq!(high.to_vec(&here.stream).expect("the copy completes")[0], 7);
        drop((low, high));
        let team = here
            .context
            .world()
            .split_strided(0, i32::MAX, 1, TeamConfig::default())
            .expect("a team of one member may have any stride");
        team.expect("this PE is a member").destroy().expect("all PEs destroy the team");
        here.context.free(buffer).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn strides_beyond_the_limit_of_cuda_copies_are_refused() {
    fakes().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", "17179869184").run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let own = settings(DEADLINE).symmetric_size_bytes(6 << 30);
        let context = Context::from_rendezvous(&meeting, &device(0), own).expect("NVSHMEM starts");
        let (pe, stream, far) = (context.pe(), context.stream(), 1usize << 31);
        let buffer = context.alloc::<u8>(2 * far + 2).expect("the memory is allocated");
        let (low, high) = (
            buffer.slice(0..far + 1).expect("the range is in bounds"),
            buffer.slice(far + 1..2 * far + 2).expect("the range is in bounds"),
        );
        for strides in [Strides { count: 2, source: 1, dest: far }, Strides { count: 2, source: far, dest: 1 }] {
            let refused = misuse(context.put_strided(&high, &low, strides, pe, stream));
            assert!(matches!(refused, MisuseKind::Value { expected: "a stride of less than 2 GiB", .. }), "{refused:?}");
            misuse(context.get_strided_blocking(&high, &low, strides, pe));
        }
        let widest = Strides { count: 2, source: far - 1, dest: far - 1 };
        context.put_strided(&high, &low, widest, pe, stream).expect("the largest stride is accepted");
        drop((low, high));
        context.free(buffer).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}
