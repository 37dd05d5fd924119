//! Finds the program to start.
//!
//! A name with a slash is a path. Other names are searched in `PATH`, then in the directory of this
//! command, then in its subdirectory `examples`, where cargo puts examples.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use peerweave_bench::console::exit;

/// The error if the program cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// No file with this name was found.
    #[error("{name}: not found{}", places(.searched, .alike))]
    NotFound {
        /// Name of the program, as the user has given it.
        name: String,
        /// Directories searched in addition to `PATH`; empty if the name had a slash.
        searched: Vec<PathBuf>,
        /// Programs with a similar name.
        alike: Vec<String>,
    },
    /// The file exists but cannot be executed.
    #[error("cannot execute {path}: {why}")]
    NotExecutable {
        /// Path of the file.
        path: String,
        /// Reason why the file cannot be executed.
        why: &'static str,
    },
}

impl ProgramError {
    /// Returns the exit code that shells use for this error.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => exit::NOT_FOUND,
            Self::NotExecutable { .. } => exit::NOT_EXECUTABLE,
        }
    }
}

fn places(directories: &[PathBuf], alike: &[String]) -> String {
    let mut text = String::new();
    if !directories.is_empty() {
        let names: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
        text += &format!(" in PATH or in {}", names.join(" or in "));
    }
    if !alike.is_empty() {
        text += &format!("; did you mean {}?", alike.join(" or "));
    } else if !directories.is_empty() {
        text += "; put ./ before the name of a program in the current directory";
    }
    text
}

/// Finds the program called `name`. `path` is the value of `PATH`, and `beside` is the directory of
/// this command.
///
/// # Errors
/// [`ProgramError`] if the program was not found or cannot be executed. If the program was not
/// found, the error has the directories searched.
pub fn find(name: &OsStr, path: Option<&OsStr>, beside: Option<&Path>) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match judge(&path) {
            Verdict::Program => Ok(path),
            Verdict::Other(why) => Err(ProgramError::NotExecutable { path: path.display().to_string(), why }),
            Verdict::Missing => Err(ProgramError::NotFound { name: path.display().to_string(), searched: vec![], alike: vec![] }),
        };
    }
    let extra: Vec<PathBuf> = beside.map(|beside| vec![beside.to_owned(), beside.join("examples")]).unwrap_or_default();
    let in_path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let mut not_executable = None;
    for directory in in_path.iter().chain(&extra) {
        let candidate = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        match judge(&candidate) {
            Verdict::Program if !name.is_empty() => return Ok(candidate),
            Verdict::Other(why) if not_executable.is_none() && !name.is_empty() && candidate.is_file() => {
                not_executable = Some(ProgramError::NotExecutable { path: candidate.display().to_string(), why });
            }
            _ => {}
        }
    }
    let name = name.to_string_lossy().into_owned();
    let alike = alike(&name, &extra);
    Err(not_executable.unwrap_or(ProgramError::NotFound { name, searched: extra, alike }))
}

enum Verdict {
    Program,
    Other(&'static str),
    Missing,
}

fn judge(path: &Path) -> Verdict {
    match path.metadata() {
        Ok(file) if file.is_dir() => Verdict::Other("the file is a directory"),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Verdict::Other("the file has no permission to be executed"),
        Ok(_) => Verdict::Program,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Verdict::Other("permission denied"),
        Err(_) => Verdict::Missing,
    }
}

/// Returns at most five programs in `directories` whose name contains `name` or is contained in
/// `name`. Ignores case, and treats underscores and spaces as hyphens. Returns nothing if `name` is
/// shorter than three bytes.
fn alike(name: &str, directories: &[PathBuf]) -> Vec<String> {
    let plain = |name: &str| name.to_lowercase().replace(['_', ' '], "-");
    let wanted = plain(name);
    let mut found: Vec<String> = directories
        .iter()
        .filter_map(|directory| directory.read_dir().ok())
        .flatten()
        .filter_map(|entry| entry.ok())
        .filter(|entry| matches!(judge(&entry.path()), Verdict::Program))
        .filter_map(|entry| entry.file_name().into_string().ok())
        // Skips names with a dot or with cargo's hash (`name-0123456789abcdef`).
        .filter(|name| !name.contains('.') && !has_cargo_hash(name))
        .filter(|name| wanted.len() >= 3 && (plain(name).contains(&wanted) || wanted.contains(&plain(name))))
        .collect();
    found.sort();
    found.dedup();
    found.truncate(5);
    found
}

fn has_cargo_hash(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, hash)| hash.len() == 16 && hash.bytes().all(|c| c.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn executable(path: &Path) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn path_variable_is_searched_before_the_launcher_directory() {
        let root = tempfile::tempdir().unwrap();
        let (path, beside) = (root.path().join("path"), root.path().join("beside"));
        fs::create_dir_all(&path).unwrap();
        fs::create_dir_all(beside.join("examples")).unwrap();
        let find = |name: &str| find(OsStr::new(name), Some(path.as_os_str()), Some(&beside));
        executable(&beside.join("examples/hello-team"));
        assert_eq!(find("hello-team"), Ok(beside.join("examples/hello-team")));
        executable(&beside.join("hello-team"));
        assert_eq!(find("hello-team"), Ok(beside.join("hello-team")));
        executable(&path.join("hello-team"));
        assert_eq!(find("hello-team"), Ok(path.join("hello-team")));
    }

    #[test]
    fn missing_program_error_lists_directories_and_similar_names() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("examples")).unwrap();
        executable(&root.path().join("examples/hello-team"));
        executable(&root.path().join("examples/hello-team-0123456789abcdef"));
        let error = find(OsStr::new("hello_team"), None, Some(root.path())).unwrap_err();
        assert!(error.to_string().ends_with("did you mean hello-team?"), "{error}");
        assert_eq!(error.exit_code(), 127);
        let error = find(OsStr::new("zzz"), None, Some(root.path())).unwrap_err().to_string();
        assert!(error.contains("zzz: not found in PATH") && error.contains("examples") && error.contains("./"), "{error}");
        assert!(find(OsStr::new(""), None, Some(root.path())).is_err());
    }

    #[test]
    fn file_that_is_not_executable_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("data");
        fs::write(&file, "x").unwrap();
        let error = find(file.as_os_str(), None, None).unwrap_err();
        assert!(error.to_string().ends_with("the file has no permission to be executed"), "{error}");
        assert_eq!(error.exit_code(), 126);
        let error = find(root.path().as_os_str(), None, None).unwrap_err();
        assert!(error.to_string().ends_with("the file is a directory"), "{error}");
        assert_eq!(find(root.path().join("nothing").as_os_str(), None, None).unwrap_err().exit_code(), 127);
    }
}
