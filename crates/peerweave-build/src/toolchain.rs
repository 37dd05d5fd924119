//! Finds a `rustc` that can compile kernels for GPUs. The compiler must have `core` for GPUs,
//! either precompiled or as source code.

use crate::{Problem, TARGET};
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The form in which a compiler provides `core` for [`TARGET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// Source code of `core`, which is compiled together with the kernels.
    Sources,
    /// A precompiled `core`. It lacks the functions that implement panics, so kernels must not
    /// contain code that can panic.
    Compiled,
}

/// A `rustc` that can compile kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Path of the compiler.
    pub rustc: PathBuf,
    /// Sysroot of the compiler, as printed by `--print sysroot`.
    pub sysroot: PathBuf,
    /// Version of the compiler, as printed by `--version`.
    pub version: String,
    /// The form in which the compiler provides `core`.
    pub core: Core,
}

/// Advice for machines without a suitable compiler.
const INSTALL: &str = "run `rustup component add rust-src` (on Debian, `apt install rustc-web rust-web-src`), \
                       then run `cargo clean -p` for this crate and build it again";

impl Toolchain {
    /// Finds a compiler for kernels. Examines the compiler that Cargo uses for this build first,
    /// then the compilers that rustup has installed. Finally examines the compilers in `PATH`, in
    /// `/usr/local/bin` and in `/usr/bin`.
    ///
    /// Returns the first compiler that has the sources of `core`. If no compiler has the sources,
    /// returns the first compiler that has a precompiled `core`. If `PEERWEAVE_PTX_RUSTC` is set,
    /// examines only the compiler at that path.
    ///
    /// # Errors
    /// [`Problem`] if no compiler is suitable. The text of the error lists every compiler that was
    /// examined, and names the packages to install.
    pub fn find() -> Result<Self, Problem> {
        if let Some(only) = env::var_os("PEERWEAVE_PTX_RUSTC") {
            return Self::examine(Path::new(&only))
                .map_err(|why| Problem(format!("PEERWEAVE_PTX_RUSTC is {}, which {why}. {INSTALL}", only.to_string_lossy())));
        }
        Self::choose(&candidates())
    }

    /// Examines the compilers at the paths `candidates`. Returns the first compiler that has the
    /// sources of `core`. If no compiler has these sources, returns the first compiler that has a
    /// precompiled `core`.
    pub(crate) fn choose(candidates: &[PathBuf]) -> Result<Self, Problem> {
        let mut compiled = None;
        let mut looked_at = Vec::new();
        for rustc in candidates {
            match Self::examine(rustc) {
                Ok(found) if found.core == Core::Sources => return Ok(found),
                Ok(found) => compiled = compiled.or(Some(found)),
                Err(why) => looked_at.push(format!("{} {why}", rustc.display())),
            }
        }
        compiled.ok_or_else(|| {
            let looked_at = if looked_at.is_empty() { "found no rustc".to_string() } else { looked_at.join("; ") };
            Problem(format!("no Rust compiler on this machine can build kernels for GPUs ({looked_at}). {INSTALL}"))
        })
    }

    /// Examines a compiler. If the compiler cannot compile kernels, the error is the reason.
    fn examine(rustc: &Path) -> Result<Self, String> {
        let version = ask(rustc, &["--version"])?;
        let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?);
        let library = sysroot.join("lib/rustlib");
        let core = if library.join("src/rust/library/core/Cargo.toml").is_file() {
            Core::Sources
        } else if library.join(TARGET).join("lib").is_dir() {
            Core::Compiled
        } else {
            return Err(format!("is {version}, but has neither the sources of core nor a precompiled core for {TARGET}"));
        };
        if ask(rustc, &["--print", "target-cpus", "--target", TARGET]).is_err() {
            return Err(format!("is {version}, but lacks the code generator for GPUs"));
        }
        Ok(Self { rustc: rustc.to_path_buf(), sysroot, version, core })
    }
}

/// Removes from `command` the environment variables that are meant for the outer Cargo, which runs
/// this build script, and for its compiler. `command` is a compiler, or the second Cargo, which
/// compiles for the GPU. The variables would affect `command`.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let cargos = ["CARGO_PKG_", "CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_BUILD_", "DEP_"];
        let others = [
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTC_LINKER",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTDOC",
            "RUSTDOCFLAGS",
            "CLIPPY_ARGS",
            "CARGO_MANIFEST_DIR",
            "CARGO_MANIFEST_PATH",
            "CARGO_PRIMARY_PACKAGE",
            "CARGO_MAKEFLAGS",
            "MAKEFLAGS",
            "MFLAGS",
            "TARGET",
            "HOST",
            "OUT_DIR",
            "OPT_LEVEL",
            "DEBUG",
            "PROFILE",
            "NUM_JOBS",
            "RUSTUP_TOOLCHAIN",
            "__CARGO_DEFAULT_LIB_METADATA",
        ];
        if cargos.iter().any(|prefix| name.starts_with(prefix)) || others.contains(&name) {
            command.env_remove(name);
        }
    }
    // Cargo adds the libraries of its compiler to the path. Another compiler must not load these
    // libraries.
    if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
        let foreign = |path: &Path| path.join("rustlib").is_dir() || path.ancestors().any(|up| up.join("CACHEDIR.TAG").is_file());
        match env::join_paths(env::split_paths(&paths).filter(|path| !foreign(path))) {
            Ok(kept) if !kept.is_empty() => command.env("LD_LIBRARY_PATH", kept),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
}

/// Runs a compiler, and returns its standard output without surrounding white space.
fn ask(rustc: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(rustc);
    clean(&mut command);
    let output = command.args(arguments).stdin(Stdio::null()).output().map_err(|error| format!("cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("failed when called with {}: {}", arguments.join(" "), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Returns the compilers to examine, in this order: the compiler of this build, the compilers that
/// rustup has installed, and the compilers in `PATH` and in system directories.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = env::var_os("RUSTC").map(PathBuf::from).into_iter().collect();
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".rustup")));
    if let Some(toolchains) = home.and_then(|home| std::fs::read_dir(home.join("toolchains")).ok()) {
        let mut rustcs: Vec<PathBuf> = toolchains.flatten().map(|entry| entry.path().join("bin/rustc")).collect();
        // Release toolchains precede nightly toolchains. Within each group, later names precede
        // earlier names.
        rustcs.sort_by_key(|path| (path.to_string_lossy().contains("nightly"), std::cmp::Reverse(path.clone())));
        found.extend(rustcs);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    found.extend(env::split_paths(&path).map(|folder| folder.join("rustc")));
    found.extend(["/usr/local/bin/rustc", "/usr/bin/rustc"].map(PathBuf::from));
    let mut seen = Vec::new();
    found.retain(|path| {
        // Skips rustup's proxy, which runs a toolchain that depends on the directory. The
        // toolchains themselves are in the list.
        let file = path.canonicalize().unwrap_or_else(|_| path.clone());
        let known = seen.contains(&file);
        let usable = path == OsStr::new("rustc") || (path.is_file() && file.file_stem() != Some(OsStr::new("rustup")));
        seen.push(file);
        usable && !known
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_compiler_error_names_what_to_install() {
        let problem = Toolchain::choose(&[]).unwrap_err().to_string();
        assert!(problem.contains("found no rustc") && problem.contains("rustup component add rust-src"), "{problem}");
        let problem = Toolchain::choose(&["/nowhere/rustc".into()]).unwrap_err().to_string();
        assert!(problem.contains("/nowhere/rustc cannot be run") && problem.contains("rust-web-src"), "{problem}");
    }

    #[test]
    fn error_names_the_version_of_a_rustc_without_core_library() {
        let folder = env::temp_dir().join(format!("peerweave-build-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rustc = folder.join("rustc");
        let script = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo rustc 1.0; else echo /nowhere; fi\n";
        std::fs::write(&rustc, script).unwrap();
        let mut mode = std::fs::metadata(&rustc).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&rustc, mode).unwrap();
        let problem = Toolchain::choose(&[rustc]).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            problem.contains("is rustc 1.0, but has neither the sources of core nor a precompiled core for nvptx64-nvidia-cuda"),
            "{problem}"
        );
    }
}
