//! Checks that the reductions of `peerweave-host` for AVX-512 compute in whole registers.
//!
//! The compiler vectorizes the loops over lanes. The compiler uses registers of 64 bytes or only
//! parts of these registers, depending on the code in the codegen unit. Therefore the check
//! compiles the crate as one codegen unit, as many applications do.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Findings;

/// The only kernel that may compute in parts of registers. This kernel multiplies the first input
/// by a scalar.
const NARROW: [&str; 1] = ["ReducefNtB18_9PreMulSum"];

/// Minimum number of kernels of the crate. If the check finds fewer kernels, the symbols have other
/// names than expected.
const FEWEST_KERNELS: usize = 50;

/// The error if the instructions could not be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VectorsError {
    #[error("the check for AVX-512 needs an x86-64 machine, found {}", std::env::consts::ARCH)]
    Architecture,
    #[error("cargo rustc -p peerweave-host failed: {0}")]
    Build(String),
    #[error("{path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
}

/// Compiles the crate and counts the instructions of each kernel.
pub(crate) fn check(root: &Path) -> Result<Findings, VectorsError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(VectorsError::Architecture);
    }
    let folder = root.join("target").join("peerweave-vectors");
    let path = folder.join("peerweave-host.s");
    let file = |error| VectorsError::File { path: path.clone(), error };
    std::fs::create_dir_all(&folder).map_err(file)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["rustc", "--quiet", "--release", "--package", "peerweave-host", "--lib", "--target-dir"]);
    cargo.arg(&folder).args(["--", "-Ccodegen-units=1", "-Csymbol-mangling-version=v0"]);
    cargo.arg(format!("--emit=asm={}", path.display()));
    let status = cargo.status().map_err(|error| VectorsError::Build(error.to_string()))?;
    if !status.success() {
        return Err(VectorsError::Build(status.to_string()));
    }
    Ok(findings(&std::fs::read_to_string(&path).map_err(file)?))
}

fn findings(assembly: &str) -> Findings {
    let kernels = kernels(assembly);
    let mut faults = Vec::new();
    if kernels.len() < FEWEST_KERNELS {
        faults.push(format!("number of kernels found: {}, expected at least {FEWEST_KERNELS}", kernels.len()));
    }
    for Kernel { name, narrow } in &kernels {
        if !narrow.is_empty() && !NARROW.iter().any(|tolerated| name.contains(tolerated)) {
            faults.push(format!("{name} uses registers narrower than 512 bits: {}", narrow.join(", ")));
        }
    }
    Findings { summary: format!("{} reductions for AVX-512\n", kernels.len()), faults }
}

/// A reduction for AVX-512.
struct Kernel {
    name: String,
    /// The instructions of the reduction that compute with registers of 16 or 32 bytes.
    narrow: Vec<String>,
}

fn kernels(assembly: &str) -> Vec<Kernel> {
    let (mut kernels, mut inside) = (Vec::<Kernel>::new(), false);
    for line in assembly.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(['.', '\t'])) {
            inside = name.contains("run_avx512") && name.contains("6Reduce");
            if inside {
                kernels.push(Kernel { name: name.to_owned(), narrow: Vec::new() });
            }
        } else if let (true, Some(kernel)) = (inside, kernels.last_mut())
            && is_narrow(line)
        {
            kernel.narrow.push(line.trim().replace('\t', " "));
        }
    }
    kernels
}

/// Returns whether a line is packed arithmetic whose result is shorter than 64 bytes.
fn is_narrow(line: &str) -> bool {
    let Some((instruction, operands)) = line.trim().split_once('\t') else { return false };
    let packed_float = ["vadd", "vmul", "vmin", "vmax"].iter().any(|name| instruction.starts_with(name))
        && ["ps", "pd"].iter().any(|suffix| instruction.ends_with(suffix));
    let integer = ["vpadd", "vpmul", "vpmin", "vpmax", "vpand", "vpor", "vpxor"].iter().any(|name| instruction.starts_with(name));
    let result = operands.rsplit(", ").next().unwrap_or(operands);
    (packed_float || integer) && ["%xmm", "%ymm"].iter().any(|register| result.starts_with(register))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_arithmetic_narrower_than_512_bits_is_detected() {
        for line in ["\tvaddps\t%xmm1, %xmm2, %xmm3", "\tvpaddq\t16(%rax), %ymm2, %ymm3", "\tvpminuq\t%xmm1, %xmm2, %xmm3"] {
            assert!(is_narrow(line), "{line}");
        }
        for line in [
            "\tvaddps\t%zmm1, %zmm2, %zmm3",
            "\tvaddss\t%xmm1, %xmm2, %xmm3",
            "\tvmovdqu\t%xmm1, (%rax)",
            "\tvpmovzxbw\t%ymm1, %zmm2",
            ".LBB1_2:",
        ] {
            assert!(!is_narrow(line), "{line}");
        }
    }

    #[test]
    fn avx512_reduction_with_registers_below_512_bits_is_reported() {
        let kernel = |at: usize, line: &str| format!("_Rrun_avx512_6Reduce{at}:\n\t.cfi_startproc\n{line}\n.Lend{at}:\n");
        let wide: String = (0..FEWEST_KERNELS).map(|at| kernel(at, "\tvaddps\t%zmm1, %zmm2, %zmm3")).collect();
        assert_eq!(findings(&wide).faults, Vec::<String>::new());
        let split = wide + &kernel(99, "\tvaddps\t%xmm1, %xmm2, %xmm3") + "other:\n\tvaddps\t%xmm1, %xmm2, %xmm3\n";
        assert_eq!(
            findings(&split).faults,
            ["_Rrun_avx512_6Reduce99 uses registers narrower than 512 bits: vaddps %xmm1, %xmm2, %xmm3"]
        );
        assert_eq!(findings("").faults.len(), 1);
    }
}
