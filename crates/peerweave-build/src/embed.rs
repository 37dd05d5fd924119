//! Writes the file in `OUT_DIR` that `#[kernel]` includes. The file contains an expression of type
//! `PtxImage` for the crate's PTX.

use crate::{Problem, Variant};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Name of the file in `OUT_DIR` that `#[kernel]` includes.
pub(crate) const FILE: &str = "peerweave_ptx.rs";

/// Writes the file that `#[kernel]` includes, and one PTX file for each variant. If the PTX could
/// not be built, the included file contains the reason.
pub(crate) fn write(out: &Path, outcome: &Result<Vec<(Variant, String)>, Problem>) {
    let mut variants = String::new();
    if let Ok(built) = outcome {
        for (variant, text) in built {
            let name = variant.file_name();
            put(&out.join(&name), text);
            let Variant { sm, network } = variant;
            writeln!(
                variants,
                "        ::peerweave_device::launch::PtxVariant {{ sm: {sm}, network: {network}, text: include_str!({name:?}) }},"
            )
            .expect("writing to a string cannot fail");
        }
    }
    let problem = outcome.as_ref().err().map_or("", |problem| problem.0.as_str());
    let text =
        format!("::peerweave_device::launch::PtxImage {{\n    variants: &[\n{variants}    ],\n    problem: {problem:?},\n}}\n");
    put(&out.join(FILE), &text);
}

/// Writes a file. A file that already has this content is not changed, so that Cargo does not
/// recompile the crate.
fn put(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}
