//! Initialization and finalization, symmetric memory, one-sided transfers, signals.

mod common;

use common::*;

#[test]
fn puts_and_gets_are_visible_after_a_barrier() {
    fakes().run_many(3, |me| {
        let rank = me.rank as i32;
        assert_eq!(nvshmemx_init_status(), 0);
        let stream = init(&me);
        assert_eq!((nvshmem_my_pe(), nvshmem_n_pes(), nvshmemx_init_status()), (rank, 3, 2));
        let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
        let target = symmetric(&[-1_i32; 1000]);
        let source = plain(&[rank; 1000]);
        nvshmem_int32_put(target, source, 1000, next);
        nvshmem_barrier_all();
        assert_eq!(read::<i32>(target, 1000), [previous; 1000]);
        nvshmem_barrier_all();
        nvshmemx_int32_put_on_stream(target + 8, source, 10, previous, stream);
        nvshmemx_barrier_all_on_stream(stream);
        finish(stream);
        assert_eq!(read::<i32>(target, 13)[1..13], [&[previous][..], &[next; 10], &[previous]].concat());
        let back = plain(&[0_i32; 4]);
        nvshmem_int32_get(back, target + 8, 4, next);
        assert_eq!(read::<i32>(back, 4), [(next + 1) % 3; 4]);
        nvshmem_barrier_all();
        nvshmem_free(target);
        assert_eq!(count("allocations"), 0);
        nvshmemx_hostlib_finalize();
        assert_eq!((nvshmemx_init_status(), count("left_behind")), (0, 0));
    });
}

#[test]
fn strided_scalar_and_128_bit_transfers_deliver_exact_values() {
    fakes().run_many(2, |me| {
        let stream = init(&me);
        let other = 1 - me.rank as i32;
        let target = symmetric(&[0_i32; 16]);
        let source = plain(&[1, 2, 3, 4, 5, 6]);
        nvshmem_int32_iput(target, source, 3, 2, 3, other);
        nvshmem_barrier_all();
        assert_eq!(read::<i32>(target, 8), [1, 0, 0, 3, 0, 0, 5, 0]);
        let back = plain(&[0_i32; 6]);
        nvshmem_int32_iget(back, target, 2, 3, 3, other);
        assert_eq!(read::<i32>(back, 6), [1, 0, 3, 0, 5, 0]);
        nvshmem_barrier_all();
        nvshmem_float_p(target, 1.5, other);
        nvshmemx_double_p_on_stream(target + 8, 2.5, other, stream);
        nvshmemx_barrier_all_on_stream(stream);
        finish(stream);
        assert_eq!(nvshmem_float_g(target, other), 1.5);
        assert_eq!(nvshmemx_double_g_on_stream(target + 8, other, stream), 2.5);
        nvshmem_barrier_all();
        let wide = plain(&[7_u8; 48]);
        nvshmem_put128(target, wide, 3, other);
        nvshmem_barrier_all();
        assert_eq!(read::<u8>(target, 48), [7; 48]);
    });
}

#[test]
fn peer_pointers_access_the_same_symmetric_memory() {
    fakes().run_many(2, |me| {
        init(&me);
        let other = 1 - me.rank as i32;
        let memory = symmetric(&[me.rank as i32 + 10; 4]);
        let (mut kind, mut ordinal) = (0_u32, -1_i32);
        assert_eq!(cuPointerGetAttribute((&raw mut kind).cast(), 2, memory), 0);
        assert_eq!(cuPointerGetAttribute((&raw mut ordinal).cast(), 9, memory), 0);
        assert_eq!((kind, ordinal), (2, me.rank as i32));
        assert_eq!(nvshmem_ptr(memory, me.rank as i32), memory);
        let theirs = nvshmem_ptr(memory + 4, other);
        assert_ne!(theirs, 0);
        assert_eq!(read::<i32>(theirs, 3), [other + 10; 3]);
        assert_eq!(nvshmemx_mc_ptr(0, memory), 0);
        assert_eq!(nvshmem_ptr(plain(&[1]), other), 0);
        nvshmem_barrier_all();
    });
}

#[test]
fn put_delivers_data_if_nvshmem_ptr_returns_null_for_the_peer() {
    let apart = fakes().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1,1-0");
    apart.run_many(2, |me| {
        init(&me);
        let other = 1 - me.rank as i32;
        let memory = symmetric(&[0_i32]);
        assert_eq!(nvshmem_ptr(memory, other), 0);
        assert_eq!((nvshmem_team_n_pes(1), nvshmem_team_n_pes(2)), (1, 2));
        let source = plain(&[me.rank as i32 + 1]);
        assert_eq!(nvshmemx_buffer_register(source, 4), 0);
        nvshmem_int32_put(memory, source, 1, other);
        nvshmem_barrier_all();
        assert_eq!(read::<i32>(memory, 1), [other + 1]);
        nvshmem_barrier_all();
    });
}

