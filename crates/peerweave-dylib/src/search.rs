//! The search for a library: the places that are searched, and their order. `library.rs` loads the
//! file.

use std::ffi::{CStr, OsString};
use std::path::{Path, PathBuf};

use crate::{Attempt, Library, LoadError, SearchScope, Visibility, python};

/// A search for a library.
///
/// Places are searched in this order:
/// 1. The environment variable that was passed to [`new`](Self::new). It names a file or a
///    directory. If the variable is set, no other place is searched.
/// 2. The wheels of the active Python environment.
/// 3. The dynamic linker's path.
/// 4. Well-known directories.
///
/// In each place, the file names are tried in the order in which they were passed to
/// [`new`](Self::new).
///
/// Loading a library runs its initialisers, so the file must be trusted. The code that creates a
/// search chooses the file names, so creating a search is `unsafe`. Using a search is safe: only
/// the environment variable, the Python environment and the system determine which file of these
/// names is loaded. The user who runs the program controls them. Safe code cannot load a file of
/// its own choice:
///
/// ```compile_fail,E0133
/// use peerweave_dylib::{Search, Visibility};
///
/// let search = Search::without_variable("anything", &["/tmp/anything.so"]);
/// ```
///
/// ```
/// use peerweave_dylib::{Search, Visibility};
///
/// // SAFETY: a file of this name is the system's C library.
/// const SEARCH: Search = unsafe { Search::without_variable("libc", &["libc.so.6"]) };
///
/// # #[cfg(all(target_os = "linux", target_env = "gnu"))]
/// assert!(SEARCH.open(Visibility::Local)?.symbol(c"malloc").is_some());
/// # Ok::<(), peerweave_dylib::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Search {
    product: &'static str,
    variable: Option<&'static str>,
    file_names: &'static [&'static str],
    mark: Option<&'static CStr>,
    wheel_directories: &'static [&'static str],
    system_directories: &'static [&'static str],
}

