//! `peerweave bench p2p`: measures the bandwidth between every two GPUs of this machine and the
//! latency of a flag.
//!
//! `peerweave_vmm::probe` measures; this module chooses the measurements and prints the results. It
//! never uses multicast objects. Invariant: measurements that are not possible are listed with the
//! reason.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use peerweave_driver::cudarc::driver::sys::CUdevice_attribute;
use peerweave_driver::{CudaContext, Driver, DriverError, deadline_after};
use peerweave_vmm::VmmError;
use peerweave_vmm::probe::{Method, Moved, Probe};

use crate::cli::parse_picture;
use crate::exit;
use crate::info::libraries::NO_DRIVER;
use crate::size::{format_size, parse_duration, parse_size};

mod picture;
mod report;

use report::{Everybody, Gpu, Report, Table};

/// The arguments of `peerweave bench p2p`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "peerweave bench p2p [OPTIONS]", after_help = HELP)]
pub struct P2pArgs {
    /// Bytes per copy
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value = "256M")]
    pub bytes: usize,
    /// Number of copies in a row that are timed together
    #[arg(long, value_name = "I", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iters: u32,
    /// Number of round trips of the flag
    #[arg(long, value_name = "R", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,
    /// Deadline for each single measurement
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    pub wait: Duration,
    /// Write the result as JSON
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the figures as heat maps
    #[arg(long, value_name = "FILE.svg", value_parser = parse_picture)]
    pub plot: Option<PathBuf>,
}

const HELP: &str = "\
Rows are the GPUs that copy, columns the GPUs whose memory they access. Bandwidth is in GB/s (10^9 bytes per second) \
of one direction, even if both directions run at once. Latency is half the round trip of a flag, in microseconds. \
The first and last words of the copied data are checked; the exit code is 1 if any is wrong.";

/// Joins the words `bench p2p` to `bench-p2p`, a separate subcommand with its own options.
pub(crate) fn joined(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if arguments.get(1).is_some_and(|word| word == "bench") && arguments.get(2).is_some_and(|word| word == "p2p") {
        arguments.splice(1..3, [OsString::from("bench-p2p")]);
    }
    arguments
}

/// Runs the command and returns its exit code.
pub fn main(args: &P2pArgs) -> u8 {
    match start(args) {
        Ok(0) => exit::OK,
        Ok(_) => exit::WRONG_VALUES,
        Err((code, message)) => {
            crate::tell(&format!("peerweave bench p2p: {message}"));
            code
        }
    }
}

fn start(args: &P2pArgs) -> Result<usize, (u8, String)> {
    args.json.iter().chain(&args.plot).try_for_each(|path| super::can_be_written(path))?;
    let failed = |error: &dyn std::fmt::Display| (exit::OPERATION_FAILED, error.to_string());
    let report = measure(args).map_err(|error| match Driver::get() {
        Err(DriverError::Load(_)) => failed(&format!("{error}\n{NO_DRIVER}")),
        _ => failed(&error),
    })?;
    crate::print_line(report.text().trim_end());
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|error| (exit::LAUNCHER, format!("{}: {error}", path.display())))
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
        write(path, text + "\n")?;
    }
    if let Some(path) = &args.plot {
        write(path, picture::svg(&report).map_err(|error| (exit::LAUNCHER, error))?)?;
    }
    Ok(report.wrong)
}

/// An error that prevents all measurements.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Vmm(#[from] VmmError),
    #[error(transparent)]
    Driver(#[from] peerweave_driver::DriverError),
    #[error("this machine has {0} GPUs, expected at least 2")]
    TooFew(usize),
}

fn measure(args: &P2pArgs) -> Result<Report, Failure> {
    let matrix = peerweave_vmm::PeerMatrix::look()?;
    let n = matrix.devices.len();
    if n < 2 {
        return Err(Failure::TooFew(n));
    }
    let contexts: Vec<Arc<CudaContext>> = (0..n).map(peerweave_driver::context).collect::<Result<_, _>>()?;
    let soon = || deadline_after(args.wait);
    let probe = Probe::new(&contexts, args.bytes, soon())?;
    let gpu =
        |device: &peerweave_vmm::peer::DeviceInfo| Gpu { name: device.name.clone(), pci_address: device.pci_address.clone() };
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
    let (pairs, without): (Vec<_>, Vec<_>) = all.into_iter().partition(|(from, to)| probe.way(*from, *to).is_ok());
    for (from, to) in without {
        if let Err(error) = probe.way(from, to) {
            report.notes.push(format!("GPU {from} to GPU {to} was not measured: {error}"));
        }
    }
    let Some(first) = pairs.first().copied() else { return Ok(report) };
    let there_and_back = both_ways(&pairs);
    let ring = Some((0..n).map(|from| (from, (from + 1) % n)).collect::<Vec<_>>())
        .filter(|ring| ring.iter().all(|way| pairs.contains(way)));
    if ring.is_none() {
        report.notes.push("all at once (every GPU to the next) was not measured: some pairs have no peer access".to_owned());
    }
    for method in methods.iter().copied() {
        let run = |ways: &[(usize, usize)], shape| probe.bandwidth(method, ways, args.iters, shape, soon());
        let shape = best_shape(method, processors, |shape| Ok(rate(&run(&[first], shape)?[0])))?;
        if method != Method::CopyEngine {
            report.notes.push(format!("{}: {} blocks of {} threads", method.name(), shape.0, shape.1));
        }
        let mut alone = Table::new(format!("{}, one direction", method.name()), "GB/s", n);
        for pair in &pairs {
            let moved = run(&[*pair], shape)?[0];
            alone.rows[pair.0][pair.1] = Some(rate(&moved));
            report.wrong += moved.wrong;
        }
        let mut both = Table::new(format!("{}, both directions at once", method.name()), "GB/s", n);
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
        let mut latency = Table::new("latency of a flag".to_owned(), "us", n);
        for pair in &there_and_back {
            let half = probe.latency(pair.0, pair.1, args.rounds, soon())? * 1e6;
            latency.rows[pair.0][pair.1] = Some(half);
            latency.rows[pair.1][pair.0] = Some(half);
        }
        report.tables.push(latency);
    }
    Ok(report)
}

fn rate(moved: &Moved) -> f64 {
    moved.gigabytes_per_second()
}

/// Returns the pairs with peer access in both directions, each once.
fn both_ways(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    pairs.iter().copied().filter(|(from, to)| from < to && pairs.contains(&(*to, *from))).collect()
}

/// Returns the number of blocks with the highest bandwidth on one pair; used for all pairs.
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

/// Describes the options of the measurement.
fn asked(report: &Report) -> String {
    format!("{} x {} each, CUDA {}, peerweave {}", report.iters, format_size(report.bytes), report.cuda, report.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        joined(words.iter().map(OsString::from))
    }

    #[test]
    fn bench_p2p_becomes_one_word_and_other_arguments_stay() {
        assert_eq!(words(&["peerweave", "bench", "p2p", "--iters", "3"]), ["peerweave", "bench-p2p", "--iters", "3"]);
        assert_eq!(words(&["peerweave", "bench", "put"]), ["peerweave", "bench", "put"]);
        assert_eq!(words(&["peerweave"]), ["peerweave"]);
    }

    #[test]
    fn best_shape_has_the_highest_bandwidth() {
        let shape = best_shape(Method::Stores, 100, |(blocks, _)| Ok(if blocks == 200 { 3.0 } else { 2.0 }));
        assert_eq!(shape.expect("no failure"), (200, 512));
    }
}