#[test]
fn malloc_fills_with_poison_and_calloc_fills_with_zeros() {
    fakes().env("NVSHMEM_DISABLE_CUDA_VMM", "1").run_many(2, |me| {
        init(&me);
        let fresh = nvshmem_malloc(1000);
        assert_eq!(read::<u8>(fresh, 1000), [0xC3; 1000]);
        let zero = nvshmem_calloc(10, 100);
        assert_eq!(read::<u8>(zero, 1000), [0; 1000]);
        let aligned = nvshmem_align(1 << 16, 100);
        assert!(aligned.is_multiple_of(1 << 16));
        assert_eq!((nvshmem_malloc(0), nvshmem_align(3, 8)), (0, 0));
        assert_eq!((count("allocations"), count("allocated_bytes")), (3, 2100));
        nvshmem_free(fresh);
        assert_eq!(nvshmem_malloc(1000), fresh);
        assert_eq!(nvshmem_malloc(9 << 20), 0, "the heap has only 8 MiB");
        let rest = nvshmem_malloc(7 << 20);
        assert_ne!(rest, 0);
        assert_eq!(nvshmem_malloc(1 << 20), 0, "the heap has less than 1 MiB free");
        nvshmem_free(rest);
        assert_ne!(nvshmem_malloc(1 << 20), 0);
        nvshmemx_hostlib_finalize();
        assert_eq!(count("left_behind"), 4);
    });
}

#[test]
fn pending_transfers_complete_at_quiet() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "100000").run_many(2, |me| {
        let stream = init(&me);
        let other = 1 - me.rank as i32;
        let memory = symmetric(&[-1_i32; 2]);
        let source = plain(&[5, 6]);
        nvshmem_int32_put_nbi(memory, source, 1, other);
        assert_eq!(count("pending"), 1);
        nvshmem_sync_all();
        assert_eq!(read::<i32>(memory, 1), [-1], "sync does not complete transfers");
        nvshmem_sync_all();
        nvshmem_quiet();
        nvshmem_sync_all();
        assert_eq!(read::<i32>(memory, 1), [5]);
        nvshmemx_int32_put_nbi_on_stream(memory + 4, source + 4, 1, other, stream);
        nvshmemx_quiet_on_stream(stream);
        finish(stream);
        nvshmem_sync_all();
        assert_eq!(read::<i32>(memory, 2), [5, 6]);
        nvshmem_barrier_all();
    });
    fakes().run_many(2, |me| {
        let stream = init(&me);
        let other = 1 - me.rank as i32;
        let (data, word) = (symmetric(&[0_i32; 100]), symmetric(&[0_u64]));
        let source = plain(&[me.rank as i32 + 1; 100]);
        nvshmemx_int32_put_signal_nbi_on_stream(data, source, 100, word, 3, 10, other, stream);
        nvshmemx_signal_wait_until_on_stream(word, 5, 3, stream);
        finish(stream);
        assert_eq!((nvshmem_signal_fetch(word), read::<i32>(data, 100)), (3, vec![other + 1; 100]));
        nvshmem_barrier_all();
    });
}

#[test]
fn stream_wait_ends_when_symmetric_memory_meets_the_condition() {
    fakes().run_many(2, |me| {
        let stream = init(&me);
        let words = symmetric(&[0_i32; 4]);
        let signal = symmetric(&[40_u64]);
        if me.rank == 0 {
            nvshmemx_int32_wait_until_on_stream(words, 2, -5, stream);
            nvshmemx_int32_wait_until_on_stream(words, 4, 0, stream);
            nvshmemx_int32_wait_until_all_on_stream(words, 4, [0, 0, 1, 0].as_ptr(), 4, 0, stream);
            nvshmemx_int32_wait_until_all_vector_on_stream(words, 2, std::ptr::null(), 0, [-1, -2].as_ptr(), stream);
            assert_ne!(cuStreamQuery(stream), 0);
            me.put_file("waits", b"");
            finish(stream);
            assert_eq!(read::<i32>(words, 4), [-1, -2, 0, -4]);
            nvshmemx_signal_wait_until_on_stream(signal, 0, 42, stream);
            finish(stream);
        } else {
            me.wait_for_file("waits");
            let source = plain(&[-1, -2, 0, -4]);
            nvshmemx_int32_put_on_stream(words, source, 4, 0, stream);
            nvshmemx_signal_op_on_stream(signal, 2, 10, 0, stream);
            finish(stream);
        }
        nvshmem_barrier_all();
    });
}

