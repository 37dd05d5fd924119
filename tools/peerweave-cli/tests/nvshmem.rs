//! Tests `peerweave bench --backend nvshmem` with fakes of the driver and NVSHMEM: real processes,
//! checked results, faults.
#![cfg(target_os = "linux")]

use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A directory with the fakes, under the names of the real libraries.
struct Machine(TempDir);

impl Machine {
    fn new(with: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (package, name) in with {
            symlink(peerweave_fakes::library(package), directory.path().join(name)).unwrap();
        }
        Self(directory)
    }

    fn with_gpus() -> Self {
        let machine = Self::new(&[
            ("peerweave-fake-cuda", "libcuda.so.1"),
            ("peerweave-fake-cuda", "libcuda.so"),
            ("peerweave-fake-nvshmem", "libnvshmem_host.so.3"),
        ]);
        for plugin in ["uid", "mpi", "pmi", "pmi2", "pmix", "shmem"] {
            let name = format!("nvshmem_bootstrap_{plugin}.so.3");
            symlink(peerweave_fakes::library("peerweave-fake-nvshmem"), machine.0.path().join(name)).unwrap();
        }
        machine
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.env_remove("PEERWEAVE_PE").env("LD_LIBRARY_PATH", self.0.path()).env("PEERWEAVE_NVSHMEM_PATH", self.0.path());
        command.env("NVSHMEM_REMOTE_TRANSPORT", "none").env("PEERWEAVE_MULTICAST", "off").envs(variables.iter().copied());
        command.args(["bench"]).args(arguments).args(["--backend", "nvshmem", "--timeout", "120"]).output().unwrap()
    }

    /// Runs a short measurement. Returns the lines of the table and the whole output.
    fn figures(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Vec<Vec<String>>, String) {
        let output = self.run(&[arguments, &["--iters", "2", "-w", "1"]].concat(), variables);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {out}\n{err}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        (out.lines().filter(|line| !line.starts_with('#')).map(words).collect(), out)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const COLLECTIVES: [&str; 7] = ["all-reduce", "broadcast", "all-gather", "all-to-all", "reduce-scatter", "barrier", "sync"];
const ONE_SIDED: [&str; 6] = ["put", "get", "put-signal", "p", "g", "ping-pong"];

#[test]
fn nvshmem_operations_on_1_to_3_pes_have_correct_results() {
    let machine = Machine::with_gpus();
    for (n, ops) in
        [("1", &COLLECTIVES[..]), ("2", &[&COLLECTIVES[..], &ONE_SIDED].concat()), ("3", &COLLECTIVES), ("3", &ONE_SIDED)]
    {
        for op in ops {
            let (lines, out) = machine.figures(&[op, "-n", n, "-b", "8", "-e", "2K", "-f", "256"], &[]);
            let sized = !matches!(*op, "barrier" | "sync" | "p" | "g");
            assert_eq!(lines.len(), if sized { 2 } else { 1 }, "{op}: {out}");
            for line in lines {
                let in_place = if *op == "all-reduce" { "0" } else { "N/A" };
                assert_eq!((&*line[8], &*line[12]), ("0", in_place), "{op}, {n} PEs: {out}");
            }
        }
    }
}

#[test]
fn all_types_and_reductions_of_nvshmem_have_correct_results() {
    let machine = Machine::with_gpus();
    let (moved, out) = machine.figures(&["all-gather", "-n", "2", "-b", "1000", "-e", "1000", "-d", "all"], &[]);
    assert_eq!(moved.len(), 12, "{out}");
    let (reduced, out) = machine.figures(&["all-reduce", "-n", "3", "-b", "1000", "-e", "1000", "-d", "all", "-o", "all"], &[]);
    // Sum, product, minimum, maximum; for integers also and, or, xor.
    assert_eq!(reduced.len(), 4 * 4 + 6 * 7, "{out}");
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
}

#[test]
fn broadcast_from_every_root_has_correct_results() {
    let (lines, out) = Machine::with_gpus().figures(&["broadcast", "-n", "3", "-b", "64", "-e", "64", "-r", "all"], &[]);
    assert_eq!(lines.iter().map(|line| &*line[4]).collect::<Vec<_>>(), ["0", "1", "2"], "{out}");
}

#[test]
fn nvshmem_results_are_correct_with_all_timing_options() {
    let machine = Machine::with_gpus();
    for arguments in [
        &["put", "--nbi"][..],
        &["get", "--nbi", "--clock", "wall"],
        &["put-signal", "--nbi"],
        &["put", "--buffers", "private"],
        &["get", "--buffers", "private"],
        &["ping-pong", "--buffers", "private"],
        &["all-reduce", "--each"],
        &["put", "--each", "--clock", "wall"],
        &["put", "-G", "5"],
        &["get", "-G", "5", "--each"],
        &["put-signal", "-G", "5"],
        &["all-reduce", "-G", "5"],
        &["all-gather", "-G", "5"],
        &["barrier", "-G", "5"],
    ] {
        let (lines, out) = machine.figures(&[arguments, &["-n", "2", "-b", "4K", "-e", "4K"]].concat(), &[]);
        assert!(lines.iter().all(|line| line[8] == "0"), "{arguments:?}: {out}");
        assert!(lines[0][5].parse::<f64>().unwrap() > 0.0, "{arguments:?}: {out}");
    }
}

#[test]
fn bench_header_shows_buffers_calls_and_timing() {
    let machine = Machine::with_gpus();
    let calls = |arguments: &[&str]| {
        let (_, out) = machine.figures(&[arguments, &["-n", "2", "-b", "64", "-e", "64"]].concat(), &[]);
        let line = out.lines().find(|line| line.starts_with("# buffers:")).unwrap_or_default().to_owned();
        assert!(out.contains("backend=nvshmem") && out.contains("NVSHMEM 3."), "{out}");
        line
    };
    assert!(calls(&["put"]).contains("buffers: symmetric calls: stream-ordered, timed by events"));
    assert!(calls(&["put", "--nbi", "--clock", "wall"]).contains("calls: stream-ordered, nbi inputs"));
    assert!(
        calls(&["all-reduce", "-G", "3", "--each"]).contains("calls: CUDA graphs of 3 calls, timed separately, timed by events")
    );
}

#[test]
fn json_has_the_time_of_every_batch() {
    let machine = Machine::with_gpus();
    let file = machine.0.path().join("out.json");
    machine.figures(&["put", "-n", "2", "-b", "8", "-e", "16", "-J", file.to_str().unwrap()], &[]);
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["peerweave"]["backend"], "nvshmem");
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    // Only PE 0 of two makes calls, so it is the slowest.
    let times = &results[0]["out_of_place_per_batch"];
    assert_eq!(times["pe0_times_us"], times["times_us"], "{json}");
}

#[test]
fn missing_elements_are_counted_as_wrong() {
    let machine = Machine::with_gpus();
    // A call of the fake returns success and moves no data.
    for (op, fault, wrong) in [
        ("put", "nvshmemx_putmem_on_stream=0", "256"),
        ("get", "nvshmemx_getmem_on_stream=0", "256"),
        ("all-reduce", "nvshmemx_float_sum_reduce_on_stream=0", "512"),
        ("put-signal", "nvshmemx_putmem_signal_on_stream=0", "257"),
    ] {
        let arguments = [op, "-n", "2", "-b", "1K", "-e", "1K", "--iters", "2"];
        let output = machine.run(&arguments, &[("PEERWEAVE_FAKE_NVSHMEM_FAIL", fault)]);
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{op}: {out}\n{}", text(&output.stderr));
        let line: Vec<&str> = out.lines().find(|line| !line.starts_with('#')).unwrap_or_default().split_whitespace().collect();
        // Both checks count the missing elements.
        assert_eq!(line[8].parse::<u64>().unwrap(), 2 * wrong.parse::<u64>().unwrap(), "{op}: {out}");
        assert!(out.contains("FAILED"), "{op}: {out}");
    }
}

#[test]
fn elements_lost_by_the_last_call_are_counted_as_wrong() {
    // The last call moves no data. The check after timing detects this.
    let arguments = ["put", "-n", "2", "-b", "1K", "-e", "1K", "--iters", "2", "-w", "1"];
    let lost = [("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_putmem_on_stream:1=0")];
    let output = Machine::with_gpus().run(&arguments, &lost);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("# Out of bounds values : 256 FAILED"), "{out}");
}

