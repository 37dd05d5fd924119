//! Tests on the host that the measurement kernels perform the operations that they measure on GPUs.

use crate::{PES, go, job};
use peerweave_device::prelude::*;
use peerweave_kernels::bench::{self, PingPong};

/// Returns memory of the test to which a kernel writes results.
fn results(words: &mut [u64]) -> DeviceSlice<u64> {
    // SAFETY: the words outlive the launches of the test. The launches end before the test reads
    // the words.
    unsafe { DeviceSlice::from_raw(words.as_mut_ptr().expose_provenance() as u64, words.len()) }
}

macro_rules! moves {
    ($($name:ident: $kernel:ident, $blocks:expr, $threads:expr, $put:expr, $results:expr;)*) => {$(
        #[test]
        fn $name() {
            let mut job = job(1);
            let [to, from] = [0; 2].map(|_| job.alloc::<u64>(515));
            for pe in 0..PES {
                job.write(pe, from, &(0..515).map(|index| u64::from(pe) * 1000 + index + 1).collect::<Vec<_>>());
            }
            let mut words = vec![u64::MAX; $results];
            let result = results(&mut words);
            let shape = peerweave_grid::Shape::new($blocks, $threads).shared_bytes(4096);
            // Only PE 0 runs the kernel; its target is PE 1.
            job.launch_each(&bench::$kernel::KERNEL, shape, |pe| (pe == 0).then_some((to, from, 1, 3, result))).unwrap();
            let (reader, writer) = if $put { (1, 0) } else { (0, 1) };
            assert_eq!(job.read(reader, to), job.read(writer, from));
            assert!(words.iter().all(|nanoseconds| *nanoseconds != u64::MAX));
        }
    )*};
}

moves! {
    put_of_a_thread_copies_every_element: bench_put_thread, 1, 33, true, 1;
    put_of_a_warp_copies_every_element: bench_put_warp, 1, 40, true, 1;
    put_of_a_block_copies_every_element: bench_put_block, 1, 40, true, 1;
    get_of_a_thread_copies_every_element: bench_get_thread, 1, 33, false, 1;
    get_of_a_warp_copies_every_element: bench_get_warp, 1, 40, false, 1;
    get_of_a_block_copies_every_element: bench_get_block, 1, 40, false, 1;
    put_of_several_blocks_copies_every_element: bench_put_bandwidth, 3, 40, true, 6;
    get_of_several_blocks_copies_every_element: bench_get_bandwidth, 3, 40, false, 6;
    put_of_a_thread_with_lent_memory_copies_every_element: bench_put_thread_lent, 1, 33, true, 1;
    get_of_a_thread_with_lent_memory_copies_every_element: bench_get_thread_lent, 1, 33, false, 1;
    put_of_warps_with_lent_memory_copies_every_element: bench_put_bandwidth_bulk, 3, 40, true, 6;
    get_of_warps_with_lent_memory_copies_every_element: bench_get_bandwidth_bulk, 3, 40, false, 6;
}

#[test]
fn ping_pong_of_each_scope_completes() {
    for kernel in
        [&bench::bench_ping_pong_thread::KERNEL, &bench::bench_ping_pong_warp::KERNEL, &bench::bench_ping_pong_block::KERNEL]
    {
        let mut job = job(4);
        let (to, from, signal) = (job.alloc::<u32>(100), job.alloc::<u32>(100), job.alloc::<u64>(1));
        for pe in 0..2 {
            job.write(pe, from, &[pe + 5; 100]);
        }
        let mut words = vec![u64::MAX; 2];
        let result = results(&mut words);
        let args = |pe: u32| (PingPong { to, from, signal, peer: 1 - pe, begins: 1 - pe }, 3, result);
        let shape = peerweave_grid::Shape::new(1, 40);
        job.launch_each(kernel, shape, |pe| (pe < 2).then(|| args(pe))).unwrap();
        assert_eq!((job.read(0, to), job.read(1, to)), (vec![6; 100], vec![5; 100]));
        assert_eq!(job.read(0, signal), [23]);
    }
}

#[test]
fn atomic_benchmarks_on_pe_0_add_to_a_word_on_pe_1() {
    for kernel in [&bench::bench_atomic::KERNEL, &bench::bench_atomic_relaxed::KERNEL] {
        let mut job = job(2);
        let word = job.alloc::<u64>(1);
        let mut words = vec![u64::MAX; 2];
        let result = results(&mut words);
        job.launch_each(kernel, peerweave_grid::Shape::new(1, 1), |pe| (pe == 0).then_some((word, 1, 3, result))).unwrap();
        assert!(job.read(1, word)[0] >= 23);
    }
}

#[test]
fn barrier_benchmarks_and_single_element_benchmarks_complete() {
    let mut job = job(8);
    let to = job.alloc::<u64>(3);
    let mut words = vec![u64::MAX; 2];
    let result = results(&mut words);
    for kernel in [&bench::bench_barrier_thread::KERNEL, &bench::bench_barrier_warp::KERNEL, &bench::bench_barrier_block::KERNEL]
    {
        go(&mut job, kernel, 40, (2, result));
    }
    go(&mut job, &bench::bench_p::KERNEL, 1, (to, 0, 3, result));
    assert_eq!(job.read(0, to)[0], 22);
    go(&mut job, &bench::bench_g::KERNEL, 1, (to, 0, 3, result));
}
