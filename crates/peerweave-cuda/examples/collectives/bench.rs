//! Measures calls in CUDA graphs of 20 calls, alternating the compared libraries in one run; prints
//! medians of the slowest PE.

use std::sync::Arc;
use std::time::Instant;

use peerweave_cuda::{Algorithm, Collectives, Gpu, Route, Stream};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_nccl::Communicator;
use peerweave_types::{DType, ReduceOp, bf16};

use crate::{Arguments, Outcome};

/// Number of calls of a graph.
const CALLS: usize = 20;
/// Number of measurements of each library.
const ROUNDS: usize = 9;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Bench<'a> {
    gpu: &'a Gpu,
    collectives: &'a Collectives,
    stream: Stream,
    send: DeviceMemory<bf16>,
    recv: DeviceMemory<bf16>,
}

/// Returns an element; sums of these elements are exact.
fn given(rank: u32, index: usize) -> f32 {
    ((index * 7 + rank as usize * 3) % 5) as f32 - 2.0
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu, collectives: &'a Collectives, bytes: usize) -> Result<Self> {
        let stream = gpu.stream()?;
        let rank = collectives.rank().get();
        let values: Vec<bf16> = (0..bytes / 2).map(|index| bf16::from_f32(given(rank, index))).collect();
        let send = DeviceMemory::from_slice(&stream, &values)?;
        let recv = DeviceMemory::zeroed(&stream, bytes / 2)?;
        gpu.wait(&stream)?;
        collectives.load(DType::BF16)?;
        gpu.barrier("loaded")?;
        Ok(Self { gpu, collectives, stream, send, recv })
    }

    fn graph(&self, call: impl Fn() -> Outcome) -> Result<CudaGraph> {
        self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let outcome = (0..CALLS).try_for_each(|_| call());
        let graph = self.stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        outcome?;
        Ok(graph?.ok_or("the capture gave no graph")?)
    }

    fn ours(&self, count: usize, route: Route) -> Result<CudaGraph> {
        self.graph(|| {
            let (send, recv) = (self.send.address(), self.recv.address());
            // SAFETY: both are live memory of this device until all graphs have run.
            unsafe {
                self.collectives.all_reduce_by(route, &self.stream, send, recv, count as u64, DType::BF16, ReduceOp::Sum)?;
            }
            Ok(())
        })
    }

    /// Compares every element of the result.
    fn check(&self, count: usize, what: &str) -> Outcome {
        let ranks = self.collectives.members().len() as u32;
        let pattern: Vec<bf16> = (0..5).map(|index| bf16::from_f32((0..ranks).map(|rank| given(rank, index)).sum())).collect();
        let found = self.recv.slice(0..count)?.to_vec(&self.stream)?;
        match found.iter().enumerate().position(|(index, value)| *value != pattern[index % 5]) {
            None => Ok(()),
            Some(index) => {
                Err(format!("{what}: element {index} of {count} is {}, expected {}", found[index], pattern[index % 5]).into())
            }
        }
    }

    fn clear(&mut self, count: usize) -> Outcome {
        let marks = vec![bf16::from_f32(99.0); count];
        Ok(self.recv.slice(0..count)?.copy_from(&self.stream, &marks)?)
    }

    /// Returns the microseconds of one call of a graph, on the slowest PE.
    fn time(&self, graph: &CudaGraph, repeats: usize) -> Result<f64> {
        self.gpu.barrier("round")?;
        let event = || self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = event()?;
        for _ in 0..repeats {
            graph.launch()?;
        }
        let end = event()?;
        self.gpu.wait(&self.stream)?;
        let own = f64::from(start.elapsed_ms(&end)?) * 1e3 / (repeats * CALLS) as f64;
        let all = self.gpu.rendezvous().exchange("round/times", &own.to_le_bytes())?;
        let times = all.iter().filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(times.fold(0.0, f64::max))
    }

    fn is_first(&self) -> bool {
        self.gpu.pe().get() == 0
    }
}

