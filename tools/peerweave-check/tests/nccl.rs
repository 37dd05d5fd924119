//! Runs `check nccl` with the fake libraries: in one process, and with one process for each rank.
#![cfg(target_os = "linux")]

use std::process::Command;

use peerweave_fakes::Fakes;

/// Runs `check nccl` with two fake GPUs. Returns the last line of output.
fn last_line(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_check"));
    let output = command.arg("nccl").args(arguments).output().expect("the command starts");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {out}\n{}", String::from_utf8_lossy(&output.stderr));
    out.lines().last().unwrap_or_default().to_owned()
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2")
}

#[test]
fn all_checks_pass_with_two_ranks_in_one_process() {
    fakes().run(|| {
        let line = last_line(&["--count", "33"]);
        assert!(line.starts_with("OK ") && line.ends_with(" checks"), "{line}");
    });
}

#[test]
fn checks_in_two_processes_pass_even_if_one_rank_is_killed() {
    fakes().run(|| {
        assert_eq!(last_line(&["--processes", "2", "--count", "33"]), "OK 2 checks");
        assert_eq!(last_line(&["--processes", "2", "--kill", "1"]), "OK 1 checks");
    });
}
