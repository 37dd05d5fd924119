//! Tests that a job finds races among the kernels of several PEs: under some seeds the result
//! differs.

use peerweave_device::prelude::*;
use peerweave_grid::Job;
use std::collections::BTreeSet;

/// Number of seeds, and so of schedules, for each test.
const SEEDS: u64 = 200;
const HEAP_BYTES: usize = 64 << 10;

/// Adds 1 to a word of PE 0 by a get and a put, without an atomic operation.
#[kernel]
pub fn count_by_get_and_put(ctx: &Context, counter: SymSlice<i32>) {
    let seen = ctx.g(counter, 0);
    ctx.p(counter, seen + 1, 0);
}

/// A kernel that puts a number to the next PE, and reads this PE's own element without waiting for
/// the put of the previous PE.
#[kernel]
pub fn read_without_wait(ctx: &Context, to: SymSlice<i32>, seen: SymSlice<i32>) {
    ctx.p(to, 7, (ctx.my_pe() + 1) % ctx.n_pes());
    ctx.local(seen).write(0, ctx.local(to).read(0));
}

/// A kernel that puts all elements to the next PE, and copies this PE's own elements without
/// waiting for the put of the previous PE.
#[kernel]
pub fn copy_without_wait(ctx: &Context, to: SymSlice<u32>, from: SymSlice<u32>, seen: SymSlice<u32>) {
    ctx.put(to, from, (ctx.my_pe() + 1) % ctx.n_pes());
    ctx.get(seen, to, ctx.my_pe());
}

#[test]
fn nonatomic_increments_are_lost_under_some_schedule_seeds() {
    for n_pes in [1, 2, 4] {
        let threads = if n_pes == 1 { 8 } else { 1 };
        let counts: BTreeSet<i32> = (0..SEEDS)
            .map(|seed| {
                let mut job = Job::with_heap(n_pes, HEAP_BYTES).seed(seed);
                let counter = job.alloc::<i32>(1);
                job.launch(&count_by_get_and_put::KERNEL, 1, threads, (counter,)).unwrap();
                job.read(0, counter)[0]
            })
            .collect();
        let all = (n_pes * threads) as i32;
        assert!(counts.contains(&all) && counts.len() > 1, "{n_pes} PEs, {threads} threads: {counts:?}");
    }
}

#[test]
fn read_without_a_wait_misses_the_peers_put_under_some_seeds() {
    let seen: BTreeSet<(i32, i32)> = (0..SEEDS)
        .map(|seed| {
            let mut job = Job::with_heap(2, HEAP_BYTES).seed(seed);
            let (to, seen) = (job.alloc::<i32>(1), job.alloc::<i32>(1));
            job.launch(&read_without_wait::KERNEL, 1, 1, (to, seen)).unwrap();
            (job.read(0, seen)[0], job.read(1, seen)[0])
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([(0, 7), (7, 0), (7, 7)]));
}

#[test]
fn copy_without_wait_sees_part_of_a_put_under_some_seed() {
    let partial = (0..SEEDS).any(|seed| {
        let mut job = Job::with_heap(2, HEAP_BYTES).seed(seed);
        let [to, from, seen] = [(); 3].map(|()| job.alloc::<u32>(64));
        (0..2).for_each(|pe| job.write(pe, from, &[1; 64]));
        job.launch(&copy_without_wait::KERNEL, 1, 1, (to, from, seen)).unwrap();
        (0..2).any(|pe| (1..64).contains(&job.read(pe, seen).iter().sum::<u32>()))
    });
    assert!(partial, "under no seed did a copy see only a part of the put");
}
