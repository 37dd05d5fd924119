//! Errors of loading a library or resolving a function.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Version;

/// Error that is returned if a library cannot be loaded. Lists all paths that were tried.
///
/// `Debug` prints the message, because `unwrap` and a `main` that returns an error print `Debug`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub struct LoadError {
    /// Name of the library in messages, such as `NVSHMEM`.
    pub product: &'static str,
    /// Environment variable that overrides the search with a file or directory; `None` if the
    /// library has no such variable.
    pub variable: Option<&'static str>,
    /// The places that were searched.
    pub scope: SearchScope,
    /// The paths that were tried, in order. Never empty.
    pub tried: Vec<Attempt>,
}

/// The places that a search covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SearchScope {
    /// All places: the wheels of the active Python, the dynamic linker's path, and well-known
    /// directories.
    All,
    /// Only the path in the environment variable that overrides the search.
    Variable,
    /// Only the file or directory that the caller passed.
    Path,
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A path that was tried, and the reason why no library was loaded from this path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// A file, or a bare name passed to the dynamic linker.
    pub path: PathBuf,
    /// The dynamic linker's message, or the reason why the file was not accepted.
    pub reason: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not found; ", self.product)?;
        match (self.scope, self.variable) {
            (SearchScope::Variable, Some(variable)) => write!(f, "{variable} is set, so no other place was searched:")?,
            (SearchScope::All, Some(variable)) => write!(f, "set {variable} to the file or directory of the library; tried:")?,
            (SearchScope::Path, _) => write!(f, "only the given path was searched:")?,
            (_, None) => write!(f, "tried:")?,
        }
        for attempt in &self.tried {
            write!(f, "\n  {}: {}", attempt.path.display(), attempt.reason)?;
        }
        Ok(())
    }
}

/// Error that is returned if the loaded library lacks the called function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{product} lacks {name}, which needs version {since} or newer: {}", path.display())]
#[non_exhaustive]
pub struct MissingSymbol {
    /// Name of the library in messages, such as `NVSHMEM`.
    pub product: &'static str,
    /// Name of the function.
    pub name: &'static str,
    /// Version of the library that introduced the function.
    pub since: &'static str,
    /// Path of the loaded library.
    pub path: Arc<Path>,
}

/// Error that is returned if the loaded library does not support a function or an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Unsupported {
    /// Name of the library in messages, such as `NVSHMEM`.
    pub product: &'static str,
    /// Name of the function or option that the library does not support.
    pub what: &'static str,
    /// First version of the library that has the function or option; `None` if no known release has
    /// the function or option.
    pub since: Option<Version>,
    /// Version of the loaded library. [`Version::UNKNOWN`] if the library did not return a valid
    /// version.
    pub found: Version,
    /// Path of the loaded library.
    pub path: Arc<Path>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, what, found, path, .. } = self;
        match self.since {
            Some(since) if *found == Version::UNKNOWN => {
                write!(
                    f,
                    "{what} needs {product} {since}, but the loaded library did not return its version ({})",
                    path.display()
                )
            }
            Some(since) => write!(f, "{what} needs {product} {since}, found {found} ({})", path.display()),
            None => write!(f, "{product} {found} does not implement {what} for the host ({})", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_error_names_the_versions_and_the_file() {
        let path: Arc<Path> = Path::new("/lib/libnvshmem_host.so.3").into();
        let (product, found) = ("NVSHMEM", Version::new(3, 8, 0));
        let what = "nvshmem_int32_atomic_add";
        let never = Unsupported { product, what, since: None, found, path: Arc::clone(&path) };
        assert_eq!(
            never.to_string(),
            "NVSHMEM 3.8.0 does not implement nvshmem_int32_atomic_add for the host (/lib/libnvshmem_host.so.3)"
        );
        let later = Unsupported { product, what: "nvshmem_new", since: Some(Version::new(3, 9, 1)), found, path };
        assert_eq!(later.to_string(), "nvshmem_new needs NVSHMEM 3.9.1, found 3.8.0 (/lib/libnvshmem_host.so.3)");
        let unknown = Unsupported { found: Version::UNKNOWN, ..later };
        assert_eq!(
            unknown.to_string(),
            "nvshmem_new needs NVSHMEM 3.9.1, but the loaded library did not return its version (/lib/libnvshmem_host.so.3)"
        );
    }
}
