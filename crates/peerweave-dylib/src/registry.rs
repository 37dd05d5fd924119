//! The libraries of one product that this process has loaded.
//!
//! Invariant: each file has at most one [`Loaded`] value, which is never freed, because a library
//! is never unloaded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Library, Unsupported, Version, mapped};

/// A loaded library with its functions, version and file.
#[derive(Debug)]
pub struct Loaded<A> {
    /// Name of the library in messages, such as `NVSHMEM`.
    pub product: &'static str,
    /// The functions of the library.
    pub functions: A,
    /// The version of the library.
    pub version: Version,
    /// Path of the mapped file.
    pub path: Arc<Path>,
    /// Paths of other library files of the same product. The process had mapped these files when
    /// this library was loaded.
    pub others: Vec<PathBuf>,
}

impl<A> Loaded<A> {
    /// Returns the error for a function or option that this library lacks. `since` is the version
    /// that introduced the function or option, if known.
    #[cold]
    pub fn unsupported(&self, what: &'static str, since: Option<Version>) -> Unsupported {
        Unsupported { product: self.product, what, since, found: self.version, path: Arc::clone(&self.path) }
    }
}

/// The libraries of one product, such as NCCL, that this process has loaded.
#[derive(Debug)]
pub struct Registry<A: 'static> {
    /// The text with which the file names of the product's libraries begin, such as `libnccl.so`.
    stem: &'static str,
    /// Name of the crate that owns this registry. Error messages contain the name.
    user: &'static str,
    /// The oldest library version that the crate `user` supports.
    oldest: Version,
    /// Text about the danger of a second library of this product in the process. A warning contains
    /// this text.
    hazard: &'static str,
    loaded: Mutex<Vec<&'static Loaded<A>>>,
}

impl<A> Registry<A> {
    /// Creates an empty registry. `user` is the name of the crate that loads the libraries, and
    /// `oldest` is the oldest library version that this crate supports. The file names of the
    /// libraries begin with `stem`. If the process has mapped several such files,
    /// [`adopt`](Self::adopt) logs a warning that ends with `hazard`. This text states what can go
    /// wrong.
    pub const fn new(stem: &'static str, user: &'static str, oldest: Version, hazard: &'static str) -> Self {
        Self { stem, user, oldest, hazard, loaded: Mutex::new(Vec::new()) }
    }

    /// Returns the [`Loaded`] value of a library. The first call for a library file creates this
    /// value from the functions and the version that `read` returns. The first call also logs a
    /// warning for each other library file of the product that is mapped in this process.
    ///
    /// # Errors
    /// Returns [`Unsupported`] for a version that is too old, or the error of `read`.
    pub fn adopt<E: From<Unsupported>>(
        &self,
        library: Library,
        read: impl FnOnce(Library) -> Result<(A, Version), E>,
    ) -> Result<&'static Loaded<A>, E> {
        let (record, is_new) = self.adopt_once(library, read)?;
        // Logged without holding the lock, because a subscriber may use the library.
        if is_new {
            let Loaded { product, version, path, others, .. } = record;
            tracing::debug!(product, %version, path = %path.display(), "library added to the registry");
            for other in others {
                let (used, other, file, hazard) = (path.display(), other.display(), self.stem, self.hazard);
                tracing::warn!(%used, %other, "a second {file} is mapped in this process; {hazard}");
            }
        }
        Ok(record)
    }

    fn adopt_once<E: From<Unsupported>>(
        &self,
        library: Library,
        read: impl FnOnce(Library) -> Result<(A, Version), E>,
    ) -> Result<(&'static Loaded<A>, bool), E> {
        let (path, product) = (library.shared_path(), library.product());
        let identity = identity(&path);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.iter().find(|known| self::identity(&known.path) == identity) {
            return Ok((known, false));
        }
        // The other files are those mapped by any code, and those in this registry.
        let mut others: Vec<PathBuf> = Vec::new();
        let known = loaded.iter().map(|known| self::identity(&known.path));
        for other in mapped(self.stem).into_iter().chain(known) {
            if self::identity(&other) != identity && !others.contains(&other) {
                others.push(other);
            }
        }
        let (functions, version) = read(library)?;
        let record = Loaded { product, functions, version, path, others };
        if !version.at_least(self.oldest) {
            return Err(record.unsupported(self.user, Some(self.oldest)).into());
        }
        let record: &'static Loaded<A> = Box::leak(Box::new(record));
        loaded.push(record);
        Ok((record, true))
    }
}

/// Returns `path` with all symbolic links resolved, or `path` itself if it cannot be resolved.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use crate::{Search, Visibility};

    const OLDEST: Version = Version::new(2, 0, 0);

    fn registry() -> Registry<Library> {
        Registry::new("libm.so", "a crate", OLDEST, "use only one library")
    }

    fn library() -> Library {
        // SAFETY: the library of this name is the system's mathematics library.
        let search = unsafe { Search::without_variable("libm", &["libm.so.6"]) };
        search.open(Visibility::Local).expect("every system has libm.so.6")
    }

    #[test]
    fn library_file_loaded_twice_is_registered_once() {
        let registry = registry();
        let first = registry
            .adopt(library(), |library| Ok::<_, Unsupported>((library, OLDEST)))
            .expect("the registry accepts a library of version 2.0.0");
        let again = registry
            .adopt::<Unsupported>(library(), |_| unreachable!("`read` is called only for a file that is not yet in the registry"))
            .expect("the file is in the registry");
        assert!(std::ptr::eq(first, again));
        assert_eq!((first.version, first.others.len()), (OLDEST, 0));
    }

    #[test]
    fn error_for_a_too_old_library_names_both_versions() {
        let old = Version::new(1, 9, 0);
        let error = registry()
            .adopt(library(), |library| Ok::<_, Unsupported>((library, old)))
            .expect_err("the library is refused, because version 1.9.0 is too old");
        assert!(error.to_string().starts_with("a crate needs libm 2.0.0, found 1.9.0 ("), "{error}");
    }
}