#[test]
fn signal_wait_on_a_stream_compares_with_wraparound() {
    fakes().run_many(1, |me| {
        let stream = init(&me);
        let word = symmetric(&[0_u64]);
        // The comparison wraps around, as in streams of the device: 0 is greater than `u64::MAX`.
        nvshmemx_signal_wait_until_on_stream(word, 5, u64::MAX, stream);
        finish(stream);
        write(word, &[3_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 5, 3, stream);
        nvshmemx_signal_wait_until_on_stream(word, 2, 2, stream);
        finish(stream);
    });
}

#[test]
fn external_memory_can_be_registered_as_symmetric() {
    fakes().env("NVSHMEM_CUMEM_GRANULARITY", "2M").run_many(2, |me| {
        init(&me);
        let rank = me.rank as i32;
        const BYTES: usize = 2 << 20;
        let (mut handle, mut memory) = (0, 0);
        // Pinned memory, shared by a descriptor, located on a device.
        let prop = [1, 1, 1, rank, 0, 0, 0, 0];
        assert_eq!(cuMemCreate(&mut handle, BYTES, prop.as_ptr().cast(), 0), 0);
        assert_eq!(cuMemAddressReserve(&mut memory, BYTES, 0, 0, 0), 0);
        assert_eq!(cuMemMap(memory, BYTES, 0, handle, 0), 0);
        assert_eq!(cuMemSetAccess(memory, BYTES, [1, rank, 3].as_ptr().cast(), 1), 0);
        let symmetric = nvshmemx_buffer_register_symmetric(memory, BYTES, 0);
        assert_ne!(symmetric, 0);
        let source = plain(&[rank + 7]);
        nvshmem_int32_put(symmetric + 4, source, 1, 1 - rank);
        nvshmem_barrier_all();
        assert_eq!(read::<i32>(memory + 4, 1), [8 - rank], "both addresses access the same memory");
        nvshmem_barrier_all();
        assert_eq!(count("symmetric_registrations"), 1);
        assert_eq!(nvshmemx_buffer_unregister_symmetric(symmetric, BYTES), 0);
        assert_eq!(nvshmemx_buffer_unregister_symmetric(symmetric, BYTES), 1);
        assert_eq!(nvshmemx_buffer_register(memory, BYTES), 0);
        assert_eq!(nvshmemx_buffer_register(memory + 4096, 8), 1, "the memory overlaps a registration");
        assert_eq!((nvshmemx_buffer_unregister(memory), nvshmemx_buffer_unregister(memory)), (0, 1));
    });
}

#[test]
fn captured_put_transfers_data_at_each_launch() {
    fakes().run_many(2, |me| {
        let stream = init(&me);
        let other = 1 - me.rank as i32;
        let (memory, source) = (symmetric(&[0_i32]), plain(&[1_i32]));
        let (mut graph, mut exec) = (0, 0);
        assert_eq!(cuStreamBeginCapture_v2(stream, 2), 0);
        nvshmemx_int32_put_on_stream(memory, source, 1, other, stream);
        nvshmemx_barrier_all_on_stream(stream);
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
        assert_eq!(read::<i32>(memory, 1), [0]);
        nvshmem_barrier_all();
        for value in [3, 4] {
            write(source, &[value]);
            assert_eq!(cuGraphLaunch(exec, stream), 0);
            finish(stream);
            assert_eq!(read::<i32>(memory, 1), [value]);
            nvshmem_barrier_all();
        }
        assert_eq!((cuGraphExecDestroy(exec), cuGraphDestroy(graph)), (0, 0));
    });
}

#[test]
fn nvshmem_can_start_again_after_finalize() {
    fakes().run_many(2, |me| {
        init(&me);
        nvshmemx_hostlib_finalize();
        let id = shared_id(&me, "another");
        assert_eq!(init_with(&me, &id, 1), 0);
        assert_eq!(init_with(&me, &id, 1), 0, "a second initialization must succeed");
        nvshmemx_hostlib_finalize();
        let memory = symmetric(&[me.rank as i32]);
        assert_eq!(read::<i32>(memory, 1), [me.rank as i32]);
        nvshmem_free(memory);
        nvshmemx_hostlib_finalize();
        assert_eq!(nvshmemx_init_status(), 0);
    });
}

#[test]
fn fake_atomics_do_nothing_unless_an_env_variable_enables_them() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_ATOMICS", "1").run_many(2, |me| {
        init(&me);
        let word = symmetric(&[0_i64, 0]);
        for _ in 0..100 {
            nvshmem_int32_atomic_fetch_add(word, 1, 0);
        }
        nvshmem_barrier_all();
        if me.rank == 0 {
            assert_eq!(read::<i32>(word, 1), [200]);
            assert_eq!(nvshmem_int64_atomic_compare_swap(word, 200, 7, 1), 0);
            assert_eq!(nvshmem_int64_atomic_compare_swap(word, 0, 7, 1), 0);
            assert_eq!(nvshmem_int64_atomic_compare_swap(word, 0, 8, 1), 7);
            assert_eq!(nvshmem_double_atomic_swap(word + 8, 1.5, 1), 0.0);
            assert_eq!(nvshmem_double_atomic_swap(word + 8, 0.0, 1), 1.5);
            assert_eq!(nvshmemx_float_atomic_fetch_add(word + 8, 0.5, 1), 0.0);
            assert_eq!(nvshmemx_float_atomic_fetch_add(word + 8, 0.5, 1), 0.5);
        }
        nvshmem_barrier_all();
    });
    fakes().run_many(1, |me| {
        init(&me);
        let word = symmetric(&[5_i32]);
        assert_eq!(nvshmem_int32_atomic_fetch_add(word, 1, 0), 0);
        assert_eq!(read::<i32>(word, 1), [5]);
    });
}
