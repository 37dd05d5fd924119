//! Runs every example on 1, 2, 3, 4 and 8 processes and compares the output with the expected
//! output.
//!
//! The launcher is not under test: these tests create the rendezvous and set the variables of a
//! launcher themselves. An expected file holds the output of `peerweave run`, sorted by PE, because
//! the lines of different PEs can interleave in any order.

use peerweave::bootstrap::Server;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Relative tolerance for numbers with a decimal point. Sums of gradients are rounded in an order
/// that depends on the number of PEs, `tanh` and `exp` differ in their last bit between systems,
/// and printed numbers are rounded again.
const TOLERANCE: f64 = 1e-5;

/// Relative tolerance between runs with different numbers of PEs on one machine. Measured: 1e-8.
const ROUNDING: f64 = 1e-6;

/// Seconds after which a wait fails, so that a hang fails the test.
const DEADLINE: &str = "30";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a job and returns the standard output of every PE, in order. Panics if a PE fails.
fn run(program: &str, n_pes: u32, arguments: &[&str]) -> Vec<String> {
    let (_server, jobs) = Server::on_this_machine(n_pes).unwrap();
    let children: Vec<_> = jobs
        .iter()
        .map(|job| {
            let mut command = Command::new(program);
            command.args(arguments).envs(job.to_vars()).env("PEERWEAVE_DEADLINE", DEADLINE);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for (pe, output) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "PE {pe} of {n_pes} ended with {}, expected success:\n{said}", output.status);
    }
    outputs.into_iter().map(|output| String::from_utf8(output.stdout).unwrap()).collect()
}

/// Formats the output as `peerweave run` does. If there are several PEs, each line starts with its
/// PE.
fn tagged(outputs: &[String]) -> Vec<String> {
    let several = outputs.len() > 1;
    let tag = |pe: usize| if several { format!("[{pe}] ") } else { String::new() };
    outputs.iter().enumerate().flat_map(|(pe, output)| output.lines().map(move |line| tag(pe) + line)).collect()
}

/// Returns whether two lines have the same words. Numbers with a decimal point are compared within
/// [`TOLERANCE`].
fn alike(found: &str, expected: &str) -> bool {
    let (found, expected): (Vec<_>, Vec<_>) = (found.split_whitespace().collect(), expected.split_whitespace().collect());
    found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| alike_word(found, expected))
}

fn alike_word(found: &str, expected: &str) -> bool {
    let number = |word: &str| word.contains('.').then(|| word.parse::<f64>().ok()).flatten();
    match (number(found), number(expected)) {
        (Some(found), Some(expected)) => (found - expected).abs() <= TOLERANCE * expected.abs(),
        _ => found == expected,
    }
}

fn check(program: &str, example: &str, n_pes: u32) {
    let path = folder(example).join(format!("expected/{n_pes}.txt"));
    let expected = text(&path);
    let found = tagged(&run(program, n_pes, &[]));
    let all_alike = found.len() == expected.lines().count() && found.iter().zip(expected.lines()).all(|(f, e)| alike(f, e));
    assert!(all_alike, "{}, found:\n{}\nexpected:\n{expected}", path.display(), found.join("\n"));
}

macro_rules! examples {
    ($($module:ident: $program:literal in $folder:literal;)*) => {
        /// Every example: the name of its program and its folder.
        const EXAMPLES: &[(&str, &str)] = &[$(($program, $folder)),*];

        $(mod $module {
            const PROGRAM: &str = env!(concat!("CARGO_BIN_EXE_", $program));

            #[test]
            fn examples_on_1_pe_print_the_expected_output() {
                super::check(PROGRAM, $folder, 1);
            }

            #[test]
            fn examples_on_2_pes_print_the_expected_output() {
                super::check(PROGRAM, $folder, 2);
            }

            #[test]
            fn examples_on_3_pes_print_the_expected_output() {
                super::check(PROGRAM, $folder, 3);
            }

            #[test]
            fn examples_on_4_pes_print_the_expected_output() {
                super::check(PROGRAM, $folder, 4);
            }

            #[test]
            fn examples_on_8_pes_print_the_expected_output() {
                super::check(PROGRAM, $folder, 8);
            }
        })*
    };
}

