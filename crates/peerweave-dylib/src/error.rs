//! What can be missing: a library, or one of its functions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A library that could not be loaded, with all that was tried.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`, show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub struct LoadError {
    /// The library, as its vendor calls it.
    pub product: &'static str,
    /// The environment variable that names a file or directory to take instead, if there is one.
    pub variable: Option<&'static str>,
    /// Whether the variable was set: then nothing else was tried.
    pub exclusive: bool,
    /// What was tried, in order. Never empty.
    pub tried: Vec<Attempt>,
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One path that was tried, and why it did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// A file, or the bare name that was given to the dynamic linker.
    pub path: PathBuf,
    /// The dynamic linker's words, or why it was not asked.
    pub reason: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not found; ", self.product)?;
        match self.variable {
            Some(variable) if self.exclusive => write!(f, "{variable} is set, so nothing else was tried:")?,
            Some(variable) => write!(f, "{variable} may name its file or directory; tried:")?,
            None => write!(f, "tried:")?,
        }
        for attempt in &self.tried {
            write!(f, "\n  {}: {}", attempt.path.display(), attempt.reason)?;
        }
        Ok(())
    }
}

/// A function that the library found does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{product} has no {name} (it came with {since}): {}", path.display())]
#[non_exhaustive]
pub struct MissingSymbol {
    /// The library, as its vendor calls it.
    pub product: &'static str,
    /// The function.
    pub name: &'static str,
    /// The version that brought it.
    pub since: &'static str,
    /// The file that was asked.
    pub path: Arc<Path>,
}
