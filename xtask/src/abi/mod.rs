//! Compares the bindings of `peerweave-nccl` for one version of NCCL with that version's headers
//! and library.
//!
//! Downloads nothing, because `.ci/abi-nccl` downloads the library. Calls no function of the
//! library: the check reads the symbol table.
//!
//! Invariant: a size, an offset or a constant that cannot be checked is a fault. The C compiler
//! computes the values of the header. This check parses only the version macros of the header.

pub(crate) mod nvshmem;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSymbol as _};

use crate::Findings;

/// The error if the bindings could not be compared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AbiError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Library { path: PathBuf, source: object::Error },
    #[error("{} has no {what}", path.display())]
    Absent { path: PathBuf, what: &'static str },
    #[error("{program}: {source}")]
    Start { program: &'static str, source: io::Error },
    #[error("{program} failed:\n{output}")]
    Failed { program: &'static str, output: String },
    #[error("the table of the bindings has the invalid line {0:?}, expected KIND NAME VALUE")]
    Line(String),
}

/// Sizes, offsets and constants of the bindings or of the header, by name: `size X`, `offset X.f`
/// or `value X`.
type Facts = BTreeMap<String, i64>;

/// The declarations of the Rust bindings for one version of the library.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    facts: Facts,
    /// Functions, each with the first version that has the function.
    symbols: BTreeMap<String, Version>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u32; 3]);

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<u32> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        parts.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Compares the bindings with the NCCL in `directory`, which contains `include` and `lib`.
pub(crate) fn compare(root: &Path, directory: &Path) -> Result<Findings, AbiError> {
    let include = directory.join("include");
    let library = ["libnccl.so.2", "libnccl.so"]
        .iter()
        .flat_map(|name| [directory.join("lib").join(name), directory.join(name)])
        .find(|file| file.is_file())
        .ok_or_else(|| AbiError::Absent { path: directory.to_path_buf(), what: "lib/libnccl.so.2" })?;
    let version = header_version(&include)?;
    let table = rust_table(root, version)?;
    let scratch = tempfile::tempdir().map_err(|source| AbiError::File { path: std::env::temp_dir(), source })?;
    let (header, mut faults) = match header_facts(root, &include, &table.facts, scratch.path()) {
        Ok(facts) => (facts, Vec::new()),
        Err(AbiError::Failed { program, output }) => {
            let told = output
                .lines()
                .filter(|line| line.contains("error"))
                .map(|line| format!("{program} fails on the header of {version}: {line}"));
            (Facts::new(), told.collect())
        }
        Err(other) => return Err(other),
    };
    if faults.is_empty() {
        faults = differing(&table.facts, &header, version);
    }
    let exported = exports(&library)?;
    faults.extend(misplaced(&table.symbols, &exported, version));

    let mut summary =
        format!("NCCL {version}: compared {} values of the header and {} functions\n", table.facts.len(), table.symbols.len());
    let absent: Vec<_> = table.symbols.iter().filter(|(name, _)| !exported.contains(*name)).collect();
    for (name, since) in &absent {
        let _ = writeln!(summary, "  missing in this library: {name} (since {since})");
    }
    let unbound = exported.iter().filter(|name| name.starts_with("nccl") && !table.symbols.contains_key(*name));
    for name in unbound {
        let _ = writeln!(summary, "  exported by the library, but without a binding: {name}");
    }
    Ok(Findings { summary, faults })
}

/// Returns the sizes, offsets and numbers that differ.
fn differing(rust: &Facts, header: &Facts, version: Version) -> Vec<String> {
    let all: BTreeSet<_> = rust.keys().chain(header.keys()).collect();
    let said = |facts: &Facts, fact: &str| facts.get(fact).map_or("nothing".to_owned(), i64::to_string);
    all.into_iter()
        .filter(|fact| rust.get(*fact) != header.get(*fact))
        .map(|fact| {
            format!("{fact} in {version}: the crate has {}, expected {} as in the header", said(rust, fact), said(header, fact))
        })
        .collect()
}

/// Returns the functions whose first version is wrong: the library exports the function although
/// the library is older, or lacks the function although the library is not older.
fn misplaced(claimed: &BTreeMap<String, Version>, exported: &BTreeSet<String>, version: Version) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, since) in claimed {
        match (exported.contains(name), version >= *since) {
            (true, false) => faults.push(format!(
                "the crate says that {name} exists since {since}, but the library {version} already has the function"
            )),
            (false, true) => faults
                .push(format!("the crate says that {name} exists since {since}, but the library {version} lacks the function")),
            _ => {}
        }
    }
    faults
}

/// Returns the version that a header declares.
fn header_version(include: &Path) -> Result<Version, AbiError> {
    let path = include.join("nccl.h");
    let text = std::fs::read_to_string(&path).map_err(|source| AbiError::File { path: path.clone(), source })?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse().ok())
    };
    match (number("NCCL_MAJOR "), number("NCCL_MINOR "), number("NCCL_PATCH ")) {
        (Some(major), Some(minor), Some(patch)) => Ok(Version([major, minor, patch])),
        _ => Err(AbiError::Absent { path, what: "NCCL_MAJOR, NCCL_MINOR and NCCL_PATCH" }),
    }
}

/// Returns the declarations of the bindings, which an example of the crate prints.
fn rust_table(root: &Path, version: Version) -> Result<Table, AbiError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "run",
        "--quiet",
        "--package",
        "peerweave-nccl",
        "--features",
        "raw",
        "--example",
        "abi_table",
        "--",
    ]);
    parse_table(&output_of("cargo run", command.arg(version.to_string()))?)
}

