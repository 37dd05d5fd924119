//! Checks the PTX of the shipped kernels: rebuilds the PTX, compares the result with the committed
//! files, and inspects and assembles the result.
//!
//! Runs no kernel, because that needs a GPU. Checks:
//! - a rebuild with the compiler named in `ptx/COMPILER` gives the committed files;
//! - each primitive of `peerweave-device` is a single instruction with the right semantics and
//!   scope ([`probes`]);
//! - every atomic instruction of a kernel states its semantics and its scope;
//! - inner loops of copies move vectors of 16 bytes, eight in flight ([`loops`]);
//! - a collective that waits reads a line of 16 bytes of each rank, each by one access, before it
//!   examines the first line ([`collectives`]);
//! - kernels that exchange tokens move four lines of 16 bytes at a time, and the kernel that fills
//!   memory writes 16 bytes at a time ([`vectors`]);
//! - the compiler has not copied barriers that return a value into the paths of a branch
//!   ([`barriers`]);
//! - every kernel is either in the list of kernels that copy arrays or in the list of other kernels
//!   ([`loops`]);
//! - ptxas, if given, accepts every file and the primitives for each architecture. No shipped
//!   kernel uses primitives for multicast memory; only this check compiles and assembles them.

mod assemble;
mod barriers;
mod collectives;
mod loops;
mod probes;
mod text;
mod vectors;

use std::fs;
use std::path::{Path, PathBuf};

use peerweave_build::{Request, Toolchain, Variant};

use crate::Findings;

/// A crate whose PTX is committed, in its folder `ptx`.
struct Shipped {
    package: &'static str,
    variants: &'static [Variant],
    /// Checks the loops of the crate's kernels.
    loops: fn(&str, Variant) -> Outcome,
    /// Counts barriers that the compiler must not copy.
    barriers: fn(&str) -> Vec<String>,
}

const fn mapped(sm: u32) -> Variant {
    Variant { sm, network: false }
}

const fn network(sm: u32) -> Variant {
    Variant { sm, network: true }
}

const CRATES: [Shipped; 4] = [
    Shipped {
        package: "peerweave-kernels",
        variants: &[mapped(70), network(70), mapped(90), network(90)],
        loops: loops::check,
        barriers: barriers::check,
    },
    // The kernels of this crate access only mapped memory.
    Shipped {
        package: "peerweave-stream-kernels",
        variants: &[mapped(70), mapped(90)],
        loops: vectors::streams,
        barriers: |_| Vec::new(),
    },
    // The kernels of this crate access only mapped memory.
    Shipped {
        package: "peerweave-collectives",
        variants: &[mapped(70), mapped(90)],
        loops: collectives::check,
        barriers: |_| Vec::new(),
    },
    // The kernels of this crate access only mapped memory.
    Shipped { package: "peerweave-moe", variants: &[mapped(70), mapped(90)], loops: vectors::tokens, barriers: |_| Vec::new() },
];

/// Architectures for which every kernel is assembled, unless its PTX needs a later architecture.
const ARCHITECTURES: [u32; 4] = [70, 80, 90, 100];

/// The error if the PTX could not be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PtxError {
    #[error(transparent)]
    Build(#[from] peerweave_build::Problem),
    #[error("{path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
    #[error(
        "{folder}: the compiler is `{found}`, expected `{committed}`, which built the committed PTX; set PEERWEAVE_PTX_RUSTC to that compiler"
    )]
    Compiler { folder: PathBuf, committed: String, found: String },
}

/// Options of the check.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Whether the rebuilt PTX is written instead of compared.
    pub(crate) bless: bool,
    /// The assembler, if any.
    pub(crate) ptxas: Option<PathBuf>,
}

/// Builds the PTX, compares or writes the result, and inspects and assembles the result.
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
    for Shipped { package, .. } in CRATES {
        compiler(&root.join("crates").join(package).join("ptx"), &toolchain, task.bless)?;
    }
    // Each architecture has its own target directory, so that Cargo can build for all architectures
    // at the same time.
    let mut architectures: Vec<u32> = CRATES.iter().flat_map(|shipped| shipped.variants).map(|variant| variant.sm).collect();
    architectures.sort_unstable();
    architectures.dedup();
    let rebuilt = std::thread::scope(|scope| {
        let build = |sm| -> Result<Vec<Findings>, PtxError> {
            CRATES.iter().map(|shipped| shipped.check(root, sm, &toolchain, &target_dir, task)).collect()
        };
        let threads: Vec<_> = architectures.into_iter().map(|sm| scope.spawn(move || build(sm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect::<Result<Vec<_>, PtxError>>()
    })?;
    for found in rebuilt.into_iter().flatten() {
        findings.summary += &found.summary;
        findings.faults.extend(found.faults);
    }
    Ok(findings)
}

impl Shipped {
    /// Builds, inspects and assembles the variants for one architecture, and compares or writes
    /// these variants.
    fn check(&self, root: &Path, sm: u32, toolchain: &Toolchain, target_dir: &Path, task: &Task) -> Result<Findings, PtxError> {
        let package = self.package;
        let home = root.join("crates").join(package);
        let mut findings = Findings { summary: String::new(), faults: Vec::new() };
        for &variant in self.variants.iter().filter(|variant| variant.sm == sm) {
            let request = Request {
                manifest: home.join("Cargo.toml"),
                package: package.to_owned(),
                target_dir: target_dir.to_owned(),
                features: None,
                variant,
            };
            let (built, _) = peerweave_build::compile(toolchain, &request)?;
            let path = home.join("ptx").join(variant.file_name());
            if task.bless {
                fs::write(&path, &built).map_err(|error| PtxError::File { path: path.clone(), error })?;
            }
            let name = format!("{package}/ptx/{}", variant.file_name());
            let committed = fs::read_to_string(&path).unwrap_or_default();
            if text::without_hashes(&committed) != text::without_hashes(&built) {
                findings.faults.push(format!(
                    "{name}: a rebuild differs from the committed file; run `cargo xtask ptx --bless` to update it"
                ));
            }
            findings.faults.extend(text::unscoped_atomics(&built).into_iter().map(|line| format!("{name}: {line}")));
            let wide = (self.loops)(&built, variant);
            findings.faults.extend(wide.faults.into_iter().map(|fault| format!("{name}: {fault}")));
            findings.faults.extend((self.barriers)(&built).into_iter().map(|fault| format!("{name}: {fault}")));
            let kernels = peerweave_build::entries(&built).len();
            findings.summary += &format!("{name}: {kernels} kernels, {} kernels checked for vectors", wide.checked);
            assemble(task, &path, variant, &name, &mut findings);
        }
        Ok(findings)
    }
}

/// Assembles one file for each architecture that the file supports, if there is an assembler.
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

/// Result of one check.
#[derive(Debug, Default)]
struct Outcome {
    checked: usize,
    faults: Vec<String>,
}

/// Compares the compiler with the compiler that is recorded for the committed PTX. Records the
/// compiler instead if `bless` is true.
fn compiler(folder: &Path, toolchain: &Toolchain, bless: bool) -> Result<(), PtxError> {
    let path = folder.join("COMPILER");
    let found = toolchain.version.trim().to_owned();
    if bless {
        return fs::write(&path, format!("{found}\n")).map_err(|error| PtxError::File { path, error });
    }
    let committed = fs::read_to_string(&path).map_err(|error| PtxError::File { path, error })?.trim().to_owned();
    if committed == found { Ok(()) } else { Err(PtxError::Compiler { folder: folder.to_owned(), committed, found }) }
}
