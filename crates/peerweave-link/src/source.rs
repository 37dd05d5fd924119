//! CUDA C++ text with all that decides what it compiles to.

use std::path::{Path, PathBuf};

use crate::error::LinkError;
use crate::fingerprint::Fingerprint;

/// CUDA C++ text, its headers and options: one translation unit.
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
    /// A text; `name` is what the compiler's messages call it.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), headers: Vec::new(), include: Vec::new(), options: Vec::new() }
    }

    /// With a header of this name, which `#include` finds before any directory.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// With a directory of headers. The directories are searched in the order in which they were added.
    #[must_use]
    pub fn include(mut self, directory: impl Into<PathBuf>) -> Self {
        self.include.push(directory.into());
        self
    }

    /// With a macro of this value.
    #[must_use]
    pub fn define(self, name: &str, value: &str) -> Self {
        self.option(format!("-D{name}={value}"))
    }

    /// With an option of NVRTC's. The architecture, the directories of headers and what is produced are set elsewhere.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Directories of headers, in order.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.include.iter().map(PathBuf::as_path)
    }

    /// Adds all that decides the result. Directories count by the names, lengths and times of the files in them.
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
