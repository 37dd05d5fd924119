//! Measures one-sided operations and barriers inside kernels. For one-sided operations, PE 0
//! communicates with PE 1, and the other PEs wait. If an operation is measured with several block
//! sizes, only the shortest time is printed.
//!
//! Two CUDA programs make the same measurements for comparison: `tools/peer-bench/one_sided.cu`
//! uses CUDA alone, and `tools/peer-bench/nvshmem_one_sided.cu` uses NVSHMEM.

use peerweave_cuda::{Gpu, LaunchConfig, Local, Stream};
use peerweave_device::launch::Kernel;
use peerweave_kernels::bench::*;
use peerweave_types::{DeviceSlice, KernelArgs, SymSlice};

use super::Outcome;
use crate::Failure;

const ITERATIONS: u32 = 500;
const BANDWIDTH_BYTES: usize = 32 << 20;
/// Size, in bytes, of the shared memory of each block in the measurement of bulk copies.
const BULK_BYTES: u32 = 128 << 10;
/// Block sizes to measure, in threads. The time of the fastest block size is reported.
const BLOCKS: [u32; 4] = [128, 256, 512, 1024];
/// Heap size that the measurements need, in bytes.
pub(crate) const HEAP_BYTES: usize = 3 * BANDWIDTH_BYTES;

type Copy = Kernel<(SymSlice<u64>, SymSlice<u64>, u32, u32, DeviceSlice<u64>)>;

struct Bench<'a> {
    gpu: &'a Gpu,
    stream: Stream,
    result: Local<u64>,
    network: bool,
}

impl Bench<'_> {
    /// Runs a kernel and returns the time of one repetition in microseconds, as measured by the
    /// first block of the kernel.
    fn time<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<f64, Failure> {
        self.stream.launch_with(kernel, config, args)?;
        Ok(self.result.read(&self.stream)?[0] as f64 * 1e-3)
    }

    /// Calls `time` with each number in `threads`, and returns the shortest time.
    fn fastest(threads: &[u32], mut time: impl FnMut(u32) -> Result<f64, Failure>) -> Result<f64, Failure> {
        threads.iter().try_fold(f64::INFINITY, |best, &threads| Ok(best.min(time(threads)?)))
    }

    fn is_first(&self) -> bool {
        self.gpu.pe().get() == 0
    }
}

/// Loads the kernels, so that no kernel is compiled while other PEs wait for this PE.
pub(crate) fn load(gpu: &Gpu) -> Outcome {
    gpu.load_crate(bench_p::KERNEL.ptx())?;
    Ok(gpu.barrier("bench loaded")?)
}

pub(crate) fn run(gpu: &Gpu) -> Outcome {
    if gpu.n_pes() < 2 {
        return Err(format!("--part bench: the job has {} PE, expected at least 2", gpu.n_pes()).into());
    }
    let bench = Bench { gpu, stream: gpu.stream()?, result: gpu.alloc_local(512)?, network: gpu.uses_network() };
    gpu.barrier("bench")?;
    copies(&bench)?;
    ping_pongs(&bench)?;
    atomics(&bench)?;
    barriers(&bench)?;
    bandwidth(&bench)
}

