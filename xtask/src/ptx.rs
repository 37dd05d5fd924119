//! The PTX of the kernels that are shipped: built again and compared with what is committed, looked through, assembled.
//!
//! Nothing is run: that needs a GPU. What must hold:
//! - a rebuild gives what is committed, with the compiler that `ptx/COMPILER` names;
//! - each primitive of `peerweave-device` is the one instruction that it must be, with its semantics and scope ([`probes`]);
//! - no kernel holds an atomic instruction that does not state both;
//! - inner loops of copies move vectors of 16 bytes, eight in flight ([`loops`]);
//! - every kernel is known to copy arrays or not to ([`loops`]);
//! - where an assembler is given, it takes every file, and the primitives, for each architecture. Those for
//!   multicast memory are in no kernel that is shipped: they are compiled and assembled here alone.

mod assemble;
mod loops;
mod probes;
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use peerweave_build::{Request, Toolchain, Variant};

use crate::Findings;

/// The crates whose PTX is committed, in their folder `ptx`.
const CRATES: [&str; 1] = ["peerweave-kernels"];

/// What is built of each.
const VARIANTS: [Variant; 4] = [
    Variant { sm: 70, network: false },
    Variant { sm: 70, network: true },
    Variant { sm: 90, network: false },
    Variant { sm: 90, network: true },
];

/// The architectures that every kernel is assembled for, where its PTX is not for a later one.
const ARCHITECTURES: [u32; 4] = [70, 80, 90, 100];

/// Why the PTX could not be looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PtxError {
    #[error(transparent)]
    Build(#[from] peerweave_build::Problem),
    #[error("{path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
    #[error("{folder}: the PTX was built by `{committed}`, and this is `{found}`: name the same compiler in PEERWEAVE_PTX_RUSTC")]
    Compiler { folder: PathBuf, committed: String, found: String },
}

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Write what a rebuild gives, instead of comparing it.
    pub(crate) bless: bool,
    /// The assembler, where there is one.
    pub(crate) ptxas: Option<PathBuf>,
}

/// Builds, compares or writes, looks through and assembles.
pub(crate) fn check(root: &Path, task: &Task) -> Result<Findings, PtxError> {
    let toolchain = Toolchain::find()?;
    let target_dir = root.join("target").join("peerweave-ptx");
    let mut findings = Findings { summary: format!("{}\n", toolchain.version.trim()), faults: Vec::new() };

    for (variant, path, found) in probes::check(root, &toolchain, &target_dir)? {
        let what = format!("primitives for sm_{}", variant.sm);
        findings.summary += &format!("{} {what}", found.checked);
        findings.faults.extend(found.faults);
        assemble(task, &path, variant, &what, &mut findings);
    }
    for package in CRATES {
        let home = root.join("crates").join(package);
        let folder = home.join("ptx");
        compiler(&folder, &toolchain, task.bless)?;
        for variant in VARIANTS {
            let request = Request {
                manifest: home.join("Cargo.toml"),
                package: package.to_owned(),
                target_dir: target_dir.clone(),
                features: None,
                variant,
            };
            let (built, _) = peerweave_build::compile(&toolchain, &request)?;
            let path = folder.join(variant.file_name());
            if task.bless {
                fs::write(&path, &built).map_err(|error| PtxError::File { path: path.clone(), error })?;
            }
            let name = format!("{package}/ptx/{}", variant.file_name());
            let committed = fs::read_to_string(&path).unwrap_or_default();
            if text::without_hashes(&committed) != text::without_hashes(&built) {
                findings.faults.push(format!("{name}: a rebuild gives something else: `cargo xtask ptx --bless` writes it"));
            }
            findings.faults.extend(text::unscoped_atomics(&built).into_iter().map(|line| format!("{name}: {line}")));
            let wide = loops::check(&built, variant);
            findings.faults.extend(wide.faults.into_iter().map(|fault| format!("{name}: {fault}")));
            let kernels = peerweave_build::entries(&built).len();
            findings.summary += &format!("{name}: {kernels} kernels, {} loops of vectors", wide.checked);
            assemble(task, &path, variant, &name, &mut findings);
        }
    }
    Ok(findings)
}

/// Assembles one file for each architecture that it is for, where there is an assembler.
fn assemble(task: &Task, path: &Path, variant: Variant, what: &str, findings: &mut Findings) {
    let Some(ptxas) = &task.ptxas else {
        findings.summary += ", not assembled: no ptxas\n";
        return;
    };
    let targets = ARCHITECTURES.into_iter().filter(|sm| *sm >= variant.sm);
    let outcome = assemble::each(ptxas, path, variant, targets);
    findings.summary += &format!(", assembled for {} architectures\n", outcome.checked);
    findings.faults.extend(outcome.faults.into_iter().map(|fault| format!("{what}: {fault}")));
}

/// What one look found.
#[derive(Debug, Default)]
struct Outcome {
    checked: usize,
    faults: Vec<String>,
}

/// Compares the compiler with the one that the committed PTX comes from, or writes down which it is.
fn compiler(folder: &Path, toolchain: &Toolchain, bless: bool) -> Result<(), PtxError> {
    let path = folder.join("COMPILER");
    let found = toolchain.version.trim().to_owned();
    if bless {
        return fs::write(&path, format!("{found}\n")).map_err(|error| PtxError::File { path, error });
    }
    let committed = fs::read_to_string(&path).map_err(|error| PtxError::File { path, error })?.trim().to_owned();
    if committed == found { Ok(()) } else { Err(PtxError::Compiler { folder: folder.to_owned(), committed, found }) }
}