examples! {
    hello_team: "hello-team" in "01-hello-team";
    put_signal_ring: "put-signal-ring" in "02-put-signal-ring";
    all_reduce: "all-reduce" in "03-all-reduce";
    train_digits: "train-digits" in "04-train-digits";
    two_streams: "two-streams" in "05-two-streams";
    send_recv_halo: "send-recv-halo" in "06-send-recv-halo";
    atomic_work_queue: "atomic-work-queue" in "07-atomic-work-queue";
    teams_2d: "teams-2d" in "08-teams-2d";
    put_to_next: "put-to-next" in "09-put-to-next";
    kernel_ring: "kernel-ring" in "10-kernel-ring";
    kernel_pipeline: "kernel-pipeline" in "11-kernel-pipeline";
    kernel_all_gather: "kernel-all-gather" in "12-kernel-all-gather";
    kernel_cuda_cpp: "kernel-cuda-cpp" in "13-kernel-cuda-cpp";
    logistic_regression: "logistic-regression" in "14-logistic-regression";
    jacobi_2d: "jacobi-2d" in "15-jacobi-2d";
    sample_sort: "sample-sort" in "16-sample-sort";
    work_stealing: "work-stealing" in "17-work-stealing";
    tensor_parallel_mlp: "tensor-parallel-mlp" in "18-tensor-parallel-mlp";
    ring_attention: "ring-attention" in "19-ring-attention";
    moe: "moe" in "20-moe";
}

/// Returns the number after `final loss` in the output of PE 0.
fn final_loss(outputs: &[String]) -> f64 {
    let line = outputs[0].lines().last().expect("PE 0 printed something");
    let number = line.strip_prefix("final loss ").and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line:?}; expected a line `final loss NUMBER …`"))
}

#[test]
fn final_loss_does_not_depend_on_the_number_of_pes() {
    let loss = |n_pes| final_loss(&run(env!("CARGO_BIN_EXE_train-digits"), n_pes, &["--epochs", "5"]));
    let alone = loss(1);
    assert!(alone < 1.0, "loss {alone} after 5 epochs, expected less than 1");
    for n_pes in [2, 3, 8] {
        let together = loss(n_pes);
        assert!(
            (together - alone).abs() <= ROUNDING * alone,
            "loss {together} with {n_pes} PEs, expected {alone} as with one PE"
        );
    }
}

#[test]
fn ring_attention_output_is_equal_with_and_without_kernel() {
    for n_pes in [1, 3] {
        let by_kernel = run(env!("CARGO_BIN_EXE_ring-attention"), n_pes, &["--kernel", "--passes", "1"]);
        assert_eq!(tagged(&by_kernel), tagged(&run(env!("CARGO_BIN_EXE_ring-attention"), n_pes, &["--passes", "1"])));
    }
}

#[test]
fn tensor_parallel_mlp_output_is_equal_with_and_without_kernel() {
    let program = env!("CARGO_BIN_EXE_tensor-parallel-mlp");
    for n_pes in [1, 3] {
        let small = ["--tokens", "5", "--hidden", "36", "--inner", "70", "--passes", "1"];
        let (by_cpu, by_kernel) = (run(program, n_pes, &small), run(program, n_pes, &[&small[..], &["--kernel"]].concat()));
        let (kernel, cpu) = (tagged(&by_kernel), tagged(&by_cpu));
        let same = kernel.len() == cpu.len() && kernel.iter().zip(&cpu).all(|(kernel, cpu)| alike(kernel, cpu));
        assert!(same, "{n_pes} PEs printed {by_kernel:?} by kernel and {by_cpu:?} by CPU, expected equal lines");
    }
}

#[test]
fn untrained_network_has_the_loss_of_random_guessing() {
    let output = run(env!("CARGO_BIN_EXE_train-digits"), 2, &["--epochs", "0"]);
    let loss = final_loss(&output);
    assert!((2.2..2.5).contains(&loss), "{loss}; ten classes at even odds have a loss of ln 10 = 2.303");
}

