//! Tests of the example programs `ring` and `check_start`, over the fake libraries.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use peerweave_bootstrap::{Job, Server};
use peerweave_fakes::Fakes;

/// Returns the path of an example program that `cargo test` builds together with the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a file");
    let directory = test.ancestors().nth(2).expect("tests are in `deps` of the profile's directory");
    let program = directory.join("examples").join(name);
    assert!(
        program.exists(),
        "{} does not exist; build it with `cargo build -p peerweave-nvshmem --examples`",
        program.display()
    );
    program
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem()
}

#[test]
fn ring_example_puts_data_to_the_next_pe() {
    fakes().run(|| {
        let output = Command::new(program("ring")).output().expect("the program starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "PE 0 of 1: received 1024 times 0 from PE 0\n", "{output:?}");
        let outputs = launch(2, "ring");
        let expected = ["PE 0 of 2: received 1024 times 1 from PE 1\n", "PE 1 of 2: received 1024 times 0 from PE 0\n"];
        assert_eq!(outputs, expected);
    });
}

/// Runs `check_start` as two processes. Returns for each process whether it succeeded, and its
/// output.
fn check_start(arguments: &[&str]) -> Vec<(bool, String)> {
    let start = |pe: u32| {
        let mut command = Command::new(program("check_start"));
        command.args(arguments).env_remove("OMPI_COMM_WORLD_RANK").env("PMI_RANK", pe.to_string()).env("PMI_SIZE", "2");
        command.env("MPI_LOCALRANKID", pe.to_string()).stdout(Stdio::piped()).spawn().expect("the program starts")
    };
    let started = [start(0), start(1)];
    let end = |process: std::process::Child| {
        let output = process.wait_with_output().expect("the process ends");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    started.into_iter().map(end).collect()
}

#[test]
fn check_start_example_succeeds_with_pmi_and_with_an_id_file() {
    let place = tempfile::tempdir().expect("the directory is created");
    let fakes = fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", place.path());
    fakes.run(|| {
        let own = std::path::Path::new(&std::env::var_os("PEERWEAVE_FAKE_NVSHMEM_DIR").expect("the variable is set")).join("id");
        for arguments in [&["--way", "pmi"][..], &["--way", "id", "--file", &own.display().to_string()]] {
            for (pe, (well, out)) in check_start(arguments).iter().enumerate() {
                let last = out.lines().last().unwrap_or_default();
                assert!(*well && last.starts_with(&format!("OK {} PE {pe} of 2", arguments[1])), "{arguments:?}: {out}");
            }
        }
        let left = std::fs::read_dir(own.parent().expect("the file is in a directory"))
            .expect("the directory is readable")
            .filter_map(Result::ok);
        let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with("id")).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn check_start_example_prints_the_cause_of_a_failure() {
    let nowhere = "/there/is/no/mpi/here";
    fakes().env("PEERWEAVE_MPI_PATH", nowhere).env_remove("PEERWEAVE_FAKE_NVSHMEM_DIR").run(|| {
        let causes = [
            (&["--way", "mpi"][..], ["FAILED mpi PE", nowhere]),
            // No launcher offers this service, and its plug-in is not in the directory of the fake
            // library.
            (&["--way", "pmix"], ["FAILED pmix PE", "nvshmem_bootstrap_pmix.so.3"]),
        ];
        for (arguments, words) in causes {
            for (well, out) in check_start(arguments) {
                assert!(!well && words.iter().all(|word| out.contains(word)), "{arguments:?}: {out}");
            }
        }
    });
}

/// Runs a program as each PE of a job. Returns the output of each PE.
fn launch(n_pes: u32, name: &str) -> Vec<String> {
    let (_server, jobs) = Server::on_this_machine(n_pes).expect("the rendezvous server starts");
    let start =
        |job: &Job| Command::new(program(name)).envs(job.to_vars()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let started: Vec<_> = jobs.iter().map(start).collect();
    let end = |process: std::process::Child| {
        let output = process.wait_with_output().expect("the process ends");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{out}");
        out
    };
    started.into_iter().map(end).collect()
}