#[test]
fn barrier_that_does_not_wait_is_reported_as_wrong() {
    for (op, function) in [("barrier", "nvshmemx_barrier_on_stream=0"), ("sync", "nvshmemx_team_sync_on_stream=0")] {
        let output = Machine::with_gpus().run(&[op, "-n", "2", "--iters", "2"], &[("PEERWEAVE_FAKE_NVSHMEM_FAIL", function)]);
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{op}: {out}\n{}", text(&output.stderr));
    }
}

#[test]
fn error_names_the_nvshmem_function_that_failed() {
    for (op, function) in [
        ("all-reduce", "nvshmemx_float_sum_reduce_on_stream"),
        ("all-gather", "nvshmemx_uint32_fcollect_on_stream"),
        ("barrier", "nvshmemx_barrier_on_stream"),
        ("put", "nvshmem_malloc"),
    ] {
        let fault = format!("{function}:2=7");
        let arguments = [op, "-n", "2", "-b", "1K", "-e", "1K", "--iters", "2"];
        let output = Machine::with_gpus().run(&arguments, &[("PEERWEAVE_FAKE_NVSHMEM_FAIL", &fault)]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{op}: {}\n{err}", text(&output.stdout));
        assert!(err.contains("nvshmem"), "{op}: {err}");
    }
}

#[test]
fn error_names_the_missing_nvshmem_library() {
    let machine = Machine::new(&[("peerweave-fake-cuda", "libcuda.so.1"), ("peerweave-fake-cuda", "libcuda.so")]);
    let output = machine.run(&["all-reduce", "-n", "1", "-e", "8"], &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("NVSHMEM was not found") && err.contains("PEERWEAVE_NVSHMEM_PATH"), "{err}");
}

#[test]
fn error_names_the_missing_driver() {
    let machine = Machine::new(&[("peerweave-fake-nvshmem", "libnvshmem_host.so.3")]);
    let output = machine.run(&["all-reduce", "-n", "1", "-e", "8"], &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("libcuda"), "{err}");
}

#[test]
fn more_pes_than_devices_are_refused() {
    let output = Machine::with_gpus().run(&["put", "-n", "3", "-e", "8"], &[("PEERWEAVE_FAKE_CUDA_DEVICES", "2")]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("-n is 3, expected at most 2 (the number of CUDA devices)"), "{err}");
}
