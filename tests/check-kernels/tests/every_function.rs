//! Tests of the device API on the host: runs the check kernels on several PEs in this process,
//! under several schedules. The same kernels run on GPUs.

use peerweave_check_kernels::{FINISHED, RESULT_WORDS, atomic, collective, context, rma, signal, team, wait, warp};
use peerweave_check_kernels::{for_each_bulk, for_each_collective, for_each_rma};
use peerweave_device::launch::Kernel;
use peerweave_device::prelude::*;
use peerweave_grid::{Job, Shape};
use peerweave_types::{KernelArgs, KernelTeam, bf16, f16};
use std::time::Duration;

/// Pairs of the number of PEs and the number of threads of a block. Each block has two warps, and
/// in most pairs the last warp is not full.
const SHAPES: [(u32, u32); 3] = [(1, 33), (2, 64), (3, 40)];

/// Runs a check kernel with each pair of [`SHAPES`], with each number of PEs per machine, and under
/// several seeds. `blocks` is the number of blocks. `args` allocates all arguments except the
/// result, which it gets as an argument.
fn check<A: KernelArgs>(kernel: &Kernel<A>, blocks: u32, args: impl Fn(&mut Job, SymSlice<u64>) -> A) {
    for (n_pes, threads) in SHAPES {
        for machine in (1..=n_pes).rev() {
            check_on(kernel, blocks, (n_pes, machine, threads), &args);
        }
    }
}

/// Like [`check`], but with one number of PEs, of PEs per machine, and of threads per block.
fn check_on<A: KernelArgs>(
    kernel: &Kernel<A>,
    blocks: u32,
    (n_pes, machine, threads): (u32, u32, u32),
    args: &impl Fn(&mut Job, SymSlice<u64>) -> A,
) {
    let seeds = if machine == n_pes { 4 } else { 2 };
    for seed in 0..seeds {
        let mut job = Job::new(n_pes).machines_of(machine).seed(seed).deadline(Duration::from_secs(60));
        let result = job.alloc::<u64>(RESULT_WORDS);
        let args = args(&mut job, result);
        let shape = Shape::new(blocks, threads).shared_bytes(1024).cooperative(true);
        let name = kernel.name();
        let outcome = job.launch_each(kernel, shape, |_| Some(args));
        let job_is = format!("{name}, {n_pes} PEs in machines of {machine}, seed {seed}");
        outcome.unwrap_or_else(|error| panic!("{job_is}: {error}"));
        for pe in 0..n_pes {
            let found = job.read(pe, result);
            let [differences, line, value, expected] = found[..4] else {
                unreachable!("a result has RESULT_WORDS words, at least 4")
            };
            assert_eq!(
                differences, 0,
                "{job_is}: PE {pe}: {differences} differences, first in line {line}: found {value:#x}, expected {expected:#x}"
            );
            assert_eq!(found[RESULT_WORDS - 1], FINISHED, "{job_is}: PE {pe}: the kernel is not complete");
        }
    }
}

/// Defines a test for each kernel. The test has the name of the kernel.
macro_rules! rma {
    ($($t:ty: $($kernel:ident),*;)*) => {$($(
        #[test]
        fn $kernel() {
            check(&rma::$kernel::KERNEL, 1, |job, result| {
                (job.alloc::<$t>(rma::ELEMENTS), job.alloc::<$t>(rma::ELEMENTS), job.alloc::<u64>(rma::SIGNALS), result)
            });
        }
    )*)*};
}

for_each_rma!(rma);
// The host has no bulk copies. The kernels copy by their threads and compute the same results.
for_each_bulk!(rma);

#[test]
fn warp_shuffles_votes_and_block_barriers_are_correct() {
    check(&warp::check_warp::KERNEL, 2, |_, result| (result,));
}

#[test]
fn team_ranks_peer_mappings_and_polling_waits_are_correct() {
    check(&context::check_context::KERNEL, 1, |job, result| (KernelTeam::WORLD, job.alloc::<u64>(context::WORDS), result));
}

#[test]
fn signal_kernels_are_correct_at_every_scope() {
    check(&signal::check_signal::KERNEL, 1, |job, result| (job.alloc::<u64>(signal::WORDS), result));
}

macro_rules! words {
    ($($test:ident: $module:ident, $t:ty, $kernel:ident;)*) => {$(
        #[test]
        fn $test() {
            check(&$module::$kernel::KERNEL, 1, |job, result| (job.alloc::<$t>($module::WORDS), result));
        }
    )*};
}

words! {
    waits_for_i32_are_correct: wait, i32, check_wait_i32;
    waits_for_u32_are_correct: wait, u32, check_wait_u32;
    waits_for_i64_are_correct: wait, i64, check_wait_i64;
    waits_for_u64_are_correct: wait, u64, check_wait_u64;
    atomics_of_i32_are_correct: atomic, i32, check_atomic_i32;
    atomics_of_u32_are_correct: atomic, u32, check_atomic_u32;
    atomics_of_i64_are_correct: atomic, i64, check_atomic_i64;
    atomics_of_u64_are_correct: atomic, u64, check_atomic_u64;
    atomics_of_f32_are_correct: atomic, f32, check_atomic_f32;
    atomics_of_f64_are_correct: atomic, f64, check_atomic_f64;
    additions_to_f16_are_correct: atomic, f16, check_atomic_f16;
    additions_to_bf16_are_correct: atomic, bf16, check_atomic_bf16;
}

#[test]
fn barriers_and_syncs_of_all_pes_are_correct() {
    check(&team::check_team_all::KERNEL, 3, |job, result| (job.alloc::<u64>(3 * team::WORDS), result));
}

#[test]
fn barriers_and_syncs_of_a_team_are_correct() {
    check(&team::check_team::KERNEL, 3, |job, result| (KernelTeam::WORLD, job.alloc::<u64>(3 * team::WORDS), result));
}

/// Defines a test for each kernel. The test has the name of the kernel.
macro_rules! collectives {
    ($($t:ty, $operators:ident: $($kernel:ident),*;)*) => {$($(
        #[test]
        fn $kernel() {
            check(&collective::$kernel::KERNEL, 1, |job, result| {
                let elements = collective::ELEMENTS * job.n_pes() as usize;
                (KernelTeam::WORLD, job.alloc::<$t>(elements), job.alloc::<$t>(elements), result)
            });
        }
    )*)*};
}

for_each_collective!(collectives);

#[test]
fn test_values_made_from_consecutive_numbers_differ() {
    use peerweave_check_kernels::Sample;
    for number in 0..200u64 {
        assert_ne!(u8::of(number), u8::of(number + 1));
        assert_ne!(bf16::of(number), bf16::of(number + 1));
        assert_ne!(u128::of(number), u128::of(number + 1));
    }
}

#[test]
fn kernel_records_the_source_line_of_a_check_that_fails() {
    let mut job = Job::new(1);
    let (words, result) = (job.alloc::<u64>(signal::WORDS), job.alloc::<u64>(RESULT_WORDS));
    // The kernel expects zeros in `words`.
    job.write(0, words, &[200]);
    job.launch(&signal::check_signal::KERNEL, 1, 33, (words, result)).unwrap();
    let found = job.read(0, result);
    assert!(found[0] == 1 && found[1] > 0 && found[2..4] == [1, 0], "{found:?}");
}
