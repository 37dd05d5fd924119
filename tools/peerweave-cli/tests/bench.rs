//! `peerweave bench` and `peerweave info` from end to end: every operation with real PEs, and
//! detection of a backend that moves no data.

use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use peerweave::noop::Noop;
use peerweave::{Symmetric, World};
use peerweave_bench::pe::measure::measure;
use peerweave_bench::pe::operands::{Buffers, Moving, Reducing, Typed};
use peerweave_bench::workload::args::BenchArgs;
use peerweave_bench::workload::config::Config;
use peerweave_bench::workload::geometry::Placement;
use peerweave_bench::workload::op::BenchOp;
use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").arg("bench").args(arguments).args(["--timeout", "60"]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a measurement that must succeed. Returns the fields of each line of the table.
fn figures(arguments: &[&str]) -> Vec<Vec<String>> {
    let output = bench(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {:?}\n{out}\n{err}", output.status);
    assert!(out.contains("# Out of bounds values : 0 OK"), "{arguments:?}\n{out}");
    let lines = out.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_ascii_whitespace().map(str::to_owned).collect()).collect()
}

/// Asserts that a line of the table has no wrong element and a time above 0.
fn assert_right(fields: &[String], has_in_place: bool) {
    assert_eq!(fields.len(), 13, "{fields:?}");
    assert_eq!(fields[8], "0", "{fields:?}");
    assert!(fields[5].parse::<f64>().unwrap() > 0.0, "{fields:?}");
    assert_eq!(fields[12], if has_in_place { "0" } else { "N/A" }, "{fields:?}");
}

fn every_operation(options: &[&str]) {
    for op in BenchOp::value_variants() {
        if options.contains(&"--stream") && !op.has_stream_form() || options.contains(&"--dirty") && !op.has_input() {
            continue;
        }
        if options.contains(&"private") && *op == BenchOp::Moe {
            continue; // `moe` takes only symmetric memory
        }
        let lines = figures(&[&[op.name(), "-n", "2", "-b", "8", "-e", "2K", "-f", "16", "--iters", "3"], options].concat());
        assert_eq!(lines.len(), if op.has_size() { 3 } else { 1 }, "{op:?}: {lines:?}");
        lines.iter().for_each(|fields| assert_right(fields, op.has_in_place()));
    }
}

#[test]
fn operations_on_symmetric_buffers_have_correct_results() {
    every_operation(&[]);
}

#[test]
fn operations_on_private_buffers_have_correct_results() {
    every_operation(&["--buffers", "private"]);
}

#[test]
fn operations_on_a_stream_have_correct_results() {
    every_operation(&["--stream"]);
}

#[test]
fn results_are_correct_if_inputs_are_rewritten_before_each_call() {
    every_operation(&["--threads", "--dirty"]);
}

#[test]
fn reductions_of_all_types_have_correct_results() {
    let lines = figures(&["all-reduce", "-n", "3", "-d", "all", "-o", "all", "-b", "20K", "-e", "20K", "--iters", "2"]);
    assert_eq!(lines.len(), 4 * 6 + 8 * 9);
    lines.iter().for_each(|fields| assert_right(fields, true));
    let lines = figures(&["all-gather", "-n", "3", "-d", "all", "-b", "20K", "-e", "20K", "--iters", "2"]);
    assert_eq!(lines.len(), 14);
}

#[test]
fn nonblocking_puts_and_gets_are_correct_after_one_quiet() {
    for operation in ["put", "get", "put-signal", "put-strided", "p"] {
        for form in [&["--nbi"][..], &["--nbi", "--stream"]] {
            let sizes = if operation == "p" { &[][..] } else { &["-b", "256", "-e", "64K", "-f", "16"] };
            let options = ["-n", "2", "-d", "int64", "--iters", "50"];
            for row in figures(&[&[operation], sizes, &options[..], form].concat()) {
                assert_right(&row, false);
            }
        }
    }
}