fn repeats(bytes: usize) -> usize {
    match bytes {
        0..=0x10_0000 => 10,
        0x10_0001..=0x200_0000 => 3,
        _ => 1,
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn sizes(arguments: &Arguments) -> Vec<usize> {
    let all = (10..=28).step_by(2).map(|shift| 1_usize << shift);
    all.filter(|bytes| (arguments.min_bytes..=arguments.max_bytes).contains(bytes)).collect()
}

/// Measures the chosen route, and NCCL without windows.
pub(crate) fn run(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let mut bench = Bench::new(gpu, collectives, arguments.max_bytes)?;
    let context = Arc::clone(gpu.context());
    let nccl = Communicator::builder().from_rendezvous(&context, gpu.rendezvous())?;
    if bench.is_first() {
        println!("all_reduce, bf16, sum, {} GPUs, NCCL {}, graphs of {CALLS}, us", gpu.n_pes(), nccl.nccl().version());
        println!("    bytes |    ours |    NCCL | ratio | route");
    }
    for bytes in sizes(arguments) {
        let count = bytes / 2;
        let route = collectives.all_reduce_route(count as u64, DType::BF16);
        bench.clear(count)?;
        gpu.barrier("cleared")?;
        let own = bench.ours(count, route)?;
        let theirs = {
            let (send, recv) = (bench.send.slice(0..count)?, bench.recv.slice(0..count)?);
            let recv = std::cell::RefCell::new(recv);
            bench
                .graph(|| Ok(nccl.all_reduce(&bench.stream, &send, &mut *recv.borrow_mut(), peerweave_nccl::ReduceOp::Sum)?))?
        };
        bench.time(&own, 1)?;
        bench.check(count, "ours")?;
        bench.time(&theirs, 1)?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            times[0].push(bench.time(&own, repeats(bytes))?);
            times[1].push(bench.time(&theirs, repeats(bytes))?);
        }
        bench.time(&own, 1)?;
        bench.check(count, "ours, after the measurement")?;
        let [ours, nccl] = times.each_mut().map(|times| median(times));
        if bench.is_first() {
            println!("{bytes:9} | {ours:7.2} | {nccl:7.2} | {:5.2} | {route:?}", ours / nccl);
        }
    }
    run_parts(&mut bench, &nccl, arguments)?;
    let count = 512;
    let (send, mut recv) = (bench.send.slice(0..count)?, bench.recv.slice(0..count)?);
    let (from, to) = (send.address(), recv.address());
    let ours = || {
        // SAFETY: both are live memory of this device until the stream has been waited for.
        unsafe { collectives.all_reduce(&bench.stream, from, to, count as u64, DType::BF16, ReduceOp::Sum)? };
        Ok(())
    };
    let [mut own, mut other] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        own.push(host_time(&bench, ours)?);
        other.push(host_time(&bench, || Ok(nccl.all_reduce(&bench.stream, &send, &mut recv, peerweave_nccl::ReduceOp::Sum)?))?);
    }
    let (own, other) = (median(&mut own), median(&mut other));
    if bench.is_first() {
        println!("host time of a call, eager, 1 KB: ours {own:.2} us, NCCL {other:.2} us, ratio {:.2}", own / other);
    }
    drop((send, recv));
    Ok(nccl.finalize(gpu.deadline())?)
}

/// A collective of parts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Parts {
    AllGather,
    AllToAll,
    ReduceScatter,
}

impl Bench<'_> {
    /// Makes one call of this crate; `part` is in elements.
    fn call_parts(&self, parts: Parts, part: usize) -> Outcome {
        let (send, recv, bytes) = (self.send.address(), self.recv.address(), 2 * part as u64);
        // SAFETY: both are live memory of this device until all graphs have run.
        unsafe {
            match parts {
                Parts::AllGather => self.collectives.all_gather(&self.stream, send, recv, bytes)?,
                Parts::AllToAll => self.collectives.all_to_all(&self.stream, send, recv, bytes)?,
                Parts::ReduceScatter => {
                    self.collectives.reduce_scatter(&self.stream, send, recv, part as u64, DType::BF16, ReduceOp::Sum)?;
                }
            }
        }
        Ok(())
    }

    fn check_parts(&self, parts: Parts, part: usize) -> Outcome {
        let (me, ranks) = (self.collectives.rank().get(), self.collectives.members().len());
        let n = if parts == Parts::ReduceScatter { part } else { part * ranks };
        let found = self.recv.slice(0..n)?.to_vec(&self.stream)?;
        let expected = |index: usize| {
            let (rank, own) = ((index / part) as u32, me as usize * part + index % part);
            match parts {
                Parts::AllGather => given(rank, index % part),
                Parts::AllToAll => given(rank, own),
                Parts::ReduceScatter => (0..ranks as u32).map(|rank| given(rank, own)).sum(),
            }
        };
        match found.iter().enumerate().position(|(index, value)| value.to_f32() != expected(index)) {
            None => Ok(()),
            Some(index) => {
                let message = format!("{parts:?}: element {index} is {}, expected {}", found[index], expected(index));
                Err(message.into())
            }
        }
    }
}