impl Search {
    /// Creates a search for `product`. `file_names` lists the possible names of the file, the
    /// preferred name first. `variable` is the environment variable that overrides the search.
    ///
    /// # Panics
    /// If `file_names` is empty.
    ///
    /// # Safety
    /// In every directory, a file with a name in `file_names` must be the library `product`, and
    /// loading the file must be sound.
    pub const unsafe fn new(product: &'static str, variable: &'static str, file_names: &'static [&'static str]) -> Self {
        assert!(!file_names.is_empty(), "a search needs at least one file name");
        Self { product, variable: Some(variable), file_names, mark: None, wheel_directories: &[], system_directories: &[] }
    }

    /// Creates a search that no environment variable overrides. Use this function if other code in
    /// the process also loads the library, and must get the same file. A variable would affect only
    /// this search.
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub const unsafe fn without_variable(product: &'static str, file_names: &'static [&'static str]) -> Self {
        assert!(!file_names.is_empty(), "a search needs at least one file name");
        Self { product, variable: None, file_names, mark: None, wheel_directories: &[], system_directories: &[] }
    }

    /// Sets the name of a function that every version of the library has. A file without this
    /// function is a different library with the same name, and is rejected.
    pub const fn known_by(mut self, function: &'static CStr) -> Self {
        self.mark = Some(function);
        self
    }

    /// Sets the directories below Python's `site-packages` in which the vendor's wheels install the
    /// library, such as `nvidia/nccl/lib`.
    pub const fn in_wheels(mut self, directories: &'static [&'static str]) -> Self {
        self.wheel_directories = directories;
        self
    }

    /// Sets further directories in which the vendor's packages install the library. The dynamic
    /// linker does not always search these directories.
    pub const fn in_directories(mut self, directories: &'static [&'static str]) -> Self {
        self.system_directories = directories;
        self
    }

    /// Returns the name of the library in messages, such as `NVSHMEM`.
    pub const fn product(&self) -> &'static str {
        self.product
    }

    /// Searches for the library and loads it. Skips files that the dynamic linker rejects, and
    /// files that lack the function of [`known_by`](Self::known_by).
    ///
    /// # Errors
    /// Returns [`LoadError`] with every path that was tried. A file that does not exist is not
    /// passed to the dynamic linker.
    pub fn open(&self, visibility: Visibility) -> Result<Library, LoadError> {
        // SAFETY: the user who runs the program has set the environment.
        unsafe { self.open_with(visibility, &|name| std::env::var_os(name)) }
    }

    /// Loads the file at `path`. If `path` is a directory, loads the first matching file in that
    /// directory. Searches no other place.
    ///
    /// # Safety
    /// The loaded file must be the library that this search is for, and running its initialisers
    /// must be sound.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub unsafe fn open_at(&self, path: &Path, visibility: Visibility) -> Result<Library, LoadError> {
        self.at(path, visibility, SearchScope::Path)
    }

    fn at(&self, path: &Path, visibility: Visibility, scope: SearchScope) -> Result<Library, LoadError> {
        let mut tried = Vec::new();
        match self.explicit(path, visibility, &mut tried) {
            Some(library) => Ok(library),
            None => Err(self.error(scope, tried)),
        }
    }

    /// Searches like [`open`](Self::open), but calls `variable` to obtain the value of each
    /// environment variable. This function is for tests, and for programs with their own settings.
    ///
    /// # Safety
    /// The values that `variable` returns determine which files may be loaded. The overriding
    /// variable names a file or a directory. `PATH`, `PYTHONPATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`
    /// and `HOME` determine further directories. In each directory, every file with one of the
    /// library's names may be loaded. Each of these files must be the library that this search is
    /// for, and running its initialisers must be sound.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub unsafe fn open_with(
        &self,
        visibility: Visibility,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Library, LoadError> {
        if let Some(path) = self.variable.and_then(variable).filter(|value| !value.is_empty()) {
            return self.at(Path::new(&path), visibility, SearchScope::Variable);
        }
        let mut tried = Vec::new();
        for packages in python::site_packages(variable) {
            for directory in self.wheel_directories {
                if let Some(library) = self.directory(&packages.join(directory), visibility, &mut tried) {
                    return Ok(library);
                }
            }
        }
        for name in self.file_names {
            if let Some(library) = self.attempt(Path::new(name), visibility, &mut tried) {
                return Ok(library);
            }
        }
        for directory in self.system_directories {
            if let Some(library) = self.directory(Path::new(directory), visibility, &mut tried) {
                return Ok(library);
            }
        }
        Err(self.error(SearchScope::All, tried))
    }

    fn explicit(&self, path: &Path, visibility: Visibility, tried: &mut Vec<Attempt>) -> Option<Library> {
        if path.is_dir() {
            return self.directory(path, visibility, tried);
        }
        if !path.exists() {
            tried.push(Attempt { path: path.to_path_buf(), reason: "no such file or directory".into() });
            return None;
        }
        // For a name without a separator, the dynamic linker would search its own directories and
        // open another file.
        let is_bare = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
        let file = if is_bare { Path::new(".").join(path) } else { path.to_path_buf() };
        self.attempt(&file, visibility, tried)
    }

    fn directory(&self, directory: &Path, visibility: Visibility, tried: &mut Vec<Attempt>) -> Option<Library> {
        let candidates: Vec<PathBuf> = self.file_names.iter().map(|name| directory.join(name)).collect();
        let mut present = candidates.iter().filter(|file| file.exists()).peekable();
        if present.peek().is_none() {
            let reason = if directory.is_dir() {
                format!("contains none of the files {}", self.file_names.join(", "))
            } else {
                "no such directory".into()
            };
            tried.push(Attempt { path: directory.to_path_buf(), reason });
            return None;
        }
        present.find_map(|file| self.attempt(file, visibility, tried))
    }

    fn attempt(&self, file: &Path, visibility: Visibility, tried: &mut Vec<Attempt>) -> Option<Library> {
        let reason = match Library::open(self.product, file, visibility) {
            Ok(library) => match self.mark.filter(|mark| library.symbol(mark).is_none()) {
                None => return Some(library),
                Some(mark) => {
                    let (function, product) = (mark.to_string_lossy(), self.product);
                    format!("lacks the function {function}, so the file is not {product}")
                }
            },
            // The dynamic linker's message for a file of another architecture is the same as for a
            // missing file.
            Err(reason) if file.exists() && reason.contains("No such file") => {
                format!("{reason}; the file exists, but may be for another architecture, or may need a missing library")
            }
            Err(reason) => reason,
        };
        tried.push(Attempt { path: file.to_path_buf(), reason });
        None
    }

    fn error(&self, scope: SearchScope, tried: Vec<Attempt>) -> LoadError {
        LoadError { product: self.product, variable: self.variable, scope, tried }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    // SAFETY: a library of this name is the system's math library.
    const SEARCH: Search = unsafe { Search::new("libm", "TEST_LIBM_PATH", &["libm.so.6"]) }.in_directories(&["/nowhere/at/all"]);
    // SAFETY: no system has libraries of these names.
    const ABSENT: Search = unsafe { Search::new("Nothing", "TEST_NOTHING_PATH", &["libnothing.so.7", "libnothing.so"]) }
        .in_wheels(&["vendor/lib"])
        .in_directories(&["/nowhere/at/all"]);

    /// Runs a search in which the environment variables have the values that `variable` returns.
    fn open_with(search: &Search, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Library, LoadError> {
        // SAFETY: the variables lead to empty directories and to copies of the system's math
        // library.
        unsafe { search.open_with(Visibility::Local, variable) }
    }

    #[test]
    fn system_library_is_found_by_the_linker() {
        let library = open_with(&SEARCH, &|_| None).expect("every Linux has libm");
        assert!(library.symbol(c"cos").is_some());
        assert_eq!(library.product(), "libm");
    }

    #[test]
    fn path_in_the_environment_variable_is_the_only_path_tried() {
        let error = open_with(&SEARCH, &|name| (name == "TEST_LIBM_PATH").then(|| "/nowhere/libm.so.6".into()))
            .expect_err("the search fails, because the file does not exist");
        assert_eq!(error.scope, SearchScope::Variable);
        assert_eq!(error.tried, [Attempt { path: "/nowhere/libm.so.6".into(), reason: "no such file or directory".into() }]);
        assert!(error.to_string().contains("TEST_LIBM_PATH is set"), "{error}");
    }

    #[test]
    fn directory_without_the_library_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        let error = SEARCH
            .at(directory.path(), Visibility::Local, SearchScope::Path)
            .expect_err("the search fails, because the directory is empty");
        let message = error.to_string();
        assert!(message.contains("only the given path was searched") && !message.contains("TEST_LIBM_PATH"), "{message}");
        assert_eq!(error.tried[0].reason, "contains none of the files libm.so.6");
    }

    #[test]
    fn bare_file_name_is_opened_in_the_working_directory() {
        // Cargo runs tests in the directory of the manifest.
        let error = SEARCH
            .at(Path::new("Cargo.toml"), Visibility::Local, SearchScope::Path)
            .expect_err("loading fails, because Cargo.toml is not a library");
        assert_eq!(error.tried[0].path, Path::new("./Cargo.toml"));
        assert!(error.tried[0].reason.contains("ELF"), "the file was not opened: {}", error.tried[0].reason);
    }

    #[test]
    fn invalid_library_file_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        std::fs::write(directory.path().join("libm.so.6"), "not a library").expect("temporary directory is writable");
        let error = SEARCH
            .at(directory.path(), Visibility::Local, SearchScope::Path)
            .expect_err("loading fails, because the file is not a library");
        assert_eq!(error.tried.len(), 1);
        assert!(
            error.tried[0].reason.contains("file too short") || error.tried[0].reason.contains("ELF"),
            "{}",
            error.tried[0].reason
        );
    }

    #[test]
    fn error_lists_tried_paths_in_search_order() {
        let venv = tempfile::tempdir().expect("a temporary directory is created");
        let packages = venv.path().join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&packages).expect("temporary directory is writable");
        let error = open_with(&ABSENT, &|name| (name == "VIRTUAL_ENV").then(|| venv.path().into()))
            .expect_err("the search fails, because no system has libnothing.so");
        let paths: Vec<_> = error.tried.iter().map(|attempt| attempt.path.clone()).collect();
        let expected: [PathBuf; 4] =
            [packages.join("vendor/lib"), "libnothing.so.7".into(), "libnothing.so".into(), "/nowhere/at/all".into()];
        assert_eq!(paths, expected);
        assert_eq!(error.scope, SearchScope::All);
    }

    #[test]
    fn wheel_is_searched_before_the_linker_path() {
        let system = open_with(&SEARCH, &|_| None).expect("every Linux has libm");
        let venv = tempfile::tempdir().expect("a temporary directory is created");
        let lib = venv.path().join("lib/python3.12/site-packages/vendor/lib");
        std::fs::create_dir_all(&lib).expect("temporary directory is writable");
        std::fs::copy(system.path(), lib.join("libm.so.6")).expect("libm can be copied");
        let search = SEARCH.in_wheels(&["vendor/lib"]);
        let found =
            open_with(&search, &|name| (name == "VIRTUAL_ENV").then(|| venv.path().into())).expect("the wheel has the library");
        assert_eq!(found.path(), lib.join("libm.so.6"));
        assert_eq!(found.directory(), Some(lib.as_path()));
    }

    #[test]
    fn different_library_of_the_same_name_is_rejected() {
        // SAFETY: as for `SEARCH`.
        let search = unsafe { Search::without_variable("mathematics", &["libm.so.6"]) };
        search.known_by(c"cos").open(Visibility::Local).expect("libm has cos");
        let error = search
            .known_by(c"ncclGetVersion")
            .open(Visibility::Local)
            .expect_err("libm is rejected, because it lacks ncclGetVersion");
        assert_eq!(
            error.tried.last().map(|attempt| attempt.reason.as_str()),
            Some("lacks the function ncclGetVersion, so the file is not mathematics")
        );
    }
}
