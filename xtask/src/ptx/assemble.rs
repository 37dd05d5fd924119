//! Assembles PTX files with ptxas.

use super::Outcome;
use peerweave_build::Variant;
use std::path::Path;
use std::process::Command;

/// Assembles one file for each architecture and discards the output.
pub(super) fn each(ptxas: &Path, file: &Path, variant: Variant, architectures: impl Iterator<Item = u32>) -> Outcome {
    let mut outcome = Outcome::default();
    for sm in architectures {
        let mut command = Command::new(ptxas);
        if variant.network {
            // NVSHMEM's wrappers are linked later.
            command.arg("--compile-only");
        }
        let run = command.arg(format!("--gpu-name=sm_{sm}")).args(["--output-file", "/dev/null"]).arg(file).output();
        match run {
            Ok(done) if done.status.success() => outcome.checked += 1,
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr);
                let said = said.lines().take(5).collect::<Vec<_>>().join(" | ");
                outcome.faults.push(format!("ptxas refuses the file for sm_{sm}: {said}"));
            }
            Err(error) => outcome.faults.push(format!("cannot run {}: {error}", ptxas.display())),
        }
    }
    outcome
}
