//! Measures calls in CUDA graphs of 20 calls, with many shapes of launches. Each printed time is
//! the time of the slowest PE.

use std::time::Instant;

use peerweave_cuda::{Algorithm, Collectives, Gpu, Route, Stream};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_types::{DType, ReduceOp, bf16};

use crate::{Arguments, Outcome};

/// Number of calls in a graph.
pub(crate) const CALLS: usize = 20;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) struct Bench<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) collectives: &'a Collectives,
    pub(crate) stream: Stream,
    pub(crate) send: DeviceMemory<bf16>,
    pub(crate) recv: DeviceMemory<bf16>,
}

/// Returns the element at `index` in the input of rank `rank`. Sums of these elements are exact.
pub(crate) fn given(rank: u32, index: usize) -> f32 {
    ((index * 7 + rank as usize * 3) % 5) as f32 - 2.0
}

impl<'a> Bench<'a> {
    /// Creates the operands of a measurement. `alloc` allocates memory for a number of elements.
    pub(crate) fn new(
        gpu: &'a Gpu,
        collectives: &'a Collectives,
        bytes: usize,
        alloc: impl Fn(usize) -> Result<DeviceMemory<bf16>>,
    ) -> Result<Self> {
        let stream = gpu.stream()?;
        let rank = collectives.rank().get();
        let values: Vec<bf16> = (0..bytes / 2).map(|index| bf16::from_f32(given(rank, index))).collect();
        let (mut send, recv) = (alloc(bytes / 2)?, alloc(bytes / 2)?);
        send.copy_from(&stream, &values)?;
        gpu.wait(&stream)?;
        collectives.load(DType::BF16)?;
        gpu.barrier("loaded")?;
        Ok(Self { gpu, collectives, stream, send, recv })
    }

    pub(crate) fn graph(&self, call: impl Fn() -> Outcome) -> Result<CudaGraph> {
        self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let outcome = (0..CALLS).try_for_each(|_| call());
        let graph = self.stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        outcome?;
        Ok(graph?.ok_or("the capture returned no graph")?)
    }

    fn routed(&self, count: usize, route: Route) -> Result<CudaGraph> {
        self.graph(|| {
            let (send, recv) = (self.send.address(), self.recv.address());
            // SAFETY: both are live memory of this device until all graphs have run.
            unsafe {
                self.collectives.all_reduce_by(route, &self.stream, send, recv, count as u64, DType::BF16, ReduceOp::Sum)?;
            }
            Ok(())
        })
    }

    /// Compares every element of the result with the expected value.
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

    pub(crate) fn clear(&mut self, count: usize) -> Outcome {
        let marks = vec![bf16::from_f32(99.0); count];
        Ok(self.recv.slice(0..count)?.copy_from(&self.stream, &marks)?)
    }

    /// Returns the time of one call of a graph on the slowest PE, in microseconds.
    pub(crate) fn time(&self, graph: &CudaGraph, repeats: usize) -> Result<f64> {
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

    pub(crate) fn is_first(&self) -> bool {
        self.gpu.pe().get() == 0
    }
}

pub(crate) fn repeats(bytes: usize) -> usize {
    match bytes {
        0..=0x10_0000 => 10,
        0x10_0001..=0x200_0000 => 3,
        _ => 1,
    }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn sizes(arguments: &Arguments) -> Vec<usize> {
    let all = (10..=28).step_by(2).map(|shift| 1_usize << shift);
    all.filter(|bytes| (arguments.min_bytes..=arguments.max_bytes).contains(bytes)).collect()
}

/// Returns the time that the host spends in one call, in microseconds.
pub(crate) fn host_time(bench: &Bench<'_>, mut call: impl FnMut() -> Outcome) -> Result<f64> {
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

/// Measures many shapes and prints the best shapes of each algorithm for each size.
pub(crate) fn sweep(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let stream = gpu.stream()?;
    let mut bench = Bench::new(gpu, collectives, arguments.max_bytes, |len| Ok(DeviceMemory::zeroed(&stream, len)?))?;
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
                    let graph = bench.routed(count, route)?;
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
