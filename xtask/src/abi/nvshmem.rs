//! Compares the bindings of `peerweave-nvshmem` for one version of NVSHMEM with that version's
//! headers and host library.
//!
//! Downloads nothing, because `.ci/abi-nvshmem` downloads the library. Calls no function of the
//! library.
//!
//! Invariant: a size, an offset or a constant that cannot be checked is a fault.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::{AbiError, Facts, Findings, Table, Version, differing, exports, misplaced, output_of, parse_table, questions_for};

/// Exports without bindings: data, and entry points for NVSHMEM's device library or CUDA's runtime.
const NOT_BOUND: &[&str] = &[
    "nvshmem_debug",
    "nvshmem_error",
    "nvshmem_nvtx_options",
    "nvshmem_options",
    "nvshmem_selected_device_transport",
    "nvshmemid_",
    "nvshmemx_collective_launch",
];

/// Compares the bindings with the NVSHMEM in `directory`, which contains `include` and `lib`.
pub(crate) fn compare(root: &Path, directory: &Path) -> Result<Findings, AbiError> {
    let include = directory.join("include");
    let library = directory.join("lib/libnvshmem_host.so.3");
    if !library.is_file() {
        return Err(AbiError::Absent { path: directory.to_path_buf(), what: "lib/libnvshmem_host.so.3" });
    }
    let version = header_version(&include)?;
    let table = rust_table(root, version)?;
    let scratch = tempfile::tempdir().map_err(|source| AbiError::File { path: std::env::temp_dir(), source })?;
    let header = header_facts(root, &include, &table.facts, scratch.path())?;
    let mut faults = differing(&table.facts, &header, version);
    let exported = exports(&library)?;
    // The oldest supported release.
    let oldest = Version([3, 3, 24]);
    if version >= oldest {
        faults.extend(misplaced(&table.symbols, &exported, version));
    }
    let mut summary =
        format!("NVSHMEM {version}: compared {} values of the header and {} functions\n", table.facts.len(), table.symbols.len());
    for (name, since) in table.symbols.iter().filter(|(name, _)| !exported.contains(*name)) {
        let _ = writeln!(summary, "  missing in this library: {name} (since {since})");
    }
    let unbound = exported.iter().filter(|name| name.starts_with("nvshmem") && !table.symbols.contains_key(*name));
    for name in unbound.filter(|name| !NOT_BOUND.iter().any(|prefix| name.starts_with(prefix))) {
        let _ = writeln!(summary, "  exported by the library, but without a binding: {name}");
    }
    Ok(Findings { summary, faults })
}

/// Returns the version that a header declares.
fn header_version(include: &Path) -> Result<Version, AbiError> {
    let path = include.join("non_abi/nvshmem_version.h");
    let text = std::fs::read_to_string(&path).map_err(|source| AbiError::File { path: path.clone(), source })?;
    let number = |part: &str| {
        let name = format!("NVSHMEM_VENDOR_{part}_VERSION ");
        let line = text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name.as_str()));
        line.and_then(|rest| rest.trim().parse().ok())
    };
    match (number("MAJOR"), number("MINOR"), number("PATCH")) {
        (Some(major), Some(minor), Some(patch)) => Ok(Version([major, minor, patch])),
        _ => Err(AbiError::Absent { path, what: "the vendor's version" }),
    }
}

/// Returns the declarations of the bindings, which an example of the crate prints.
fn rust_table(root: &Path, version: Version) -> Result<Table, AbiError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["run", "--quiet", "--package", "peerweave-nvshmem", "--features", "raw"]);
    parse_table(&output_of("cargo run", command.args(["--example", "nvshmem_abi_table", "--"]).arg(version.to_string()))?)
}

/// Returns the sizes, offsets and constants of `asked`, as the C compiler computes them for the
/// header.
fn header_facts(root: &Path, include: &Path, asked: &Facts, scratch: &Path) -> Result<Facts, AbiError> {
    let abi = root.join("crates/peerweave-nvshmem/abi");
    let questions = scratch.join("facts.inc");
    std::fs::write(&questions, questions_for(asked)).map_err(|source| AbiError::File { path: questions, source })?;
    let program = scratch.join("probe");
    let mut compiler = Command::new("cc");
    compiler.args(["-x", "c++", "-std=c++17", "-w", "-I"]).arg(scratch).arg("-I").arg(abi.join("include")).arg("-I").arg(include);
    // Inline functions of the headers call functions that only NVSHMEM's device library has. The
    // linker drops inline functions that are not called.
    output_of("cc", compiler.arg(abi.join("probe.cc")).arg("-o").arg(&program))?;
    parse_table(&output_of("probe", &mut Command::new(&program))?).map(|table| table.facts)
}