fn parse_table(text: &str) -> Result<Table, AbiError> {
    let mut table = Table::default();
    for line in text.lines() {
        let wrong = || AbiError::Line(line.to_owned());
        let [kind, name, value] = line.split(' ').collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
        if kind == "symbol" {
            table.symbols.insert(name.to_owned(), Version::parse(value).ok_or_else(wrong)?);
        } else {
            table.facts.insert(format!("{kind} {name}"), value.parse().map_err(|_| wrong())?);
        }
    }
    Ok(table)
}

/// Returns the sizes, offsets and constants of `asked`, as the C compiler computes them for the
/// header.
fn header_facts(root: &Path, include: &Path, asked: &Facts, scratch: &Path) -> Result<Facts, AbiError> {
    let abi = root.join("crates/peerweave-nccl/abi");
    let questions = scratch.join("facts.inc");
    std::fs::write(&questions, questions_for(asked)).map_err(|source| AbiError::File { path: questions, source })?;
    let program = scratch.join("probe");
    let mut compiler = Command::new("cc");
    compiler.args(["-x", "c++", "-std=c++17", "-w", "-I"]).arg(scratch).arg("-I").arg(abi.join("include")).arg("-I").arg(include);
    if include.join("nccl_device.h").is_file() {
        compiler.arg("-DPROBE_DEVICE");
    }
    output_of("cc", compiler.arg(abi.join("probe.cc")).arg("-o").arg(&program))?;
    parse_table(&output_of("probe", &mut Command::new(&program))?).map(|table| table.facts)
}

/// Formats the queries as macros for `probe.cc`.
fn questions_for(asked: &Facts) -> String {
    asked.keys().fold(String::new(), |mut text, fact| {
        let (kind, name) = fact.split_once(' ').unwrap_or((fact, ""));
        let _ = match (kind, name.split_once('.')) {
            ("offset", Some((outer, field))) => writeln!(text, "OFFSET({outer}, {field})"),
            ("size", _) => writeln!(text, "SIZE({name})"),
            _ => writeln!(text, "VALUE({name})"),
        };
        text
    })
}

/// Returns the functions that a library exports.
fn exports(library: &Path) -> Result<BTreeSet<String>, AbiError> {
    let bytes = std::fs::read(library).map_err(|source| AbiError::File { path: library.to_path_buf(), source })?;
    let file =
        object::File::parse(bytes.as_slice()).map_err(|source| AbiError::Library { path: library.to_path_buf(), source })?;
    let functions = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    Ok(functions.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect())
}

fn output_of(program: &'static str, command: &mut Command) -> Result<String, AbiError> {
    let output = command.env("LC_ALL", OsStr::new("C")).output().map_err(|source| AbiError::Start { program, source })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(AbiError::Failed { program, output: String::from_utf8_lossy(&output.stderr).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version([2, 30, 7]);

    #[test]
    fn abi_table_is_parsed_and_converted_to_c_macro_calls() {
        let table = parse_table("size ncclTeam_t 12\noffset ncclTeam_t.rank 4\nvalue ncclSum 0\nsymbol ncclSend 2.7.3\n")
            .expect("the table is valid");
        assert_eq!(questions_for(&table.facts), "OFFSET(ncclTeam_t, rank)\nSIZE(ncclTeam_t)\nVALUE(ncclSum)\n");
        assert_eq!(table.symbols["ncclSend"], Version([2, 7, 3]));
        assert!(matches!(parse_table("size ncclTeam_t"), Err(AbiError::Line(_))));
        assert!(matches!(parse_table("symbol ncclSend soon"), Err(AbiError::Line(_))));
    }

    #[test]
    fn binding_values_that_differ_from_the_header_are_reported() {
        let rust = Facts::from([("size A".to_owned(), 8), ("size B".to_owned(), 4), ("size C".to_owned(), 1)]);
        let header = Facts::from([("size A".to_owned(), 8), ("size B".to_owned(), 5)]);
        assert_eq!(
            differing(&rust, &header, VERSION),
            [
                "size B in 2.30.7: the crate has 4, expected 5 as in the header",
                "size C in 2.30.7: the crate has 1, expected nothing as in the header"
            ]
        );
    }

    #[test]
    fn wrong_introduction_version_of_a_function_is_reported() {
        let claimed = BTreeMap::from([
            ("early".to_owned(), Version([2, 31, 0])),
            ("late".to_owned(), Version([2, 29, 2])),
            ("there".to_owned(), Version([2, 30, 7])),
            ("later".to_owned(), Version([2, 32, 0])),
        ]);
        let exported = BTreeSet::from(["early".to_owned(), "there".to_owned()]);
        assert_eq!(
            misplaced(&claimed, &exported, VERSION),
            [
                "the crate says that early exists since 2.31.0, but the library 2.30.7 already has the function",
                "the crate says that late exists since 2.29.2, but the library 2.30.7 lacks the function"
            ]
        );
    }

    #[test]
    fn exported_symbols_of_a_shared_library_are_read() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc/self/maps");
        let libc = maps.split_whitespace().find(|word| word.contains("libc.so")).expect("the test is linked to the C library");
        let exported = exports(Path::new(libc)).expect("exports can be read");
        assert!(exported.contains("getpid") && !exported.contains("ncclSend"));
    }
}
