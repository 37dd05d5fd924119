//! Selects the measurements of `bench p2p` that this machine permits, and makes them.
//!
//! The measurements never use multicast objects.
//!
//! Invariant: measurements that are not possible are listed with the reason.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUdevice_attribute;
use peerweave_driver::{CudaContext, Driver, DriverError, deadline_after};
use peerweave_vmm::peer::DeviceInfo;
use peerweave_vmm::{PeerMatrix, VmmError};

use super::P2pArgs;
use super::probe::{Method, Moved, Probe};
use super::report::{Everybody, Gpu, Report, Table};
use peerweave_bench::cuda::NO_DRIVER;

/// Measures every pair of GPUs of this machine, and returns the results.
pub(super) fn run(args: &P2pArgs) -> Result<Report, String> {
    measure(args).map_err(|error| match Driver::get() {
        Err(DriverError::Load(_)) => format!("{error}\n{NO_DRIVER}"),
        _ => error.to_string(),
    })
}

/// An error that prevents all measurements.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Vmm(#[from] VmmError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("the number of GPUs of this machine is {0}, expected at least 2")]
    TooFew(usize),
}

fn measure(args: &P2pArgs) -> Result<Report, Failure> {
    let matrix = PeerMatrix::look()?;
    let n = matrix.devices.len();
    if n < 2 {
        return Err(Failure::TooFew(n));
    }
    let contexts: Vec<Arc<CudaContext>> = (0..n).map(peerweave_driver::context).collect::<Result<_, _>>()?;
    let soon = || deadline_after(args.wait);
    let probe = Probe::new(&contexts, args.bytes, soon())?;
    let gpu = |device: &DeviceInfo| Gpu { name: device.name.clone(), pci_address: device.pci_address.clone() };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        cuda: format!("{:#}", Driver::get()?.version()?),
        gpus: matrix.devices.iter().map(gpu).collect(),
        bytes: probe.bytes(),
        iters: args.iters,
        rounds: args.rounds,
        tables: Vec::new(),
        everybody: Vec::new(),
        notes: Vec::new(),
        wrong: 0,
    };
    let processors = Driver::get()?.attribute(0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32;
    let methods: Vec<Method> = match probe.kernels() {
        Ok(()) => Method::ALL.to_vec(),
        Err(error) => {
            report.notes.push(format!("stores, loads and latency were not measured: {error}"));
            vec![Method::CopyEngine]
        }
    };
    let all: Vec<(usize, usize)> =
        (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to).collect();
    let (pairs, without): (Vec<_>, Vec<_>) = all.into_iter().partition(|(from, to)| probe.access(*from, *to).is_ok());
    for (from, to) in without {
        if let Err(error) = probe.access(from, to) {
            report.notes.push(format!("GPU {from} to GPU {to} was not measured: {error}"));
        }
    }
    let Some(first) = pairs.first().copied() else { return Ok(report) };
    let there_and_back = both_ways(&pairs);
    let ring = Some((0..n).map(|from| (from, (from + 1) % n)).collect::<Vec<_>>())
        .filter(|ring| ring.iter().all(|way| pairs.contains(way)));
    if ring.is_none() {
        report
            .notes
            .push("transfers from every GPU to the next, all at once, were not measured: some pairs lack peer access".to_owned());
    }
    for method in methods.iter().copied() {
        let run = |ways: &[(usize, usize)], shape| probe.bandwidth(method, ways, args.iters, shape, soon());
        let shape = best_shape(method, processors, |shape| Ok(rate(&run(&[first], shape)?[0])))?;
        if method != Method::CopyEngine {
            report.notes.push(format!("{}: {} blocks of {} threads", method.name(), shape.0, shape.1));
        }
        let mut alone = table(format!("{}, one direction", method.name()), "GB/s", n);
        for pair in &pairs {
            let moved = run(&[*pair], shape)?[0];
            alone.rows[pair.0][pair.1] = Some(rate(&moved));
            report.wrong += moved.wrong;
        }
        let mut both = table(format!("{}, both directions at once", method.name()), "GB/s", n);
        for pair in &there_and_back {
            let moved = run(&[*pair, (pair.1, pair.0)], shape)?;
            both.rows[pair.0][pair.1] = Some(rate(&moved[0]));
            both.rows[pair.1][pair.0] = Some(rate(&moved[1]));
            report.wrong += moved.iter().map(|moved| moved.wrong).sum::<usize>();
        }
        if let Some(ring) = &ring {
            let moved = run(ring, shape)?;
            report.wrong += moved.iter().map(|moved| moved.wrong).sum::<usize>();
            report.everybody.push(Everybody { method: method.name(), gb_per_s: moved.iter().map(rate).collect() });
        }
        report.tables.extend([alone, both]);
    }
    if probe.kernels().is_ok() {
        let mut latency = table("half the round-trip time of a flag".to_owned(), "us", n);
        for pair in &there_and_back {
            let half = probe.latency(pair.0, pair.1, args.rounds, soon())? * 1e6;
            latency.rows[pair.0][pair.1] = Some(half);
            latency.rows[pair.1][pair.0] = Some(half);
        }
        report.tables.push(latency);
    }
    Ok(report)
}

/// Returns an empty table for `n` GPUs.
fn table(title: String, unit: &'static str, n: usize) -> Table {
    Table { title, unit, rows: vec![vec![None; n]; n] }
}

fn rate(moved: &Moved) -> f64 {
    moved.gigabytes_per_second()
}

/// Returns the pairs of GPUs that have peer access in both directions, each pair once.
fn both_ways(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    pairs.iter().copied().filter(|(from, to)| from < to && pairs.contains(&(*to, *from))).collect()
}

/// Measures one pair of GPUs with several launch shapes. Returns the number of blocks and the
/// number of threads with the highest bandwidth. The measurements of all pairs use these numbers.
fn best_shape(
    method: Method,
    processors: u32,
    mut try_it: impl FnMut((u32, u32)) -> Result<f64, VmmError>,
) -> Result<(u32, u32), VmmError> {
    const THREADS: u32 = 512;
    let mut best = ((processors, THREADS), 0.0);
    if method == Method::CopyEngine {
        return Ok(best.0);
    }
    for blocks in [processors.div_ceil(2), processors, 2 * processors] {
        let rate = try_it((blocks, THREADS))?;
        if rate > best.1 {
            best = ((blocks, THREADS), rate);
        }
    }
    Ok(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_count_that_gives_the_highest_bandwidth_is_chosen() {
        let shape = best_shape(Method::Stores, 100, |(blocks, _)| Ok(if blocks == 200 { 3.0 } else { 2.0 }));
        assert_eq!(shape.expect("no measurement fails"), (200, 512));
    }
}
