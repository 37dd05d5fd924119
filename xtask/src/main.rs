//! `cargo xtask`: checks of the workspace that neither the compiler nor clippy makes.
//!
//! Nothing here installs anything, only `abi` and `ptx` build, and only `ptx --bless` writes; `.ci/run` says when each check runs.
//!
//! Invariant: a check that finds a fault prints every place of it and ends with status 1; one that cannot look ends with status 2.

mod abi;
mod facts;
mod layers;
mod ptx;
mod rooms;
mod safety;
mod tree;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};
use clap::{CommandFactory, Parser, Subcommand};

/// Checks of the Peerweave workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    check: Check,
}

#[derive(Subcommand)]
enum Check {
    /// Dependencies point down only, among crates and among the rooms inside of a crate; crates that must not know each other do not
    Layers,
    /// Every unsafe block and unsafe impl has a SAFETY argument, every unsafe fn a contract; counts them by crate
    Unsafe,
    /// What peerweave-nccl believes of NCCL's structs, numbers and functions is what its headers and library say
    Abi {
        /// A directory with the `include` and `lib` of one NCCL, as its wheel has it
        #[arg(long)]
        nccl: PathBuf,
    },
    /// What peerweave-nvshmem believes of NVSHMEM's structs, numbers and functions is what its headers and library say
    AbiNvshmem {
        /// A directory with the `include` and `lib` of one NVSHMEM, as its wheel has it
        #[arg(long)]
        nvshmem: PathBuf,
    },
    /// Files, tests, checks and tools that comments and documents cite exist, and run on the crate that cites them
    Facts,
    /// The PTX that is committed is what its sources give, with the instructions that they mean
    Ptx {
        /// Write what a rebuild gives
        #[arg(long)]
        bless: bool,
        /// CUDA's assembler, to assemble each file for each architecture: one of CUDA 12, which knows sm_70
        #[arg(long)]
        ptxas: Option<PathBuf>,
    },
    /// No tracked file holds a placeholder, a skipped test or a path of somebody's machine
    Words,
}

/// Why a check could not look.
#[derive(Debug, thiserror::Error)]
enum Unable {
    #[error("cargo metadata: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    #[error(transparent)]
    Tree(#[from] tree::TreeError),
    #[error(transparent)]
    Abi(#[from] abi::AbiError),
    #[error(transparent)]
    Ptx(#[from] ptx::PtxError),
}

/// What a check found.
struct Findings {
    /// What it looked at, for the reader.
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
                println!("{} faults", faults.len());
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
            let (drawn, rooms) = rooms::check(&members(&metadata), &tree::tracked(root)?, rooms::UNDRAWN);
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
        Check::Facts => {
            let files = tree::tracked(root)?;
            let commands = Arguments::command();
            let checks = commands.get_subcommands().map(|check| check.get_name().to_owned()).collect();
            let facts = facts::Facts::of(&files, checks);
            let faults: Vec<_> = files.iter().flat_map(|file| facts.faults(file, &crate_of(&metadata, &file.path))).collect();
            Ok(Findings { summary: format!("{} tracked text files\n", files.len()), faults: display(&faults) })
        }
        Check::Ptx { bless, ptxas } => Ok(ptx::check(root, &ptx::Task { bless: *bless, ptxas: ptxas.clone() })?),
        Check::Words => {
            let files = tree::tracked(root)?;
            let faults: Vec<_> = files.iter().flat_map(|file| words::faults(&file.path, &file.text)).collect();
            Ok(Findings { summary: format!("{} tracked text files\n", files.len()), faults: display(&faults) })
        }
    }
}

/// The workspace with every feature on, so that no optional dependency hides.
fn metadata() -> Result<Metadata, cargo_metadata::Error> {
    MetadataCommand::new().features(CargoOpt::AllFeatures).exec()
}

/// The directories of the members, from the root of the workspace.
fn members(metadata: &Metadata) -> Vec<String> {
    let directory = |package: &&cargo_metadata::Package| {
        let directory = package.manifest_path.parent()?.strip_prefix(&metadata.workspace_root).ok()?;
        Some(directory.to_string())
    };
    metadata.workspace_packages().iter().filter_map(directory).collect()
}

/// The member in whose directory `path` lies; the directory itself for files that belong to none.
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
