//! Finds the package directories of the active Python. This module only reads directories, and
//! starts no interpreter.
//!
//! Wheels install a vendor's library under `site-packages/nvidia/...`. The directories in
//! `PYTHONPATH` come first, then those of an activated environment. Those of `python3` and `python`
//! in `PATH` follow.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the existing package directories of the active Python, in the order in which they should
/// be searched. `variable` returns the value of an environment variable.
pub(crate) fn site_packages(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |directory: PathBuf| {
        if directory.is_dir() && !found.contains(&directory) {
            found.push(directory);
        }
    };
    if let Some(paths) = variable("PYTHONPATH") {
        std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).for_each(&mut add);
    }
    for activated in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = variable(activated) {
            packages_below(Path::new(&prefix)).into_iter().for_each(&mut add);
        }
    }
    let prefixes: Vec<PathBuf> = match variable("PATH") {
        Some(path) => ["python3", "python"].iter().flat_map(|interpreter| prefixes(&path, interpreter)).collect(),
        None => Vec::new(),
    };
    // A virtual environment does not see packages that a user has installed for all interpreters. A
    // system's interpreter searches those packages first.
    let (environments, systems): (Vec<_>, Vec<_>) = prefixes.iter().partition(|prefix| prefix.join("pyvenv.cfg").is_file());
    let home = variable("HOME").map(|home| Path::new(&home).join(".local"));
    for prefix in environments.into_iter().chain(&home).chain(systems) {
        packages_below(prefix).into_iter().for_each(&mut add);
    }
    found
}

/// Returns the installation prefixes of the first file named `interpreter` in `PATH`. For example,
/// the prefix of `/usr/bin/python3` is `/usr`. If the file is a symbolic link, as in a virtual
/// environment, the prefix of its target follows. After each `/usr`, the list also contains
/// `/usr/local`.
fn prefixes(path: &OsString, interpreter: &str) -> Vec<PathBuf> {
    let Some(found) = std::env::split_paths(path).map(|directory| directory.join(interpreter)).find(|file| file.is_file()) else {
        return Vec::new();
    };
    let mut prefixes = Vec::new();
    for file in [Some(found.clone()), found.canonicalize().ok()].into_iter().flatten() {
        if let Some(prefix) = file.parent().and_then(Path::parent) {
            prefixes.push(prefix.to_path_buf());
            if prefix == Path::new("/usr") {
                prefixes.push(PathBuf::from("/usr/local"));
            }
        }
    }
    prefixes
}

/// Returns the existing directories `lib/python3.*/site-packages` and `dist-packages` (Debian)
/// below an installation prefix, the newest Python first.
fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<((u32, u32), PathBuf)> = ["lib", "lib64"]
        .iter()
        .filter_map(|lib| std::fs::read_dir(prefix.join(lib)).ok())
        .flatten()
        .filter_map(|entry| entry.ok())
        .filter_map(|entry| Some((version(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let mut found: Vec<PathBuf> =
        versions.iter().flat_map(|(_, path)| [path.join("site-packages"), path.join("dist-packages")]).collect();
    found.push(prefix.join("lib/python3/dist-packages"));
    found.retain(|directory| directory.is_dir());
    found
}

/// Returns (3, 12) for the directory name `python3.12`. Returns `None` for the name `python3`,
/// which has no minor version. On Debian, all versions of Python 3 share the directory of this
/// name.
fn version(name: &str) -> Option<(u32, u32)> {
    let (major, minor) = name.strip_prefix("python")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn package_directory(root: &Path, relative: &str) -> PathBuf {
        let directory = root.join(relative);
        std::fs::create_dir_all(&directory).expect("temporary directory is writable");
        directory
    }

    #[test]
    fn activated_venv_is_searched_before_python_on_path() {
        let root = tempfile::tempdir().expect("a temporary directory is created");
        let venv = package_directory(root.path(), "venv/lib/python3.12/site-packages");
        let old = package_directory(root.path(), "prefix/lib/python3.9/site-packages");
        let new = package_directory(root.path(), "prefix/lib/python3.11/dist-packages");
        let bin = package_directory(root.path(), "prefix/bin");
        std::fs::write(bin.join("python3"), "").expect("temporary directory is writable");
        let found = site_packages(&|name| match name {
            "VIRTUAL_ENV" => Some(root.path().join("venv").into()),
            "PATH" => Some(
                std::env::join_paths([root.path().join("empty"), bin.clone()]).expect("the directory has no colon in its path"),
            ),
            _ => None,
        });
        assert_eq!(found, [venv, new, old]);
    }

    #[test]
    fn inactive_venv_is_found_through_python_on_path() {
        let root = tempfile::tempdir().expect("a temporary directory is created");
        let base = package_directory(root.path(), "base/lib/python3.12/site-packages");
        let venv = package_directory(root.path(), "venv/lib/python3.12/site-packages");
        let (base_bin, venv_bin) = (package_directory(root.path(), "base/bin"), package_directory(root.path(), "venv/bin"));
        std::fs::write(base_bin.join("python3"), "").expect("temporary directory is writable");
        std::os::unix::fs::symlink(base_bin.join("python3"), venv_bin.join("python3")).expect("a symbolic link can be created");
        let found = site_packages(&|name| (name == "PATH").then(|| venv_bin.clone().into()));
        let base = base.canonicalize().expect("the directory exists");
        assert_eq!(found, [venv, base]);
    }

    #[test]
    fn user_packages_are_searched_after_venv_and_before_system() {
        let root = tempfile::tempdir().expect("a temporary directory is created");
        let user = package_directory(root.path(), "home/.local/lib/python3.12/site-packages");
        let found = |prefix: &str| {
            let bin = package_directory(root.path(), &format!("{prefix}/bin"));
            std::fs::write(bin.join("python3"), "").expect("temporary directory is writable");
            site_packages(&|name| match name {
                "PATH" => Some(bin.clone().into()),
                "HOME" => Some(root.path().join("home").into()),
                _ => None,
            })
        };
        let system = package_directory(root.path(), "system/lib/python3.12/site-packages");
        assert_eq!(found("system"), [user.clone(), system]);
        let venv = package_directory(root.path(), "venv/lib/python3.12/site-packages");
        std::fs::write(root.path().join("venv/pyvenv.cfg"), "").expect("temporary directory is writable");
        assert_eq!(found("venv"), [venv, user]);
    }

    #[test]
    fn no_package_directories_are_listed_if_no_variable_is_set() {
        assert!(site_packages(&|_| None).is_empty());
    }
}
