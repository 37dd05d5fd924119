//! `cargo xtask`: checks of the workspace that neither the compiler nor clippy makes.
//!
//! No check installs anything. Only `abi`, `abi-nvshmem`, `ptx` and `vectors` build. Only
//! `ptx --bless` writes. `.ci/run` runs the checks. `draw` only prints texts.
//!
//! Invariant: a check that finds faults prints each fault with its location, and exits with
//! status 1. A check that cannot run exits with status 2.

mod abi;
mod fault;
mod layers;
mod ptx;
mod rooms;
mod safety;
mod text;
mod tree;
mod vectors;

use std::path::PathBuf;
use std::process::ExitCode;

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};
use clap::{CommandFactory, Parser, Subcommand};

use text::{draw, facts, style, words};

/// Checks of the Peerweave workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    check: Check,
}

#[derive(Subcommand)]
enum Check {
    /// Check the layers: a crate depends only on crates of lower layers, a folder of a crate only
    /// on folders below it, and no crate on a forbidden crate
    Layers,
    /// Check that every unsafe block and impl has a SAFETY comment, and every unsafe fn a Safety
    /// section; count the blocks, impls and fns of each crate
    Unsafe,
    /// Compare structs, constants and functions of peerweave-nccl with the headers and the library
    /// of NCCL
    Abi {
        /// Directory with the folders `include` and `lib` of one version of NCCL, as in NCCL's
        /// wheel
        #[arg(long)]
        nccl: PathBuf,
    },
    /// Compare structs, constants and functions of peerweave-nvshmem with the headers and the
    /// library of NVSHMEM
    AbiNvshmem {
        /// Directory with the folders `include` and `lib` of one version of NVSHMEM, as in
        /// NVSHMEM's wheel
        #[arg(long)]
        nvshmem: PathBuf,
    },
    /// Print 40 doc comments, 30 messages and 30 names of tests, drawn at random, for a reader to
    /// judge
    Draw {
        /// Seed of the draw; the same seed draws the same texts
        seed: u64,
    },
    /// Check that files, tests, checks and tools cited in comments and documents exist
    Facts,
    /// Check that the committed PTX equals a rebuild and has the expected instructions
    Ptx {
        /// Write the rebuilt PTX instead of comparing it
        #[arg(long)]
        bless: bool,
        /// Path of ptxas of CUDA 12, which supports sm_70; assembles each file for each
        /// architecture
        #[arg(long)]
        ptxas: Option<PathBuf>,
    },
    /// Check that the host backend's reductions for AVX-512 compute in whole registers, if the
    /// crate is compiled as one codegen unit
    Vectors,
    /// Check that tracked files hold no placeholder, skipped test, path of one machine, wide
    /// comment or idiom
    Words,
}

/// The error of a check that could not run.
#[derive(Debug, thiserror::Error)]
enum Unable {
    #[error("cargo metadata failed: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    #[error(transparent)]
    Tree(#[from] tree::TreeError),
    #[error(transparent)]
    Abi(#[from] abi::AbiError),
    #[error(transparent)]
    Ptx(#[from] ptx::PtxError),
    #[error(transparent)]
    Vectors(#[from] vectors::VectorsError),
}

/// Result of a check.
struct Findings {
    /// Description of what was checked.
    summary: String,
    /// One line for each fault.
    faults: Vec<String>,
}

fn main() -> ExitCode {
    let Arguments { check } = Arguments::parse();
    match run(&check) {
        Ok(Findings { summary, faults }) => {
            print!("{summary}");
            for fault in &faults {
                println!("fault: {fault}");
            }
            if faults.is_empty() {
                println!("OK");
                ExitCode::SUCCESS
            } else {
                println!("faults: {}", faults.len());
                ExitCode::FAILURE
            }
        }
        Err(unable) => {
            eprintln!("xtask: {unable}");
            ExitCode::from(2)
        }
    }
}

fn run(check: &Check) -> Result<Findings, Unable> {
    let metadata = metadata()?;
    let root = metadata.workspace_root.as_std_path();
    match check {
        Check::Layers => {
            let workspace = layers::Workspace::read(&metadata, |path| tree::read(path.as_std_path()))?;
            let (drawn, rooms) = rooms::check(&members(&metadata), &tree::tracked(root)?);
            let faults = [display(&workspace.faults(&layers::RULES)), display(&rooms)].concat();
            Ok(Findings { summary: workspace.picture() + &drawn, faults })
        }
        Check::Unsafe => {
            let mut report = safety::Report::default();
            for file in tree::tracked(root)? {
                if file.path.ends_with(".rs") {
                    report.add(&crate_of(&metadata, &file.path), &file.path, &file.text);
                }
            }
            Ok(Findings { summary: report.table(), faults: display(report.faults()) })
        }
        Check::Abi { nccl } => Ok(abi::compare(root, nccl)?),
        Check::AbiNvshmem { nvshmem } => Ok(abi::nvshmem::compare(root, nvshmem)?),
        Check::Draw { seed } => Ok(Findings { summary: draw::sample(&tree::tracked(root)?, *seed), faults: Vec::new() }),
        Check::Facts => {
            let files = tree::tracked(root)?;
            let commands = Arguments::command();
            let checks = commands.get_subcommands().map(|check| check.get_name().to_owned()).collect();
            let facts = facts::Facts::of(&files, checks);
            let faults: Vec<_> = files.iter().flat_map(|file| facts.faults(file, &crate_of(&metadata, &file.path))).collect();
            Ok(Findings { summary: format!("{} tracked text files\n", files.len()), faults: display(&faults) })
        }
        Check::Ptx { bless, ptxas } => Ok(ptx::check(root, &ptx::Task { bless: *bless, ptxas: ptxas.clone() })?),
        Check::Vectors => Ok(vectors::check(root)?),
        Check::Words => {
            let files = tree::tracked(root)?;
            let mut faults = Vec::new();
            for file in &files {
                faults.extend(display(&words::faults(&file.path, &file.text)));
                faults.extend(display(&style::faults(file)));
            }
            Ok(Findings { summary: format!("{} tracked text files\n", files.len()), faults })
        }
    }
}

/// Returns the metadata of the workspace with all features, so that optional dependencies are
/// included.
fn metadata() -> Result<Metadata, cargo_metadata::Error> {
    MetadataCommand::new().features(CargoOpt::AllFeatures).exec()
}

/// Returns the directories of the members, relative to the root of the workspace.
fn members(metadata: &Metadata) -> Vec<String> {
    let directory = |package: &&cargo_metadata::Package| {
        let directory = package.manifest_path.parent()?.strip_prefix(&metadata.workspace_root).ok()?;
        Some(directory.to_string())
    };
    metadata.workspace_packages().iter().filter_map(directory).collect()
}

/// Returns the name of the member whose directory contains `path`. For a file of no member, returns
/// the directory of the file.
fn crate_of(metadata: &Metadata, path: &str) -> String {
    let owner = metadata
        .workspace_packages()
        .into_iter()
        .filter_map(|package| {
            let directory = package.manifest_path.parent()?;
            let directory = directory.strip_prefix(&metadata.workspace_root).ok()?;
            path.strip_prefix(directory.as_str())?.starts_with('/').then(|| (directory.as_str().len(), package.name.to_string()))
        })
        .max();
    match (owner, path.rsplit_once('/')) {
        (Some((_, name)), _) => name,
        (None, Some((directory, _))) => format!("{directory}/"),
        (None, None) => String::from("./"),
    }
}

fn display(faults: &[impl ToString]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}
