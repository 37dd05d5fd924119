//! Sources in CUDA C++, with their headers and options.

use std::path::{Path, PathBuf};

use crate::error::LinkError;
use fingerprint::Fingerprint;

mod cuh;
pub(crate) mod fingerprint;

pub use cuh::{PEERWEAVE_CUH, peerweave_cuh};

/// A translation unit in CUDA C++: its text, headers and options.
///
/// ```
/// use peerweave_link::Source;
///
/// let source = Source::new("scale.cu", r#"
///     #include "factor.h"
///     extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }
/// "#)
/// .header("factor.h", "#define FACTOR 2.0f")
/// .option("-std=c++17");
/// assert_eq!(source.name(), "scale.cu");
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) include: Vec<PathBuf>,
    pub(crate) options: Vec<String>,
}

impl Source {
    /// Creates a source that has no headers and no options. NVRTC calls the source `name` in its
    /// messages.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), headers: Vec::new(), include: Vec::new(), options: Vec::new() }
    }

    /// Adds a header with this name and text. `#include` uses this header even if a header
    /// directory contains a file with the same name.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds a directory in which `#include` searches for headers. Directories are searched in the
    /// order in which they were added.
    #[must_use]
    pub fn include(mut self, directory: impl Into<PathBuf>) -> Self {
        self.include.push(directory.into());
        self
    }

    /// Defines the preprocessor macro `name` with the value `value`.
    #[must_use]
    pub fn define(self, name: &str, value: &str) -> Self {
        self.option(format!("-D{name}={value}"))
    }

    /// Adds an option for NVRTC. Do not pass options for the architecture or the output format,
    /// because [`Target`](crate::Target) sets both. Do not pass options for header directories:
    /// call [`Self::include`] instead.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Returns the name of the source.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text of the source.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the header directories, in the order in which `#include` searches them.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.include.iter().map(PathBuf::as_path)
    }

    /// Adds the name, the text, the headers and the options to a digest. For header directories,
    /// adds the paths, lengths and modification times of their files.
    pub(crate) fn fingerprint(&self, into: &mut Fingerprint) -> Result<(), LinkError> {
        into.text("source", &self.name);
        into.text("text", &self.text);
        for (name, text) in &self.headers {
            into.text("header", name);
            into.text("header text", text);
        }
        for option in &self.options {
            into.text("option", option);
        }
        self.include.iter().try_for_each(|directory| into.directory(directory))
    }
}
