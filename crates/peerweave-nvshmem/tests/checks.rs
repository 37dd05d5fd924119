//! The program that checks NVSHMEM on GPUs, over the fake libraries: every operation and element type, teams included, against an oracle of the
//! host, with processes as PEs; and what a shared GPU, a missing PE and a killed one lead to.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use peerweave_fakes::Fakes;

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let directory = test.ancestors().nth(2).expect("tests are in `deps` of the profile's directory");
    let program = directory.join("examples").join("check_nvshmem");
    assert!(program.exists(), "{} is not there; `cargo build -p peerweave-nvshmem --examples` makes it", program.display());
    program
}

/// Runs the program with the fakes and gives how much it checked.
fn checked(arguments: &[&str]) -> usize {
    let output = Command::new(program()).args(arguments).env("PEERWEAVE_MULTICAST", "off").output().expect("it starts");
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
