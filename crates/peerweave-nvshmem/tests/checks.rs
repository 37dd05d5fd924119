//! The program that checks NVSHMEM on GPUs, over the fake libraries: every operation and element
//! type, teams included, against an oracle of the host, with processes as PEs; and what a shared
//! GPU, a missing PE and a killed one lead to.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use peerweave_bootstrap::{Endpoint, Job, Server, ServerOptions, Token};
use peerweave_fakes::Fakes;

/// A program, which `cargo test` builds beside the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let directory = test.ancestors().nth(2).expect("tests are in `deps` of the profile's directory");
    let program = directory.join("examples").join(name);
    assert!(program.exists(), "{} is not there; `cargo build -p peerweave-nvshmem --examples` makes it", program.display());
    program
}

/// Runs the program with the fakes and gives how much it checked.
fn checked(arguments: &[&str]) -> usize {
    let output =
        Command::new(program("check_nvshmem")).args(arguments).env("PEERWEAVE_MULTICAST", "off").output().expect("it starts");
    let out = String::from_utf8_lossy(&output.stdout);
    let line = out.lines().last().unwrap_or_default().to_owned();
    assert!(output.status.success(), "{arguments:?}: {out}\n{}", String::from_utf8_lossy(&output.stderr));
    line.strip_prefix("OK ").and_then(|rest| rest.strip_suffix(" checks")?.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem().limit(Duration::from_secs(240))
}

#[test]
fn one_pe_does_everything() {
    fakes().run(|| assert!(checked(&["--pes", "1"]) >= 1281));
}

#[test]
fn two_pes_do_everything() {
    fakes().run(|| assert!(checked(&["--pes", "2"]) >= 4170));
}

#[test]
fn three_pes_do_everything_on_teams_of_two_and_of_all() {
    fakes().run(|| assert!(checked(&["--pes", "3"]) >= 6803));
}

#[test]
fn library_of_3_4_5_does_what_it_has() {
    let fakes = Fakes::new().cuda().nvshmem_of("3.4.5").limit(Duration::from_secs(240));
    fakes.run(|| assert!(checked(&["--pes", "2"]) >= 4170));
}

/// Each part on its own, as who looks for a fault on GPUs runs it.
macro_rules! parts {
    ($($name:ident: $part:literal;)*) => {$(
        #[test]
        fn $name() {
            fakes().run(|| {
                for pes in ["1", "2", "3"] {
                    assert!(checked(&["--pes", pes, "--only", $part]) > 3);
                }
            });
        }
    )*};
}

parts! {
    what_the_host_waits_for_is_there: "blocking";
    collectives_on_several_streams_and_threads_are_in_order: "ordering";
    mistakes_are_typed_errors_and_spoil_nothing: "mistakes";
    memory_of_others_is_made_symmetric_or_registered: "outside";
    what_is_dropped_in_any_order_is_parked_and_reported: "lifetimes";
}

#[test]
fn pes_on_one_gpu_are_named() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "shared-gpu"]), 3));
}

#[test]
fn pe_that_does_not_come_is_named_at_the_deadline() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "missing"]), 2));
}

#[test]
fn pe_that_is_killed_is_named() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "killed"]), 2));
}

#[test]
fn pe_without_the_library_is_named() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "no-library"]), 3));
}

#[test]
fn pe_without_plugins_is_named() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "no-plugins"]), 3));
}

#[test]
fn processes_that_a_launcher_started_are_the_pes() {
    fakes().run(|| {
        let outputs = launch(3, |command| command.args(["--only", "mistakes"]), "check_nvshmem");
        for (pe, out) in outputs.iter().enumerate() {
            assert!(out.lines().last().unwrap_or_default().starts_with(&format!("PE {pe}: OK ")), "{out}");
        }
    });
}

#[test]
fn the_first_program_puts_to_the_next_pe() {
    fakes().run(|| {
        let output = Command::new(program("ring")).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "PE 0 of 1: from PE 0 came 1024 times 0\n", "{output:?}");
        let outputs = launch(2, |command| command, "ring");
        let expected = ["PE 0 of 2: from PE 1 came 1024 times 1\n", "PE 1 of 2: from PE 0 came 1024 times 0\n"];
        assert_eq!(outputs, expected);
    });
}

/// What each of two processes prints that `check_start` is started as, and whether all was well.
fn check_start(arguments: &[&str]) -> Vec<(bool, String)> {
    let start = |pe: u32| {
        let mut command = Command::new(program("check_start"));
        command.args(arguments).env_remove("OMPI_COMM_WORLD_RANK").env("PMI_RANK", pe.to_string()).env("PMI_SIZE", "2");
        command.env("MPI_LOCALRANKID", pe.to_string()).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let started = [start(0), start(1)];
    let end = |process: std::process::Child| {
        let output = process.wait_with_output().expect("it ends");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    started.into_iter().map(end).collect()
}

#[test]
fn a_launcher_s_service_and_an_id_in_a_file_start_it_too() {
    let place = tempfile::tempdir().expect("a directory");
    let fakes = fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", place.path());
    fakes.run(|| {
        let own = std::path::Path::new(&std::env::var_os("PEERWEAVE_FAKE_NVSHMEM_DIR").expect("it is set")).join("id");
        for arguments in [&["--way", "pmi"][..], &["--way", "id", "--file", &own.display().to_string()]] {
            for (pe, (well, out)) in check_start(arguments).iter().enumerate() {
                let last = out.lines().last().unwrap_or_default();
                assert!(*well && last.starts_with(&format!("OK {} PE {pe} of 2", arguments[1])), "{arguments:?}: {out}");
            }
        }
        let left = std::fs::read_dir(own.parent().expect("a directory")).expect("it is there").filter_map(Result::ok);
        let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with("id")).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn a_way_that_cannot_be_gone_is_told_with_its_cause() {
    let nowhere = "/there/is/no/mpi/here";
    fakes().env("PEERWEAVE_MPI_PATH", nowhere).env_remove("PEERWEAVE_FAKE_NVSHMEM_DIR").run(|| {
        let causes = [
            (&["--way", "mpi"][..], ["FAILED mpi PE", nowhere]),
            // No service of a launcher is there, and beside the fake there is no plug-in for one.
            (&["--way", "pmix"], ["FAILED pmix PE", "nvshmem_bootstrap_pmix.so.3"]),
        ];
        for (arguments, words) in causes {
            for (well, out) in check_start(arguments) {
                assert!(!well && words.iter().all(|word| out.contains(word)), "{arguments:?}: {out}");
            }
        }
    });
}

/// What each PE of a job of that program prints.
fn launch(n_pes: u32, prepare: impl Fn(&mut Command) -> &mut Command, name: &str) -> Vec<String> {
    let token = Token::random().expect("random numbers");
    let endpoint = Endpoint::random_unix().expect("a name");
    let server = Server::bind(&endpoint, token, n_pes, ServerOptions::default()).expect("it listens");
    let start = |pe| {
        let job = Job::on_one_machine(pe, n_pes, server.endpoint().clone(), token);
        let mut command = Command::new(program(name));
        prepare(&mut command).envs(job.to_vars()).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let started: Vec<_> = (0..n_pes).map(start).collect();
    let end = |process: std::process::Child| {
        let output = process.wait_with_output().expect("it ends");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{out}");
        out
    };
    started.into_iter().map(end).collect()
}
