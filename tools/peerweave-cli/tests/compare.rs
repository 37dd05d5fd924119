//! Tests `peerweave bench --compare` with fakes of the driver, NCCL and NVSHMEM: real processes,
//! checked results, missing libraries.
//!
//! Copies of this program are the command and its PEs, because the fake driver runs only kernels
//! that the process has registered.
#![cfg(target_os = "linux")]

#[path = "../../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use std::os::unix::fs::symlink;
use std::process::{Command, ExitCode, Output, Stdio};

use peerweave_cuda::RouteTable;
use peerweave_tests::named;
use serde_json::Value;
use tempfile::TempDir;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("bench-pe") => {
            common::register();
            peerweave_cli::main()
        }
        Some("bench" | "guard" | "tune") => peerweave_cli::main(),
        _ => peerweave_tests::main(
            &[],
            named![
                compared_kernels_and_libraries_give_right_values,
                graph_replays_of_the_contenders_alternate,
                methods_that_support_the_call_are_compared,
                missing_libraries_are_reported_and_own_kernels_measured,
                pes_that_share_a_gpu_are_compared_without_nccl,
                invalid_comparison_options_are_refused,
                torch_is_measured_in_own_processes_or_reported_missing,
                tune_writes_a_table_that_bench_uses,
                tune_keeps_rows_of_other_pe_counts_and_refuses_bad_files
            ],
        ),
    }
}

/// A directory with fakes, under the names of the real libraries.
struct Machine(TempDir);

impl Machine {
    fn with(libraries: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cuda = [("peerweave-fake-cuda", "libcuda.so.1"), ("peerweave-fake-cuda", "libcuda.so")];
        for (package, name) in cuda.iter().chain(libraries) {
            symlink(peerweave_fakes::library(package), directory.path().join(name)).unwrap();
        }
        Self(directory)
    }

    fn with_all() -> Self {
        let plugins = ["uid", "mpi", "pmi", "pmi2", "pmix", "shmem"].map(|plugin| format!("nvshmem_bootstrap_{plugin}.so.3"));
        let mut all = vec![("peerweave-fake-nccl", "libnccl.so.2"), ("peerweave-fake-nvshmem", "libnvshmem_host.so.3")];
        all.extend(plugins.iter().map(|name| ("peerweave-fake-nvshmem", name.as_str())));
        Self::with(&all)
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        self.run_command("bench", arguments, variables)
    }

    fn run_command(&self, command: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let name = command;
        let mut command = Command::new(std::env::current_exe().expect("the path of this program is known"));
        command.args([name]).args(arguments).args(["--timeout", "120"]).stdin(Stdio::null());
        command.env_remove("PEERWEAVE_PE").env("LD_LIBRARY_PATH", self.0.path()).env("PEERWEAVE_HEAP_BYTES", "32M");
        command.env("PEERWEAVE_NCCL_PATH", self.0.path()).env("PEERWEAVE_NVSHMEM_PATH", self.0.path());
        command.env("PEERWEAVE_FAKE_NCCL_DIR", self.0.path()).env("NVSHMEM_REMOTE_TRANSPORT", "none");
        command.env("PEERWEAVE_MULTICAST", "off").env("NCCL_NVLS_ENABLE", "0").envs(variables.iter().copied());
        command.output().unwrap()
    }

