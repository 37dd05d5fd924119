//! Finds the fake libraries, and builds those that are missing or older than their sources.
//! Invariant: a library that was not prebuilt is at least as new as the sources, manifest and build
//! script of its package and of `common`.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// A directory of prebuilt libraries; if it is set, nothing is built.
const PREBUILT: &str = "PEERWEAVE_FAKES_DIR";

/// Build directory of the test binary, derived from the path of the binary:
/// `<target>[/<triple>]/<profile>/deps/<name>`.
struct Layout {
    target: PathBuf,
    triple: Option<String>,
    profile_directory: PathBuf,
}

impl Layout {
    fn of_this_binary() -> Layout {
        let binary = std::env::current_exe().expect("the path of this test binary is known");
        let mut profile_directory = binary.parent().expect("a test binary lies in a directory").to_path_buf();
        if profile_directory.file_name().is_some_and(|name| name == "deps") {
            profile_directory.pop();
        }
        let above = profile_directory.parent().expect("a profile lies in a target directory");
        let is_root = above.join("CACHEDIR.TAG").exists() || above.join(".rustc_info.json").exists();
        let (target, triple) = if is_root {
            (above.to_path_buf(), None)
        } else {
            let triple = above.file_name().map(|name| name.to_string_lossy().into_owned());
            (above.parent().unwrap_or(above).to_path_buf(), triple)
        };
        Layout { target, triple, profile_directory }
    }

    fn profile(&self) -> String {
        match self.profile_directory.file_name().map(|name| name.to_string_lossy()) {
            Some(name) if name == "debug" => "dev".to_owned(),
            Some(name) => name.into_owned(),
            None => "dev".to_owned(),
        }
    }
}

/// Returns the path of a package's library, and builds the library if necessary.
pub(crate) fn library(package: &str) -> PathBuf {
    static FOUND: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    found.entry(package.to_owned()).or_insert_with(|| find_or_build(package)).clone()
}

fn find_or_build(package: &str) -> PathBuf {
    let file = format!("lib{}.so", package.replace('-', "_"));
    if let Some(directory) = std::env::var_os(PREBUILT) {
        let path = PathBuf::from(directory).join(file);
        assert!(path.exists(), "{PREBUILT} is set, but {} does not exist", path.display());
        return path;
    }
    let layout = Layout::of_this_binary();
    let path = layout.profile_directory.join(file);
    let folder = package.strip_prefix("peerweave-fake-").unwrap_or(package);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    if is_fresh(&path, &source) {
        return path;
    }
    // One process builds the library; the other processes wait for the lock and then find the
    // library.
    let lock =
        File::create(layout.target.join(".peerweave-fakes.lock")).expect("a lock file can be created in the target directory");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("the lock file of the fakes can be locked");
    if !is_fresh(&path, &source) {
        build(package, &layout, &source);
        assert!(path.exists(), "cargo built {package}, but {} does not exist", path.display());
        // Cargo does not touch a library that it considers fresh, so the modification time is
        // updated for the next check.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
    }
    path
}

fn build(package: &str, layout: &Layout, source: &Path) {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--package", package, "--profile", &layout.profile()]);
    command.arg("--target-dir").arg(&layout.target).arg("--manifest-path").arg(source.join("Cargo.toml"));
    if let Some(triple) = &layout.triple {
        command.args(["--target", triple]);
    }
    // Variables that cargo set for this test do not apply to the package that is built.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" || name == "CARGO_MANIFEST_PATH" {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap_or_else(|error| panic!("cannot run cargo to build {package}: {error}"));
    assert!(output.status.success(), "cargo could not build {package}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn is_fresh(library: &Path, source: &Path) -> bool {
    let Some(built) = modified(library) else { return false };
    [source, &source.join("../common")].into_iter().all(|folder| newest(folder).is_some_and(|changed| changed <= built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Returns the time of the last change to a package's manifest, build script or sources.
fn newest(package: &Path) -> Option<SystemTime> {
    let mut newest = [package.join("Cargo.toml"), package.join("build.rs")].iter().filter_map(|path| modified(path)).max()?;
    let mut open = vec![package.join("src")];
    while let Some(directory) = open.pop() {
        for entry in directory.read_dir().ok()?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if let Some(time) = modified(&path) {
                newest = newest.max(time);
            }
        }
    }
    Some(newest)
}
