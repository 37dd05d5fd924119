//! Tests `check device` with the fake driver, which has no kernels: options, processes, and reports
//! of failed checks.
#![cfg(target_os = "linux")]

use std::process::Command;

use peerweave_fakes::Fakes;

/// Runs `check device`. Returns whether it succeeded, and its output.
fn check(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_check"));
    let output = command.arg("device").args(arguments).output().expect("the command starts");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn last_line(out: &str) -> &str {
    out.lines().last().unwrap_or_default()
}

#[test]
fn missing_driver_is_an_error_that_lists_the_paths_tried() {
    Fakes::new().run(|| {
        let (passed, out) = check(&[]);
        assert!(!passed && out.starts_with("FAILED ") && out.contains("libcuda.so.1"), "{out}");
    });
}

#[test]
fn kill_option_with_a_pe_outside_the_job_is_refused() {
    Fakes::new().cuda().run(|| {
        let (passed, out) = check(&["--pes", "2", "--kill", "2"]);
        assert!(!passed, "{out}");
        assert_eq!(last_line(&out), "FAILED --kill is 2, expected less than 2 (the number of PEs)");
    });
}

#[test]
fn each_pe_with_a_failed_check_is_named_if_pes_are_threads() {
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "1").env("PEERWEAVE_MULTICAST", "off");
    fakes.run(|| {
        let (passed, out) = check(&["--threads", "--only", "a kernel writes memory of its own PE"]);
        assert!(!passed, "{out}");
        for pe in ["0", "1"] {
            assert!(out.contains(&format!("{pe}: FAILED a kernel writes memory of its own PE: ")), "{out}");
        }
        assert_eq!(last_line(&out), "FAILED PE 0: failed checks: 1, PE 1: failed checks: 1");
    });
}

#[test]
fn each_pe_with_a_failed_check_is_named_if_pes_are_processes() {
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2").env("PEERWEAVE_MULTICAST", "off");
    fakes.run(|| {
        let (passed, out) = check(&["--only", "a kernel writes memory of its own PE"]);
        assert!(!passed, "{out}");
        for pe in ["0", "1"] {
            assert!(out.contains(&format!("{pe}: FAILED a kernel writes memory of its own PE: ")), "{out}");
            assert!(out.contains(&format!("FAILED PE {pe}: failed checks: 1")), "{out}");
        }
        assert!(last_line(&out).starts_with("FAILED PE 0: ") && last_line(&out).contains("PE 1: "), "{out}");
    });
}
