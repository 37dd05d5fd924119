//! Reads the files that git tracks, as text. Skips files that are not UTF-8.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One tracked file.
#[derive(Debug)]
pub(crate) struct File {
    /// Path of the file from the root of the workspace, with `/`.
    pub(crate) path: String,
    /// Content of the file.
    pub(crate) text: String,
}

/// The error if the tracked files could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("cannot run git ls-files in {}: {source}", .root.display())]
    Git { root: PathBuf, source: std::io::Error },
    #[error("git ls-files in {} failed: {message}", .root.display())]
    GitFailed { root: PathBuf, message: String },
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

/// Reads one file as text.
pub(crate) fn read(path: &Path) -> Result<String, TreeError> {
    std::fs::read_to_string(path).map_err(|source| TreeError::Read { path: path.to_owned(), source })
}

/// Reads the tracked text files under `root`, in git's order. Skips tracked files that were removed
/// from the work tree.
pub(crate) fn tracked(root: &Path) -> Result<Vec<File>, TreeError> {
    let output = Command::new("git")
        // A checkout may belong to another user, for example in a container. Listing its files is
        // safe.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root)
        .output()
        .map_err(|source| TreeError::Git { root: root.to_owned(), source })?;
    if !output.status.success() {
        return Err(TreeError::GitFailed {
            root: root.to_owned(),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        let full = root.join(path);
        if !full.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).map_err(|source| TreeError::Read { path: full, source })?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}