    /// Runs a short comparison of two PEs. Returns the JSON document and the output.
    fn document(&self, op: &str, compare: &str, more: &[&str], variables: &[(&str, &str)]) -> (Value, String) {
        let path = self.0.path().join("result.json");
        let fixed = [op, "--backend", "cuda", "-n", "2", "-f", "4", "--iters", "2", "--batches", "3"];
        let sizes = if more.contains(&"-b") { &[][..] } else { &["-b", "1K", "-e", "4K"] };
        let files = ["-w", "1", "--compare", compare, "--json", path.to_str().unwrap()];
        let output = self.run(&[&fixed[..], &files, sizes, more].concat(), variables);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{op}: {out}\n{err}");
        (serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(), out)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the contenders of a document that were measured in every line, after checking the lines.
fn measured(document: &Value) -> Vec<String> {
    assert_eq!((&document["wrong"], &document["checked"]), (&Value::from(0), &Value::from(true)), "{document}");
    let mut all: Option<Vec<String>> = None;
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{document}");
    for line in results {
        let cells = line["cells"].as_array().unwrap();
        let names = cells.iter().filter(|cell| cell["p50_us"].as_f64().is_some_and(|time| time > 0.0));
        let names: Vec<String> = names.map(|cell| cell["contender"].as_str().unwrap().to_owned()).collect();
        assert!(cells.iter().all(|cell| cell["wrong"].is_null() || cell["wrong"] == 0), "{document}");
        assert!(all.as_ref().is_none_or(|all| *all == names), "{document}");
        all = Some(names);
    }
    all.unwrap_or_default()
}

fn compared_kernels_and_libraries_give_right_values() {
    let machine = Machine::with_all();
    for (op, type_name, expected) in [
        ("all-reduce", "bfloat16", &["own", "nccl", "nccl-window", "nvshmem"][..]),
        ("all-to-all", "float", &["own", "nccl", "nccl-window", "nvshmem"]),
        ("reduce", "int32", &["own", "nccl", "nccl-window"]),
        ("send-recv", "float", &["own", "nccl", "nccl-window"]),
    ] {
        let plot = machine.0.path().join("plot.svg");
        let more = ["-d", type_name, "--explain", "--plot", plot.to_str().unwrap(), "--limit", "450"];
        let more = if op == "send-recv" { &[&more[..2], &more[3..]].concat()[..] } else { &more[..] };
        let (document, out) = machine.document(op, "nvshmem,nccl,nccl-window", more, &[]);
        let mut found = measured(&document);
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{op}: {out}");
        assert_eq!(document["contenders"][0]["name"], "own", "{document}");
        assert!(document["results"][0]["own_to_best"].as_f64().is_some_and(|ratio| ratio > 0.0), "{document}");
        assert_eq!(document["results"][0]["cells"][0]["times_us"].as_array().map(Vec::len), Some(3), "{document}");
        assert!(out.contains("# Wrong values : 0 OK"), "{out}");
        assert_eq!(out.matches("; because ").count(), if op == "send-recv" { 0 } else { 2 }, "{out}");
        if op == "reduce" {
            assert!(out.contains("# nvshmem is not measured: NVSHMEM has no operation reduce on streams"), "{out}");
        }
        let svg = std::fs::read_to_string(plot).unwrap();
        assert!(["own", "nccl-window", "limit, 450 GB/s"].iter().all(|word| svg.contains(word)), "{op}");
    }
}

fn graph_replays_of_the_contenders_alternate() {
    let (document, out) = Machine::with_all().document("all-gather", "nccl", &["--graphs=3"], &[]);
    assert_eq!(measured(&document), ["own", "nccl"]);
    assert!(out.contains("# CUDA graphs of 3 calls, out of place; 3 alternating batches of each library or method"), "{out}");
}

fn methods_that_support_the_call_are_compared() {
    let methods = "own:one_shot,own:two_shot,own:chunked";
    let (document, _) = Machine::with(&[]).document("all-reduce", methods, &[], &[]);
    assert_eq!(measured(&document), ["own", "own:one_shot", "own:two_shot", "own:chunked"]);
    // Rings have parts of whole lines.
    let (document, out) = Machine::with(&[]).document("reduce-scatter", "own:chunked", &["-b", "2", "-e", "8"], &[]);
    assert_eq!(measured(&document), ["own"], "{out}");
    assert!(out.contains("N/A"), "{out}");
}

fn missing_libraries_are_reported_and_own_kernels_measured() {
    let machine = Machine::with(&[]);
    let (document, out) = machine.document("broadcast", "nccl,nccl-window,nvshmem", &[], &[]);
    assert_eq!(measured(&document), ["own"]);
    let absent = document["not_measured"].as_array().unwrap();
    assert_eq!(absent.len(), 3, "{document}");
    for (one, why) in absent.iter().zip(["NCCL was not found", "NCCL was not found", "NVSHMEM was not found"]) {
        let name = one["name"].as_str().unwrap();
        assert!(one["why"].as_str().unwrap().starts_with("PE 0: ") && one["why"].as_str().unwrap().contains(why), "{one}");
        assert!(out.contains(&format!("# {name} is not measured: PE 0: ")), "{out}");
    }
    assert_eq!(document["results"][0]["own_to_best"], Value::Null);
    // A library that fails on one PE is not measured on any PE.
    let fails = [("PEERWEAVE_FAKE_NCCL_FAIL", "ncclGetUniqueId=3")];
    let (document, out) = Machine::with_all().document("broadcast", "nccl", &[], &fails);
    assert_eq!(measured(&document), ["own"], "{out}");
    assert!(document["not_measured"][0]["why"].as_str().unwrap().contains("PE "), "{document}");
}

fn pes_that_share_a_gpu_are_compared_without_nccl() {
    let shared = [("PEERWEAVE_FAKE_CUDA_DEVICES", "1")];
    let (document, out) = Machine::with_all().document("all-reduce", "nccl,nvshmem", &[], &shared);
    assert_eq!(measured(&document), ["own"], "{out}");
    assert!(out.contains("# nccl is not measured: PEs share a GPU, and NCCL refuses two ranks on one GPU"), "{out}");
}

fn invalid_comparison_options_are_refused() {
    let machine = Machine::with(&[]);
    for (arguments, expected) in [
        (&["all-reduce", "--backend", "host", "--compare", "nccl"][..], "--compare is supported only with --backend cuda"),
        (&["put", "--backend", "cuda", "--compare", "nccl"], "--compare does not support the operation put"),
        (&["all-reduce", "--backend", "cuda", "--compare", "mpi"], "--compare cannot measure \"mpi\""),
        (
            &["all-reduce", "--backend", "cuda", "--compare", "own:lines"],
            "--compare own:lines: lines is not a method of the operation all-reduce",
        ),
        (
            &["all-reduce", "--backend", "cuda", "--compare", "own", "--buffers", "private"],
            "--compare requires --buffers symmetric",
        ),
        (&["all-reduce", "--backend", "cuda", "--limit", "450"], "--compare"),
        (&["all-reduce", "--backend", "cuda", "-G", "4"], "--graph is supported only with --compare"),
    ] {
        let output = machine.run(&[arguments, &["-n", "2"]].concat(), &[]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
}

/// Runs `tune` with small sizes. Returns its output.
fn tuned(machine: &Machine, path: &std::path::Path, more: &[&str]) -> Output {
    let path = path.to_str().unwrap();
    let fixed = ["-o", path, "-b", "1K", "-e", "4K", "-f", "4", "--iters", "2", "--batches", "2", "--eager"];
    machine.run_command("tune", &[&fixed[..], more].concat(), &[])
}

fn tune_writes_a_table_that_bench_uses() {
    let machine = Machine::with(&[("peerweave-fake-nccl", "libnccl.so.2")]);
    let path = machine.0.path().join("my.routes");
    let output = tuned(&machine, &path, &["-n", "2", "--ops", "all-reduce,all-to-all,reduce"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("my.routes: the table for sm_90 with rows of 2 PEs"), "{out}");
    assert!(["all-reduce", "all-to-all", "reduce"].iter().all(|op| out.contains(&format!("compares {op},"))), "{out}");
    let written = std::fs::read_to_string(&path).unwrap();
    let table = RouteTable::read(&path, "sm_90").unwrap_or_else(|error| panic!("{error}\n{written}"));
    // The file has new rows of 2 PEs. Rows of other numbers of PEs are unchanged.
    let rows: Vec<&str> = written.lines().filter(|line| line.starts_with("own all_reduce 2 ")).collect();
    assert!(rows.last().is_some_and(|row| row.contains(" rest chunked ")), "{written}");
    assert!(written.contains("own all_reduce 1 8K one_shot 4x128\n") && written.contains("own all_reduce 3-4 8K"), "{written}");
    assert!(written.starts_with("peerweave-routes 1\n# Written by `peerweave tune`"), "{written}");
    assert!(
        written.contains("# Rows for 2 PEs, measured on ") && written.contains("bfloat16, eager calls, medians of 2 batches"),
        "{written}"
    );
    assert!(!written.contains("nccl reduce 2 48M"), "the row of the built-in table was measured again: {written}");
    assert_ne!(table.digest(), RouteTable::builtin("sm_90").digest());
    // The backend reads the file.
    let variables = [("PEERWEAVE_ROUTE_TABLE", path.to_str().unwrap())];
    let (document, out) = machine.document("all-reduce", "own", &["--explain"], &variables);
    assert_eq!(measured(&document), ["own"]);
    assert!(out.contains("because the row \"own all_reduce 2 ") && out.contains("my.routes"), "{out}");
}

fn tune_keeps_rows_of_other_pe_counts_and_refuses_bad_files() {
    let machine = Machine::with(&[]);
    let path = machine.0.path().join("my.routes");
    let text_of = |rows: &str| RouteTable::builtin("sm_90").to_string().replace("own all_reduce 3-4 8K one_shot 4x128", rows);
    std::fs::write(&path, text_of("own all_reduce 3-4 8K one_shot 7x96")).unwrap();
    let output = tuned(&machine, &path, &["-n", "2", "--ops", "all-gather"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written.contains("own all_reduce 3-4 8K one_shot 7x96"), "{written}");
    assert!(written.contains("# NCCL was not measured.") && written.contains("nccl reduce 2 48M rest"), "{written}");
    for (content, expected) in [("nonsense", "is damaged in line 1"), ("peerweave-routes 9\n", "has version 9, expected 1")] {
        std::fs::write(&path, content).unwrap();
        let output = tuned(&machine, &path, &["-n", "2"]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("my.routes") && err.contains(expected) && err.contains("or remove the file"), "{err}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content, "the file is not overwritten");
    }
    for (more, expected) in
        [(&["-n", "1"][..], "-n is 1, expected 2 to 8"), (&["-n", "2", "--ops", "put"], "put has only one method")]
    {
        let output = tuned(&machine, &machine.0.path().join("none.routes"), more);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    assert!(!machine.0.path().join("none.routes").exists());
}

fn torch_is_measured_in_own_processes_or_reported_missing() {
    let machine = Machine::with(&[]);
    let bin = machine.0.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    // Stands in for python3 with PyTorch: prints records, or fails.
    let python = |script: &str| {
        let file = bin.join("python3");
        std::fs::write(&file, format!("#!/bin/sh\n{script}")).unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, all).unwrap();
    };
    let variables = [("PATH", path.as_str())];
    let compare = |type_name| machine.document("all-reduce", "torch", &["-d", type_name], &variables);
    python(
        r#"case "$2$3" in *one_shot_all_reduce*'"count":512'*) ;; *) echo unexpected >&2; exit 3 ;; esac
[ "$RANK" != 0 ] || echo '{"kind":"contenders","present":[["torch","PyTorch 9.9"]],"absent":[],"arch":""}'
for row in 0 1; do
    echo "{\"kind\":\"compared\",\"pe\":$RANK,\"row\":$row,\"contender\":\"torch\",\"iters\":2,\"batch_us\":[7.5,8.5,9.5],\"wrong\":0}"
done
"#,
    );
    let (document, out) = compare("bfloat16");
    assert_eq!(measured(&document), ["own", "torch"], "{out}");
    assert_eq!(document["results"][1]["cells"][1]["p50_us"], 8.5, "{document}");
    assert!(out.contains("# torch: PyTorch 9.9") && out.contains("own/it"), "{out}");
    python("echo no module named torch >&2; exit 1\n");
    let (document, out) = compare("bfloat16");
    assert_eq!(measured(&document), ["own"], "{out}");
    assert!(
        out.contains("# torch is not measured: the processes of PyTorch failed: PE ") && out.contains("no module named torch"),
        "{out}"
    );
    let (_, out) = compare("int32");
    assert!(out.contains("# torch is not measured: PyTorch's symmetric memory supports only half, bfloat16 and float"), "{out}");
}