#[test]
fn broadcast_is_measured_from_each_pe_if_root_is_all() {
    let lines = figures(&["broadcast", "-n", "3", "-r", "all", "-b", "64", "-e", "64", "--iters", "2"]);
    let roots: Vec<_> = lines.iter().map(|fields| fields[4].as_str()).collect();
    assert_eq!(roots, ["0", "1", "2"]);
}

#[test]
fn operations_only_in_the_portable_api_have_correct_results() {
    for op in ["scan", "exclusive-scan"] {
        let lines = figures(&[op, "-n", "3", "-d", "all", "-o", "all", "-b", "5K", "-e", "5K", "--iters", "2"]);
        assert_eq!(lines.len(), 4 * 5 + 8 * 8, "all reductions but avg");
        lines.iter().for_each(|fields| assert_right(fields, true));
    }
    for op in ["gather-v", "scatter-v"] {
        let lines = figures(&[op, "-n", "3", "-r", "all", "-b", "64", "-e", "64K", "-f", "1024", "--iters", "2"]);
        assert_eq!(lines.len(), 2 * 3);
        lines.iter().for_each(|fields| assert_right(fields, true));
    }
    for op in ["all-to-all-strided", "rms-norm", "moe", "lock"] {
        let dtype = if op == "lock" || op == "all-to-all-strided" { "float" } else { "all" };
        let lines = figures(&[op, "-n", "3", "-d", dtype, "-b", "40K", "-e", "40K", "--iters", "2"]);
        assert_eq!(lines.len(), if dtype == "all" { 3 } else { 1 }, "{op}");
        lines.iter().for_each(|fields| assert_right(fields, false));
    }
}

