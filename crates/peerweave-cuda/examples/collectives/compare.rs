//! Compares the collectives of `peerweave-cuda` with the collectives of NCCL without windows, with
//! windows, and with windows and copy engines. Calls run in graphs, which alternate in one run. The
//! printed times are medians of the times of the slowest PE.

use std::sync::Arc;

use peerweave_cuda::{Collectives, Gpu};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_nccl::{Communicator, Config, CtaPolicy, NcclMem, Window, WindowKind};
use peerweave_types::{DType, ReduceOp, bf16};

use crate::bench::{Bench, CALLS, Result, host_time, median, repeats, sizes};
use crate::kinds::Operation;
use crate::{Arguments, Outcome};
use clap::ValueEnum;

/// One of the compared implementations of a call, with its times.
struct Contender {
    name: &'static str,
    graph: CudaGraph,
    times: Vec<f64>,
}

impl Contender {
    fn new(name: &'static str, graph: CudaGraph) -> Self {
        Self { name, graph, times: Vec::new() }
    }
}

/// A communicator of NCCL, with the buffers of the measurement registered as windows.
struct Windowed {
    communicator: Communicator,
    _windows: Vec<Window<bf16>>,
}

fn windowed(bench: &Bench<'_>, config: Config) -> Result<Option<Windowed>> {
    let context = Arc::clone(bench.gpu.context());
    let communicator = Communicator::builder().config(config).from_rendezvous(&context, bench.gpu.rendezvous())?;
    let mut windows = Vec::new();
    for memory in [&bench.send, &bench.recv] {
        match Window::register(&communicator, memory, WindowKind::SYMMETRIC)? {
            Some(window) => windows.push(window),
            None => return Ok(None),
        }
    }
    Ok(Some(Windowed { communicator, _windows: windows }))
}

pub(crate) fn run(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let context = Arc::clone(gpu.context());
    let plain = Communicator::builder().from_rendezvous(&context, gpu.rendezvous())?;
    let library = plain.nccl();
    let alloc = |len| Ok(NcclMem::<bf16>::alloc(library, &context, len)?.into());
    let mut bench = Bench::new(gpu, collectives, arguments.max_bytes, alloc)?;
    let windows = windowed(&bench, Config::new())?;
    let engines = windowed(&bench, Config::new().cta_policy(CtaPolicy::Zero))?;
    let heap = gpu.alloc::<bf16>(arguments.max_bytes / 2)?;
    // SAFETY: the memory on the heap lives until it is freed below. No graph uses the memory
    // when the memory is freed.
    let symmetric = unsafe { DeviceMemory::<bf16>::adopt(&context, heap.address()?, heap.len(), Box::new(|| ())) };
    if bench.is_first() {
        println!(
            "{} GPUs, NCCL {}, bf16, graphs of {CALLS}, us; ours+: results in symmetric memory",
            gpu.n_pes(),
            library.version()
        );
        println!("operation bytes | ours | ours+ | NCCL | windows | engines | best of NCCL | ratio, ratio+");
    }
    let chosen = |operation: &Operation| arguments.operations.is_empty() || arguments.operations.contains(operation);
    for operation in Operation::value_variants().iter().copied().filter(chosen) {
        for bytes in sizes(arguments) {
            if operation != Operation::AllReduce && bytes < 64 << 10 {
                continue;
            }
            let part = operation.part(bytes, collectives.members().len());
            bench.clear(part.min(1 << 20))?;
            gpu.barrier("cleared")?;
            let mut all = Vec::new();
            for (name, recv) in [("ours", bench.recv.address()), ("ours+", symmetric.address())] {
                all.push(Contender::new(name, bench.graph(|| bench.ours(operation, part, recv))?));
            }
            let window = |made: &'_ Option<Windowed>| made.as_ref().map(|made| made.communicator.clone());
            // With NCCL 2.28.9, a gather by copy engines did not end.
            let by_engines = window(&engines).filter(|_| operation != Operation::Gather);
            let others = [("NCCL", Some(plain.clone())), ("windows", window(&windows)), ("engines", by_engines)];
            for (name, nccl) in others.into_iter().filter_map(|(name, nccl)| Some((name, nccl?))) {
                // The first call of NCCL sets up resources, and the setup cannot be captured. So
                // the first call precedes the capture.
                let named = |error: &dyn std::fmt::Display| format!("{operation:?} {bytes}, {name}: {error}");
                bench.theirs(operation, part, &nccl).map_err(|error| named(&error))?;
                gpu.wait(&bench.stream).map_err(|error| named(&error))?;
                match bench.graph(|| bench.theirs(operation, part, &nccl)) {
                    Ok(graph) => all.push(Contender::new(name, graph)),
                    Err(error) if bench.is_first() => println!("{operation:?} {bytes}: {name} cannot be captured: {error}"),
                    Err(_) => {}
                }
            }
            measure(&bench, &mut all, bytes, arguments.rounds, |name| match name {
                "ours" => bench.compare(operation, part, &bench.recv, "ours"),
                "ours+" => bench.compare(operation, part, &symmetric, "ours, symmetric"),
                _ => Ok(()),
            })?;
            if bench.is_first() {
                print_row(operation, bytes, &mut all);
            }
        }
    }
    host_times(&bench, &plain)?;
    barrier(&bench)?;
    drop(symmetric);
    gpu.barrier("compared")?;
    gpu.free(heap)?;
    for made in [windows, engines].into_iter().flatten() {
        made.communicator.finalize(gpu.deadline())?;
    }
    Ok(plain.finalize(gpu.deadline())?)
}

