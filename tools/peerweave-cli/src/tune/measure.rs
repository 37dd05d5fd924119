//! Measures the operations and writes the route table.

use clap::{Parser, ValueEnum};
use peerweave::cuda::{Method, RouteTable, Timing};

use super::TuneArgs;
use crate::bench::compare::Comparison;
use crate::bench::{self, now};
use peerweave_bench::console::exit;
use peerweave_bench::console::output::{check_writable, print_line, write_file};
use peerweave_bench::cuda;
use peerweave_bench::workload::args::BenchArgs;
use peerweave_bench::workload::op::BenchOp;

/// Command-line parser that accepts only the options of `peerweave bench`, without a subcommand.
/// [`words`] uses this parser to create the options of a comparison.
#[derive(Parser)]
struct Words {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs `peerweave tune`. Returns the exit code.
pub(super) fn run(args: &TuneArgs) -> Result<u8, (u8, String)> {
    let usage = |message: String| (exit::USAGE, message);
    let n_pes = match args.n {
        Some(n) => n,
        None => cuda::device_count().map_err(usage)?.unwrap_or(0).clamp(2, 8),
    };
    if !(2..=8).contains(&n_pes) {
        return Err(usage(format!("-n is {n_pes}, expected 2 to 8 PEs (the numbers that Peerweave's kernels support)")));
    }
    let chosen = if args.ops.is_empty() { BenchOp::value_variants() } else { &args.ops };
    if let Some(op) = args.ops.iter().find(|op| !op.has_route()) {
        return Err(usage(format!("--ops: {} has only one method, so there is nothing to measure", op.name())));
    }
    // A file that cannot be read or parsed is reported before the measurement and is not
    // overwritten.
    let before = args.output.exists().then(|| std::fs::read_to_string(&args.output)).transpose();
    let before = before.map_err(|error| (exit::LAUNCHER, format!("cannot read {}: {error}", args.output.display())))?;
    let name = args.output.display().to_string();
    let before = before.filter(|text| !text.trim().is_empty()).map(|text| RouteTable::parse(&name, &text)).transpose();
    let before = before.map_err(|error| usage(format!("{error}; correct the file, or remove the file")))?;
    check_writable(&args.output)?;
    let mut timings = Vec::new();
    let (mut arch, mut device) = (String::new(), String::new());
    for op in chosen.iter().copied().filter(|op| op.has_route()) {
        let bench = words(args, op, n_pes)?;
        let comparison = match bench::run_comparison(&bench)? {
            Ok(comparison) => comparison,
            Err(code) => return Ok(code),
        };
        if comparison.wrong() > 0 {
            return Ok(exit::WRONG_VALUES);
        }
        timings.extend(timings_of(op, &comparison));
        (arch, device) = (comparison.contenders().arch.clone(), comparison.compute().to_owned());
    }
    let base = match before {
        Some(table) if table.arch() == arch || table.arch() == "any" => table,
        Some(table) => {
            let message =
                format!("{name} is for GPUs of {}, but this machine has GPUs of {arch}; choose another file", table.arch());
            return Err(usage(message));
        }
        None => RouteTable::builtin(&arch),
    };
    let table = base.tuned(&arch, n_pes as u32, &timings);
    write_file(&args.output, &text(args, &table, n_pes, &device, &timings))?;
    print_line(&format!("# {name}: the table for {arch} with rows of {n_pes} PEs; to use it, set PEERWEAVE_ROUTE_TABLE={name}"));
    Ok(exit::OK)
}

/// Returns the arguments with which `peerweave bench` compares all methods of one operation. The
/// measured times determine which method the route table contains for each size.
fn words(args: &TuneArgs, op: BenchOp, n_pes: usize) -> Result<BenchArgs, (u8, String)> {
    let methods = match op {
        BenchOp::AllReduce => "own:one_shot,own:two_shot,own:chunked,nccl",
        BenchOp::AllGather | BenchOp::AllToAll => "own:lines,own:messages,nccl",
        _ => "nccl",
    };
    let mut words: Vec<String> =
        ["tune", op.name(), "--backend", "cuda", "-d", "bfloat16", "--compare", methods].map(str::to_owned).into();
    for (option, value) in [
        ("-n", n_pes.to_string()),
        ("-b", args.min_bytes.to_string()),
        ("-e", args.max_bytes.to_string()),
        ("-f", args.step_factor.to_string()),
        ("--batches", args.batches.to_string()),
    ] {
        words.extend([option.to_owned(), value]);
    }
    match args.iters {
        Some(iters) => words.extend(["--iters".to_owned(), iters.to_string()]),
        None => words.extend(["--batch-ms".to_owned(), "3".to_owned()]),
    }
    if !args.eager {
        words.push("--graphs=20".to_owned());
    }
    let mut bench = Words::try_parse_from(words).map_err(|error| (exit::USAGE, error.to_string()))?.bench;
    bench.timeout = args.timeout;
    Ok(bench)
}

/// Returns the median times of all methods in a comparison, from which the route table is computed.
fn timings_of(op: BenchOp, comparison: &Comparison) -> Vec<Timing> {
    let Some(kind) = cuda::collective_kind(op) else { return Vec::new() };
    let method_of = |contender: &str| match contender {
        "own" => Some(Method::Own),
        "nccl" => Some(Method::Nccl),
        other => other.strip_prefix("own:").and_then(|name| cuda::method(op, name).ok()),
    };
    let of_line = |line: &bench::compare::Line| -> Vec<Timing> {
        let size_bytes = line.case.size_bytes() as u64;
        let cells = line.cells.iter().filter_map(|cell| Some((method_of(&cell.contender)?, cell.p50_us?)));
        cells.map(|(method, us)| Timing { kind, method, size_bytes, us }).collect()
    };
    comparison.lines().iter().flat_map(of_line).collect()
}

/// Returns the text of the file to write: the route table, with comments about the measurement
/// after its first line.
fn text(args: &TuneArgs, table: &RouteTable, n_pes: usize, device: &str, timings: &[Timing]) -> String {
    let calls = if args.eager { "eager calls" } else { "CUDA graphs of 20 calls" };
    let table = table.to_string();
    let (head, rest) = table.split_once('\n').unwrap_or((&table, ""));
    let mut text = format!("{head}\n# Written by `peerweave tune` {}, {} UTC.\n", env!("CARGO_PKG_VERSION"), now());
    text += &format!("# Rows for {n_pes} PEs, measured on {device}: bfloat16, {calls}, medians of {} batches.\n", args.batches);
    if matches!(cuda::device_count(), Ok(Some(count)) if count < n_pes) {
        text += "# The PEs shared a GPU: the figures are for tests only.\n";
    }
    if !timings.iter().any(|timing| timing.method == Method::Nccl) {
        text += "# NCCL was not measured.\n";
    }
    text + rest
}
