//! Collects every example of the documentation of the portable crates, and writes them as functions
//! that a test can run as PEs.
//!
//! An example is a block of Rust code between fences, in a README or in a doc comment. All examples
//! are collected: an example that cannot run, or that the collection would miss, fails the build.
//! The doc tests also run each of them, but with one PE only.
//!
//! This script runs no example: `tests/doc_examples.rs` does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The crates whose examples need no GPU and no library of a vendor.
const CRATES: [&str; 7] = [
    "peerweave",
    "peerweave-bootstrap",
    "peerweave-core",
    "peerweave-device",
    "peerweave-host",
    "peerweave-moe",
    "peerweave-types",
];

/// One example.
struct Example {
    /// File and line, such as `crates/peerweave/src/lib.rs:11`.
    place: String,
    /// The code of the program, without the marks of hidden lines.
    code: String,
}

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec!["README.md".to_owned(), "examples/README.md".to_owned()];
    for name in CRATES {
        files.push(format!("crates/{name}/README.md"));
        sources(&root, &format!("crates/{name}/src"), &mut files);
    }
    files.sort();
    let mut examples = Vec::new();
    for file in &files {
        println!("cargo::rerun-if-changed=../{file}");
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        collect(file, &text, &mut examples);
    }
    for expected in ["README.md:", "crates/peerweave/src/lib.rs:", "crates/peerweave/README.md:"] {
        assert!(examples.iter().any(|example| example.place.starts_with(expected)), "no example found in {expected}");
    }
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("doc_examples.rs");
    fs::write(&out, program(&examples)).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}

/// Adds the Rust files below `folder`, and makes cargo run the build script again when a file is
/// added.
fn sources(root: &Path, folder: &str, files: &mut Vec<String>) {
    println!("cargo::rerun-if-changed=../{folder}");
    for entry in fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}")) {
        let entry = entry.unwrap_or_else(|error| panic!("{folder}: {error}"));
        let name = format!("{folder}/{}", entry.file_name().to_str().expect("names of sources are UTF-8"));
        if entry.path().is_dir() {
            sources(root, &name, files);
        } else if name.ends_with(".rs") {
            files.push(name);
        }
    }
}

/// Adds the examples of one file.
fn collect(file: &str, text: &str, examples: &mut Vec<Example>) {
    let source = file.ends_with(".rs");
    let mut open: Option<(usize, bool, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let at = format!("{file}:{}", index + 1);
        let trimmed = line.trim_start();
        let line = match (source, trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"))) {
            (false, _) => line,
            (true, Some(comment)) => comment.strip_prefix(' ').unwrap_or(comment),
            (true, None) => {
                let missed = trimmed.starts_with("/**") || trimmed.contains("doc = \"") && trimmed.contains("```");
                assert!(!missed, "{at}: examples are not found in a doc comment of this form; expected `///` or `//!`");
                assert!(open.is_none(), "{at}: the doc comment ends before the closing fence of an example");
                continue;
            }
        };
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => open = Some((index + 1, runs(&at, info.trim()), String::new())),
            (None, None) => {}
            (Some((start, runs, code)), Some(_)) => {
                if *runs {
                    examples.push(Example { place: format!("{file}:{start}"), code: std::mem::take(code) });
                }
                open = None;
            }
            (Some((_, _, code)), None) => {
                *code += shown(line);
                code.push('\n');
            }
        }
    }
    assert!(open.is_none(), "{file}: an example has no closing fence");
}

/// Returns whether a block with this info string is a program to run.
fn runs(at: &str, info: &str) -> bool {
    let words: Vec<_> = info.split(',').map(str::trim).collect();
    match words[0] {
        "" | "rust" if words.len() < 2 => true,
        "compile_fail" | "text" | "sh" | "toml" | "console" | "json" => false,
        _ => panic!("{at}: a block of kind {info:?}; expected Rust that runs, compile_fail, text, sh, toml, console or json"),
    }
}

/// Returns a line of an example without the `#` that hides the line.
fn shown(line: &str) -> &str {
    let trimmed = line.trim_start();
    match trimmed.strip_prefix("# ") {
        Some(hidden) => hidden,
        None if trimmed == "#" => "",
        None => trimmed.strip_prefix('#').filter(|rest| rest.starts_with('#')).unwrap_or(line),
    }
}

/// Returns all examples as modules, and a table of them.
fn program(examples: &[Example]) -> String {
    let mut text = String::new();
    let (mut programs, mut scenarios) = (String::new(), String::new());
    for (index, Example { place, code }) in examples.iter().enumerate() {
        let code = if code.contains("fn main()") {
            code.clone()
        } else if code.contains("Ok::<") {
            // As rustdoc does: the body may use `?`.
            format!(
                "fn main() -> impl super::End {{\n    fn body() -> Result<(), impl std::fmt::Debug> {{\n{code}}}\n    body()\n}}\n"
            )
        } else {
            format!("fn main() {{\n{code}}}\n")
        };
        writeln!(text, "/// {place}\n#[allow(warnings, clippy::all)]\nmod example_{index} {{")
            .expect("writing to a string succeeds");
        writeln!(text, "{code}pub(super) fn run() {{ super::End::check(main()) }}\n}}").expect("writing to a string succeeds");
        writeln!(programs, "    ({place:?}, |_| example_{index}::run()),").expect("writing to a string succeeds");
        writeln!(scenarios, "    ({place:?}, || run({place:?})),").expect("writing to a string succeeds");
    }
    format!(
        "{text}\n/// Each example, by its place.\nconst PROGRAMS: peerweave_tests::run::harness::Programs = &[\n{programs}];\n\n\
         /// Each example as a scenario.\n\
         const SCENARIOS: peerweave_tests::run::harness::Scenarios = &[\n{scenarios}];\n"
    )
}
