//! The kernels of the examples. Each kernel is launched by a program in the folder `examples` of
//! the repository.
//!
//! [`ring()`] is the first program of NVSHMEM4Py's documentation. In [`pipeline()`] each chunk of
//! data visits all PEs in order. All PEs work at the same time, each on a different chunk. In
//! [`all_gather()`] the PEs pass parts around a ring. A PE processes one part while it receives the
//! next part.

use peerweave_device::prelude::*;

/// Puts this PE's number into the first element of `dst` on the next PE. Launch with one thread.
#[kernel]
pub fn ring(ctx: &Context, dst: SymSlice<i32>) -> Result<(), Failed> {
    let next = (ctx.my_pe() + 1) % ctx.n_pes();
    ctx.p(dst, ctx.my_pe() as i32, next);
    // Completes the put, and waits for the neighbour's put.
    ctx.barrier_all()
}

/// Receives `chunks` chunks of `data` from the previous PE. Adds this PE's number plus 1 to each
/// element, and passes each chunk to the next PE.
///
/// The first PE reads its own `data`, and the last PE keeps the result. `arrived` is one signal
/// word, initially 0, which counts the chunks that this PE has received. Launch this kernel as one
/// block.
#[kernel]
pub fn pipeline(ctx: &Context, data: SymSlice<u32>, arrived: SymSlice<u64>, chunks: u32) -> Result<(), Failed> {
    let (me, last) = (ctx.my_pe(), ctx.n_pes() - 1);
    for k in 0..chunks {
        let chunk = data.chunk(k as usize, chunks as usize);
        if me > 0 {
            ctx.signal_wait_until_from_block(arrived, Compare::Ge, u64::from(k) + 1, me - 1)?;
        }
        let mine = ctx.local(chunk);
        for i in (gpu::thread_rank() as usize..chunk.len()).step_by(gpu::block_threads() as usize) {
            mine.write(i, mine.read(i) + me + 1);
        }
        if me < last {
            // All threads have worked on the chunk before any of them puts a part of it.
            gpu::sync_threads();
            ctx.put_signal_block(chunk, chunk, arrived, 1, SignalOp::Add, me + 1);
        }
    }
    Ok(())
}

/// Maximum number of threads with which [`all_gather()`] may be launched. The kernel's shared
/// memory has room for one partial sum of each of these threads.
pub(crate) const THREADS: usize = 128;

/// For each PE `r`, copies part `r` of `parts` from PE `r` to every PE, and writes the sum of part
/// `r` to `sums[r]`.
///
/// `parts` has one part for each PE. Each PE must fill its own part before the launch. `arrived` is
/// one signal word, initially 0. Launch this kernel as one block of at most 128 threads.
#[kernel]
pub fn all_gather(ctx: &Context, parts: SymSlice<u32>, arrived: SymSlice<u64>, sums: SymSlice<u64>) -> Result<(), Failed> {
    let (me, n) = (ctx.my_pe() as usize, ctx.n_pes() as usize);
    let (next, before) = (((me + 1) % n) as u32, ((me + n - 1) % n) as u32);
    let partial = peerweave_device::shared_array!(PARTIAL: [u64; THREADS]);
    let (rank, threads) = (gpu::thread_rank() as usize, gpu::block_threads() as usize);
    for step in 0..n {
        let owner = (me + n - step) % n;
        let part = parts.chunk(owner, n);
        if step > 0 {
            ctx.signal_wait_until_from_block(arrived, Compare::Ge, step as u64, before)?;
        }
        if step + 1 < n {
            // Passes the part on while this PE reads it: neither operation changes the part.
            ctx.put_signal_nbi_block(part, part, arrived, 1, SignalOp::Add, next);
        }
        let mine = ctx.local(part);
        let mut sum = 0;
        for i in (rank..part.len()).step_by(threads) {
            sum += u64::from(mine.read(i));
        }
        partial.write(rank, sum);
        gpu::sync_threads();
        if rank == 0 {
            ctx.local(sums).write(owner, (0..threads).map(|thread| partial.read(thread)).sum());
        }
        // Ensures that the partial sums are read before the next step writes them.
        gpu::sync_threads();
    }
    ctx.quiet();
    Ok(())
}