fn copies(bench: &Bench<'_>) -> Outcome {
    let (to, from) = (bench.gpu.alloc::<u64>(4096)?, bench.gpu.alloc::<u64>(4096)?);
    if bench.is_first() {
        println!(
            "times in us. Rows: size in bytes. Columns: put and fence by thread, warp, block, bulk copy | get by thread, warp, block, bulk copy | put by warp, put by block, get by warp, get by block, each with shared memory"
        );
        let puts: [&Copy; 3] = [&bench_put_thread::KERNEL, &bench_put_warp::KERNEL, &bench_put_block::KERNEL];
        let gets: [&Copy; 3] = [&bench_get_thread::KERNEL, &bench_get_warp::KERNEL, &bench_get_block::KERNEL];
        let lent_puts: [&Copy; 3] = [&bench_put_thread_lent::KERNEL, &bench_put_warp_lent::KERNEL, &bench_put_block_lent::KERNEL];
        let lent_gets: [&Copy; 3] = [&bench_get_thread_lent::KERNEL, &bench_get_warp_lent::KERNEL, &bench_get_block_lent::KERNEL];
        for bytes in [8, 16, 256, 1024, 4096, 32768] {
            let (target, source) = (to.slice().truncate(bytes / 8), from.slice().truncate(bytes / 8));
            let copy = |kernel: &Copy, threads: u32, shared: u32| {
                let config = LaunchConfig::new(1, threads).shared_bytes(shared);
                bench.time(kernel, config, (target, source, 1, ITERATIONS, bench.result.slice()))
            };
            let row = |kernels: &[&Copy; 3], threads: [&[u32]; 3], shared: u32| {
                let kernels = threads.iter().zip(kernels);
                kernels
                    .map(|(threads, kernel)| Bench::fastest(threads, |threads| copy(kernel, threads, shared)))
                    .collect::<Result<Vec<_>, _>>()
            };
            let (mut put, mut get) = (row(&puts, [&[1], &[32], &BLOCKS], 0)?, row(&gets, [&[1], &[32], &BLOCKS], 0)?);
            if bytes == 8 {
                let one = LaunchConfig::new(1, 1);
                put[0] = bench.time(&bench_p::KERNEL, one, (target, 1, ITERATIONS, bench.result.slice()))?;
                get[0] = bench.time(&bench_g::KERNEL, one, (from.slice(), 1, ITERATIONS, bench.result.slice()))?;
            }
            let shared = 2 * bytes as u32 + 1024;
            let (lent_put, lent_get) =
                (row(&lent_puts, [&[32], &[32], &BLOCKS], shared)?, row(&lent_gets, [&[32], &[32], &BLOCKS], shared)?);
            put.push(lent_put[0]);
            get.push(lent_get[0]);
            let lent = [&lent_put[1..], &lent_get[1..]].concat();
            let numbers = |values: &[f64]| values.iter().map(|value| format!(" {value:6.2}")).collect::<String>();
            println!("{bytes:6}:{} |{} |{}", numbers(&put), numbers(&get), numbers(&lent));
        }
    }
    bench.gpu.barrier("copies")?;
    bench.gpu.free(to)?;
    Ok(bench.gpu.free(from)?)
}

fn ping_pongs(bench: &Bench<'_>) -> Outcome {
    let (to, from, signal) = (bench.gpu.alloc::<u32>(8192)?, bench.gpu.alloc::<u32>(8192)?, bench.gpu.alloc::<u64>(1)?);
    let me = bench.gpu.pe().get();
    if bench.is_first() {
        println!("put-signal ping-pong, full round trip in us. Rows: size in bytes. Columns: one thread, one warp, one block");
    }
    for bytes in [4, 16, 1024, 4096, 32768] {
        let mut row = Vec::new();
        for (kernel, threads) in [
            (&bench_ping_pong_thread::KERNEL, &[1][..]),
            (&bench_ping_pong_warp::KERNEL, &[32]),
            (&bench_ping_pong_block::KERNEL, &BLOCKS),
        ] {
            bench.gpu.load(kernel)?;
            row.push(Bench::fastest(threads, |threads| {
                signal.zero(&bench.stream)?;
                bench.stream.wait()?;
                bench.gpu.barrier("ping-pong")?;
                let mut time = f64::INFINITY;
                if me < 2 {
                    let (to, from) = (to.slice().truncate(bytes / 4), from.slice().truncate(bytes / 4));
                    let game = PingPong { to, from, signal: signal.slice(), peer: 1 - me, begins: 1 - me };
                    time = bench.time(kernel, LaunchConfig::new(1, threads), (game, 300, bench.result.slice()))?;
                }
                bench.gpu.barrier("ping-pong over")?;
                Ok(time)
            })?);
        }
        if let ([thread, warp, block], true) = (&row[..], bench.is_first()) {
            println!("{bytes:6}: {thread:6.2} {warp:6.2} {block:6.2}");
        }
    }
    bench.gpu.free(to)?;
    bench.gpu.free(from)?;
    Ok(bench.gpu.free(signal)?)
}

