//! Runs `check nvshmem` with the fake libraries: every operation and element type with processes as
//! PEs, compared with the host. Also checks the errors of a shared GPU, a missing PE and a killed
//! PE.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use peerweave_bootstrap::{Job, Server};
use peerweave_fakes::Fakes;

/// Path of the command, which cargo builds for this test.
const CHECK: &str = env!("CARGO_BIN_EXE_check");

/// Runs the command with the fakes. Returns the number of checks.
fn checked(arguments: &[&str]) -> usize {
    let mut command = Command::new(CHECK);
    let output = command.arg("nvshmem").args(arguments).env("PEERWEAVE_MULTICAST", "off").output().expect("the command starts");
    let out = String::from_utf8_lossy(&output.stdout);
    let line = out.lines().last().unwrap_or_default().to_owned();
    assert!(output.status.success(), "{arguments:?}: {out}\n{}", String::from_utf8_lossy(&output.stderr));
    line.strip_prefix("OK ").and_then(|rest| rest.strip_suffix(" checks")?.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem()
}

#[test]
fn all_checks_pass_with_one_pe() {
    fakes().run(|| assert!(checked(&["--pes", "1"]) >= 1281));
}

#[test]
fn all_checks_pass_with_two_pes() {
    fakes().run(|| assert!(checked(&["--pes", "2"]) >= 4170));
}

#[test]
fn all_checks_pass_with_three_pes() {
    fakes().run(|| assert!(checked(&["--pes", "3"]) >= 6803));
}

#[test]
fn all_checks_pass_with_nvshmem_3_4_5() {
    let fakes = Fakes::new().cuda().nvshmem_of("3.4.5");
    fakes.run(|| assert!(checked(&["--pes", "2"]) >= 4170));
}

/// Defines one test for each part alone.
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
    blocking_operations_complete: "blocking";
    collectives_of_several_streams_are_ordered: "ordering";
    misuse_returns_typed_errors: "mistakes";
    memory_from_outside_nvshmem_can_be_registered: "outside";
    objects_can_be_dropped_in_any_order: "lifetimes";
}

#[test]
fn errors_name_pes_that_share_a_gpu() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "shared-gpu"]), 3));
}

#[test]
fn error_at_the_deadline_names_the_missing_pe() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "missing"]), 2));
}

#[test]
fn errors_name_the_killed_pe() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "killed"]), 2));
}

#[test]
fn errors_name_the_pe_that_lacks_the_nvshmem_library() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "no-library"]), 3));
}

#[test]
fn errors_name_the_pe_that_lacks_nvshmem_plugins() {
    fakes().run(|| assert_eq!(checked(&["--pes", "3", "--fault", "no-plugins"]), 3));
}

#[test]
fn processes_started_by_a_launcher_become_pes_of_its_job() {
    fakes().run(|| {
        let outputs = launch(3, &["nvshmem", "--only", "mistakes"]);
        for (pe, out) in outputs.iter().enumerate() {
            assert!(out.lines().last().unwrap_or_default().starts_with(&format!("PE {pe}: OK ")), "{out}");
        }
    });
}

/// Runs the command as each PE of a job. Returns the output of each PE.
fn launch(n_pes: u32, arguments: &[&str]) -> Vec<String> {
    let (_server, jobs) = Server::on_this_machine(n_pes).expect("the server starts");
    let start = |job: &Job| {
        Command::new(CHECK).args(arguments).envs(job.to_vars()).stdout(Stdio::piped()).spawn().expect("the command starts")
    };
    let started: Vec<_> = jobs.iter().map(start).collect();
    let end = |process: std::process::Child| {
        let output = process.wait_with_output().expect("the process ends");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{out}");
        out
    };
    started.into_iter().map(end).collect()
}