#[test]
fn options_that_an_operation_lacks_are_refused() {
    for (arguments, text) in [
        (&["all-reduce", "-r", "1"][..], "--root is not supported by all-reduce, which has no root"),
        (&["put", "-r", "all"], "--root is not supported by put, which has no root"),
        (&["broadcast", "-r", "2"], "--root is 2, expected less than 2 (the number of PEs)"),
        (
            &["all-reduce", "--limit", "400"],
            "--limit is supported only with --compare, because --limit adds a line to the plot of a comparison",
        ),
        (&["scan", "-o", "avg"], "reduction avg is not defined for scan, expected any other reduction"),
        (&["moe", "-d", "int32"], "-d int32 is not supported by moe, expected float, half or bfloat16"),
        (&["moe", "--buffers", "private"], "moe requires --buffers symmetric"),
        (&["scan", "--backend", "nccl"], "--backend nccl: NCCL has no operation scan"),
        (&["lock", "--backend", "nvshmem"], "--backend nvshmem: NVSHMEM has no operation lock on streams"),
    ] {
        let output = bench(&[arguments, &["-n", "2"]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(self::text(&output.stderr), format!("peerweave bench: {text}\n"));
    }
}

#[test]
fn bench_chooses_the_number_of_calls_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    figures(&["all-reduce", "-n", "2", "-b", "64", "-e", "64", "--batches", "3", "--json", path.to_str().unwrap()]);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let result = &document["results"][0];
    assert!(result["actual_iterations"].as_u64().unwrap() >= 3);
    assert_eq!(result["out_of_place_per_batch"]["times_us"].as_array().unwrap().len(), 3);
    assert_eq!(result["out_of_place"]["nwrong"], 0);
    assert_eq!(document["config"]["devices"].as_array().unwrap().len(), 2);
    assert!(document["peerweave"]["start_to_first_barrier_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn plot_option_writes_an_svg_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    figures(&["all-gather", "-n", "2", "-b", "64", "-e", "4K", "--iters", "3", "--plot", path.to_str().unwrap()]);
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.contains("all-gather, 2 PEs") && svg.contains("GB/s"));
}

#[test]
fn measurement_without_check_is_marked_unchecked() {
    let output = bench(&["put", "-n", "2", "-b", "8", "-e", "8", "--iters", "3", "--no-check"]);
    let out = text(&output.stdout);
    assert!(out.contains("# Out of bounds values : 0 UNCHECKED"), "{out}");
    assert!(out.lines().any(|line| line.split_ascii_whitespace().nth(8) == Some("N/A")), "{out}");
}

#[test]
fn timeout_ends_a_measurement() {
    let arguments = ["all-reduce", "-n", "2", "-b", "64M", "-e", "64M", "--iters", "1000000", "--timeout", "1s"];
    let output = Command::new(env!("CARGO_BIN_EXE_peerweave")).env_remove("PEERWEAVE_PE").arg("bench").args(arguments).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
}

#[test]
fn invalid_command_line_is_an_error() {
    let output = bench(&["put", "-n", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "peerweave bench: -n is 1, expected at least 2 PEs for put\n");
}

#[test]
fn options_that_the_cuda_backend_lacks_are_refused() {
    for option in ["--dirty", "--threads", "--graph=4"] {
        let output = bench(&["all-reduce", "-n", "2", "--backend", "cuda", option]);
        assert_eq!(output.status.code(), Some(2), "{option}");
        let name = option.split('=').next().unwrap();
        assert!(
            text(&output.stderr).starts_with(&format!("peerweave bench: --backend cuda: {name} is ")),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn explain_option_is_refused_for_operations_with_one_method() {
    for (op, backend, text) in [
        ("all-reduce", "host", "--explain is supported only with --backend cuda"),
        ("send-recv", "cuda", "--explain is not supported by send-recv, which has only one method"),
    ] {
        let output = bench(&[op, "-n", "2", "--backend", backend, "--explain"]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("peerweave bench: {text}\n"));
    }
}

#[test]
fn bench_ignores_the_variable_peerweave_backend() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").env("PEERWEAVE_BACKEND", "cuda").args(["bench", "barrier", "-n", "2", "--iters", "3"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn failed_pe_ends_the_measurement_with_exit_code_3() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").env("PEERWEAVE_HEAP_BYTES", "1M");
    let output = command.args(["bench", "all-reduce", "-n", "2", "-b", "64M", "-e", "64M", "--timeout", "30"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("bytes requested"), "{}", text(&output.stderr));
}

#[test]
fn killed_pe_ends_bench_and_is_named_by_the_other_pes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").args(["bench", "barrier", "-n", "3", "--iters", "1000000000", "--no-check"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pe = (0..1000).find_map(|_| {
        sleep(Duration::from_millis(5));
        // The header is printed when all PEs have passed a barrier; the environment of a process
        // contains the index of its PE.
        pes_of(child.id()).into_iter().find(|pid| environment_has(*pid, "PEERWEAVE_PE=1"))
    });
    let pe = pe.expect("PE 1 has started");
    sleep(Duration::from_millis(500));
    let start = Instant::now();
    assert!(Command::new("kill").arg("-9").arg(pe.to_string()).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let err = text(&output.stderr);
    // The command ends long before any deadline, also on a busy machine.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}\n{err}", start.elapsed());
    assert_eq!(output.status.code(), Some(137), "{err}");
    assert!(err.contains("peerweave bench: PE 1 (process ") && err.contains("killed by signal 9"), "{err}");
    for survivor in ["[0] ", "[2] "] {
        assert!(
            err.lines().any(|line| line.starts_with(survivor) && line.contains("PE 1")),
            "{survivor}does not name PE 1:\n{err}"
        );
    }
}

/// Returns the children of a launcher that are PEs.
fn pes_of(launcher: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| text_has(&line, "bench-pe"))).collect()
}

fn environment_has(pid: u32, entry: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|entries| entries.split(|byte| *byte == 0).any(|one| one == entry.as_bytes()))
}

fn text_has(bytes: &[u8], part: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(part)
}

