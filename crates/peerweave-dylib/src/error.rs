//! What can be missing: a library, or one of its functions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Version;

/// A library that could not be loaded, with all that was tried.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`,
/// show to people.
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

/// Something that the library found does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Unsupported {
    /// The library, as its vendor calls it.
    pub product: &'static str,
    /// The function or the option, by the vendor's own name.
    pub what: &'static str,
    /// The version that brought it; `None` where no release that is known has it.
    pub since: Option<Version>,
    /// The version that was found.
    pub found: Version,
    /// Where it was found.
    pub path: Arc<Path>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, what, found, path, .. } = self;
        match self.since {
            Some(since) => write!(f, "{what} needs {product} {since}, found {found} ({})", path.display()),
            None => write!(f, "{what} is not implemented for the host by {product} {found} ({})", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_names_the_versions_and_the_file() {
        let path: Arc<Path> = Path::new("/lib/libnvshmem_host.so.3").into();
        let (product, found) = ("NVSHMEM", Version::new(3, 8, 0));
        let what = "nvshmem_int32_atomic_add";
        let never = Unsupported { product, what, since: None, found, path: Arc::clone(&path) };
        assert_eq!(
            never.to_string(),
            "nvshmem_int32_atomic_add is not implemented for the host by NVSHMEM 3.8.0 (/lib/libnvshmem_host.so.3)"
        );
        let later = Unsupported { product, what: "nvshmem_new", since: Some(Version::new(3, 9, 1)), found, path };
        assert_eq!(later.to_string(), "nvshmem_new needs NVSHMEM 3.9.1, found 3.8.0 (/lib/libnvshmem_host.so.3)");
    }
}
