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

/// Runs the program with the fakes and gives its last line.
fn last_line(arguments: &[&str]) -> String {
    let output = Command::new(program()).args(arguments).env("PEERWEAVE_MULTICAST", "off").output().expect("it starts");
    let out = String::from_utf8_lossy(&output.stdout);
    let line = out.lines().last().unwrap_or_default().to_owned();
    assert!(output.status.success(), "{arguments:?}: {out}\n{}", String::from_utf8_lossy(&output.stderr));
    line
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem().limit(Duration::from_secs(240))
}

#[test]
fn one_pe_does_everything() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "1"]), "OK 1281 checks"));
}

#[test]
fn two_pes_do_everything() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "2"]), "OK 4170 checks"));
}

#[test]
fn three_pes_do_everything_on_teams_of_two_and_of_all() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "3"]), "OK 6803 checks"));
}

#[test]
fn library_of_3_4_5_does_what_it_has() {
    let fakes = Fakes::new().cuda().nvshmem_of("3.4.5").limit(Duration::from_secs(240));
    fakes.run(|| assert_eq!(last_line(&["--pes", "2"]), "OK 4170 checks"));
}

#[test]
fn pes_on_one_gpu_are_named() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "3", "--fault", "shared-gpu"]), "OK 3 checks"));
}

#[test]
fn pe_that_does_not_come_is_named_at_the_deadline() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "3", "--fault", "missing"]), "OK 2 checks"));
}

#[test]
fn pe_that_is_killed_is_named() {
    fakes().run(|| assert_eq!(last_line(&["--pes", "3", "--fault", "killed"]), "OK 2 checks"));
}