#[test]
fn info_prints_json_with_a_reason_for_every_missing_library() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    let output =
        command.env_remove("PEERWEAVE_PE").env("PEERWEAVE_TOKEN", "a".repeat(64)).args(["info", "--json"]).output().unwrap();
    assert!(output.status.success());
    let out = text(&output.stdout);
    assert!(!out.contains(&"a".repeat(64)), "the secret is shown");
    let info: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(info["trial"]["works"], true, "{}", info["trial"]);
    assert!(info["system"]["cross_memory_attach"]["why"].as_str().unwrap().len() > 10);
    for library in info["libraries"].as_array().unwrap() {
        assert!(library["path"].is_string() || !library["why"].as_array().unwrap().is_empty(), "{library}");
    }
    assert!(info["machine"]["cpus"].as_u64().unwrap() >= 1);
}

#[derive(Parser)]
struct Wrapper {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Returns the number of wrong elements on one of two PEs whose backend completes every call but
/// moves no data.
fn wrong_on_noop(op: BenchOp, rank: u32, placement: Placement) -> u64 {
    let args = Wrapper::parse_from(["bench", op.name(), "-n", "2", "-b", "1K", "-e", "1K", "--iters", "1", "--warmup", "0"]);
    let config = Config::from_args(&args.bench).unwrap();
    let world = World::builder().backend(Noop::new(rank, 2)).build().unwrap();
    let alloc = || world.alloc_zeroed::<f32>(1024).unwrap();
    let buffers =
        Buffers::<f32, Symmetric<f32>> { send: alloc(), recv: alloc(), target: alloc(), word: world.alloc_zeroed(1).unwrap() };
    let case = &config.cases()[0];
    let outcome = if op.reduces() {
        let operands = Typed::<_, _, Reducing>::new(&world, None, &config, case, placement, &buffers).unwrap();
        measure(&world, None, &config, &operands)
    } else {
        let operands = Typed::<_, _, Moving>::new(&world, None, &config, case, placement, &buffers).unwrap();
        measure(&world, None, &config, &operands)
    };
    outcome.unwrap().wrong.expect("the result was checked")
}

#[test]
fn backend_that_moves_no_data_is_detected() {
    // A ping-pong would wait for an answer. Barrier and sync move no data, and their check needs
    // PEs that arrive late. Special operations do not use the memory of `Buffers`.
    let exempt = [BenchOp::PingPong, BenchOp::Barrier, BenchOp::Sync, BenchOp::RmsNorm, BenchOp::Moe, BenchOp::Lock];
    for op in BenchOp::value_variants().iter().filter(|op| !exempt.contains(op)) {
        for placement in [Placement::OutOfPlace, Placement::InPlace] {
            if placement == Placement::InPlace && !op.has_in_place() {
                continue;
            }
            let wrong: u64 = (0..2).map(|rank| wrong_on_noop(*op, rank, placement)).sum();
            assert!(wrong > 0, "{op:?} {placement:?}: no element was wrong");
        }
    }
}

#[test]
fn every_element_is_wrong_if_no_element_was_written() {
    // Two checks of 256 elements each, none of which was written.
    assert_eq!(wrong_on_noop(BenchOp::AllReduce, 0, Placement::OutOfPlace), 2 * 256);
    assert_eq!(wrong_on_noop(BenchOp::Put, 1, Placement::OutOfPlace), 2 * 256);
}

#[test]
fn output_that_cannot_be_written_causes_no_panic() {
    for arguments in [&["bench", "barrier", "-n", "2", "--iters", "3"][..], &["info"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full can be opened");
        let (reader, gone) = std::io::pipe().expect("a pipe is created");
        drop(reader);
        for (stdout, code) in [(Stdio::from(full), 125), (Stdio::from(gone), 128 + 13)] {
            let output =
                Command::new(env!("CARGO_BIN_EXE_peerweave")).args(arguments).stdout(stdout).output().expect("the command runs");
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
            assert!(!err.contains("panicked"), "{arguments:?}: {err}");
        }
    }
}