fn atomics(bench: &Bench<'_>) -> Outcome {
    let word = bench.gpu.alloc::<u64>(1)?;
    if bench.is_first() {
        let args = (word.slice(), 1, ITERATIONS, bench.result.slice());
        let strong = bench.time(&bench_atomic::KERNEL, LaunchConfig::new(1, 1), args)?;
        let relaxed = bench.time(&bench_atomic_relaxed::KERNEL, LaunchConfig::new(1, 1), args)?;
        println!("atomic fetch-and-add: {strong:.2} us with acquire-release ordering, {relaxed:.2} us with relaxed ordering");
    }
    bench.gpu.barrier("atomics")?;
    Ok(bench.gpu.free(word)?)
}

fn barriers(bench: &Bench<'_>) -> Outcome {
    for (kernel, threads, name) in [
        (&bench_barrier_thread::KERNEL, &[1][..], "thread"),
        (&bench_barrier_warp::KERNEL, &[32], "warp"),
        (&bench_barrier_block::KERNEL, &[128, 256], "block"),
    ] {
        bench.gpu.load(kernel)?;
        let time = Bench::fastest(threads, |threads| {
            bench.gpu.barrier("barriers")?;
            bench.time(kernel, LaunchConfig::new(1, threads), (1000, bench.result.slice()))
        })?;
        if bench.is_first() {
            println!("barrier of {} GPUs, {name}: {time:.2} us", bench.gpu.n_pes());
        }
    }
    Ok(bench.gpu.barrier("barriers over")?)
}

fn bandwidth(bench: &Bench<'_>) -> Outcome {
    let words = BANDWIDTH_BYTES / 8;
    let (to, from) = (bench.gpu.alloc::<u64>(words)?, bench.gpu.alloc::<u64>(words)?);
    if bench.is_first() {
        let iterations = if bench.network { 2 } else { 20 };
        println!(
            "bandwidth in GB/s for transfers of {} MiB. Rows: number of blocks. Columns: put, get (1024 threads per block) | put, get (bulk copies by 4 warps per block)",
            BANDWIDTH_BYTES >> 20
        );
        for blocks in [16, 32, 132] {
            let rate = |kernel: &Copy, config: LaunchConfig| -> Result<f64, Failure> {
                let mut rate = 0.0;
                // The first launch is the warm-up.
                for repeat in [2, iterations] {
                    let args = (to.slice(), from.slice(), 1, repeat, bench.result.slice());
                    bench.stream.launch_with(kernel, config, args)?;
                    let times = bench.result.read(&bench.stream)?;
                    let (began, ended): (Vec<u64>, Vec<u64>) =
                        times.chunks_exact(2).take(blocks as usize).map(|block| (block[0], block[1])).unzip();
                    let began = began.into_iter().min().unwrap_or(0);
                    let elapsed = ended.into_iter().max().unwrap_or(0).saturating_sub(began).max(1);
                    rate = f64::from(repeat) * BANDWIDTH_BYTES as f64 / elapsed as f64;
                }
                Ok(rate)
            };
            let (threads, bulk) = (LaunchConfig::new(blocks, 1024), LaunchConfig::new(blocks, 128).shared_bytes(BULK_BYTES));
            println!(
                "{blocks:6}: {:7.1} {:7.1} | {:7.1} {:7.1}",
                rate(&bench_put_bandwidth::KERNEL, threads)?,
                rate(&bench_get_bandwidth::KERNEL, threads)?,
                rate(&bench_put_bandwidth_bulk::KERNEL, bulk)?,
                rate(&bench_get_bandwidth_bulk::KERNEL, bulk)?
            );
        }
    }
    bench.gpu.barrier("bandwidth")?;
    bench.gpu.free(to)?;
    Ok(bench.gpu.free(from)?)
}