#[test]
fn example_without_a_launcher_runs_as_one_pe() {
    let output = Command::new(env!("CARGO_BIN_EXE_hello-team")).env_clear().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text(&folder("01-hello-team/expected/1.txt")));
}

/// Runs `hello-team` on `n_pes` PEs with these variables. Returns the output of each PE and all of
/// standard error.
fn hello_with(n_pes: usize, vars: impl Fn(usize) -> Vec<(&'static str, String)>) -> (Vec<String>, String) {
    let start = |pe| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hello-team"));
        command.env_clear().envs(vars(pe)).env("PEERWEAVE_DEADLINE", DEADLINE);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..n_pes).map(start).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let stderr: String = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{stderr}");
    (outputs.into_iter().map(|output| String::from_utf8(output.stdout).unwrap()).collect(), stderr)
}

#[test]
fn pes_started_by_mpich_form_one_job() {
    let vars = |pe: usize| {
        let pairs = [("PMI_RANK", pe), ("PMI_SIZE", 3), ("MPI_LOCALRANKID", pe), ("MPI_LOCALNRANKS", 3)];
        pairs.map(|(name, value)| (name, value.to_string())).to_vec()
    };
    let (outputs, stderr) = hello_with(3, vars);
    assert_eq!(tagged(&outputs), text(&folder("01-hello-team/expected/3.txt")).lines().collect::<Vec<_>>());
    assert_eq!(stderr, "");
}

#[test]
fn variable_of_an_unknown_launcher_causes_a_warning() {
    let alone = text(&folder("01-hello-team/expected/1.txt"));
    for name in ["RANK", "PALS_RANKID"] {
        let (outputs, stderr) = hello_with(1, |_| vec![(name, "1".to_owned())]);
        assert_eq!(outputs, [&*alone]);
        assert!(
            stderr.starts_with(&format!("peerweave: {name} is set, for example by ")) && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
}

#[test]
fn every_numbered_folder_is_a_tested_example() {
    let mut found: Vec<String> = std::fs::read_dir(folder("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES.iter().map(|&(_, folder)| folder).collect::<Vec<_>>());
    for (program, folder) in EXAMPLES {
        assert_eq!(folder[3..], **program, "a folder is named after its program");
    }
}

#[test]
fn readmes_show_the_expected_output() {
    let ladder = text(&folder("README.md"));
    for (program, example) in EXAMPLES {
        assert!(ladder.contains(&format!("({example}/README.md)")), "README.md has no link to {example}/README.md");
        let readme = text(&folder(example).join("README.md"));
        let command = format!("cargo run --release -- run -n 4 -- {program}\n");
        assert!(readme.contains(&command), "{example}/README.md lacks `{command}`");
        let expected = text(&folder(example).join("expected/4.txt"));
        assert!(readme.contains(&format!("```text\n{expected}```\n")), "{example}/README.md does not show expected/4.txt");
    }
}

#[test]
fn examples_forbid_unsafe_code() {
    for (program, example) in EXAMPLES {
        let source = text(&folder(example).join("main.rs"));
        // Rust cannot check the parameters of a kernel in CUDA C++: only its launch is unsafe.
        if *program == "kernel-cuda-cpp" {
            assert_eq!(
                source.matches("unsafe").count(),
                1,
                "{example}/main.rs has unsafe code other than the launch of its kernel"
            );
            continue;
        }
        assert!(source.contains("\n#![forbid(unsafe_code)]\n"), "{example}/main.rs does not forbid unsafe code");
    }
}

#[test]
fn output_lines_that_differ_only_in_rounding_compare_equal() {
    assert!(alike("loss 0.500001 of 7", "loss  0.500000 of 7"));
    assert!(!alike("loss 0.50002 of 7", "loss 0.50000 of 7"));
    assert!(!alike("loss 0.5 of 8", "loss 0.5 of 7"));
    assert!(!alike("loss 0.5", "loss 0.5 of 7"));
    assert!(!alike("loss NaN", "loss 0.5"));
}
