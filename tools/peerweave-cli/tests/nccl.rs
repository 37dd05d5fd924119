//! Tests `peerweave bench --backend nccl` and `peerweave info` with fakes of the driver and NCCL:
//! real processes, checked results.
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
        Self::new(&[
            ("peerweave-fake-cuda", "libcuda.so.1"),
            ("peerweave-fake-cuda", "libcuda.so"),
            ("peerweave-fake-nccl", "libnccl.so.2"),
        ])
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.env_remove("PEERWEAVE_PE").env("LD_LIBRARY_PATH", self.0.path()).env("PEERWEAVE_NCCL_PATH", self.0.path());
        command.env("PEERWEAVE_FAKE_NCCL_DIR", self.0.path()).envs(variables.iter().copied());
        command.args(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn operations_of_nccl_are_measured_with_correct_results() {
    let machine = Machine::with_gpus();
    for (op, in_place) in [
        ("all-reduce", true),
        ("reduce", true),
        ("broadcast", true),
        ("all-gather", true),
        ("reduce-scatter", true),
        ("gather", true),
        ("scatter", true),
        ("all-to-all", false),
        ("all-to-all-v", false),
        ("send-recv", false),
    ] {
        let options = [
            "bench",
            op,
            "--backend",
            "nccl",
            "-n",
            "3",
            "-b",
            "8",
            "-e",
            "2K",
            "-f",
            "256",
            "--iters",
            "2",
            "-w",
            "1",
            "--timeout",
            "60",
        ];
        let output = machine.run(&options, &[]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{op}: {out}\n{err}");
        let lines: Vec<Vec<&str>> =
            out.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 2, "{op}: {out}");
        for line in lines {
            assert_eq!((line[8], line[12]), ("0", if in_place { "0" } else { "N/A" }), "{op}: {out}");
        }
    }
}

#[test]
fn nccl_calls_in_cuda_graphs_have_correct_results() {
    let options = [
        "bench",
        "all-reduce",
        "--backend",
        "nccl",
        "-n",
        "2",
        "-b",
        "1K",
        "-e",
        "1K",
        "-G",
        "20",
        "--iters",
        "40",
        "-o",
        "all",
        "-d",
        "bf16",
    ];
    let output = Machine::with_gpus().run(&options, &[]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert!(out.contains("calls: CUDA graphs of 20 calls"), "{out}");
    assert_eq!(out.lines().filter(|line| !line.starts_with('#')).count(), 6, "six reductions: {out}");
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
}

/// Splits the lines of the table into words.
fn table(output: &Output) -> Vec<Vec<String>> {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    let out = text(&output.stdout);
    out.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn threads_option_runs_pes_as_threads_of_one_process() {
    for op in ["all-reduce", "gather", "send-recv"] {
        let options = ["bench", op, "--backend", "nccl", "--threads", "-n", "3", "-b", "1K", "-e", "1K", "--iters", "2"];
        let output = Machine::with_gpus().run(&options, &[]);
        let lines = table(&output);
        assert_eq!((lines.len(), lines[0][8].as_str()), (1, "0"), "{op}");
        let out = text(&output.stdout);
        let pids: Vec<&str> = out.lines().filter_map(|line| line.split_once(" Pid ")?.1.split_whitespace().next()).collect();
        assert!(pids.len() == 3 && pids.iter().all(|pid| *pid == pids[0]), "{out}");
    }
}

#[test]
fn failed_thread_ends_the_measurement_and_is_named() {
    let options = ["bench", "all-reduce", "--backend", "nccl", "--threads", "-n", "3", "-e", "8", "--timeout", "60"];
    let output = Machine::with_gpus().run(&options, &[("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllReduce@2=3")]);
    assert!(!output.status.success());
    let err = text(&output.stderr);
    assert!(err.contains("PE 2: ") && err.contains("all_reduce"), "{err}");
}

#[test]
fn window_option_registers_buffers_as_windows() {
    for op in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "gather"] {
        let options = ["bench", op, "--backend", "nccl", "--window", "-n", "3", "-b", "1K", "-e", "1K", "--iters", "2"];
        let output = Machine::with_gpus().run(&options, &[]);
        let lines = table(&output);
        assert_eq!((lines.len(), lines[0][8].as_str(), lines[0][12].as_str()), (1, "0", "0"), "{op}");
        assert!(text(&output.stdout).contains("buffers: memory of NCCL's allocator, registered as windows"), "{op}");
    }
    // If buffers cannot be registered, the command fails instead of measuring without windows.
    let options = ["bench", "all-reduce", "--backend", "nccl", "--window", "-n", "2", "-e", "8"];
    for (variable, value, expected) in [
        ("PEERWEAVE_FAKE_NCCL_VERSION", "22602", "ncclCommWindowRegister"),
        ("PEERWEAVE_FAKE_NCCL_NULL_WINDOW", "1", "NCCL cannot create windows on these devices"),
    ] {
        let output = Machine::with_gpus().run(&options, &[(variable, value)]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn error_names_missing_nccl_on_a_machine_without_gpus() {
    let output = Machine::new(&[]).run(&["bench", "all-reduce", "--backend", "nccl", "-n", "1", "-e", "8"], &[]);
    assert!(!output.status.success());
    let err = text(&output.stderr);
    assert!(err.contains("NCCL was not found") && err.contains("PEERWEAVE_NCCL_PATH"), "{err}");
}

#[test]
fn more_pes_than_devices_are_refused() {
    let options = ["bench", "all-reduce", "--backend", "nccl", "-n", "3", "-e", "8", "--timeout", "60"];
    let output = Machine::with_gpus().run(&options, &[("PEERWEAVE_FAKE_CUDA_DEVICES", "2")]);
    assert_eq!(output.status.code(), Some(2));
    let err = text(&output.stderr);
    assert!(err.contains("-n is 3, expected at most 2 (the number of CUDA devices)"), "{err}");
}

#[test]
fn note_says_that_pes_share_the_only_device() {
    // The fake driver runs no kernels in this process, so only the start of the output is checked.
    let options = ["bench", "all-reduce", "--backend", "cuda", "-n", "2", "-e", "8", "--timeout", "60"];
    let output = Machine::with_gpus().run(&options, &[("PEERWEAVE_FAKE_CUDA_DEVICES", "1"), ("PEERWEAVE_DEADLINE", "5")]);
    let err = text(&output.stderr);
    assert!(err.contains("note: 2 PEs share 1 CUDA device"), "{err}");
}

#[test]
fn info_lists_libraries_and_missing_functions() {
    let machine = Machine::with_gpus();
    let output = machine.run(&["info", "--json"], &[("PEERWEAVE_MULTICAST", "off")]);
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    let library =
        |name: &str| info["libraries"].as_array().unwrap().iter().find(|library| library["name"] == name).unwrap().clone();
    assert_eq!(library("CUDA driver")["state"], "found", "{info}");
    assert_eq!(library("NCCL")["version"], "2.32.3", "{info}");
    assert_eq!(info["multicast"]["allowed"], false, "{info}");
    assert!(info["multicast"]["why"].as_str().unwrap().contains("PEERWEAVE_MULTICAST=off"), "{info}");
}
