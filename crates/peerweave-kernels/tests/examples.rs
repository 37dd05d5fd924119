//! Tests of the example kernels among the PEs of one process, under many schedules.

use peerweave_grid::{Job, JobError, explore};
use peerweave_kernels::examples::{all_gather, pipeline, ring};

/// Numbers of PEs to test.
const PES: [u32; 4] = [1, 2, 3, 5];

#[test]
fn ring_puts_the_number_of_each_pe_to_the_next_pe() {
    for n in PES {
        explore(8, |seed| {
            let mut job = Job::new(n).seed(seed);
            let dst = job.alloc::<i32>(1);
            job.launch(&ring::KERNEL, 1, 1, (dst,))?;
            for pe in 0..n {
                assert_eq!(job.read(pe, dst), [((pe + n - 1) % n) as i32]);
            }
            Ok::<(), JobError>(())
        });
    }
}

#[test]
fn pipeline_adds_the_contribution_of_every_pe() {
    const LEN: usize = 8 * 100;
    for n in PES {
        explore(8, |seed| {
            let mut job = Job::new(n).seed(seed);
            let (data, arrived) = (job.alloc::<u32>(LEN), job.alloc::<u64>(1));
            job.write(0, data, &(0..LEN as u32).collect::<Vec<_>>());
            job.launch(&pipeline::KERNEL, 1, 64, (data, arrived, 8))?;
            let added = (1..=n).sum::<u32>();
            let expected: Vec<u32> = (0..LEN as u32).map(|i| i + added).collect();
            assert_eq!(job.read(n - 1, data), expected);
            Ok::<(), JobError>(())
        });
    }
}

#[test]
fn all_gather_example_writes_all_chunks_and_one_sum_per_chunk() {
    const LEN: usize = 300;
    for n in PES {
        explore(8, |seed| {
            let mut job = Job::new(n).seed(seed);
            let parts = job.alloc::<u32>(LEN * n as usize);
            let (arrived, sums) = (job.alloc::<u64>(1), job.alloc::<u64>(n as usize));
            let content = |pe: u32| (0..LEN as u32).map(|i| 1000 * pe + i).collect::<Vec<_>>();
            for pe in 0..n {
                job.write(pe, parts.chunk(pe as usize, n as usize), &content(pe));
            }
            job.launch(&all_gather::KERNEL, 1, 96, (parts, arrived, sums))?;
            for pe in 0..n {
                let all: Vec<u32> = (0..n).flat_map(content).collect();
                assert_eq!(job.read(pe, parts), all);
                let expected: Vec<u64> = (0..n).map(|pe| content(pe).into_iter().map(u64::from).sum()).collect();
                assert_eq!(job.read(pe, sums), expected);
            }
            Ok::<(), JobError>(())
        });
    }
}