/// Measures all_gather, all_to_all and reduce_scatter, and NCCL without windows, by total bytes.
fn run_parts(bench: &mut Bench<'_>, nccl: &Communicator, arguments: &Arguments) -> Outcome {
    let ranks = bench.collectives.members().len();
    for parts in [Parts::AllGather, Parts::AllToAll, Parts::ReduceScatter] {
        if bench.is_first() {
            println!("{parts:?}, bf16, total bytes, us\n    bytes |    ours |    NCCL | ratio");
        }
        for total in sizes(arguments).into_iter().filter(|total| ((64 << 10)..=(16 << 20)).contains(total)) {
            let part = total / 2 / ranks;
            bench.clear(part * ranks)?;
            bench.gpu.barrier("cleared")?;
            let own = bench.graph(|| bench.call_parts(parts, part))?;
            let theirs = {
                let sent = if parts == Parts::AllGather { part } else { part * ranks };
                let received = if parts == Parts::ReduceScatter { part } else { part * ranks };
                let (send, recv) = (bench.send.slice(0..sent)?, bench.recv.slice(0..received)?);
                let recv = std::cell::RefCell::new(recv);
                bench.graph(|| {
                    let recv = &mut *recv.borrow_mut();
                    match parts {
                        Parts::AllGather => nccl.all_gather(&bench.stream, &send, recv)?,
                        Parts::AllToAll => nccl.all_to_all(&bench.stream, &send, recv)?,
                        Parts::ReduceScatter => nccl.reduce_scatter(&bench.stream, &send, recv, peerweave_nccl::ReduceOp::Sum)?,
                    };
                    Ok(())
                })?
            };
            bench.time(&own, 1)?;
            bench.check_parts(parts, part)?;
            bench.time(&theirs, 1)?;
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                times[0].push(bench.time(&own, repeats(total))?);
                times[1].push(bench.time(&theirs, repeats(total))?);
            }
            bench.time(&own, 1)?;
            bench.check_parts(parts, part)?;
            let [ours, nccl] = times.each_mut().map(|times| median(times));
            if bench.is_first() {
                println!("{total:9} | {ours:7.2} | {nccl:7.2} | {:5.2}", ours / nccl);
            }
        }
    }
    Ok(())
}

/// Returns the microseconds that the host spends in one call.
fn host_time(bench: &Bench<'_>, mut call: impl FnMut() -> Outcome) -> Result<f64> {
    const MANY: u32 = 200;
    bench.gpu.barrier("host time")?;
    let start = Instant::now();
    for _ in 0..MANY {
        call()?;
    }
    let spent = start.elapsed();
    bench.gpu.wait(&bench.stream)?;
    Ok(spent.as_secs_f64() * 1e6 / f64::from(MANY))
}

/// Prints the best launch shapes of each algorithm for each size.
pub(crate) fn sweep(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let mut bench = Bench::new(gpu, collectives, arguments.max_bytes)?;
    let ranks = gpu.n_pes() as usize;
    for bytes in sizes(arguments) {
        let count = bytes / 2;
        for algorithm in Algorithm::ALL {
            let lines = bytes.div_ceil(16) / if algorithm == Algorithm::OneShot { 1 } else { ranks };
            let mut found: Vec<(f64, Route)> = Vec::new();
            for threads in [128, 256, 512] {
                for blocks in [1, 2, 4, 8, 16, 32, 64, 96, 128, 256] {
                    if blocks > arguments.max_blocks {
                        continue;
                    }
                    let all = (blocks * threads) as usize;
                    let is_sensible = all <= 2 * lines.max(128) && all * 64 >= lines.min(128 * 512 * 64);
                    let fits = algorithm != Algorithm::OneShot || bytes <= (4 << 20);
                    let fits = fits && (algorithm != Algorithm::TwoShot || (4096..=(16 << 20)).contains(&bytes));
                    let fits = fits && (algorithm != Algorithm::Chunked || bytes >= (1 << 20));
                    if !is_sensible || !fits {
                        continue;
                    }
                    let route = Route::new(algorithm, blocks, threads);
                    bench.clear(count.min(1 << 20))?;
                    gpu.barrier("cleared")?;
                    let graph = bench.ours(count, route)?;
                    bench.time(&graph, 1)?;
                    bench.check(count.min(1 << 20), &format!("{route:?}"))?;
                    let mut times = Vec::new();
                    for _ in 0..3 {
                        times.push(bench.time(&graph, repeats(bytes))?);
                    }
                    found.push((median(&mut times), route));
                }
            }
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            if bench.is_first() && !found.is_empty() {
                let best: Vec<String> =
                    found.iter().take(4).map(|(us, route)| format!("{us:.2} ({}x{})", route.blocks, route.threads)).collect();
                println!("{bytes:9} {algorithm:?}: {}", best.join(", "));
            }
        }
    }
    Ok(())
}