/// Measures the compared implementations alternately. Checks Peerweave's results before and after.
fn measure(bench: &Bench<'_>, all: &mut [Contender], bytes: usize, rounds: usize, check: impl Fn(&str) -> Outcome) -> Outcome {
    for contender in all.iter() {
        bench.time(&contender.graph, 1).map_err(|error| format!("{bytes} bytes, {}: {error}", contender.name))?;
        check(contender.name)?;
    }
    for _ in 0..rounds {
        for contender in all.iter_mut() {
            contender.times.push(bench.time(&contender.graph, repeats(bytes))?);
        }
    }
    for contender in all.iter().filter(|contender| contender.name.starts_with("ours")) {
        bench.time(&contender.graph, 1)?;
        check(contender.name)?;
    }
    Ok(())
}

fn print_row(operation: Operation, bytes: usize, all: &mut [Contender]) {
    let mut of = |name: &str| all.iter_mut().find(|found| found.name == name).map(|found| median(&mut found.times));
    let [ours, symmetric] = ["ours", "ours+"].map(&mut of);
    let theirs = ["NCCL", "windows", "engines"].map(&mut of);
    let best = theirs.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let text = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2}"));
    let ratio = |time: Option<f64>| text(time.map(|time| time / best));
    let [plain, windows, engines] = theirs.map(text);
    println!(
        "{operation:?} {bytes} | {} | {} | {plain} | {windows} | {engines} | {best:.2} | {} {}",
        text(ours),
        text(symmetric),
        ratio(ours),
        ratio(symmetric)
    );
}

/// Measures and prints the time that the host spends in a call that is launched without a graph.
fn host_times(bench: &Bench<'_>, nccl: &Communicator) -> Outcome {
    const COUNT: usize = 512;
    let (send, mut recv) = (bench.send.slice(0..COUNT)?, bench.recv.slice(0..COUNT)?);
    let (from, to) = (send.address(), recv.address());
    let ours = || {
        // SAFETY: both are live memory of this device until the stream has been waited for.
        unsafe { bench.collectives.all_reduce(&bench.stream, from, to, COUNT as u64, DType::BF16, ReduceOp::Sum)? };
        Ok(())
    };
    let [mut own, mut other] = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        own.push(host_time(bench, ours)?);
        other.push(host_time(bench, || Ok(nccl.all_reduce(&bench.stream, &send, &mut recv, peerweave_nccl::ReduceOp::Sum)?))?);
    }
    let (own, other) = (median(&mut own), median(&mut other));
    if bench.is_first() {
        println!("host time of a call, eager, 1 KB: ours {own:.2} us, NCCL {other:.2} us, ratio {:.2}", own / other);
    }
    Ok(())
}

fn barrier(bench: &Bench<'_>) -> Outcome {
    let graph = bench.graph(|| Ok(bench.collectives.barrier(&bench.stream)?))?;
    bench.time(&graph, 1)?;
    let mut times = Vec::new();
    for _ in 0..9 {
        times.push(bench.time(&graph, 10)?);
    }
    let time = median(&mut times);
    if bench.is_first() {
        println!("barrier {time:.2}");
    }
    Ok(())
}
