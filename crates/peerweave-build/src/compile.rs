//! The second Cargo: compiles one crate for the GPU, and returns its PTX.
//!
//! It shares nothing with the build that started it but the sources: its target directory, flags and compiler are its own.

use crate::toolchain::{Core, Toolchain};
use crate::{Problem, TARGET, Variant, ptx};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set for the second Cargo, with the name of the package whose entries are compiled. `#[kernel]` writes entries for it alone.
pub(crate) const INSIDE: &str = "PEERWEAVE_PTX_PACKAGE";

/// How long one build may take: `core` and the crates below are part of the first.
const DEADLINE: Duration = Duration::from_secs(1800);

/// One crate, to be compiled for one variant.
#[derive(Clone, Debug)]
pub struct Request {
    /// The crate's manifest.
    pub manifest: PathBuf,
    /// The package.
    pub package: String,
    /// Where to build. Crates that are built with one directory share `core` and what they depend on.
    pub target_dir: PathBuf,
    /// Features of the package, separated by commas; `None`: its default ones.
    pub features: Option<String>,
    /// For what.
    pub variant: Variant,
}

/// Compiles a crate of kernels. Returns the PTX, and the files that it was compiled from, as far as they belong to no registry.
///
/// # Errors
/// [`Problem`], with what the compiler said; and where the PTX calls functions that it does not define.
pub fn compile(toolchain: &Toolchain, request: &Request) -> Result<(String, Vec<PathBuf>), Problem> {
    let sm = request.variant.sm;
    let folder = request.target_dir.join(format!("sm_{sm}"));
    fs::create_dir_all(&folder).map_err(|error| Problem(format!("{}: {error}", folder.display())))?;
    // As old as what Cargo takes for fresh: they lie in one directory.
    let stem = format!("{}-{:016x}", request.package, hash(&request.manifest));
    let text_file = folder.join(format!("{stem}-{}", request.variant.file_name()));

    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    clean(&mut command);
    let immediate = toolchain.core == Core::Sources;
    let mut flags = vec![format!("-Ctarget-cpu=sm_{sm}"), format!("-Ctarget-feature=+{}", ptx_version(sm))];
    if immediate {
        flags.extend(["-Zunstable-options", "-Cpanic=immediate-abort"].map(String::from));
    }
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", &toolchain.rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_TARGET_DIR", &folder)
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false")
        .env("CARGO_INCREMENTAL", "0")
        .env(INSIDE, &request.package)
        .args(["rustc", "--release", "--lib", "--quiet", "--color=never", "--target", TARGET, "--manifest-path"])
        .arg(&request.manifest)
        .args(["--package", &request.package]);
    if immediate {
        command.arg("-Zbuild-std=core");
    }
    if let Some(features) = &request.features {
        command.args(["--no-default-features", "--features", features]);
    }
    if request.variant.network {
        command.args(["--features", "peerweave-device/nvshmem"]);
    }
    // The compiler gets the unstable features here, so that sources of kernels name none.
    command.args(["--crate-type=rlib", "--", "-Zcrate-attr=feature(abi_ptx)", "-Zcrate-attr=feature(asm_experimental_arch)"]);
    command.arg(format!("--emit=asm={}", text_file.display()));
    run(command, &folder.join(format!("{stem}.log")), toolchain)?;

    let text = fs::read_to_string(&text_file).map_err(|error| Problem(format!("{}: {error}", text_file.display())))?;
    let text = ptx::finish(&text);
    let missing: Vec<&str> = ptx::undefined(&text)
        .into_iter()
        .filter(|name| !(request.variant.network && name.starts_with("peerweave_nvshmem_")))
        .collect();
    if !missing.is_empty() {
        let advice = if immediate {
            "a function of another crate that is neither generic nor `#[inline]` is not compiled into kernels"
        } else {
            "core was found compiled, without what panics: `rustup component add rust-src` lets it be built without panics"
        };
        return Err(Problem(format!("the PTX calls functions that it does not define: {}. {advice}", missing.join(", "))));
    }
    Ok((text, sources(&folder, &request.package)))
}

/// The version of PTX that the instructions of `peerweave-device` need, as a feature of the target: 8.4 has 128-bit atomics, and
/// drivers read it from CUDA 12.4 on.
fn ptx_version(sm: u32) -> &'static str {
    match sm {
        ..100 => "ptx84",
        _ => "ptx86",
    }
}

/// Takes away what the outer Cargo, clippy and rustdoc have set for their own compiler.
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
    // Cargo puts its compiler's libraries in front; another compiler must not load those.
    if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
        let foreign = |path: &Path| path.join("rustlib").is_dir() || path.ancestors().any(|up| up.join("CACHEDIR.TAG").is_file());
        match env::join_paths(env::split_paths(&paths).filter(|path| !foreign(path))) {
            Ok(kept) if !kept.is_empty() => command.env("LD_LIBRARY_PATH", kept),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
}

/// Runs a build to its end; its output goes into a file, so that a child of it that lives on holds nothing up.
fn run(mut command: Command, log: &Path, toolchain: &Toolchain) -> Result<(), Problem> {
    let problem = |what: String| Problem(format!("{} ({}): {what}", toolchain.rustc.display(), toolchain.version));
    let file = fs::File::create(log).map_err(|error| problem(format!("{}: {error}", log.display())))?;
    let copy = file.try_clone().map_err(|error| problem(error.to_string()))?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .spawn()
        .map_err(|error| problem(format!("{:?} cannot be run: {error}", command.get_program())))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => {
                let text = fs::read_to_string(log).unwrap_or_default();
                return Err(problem(format!("the kernels do not compile for GPUs:\n{}", text.trim())));
            }
            Ok(None) if started.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // The outcome of the kill does not matter: the build has failed either way.
                let _ = child.kill();
                let _ = child.wait();
                return Err(problem(format!("timed out after {} s", DEADLINE.as_secs())));
            }
            Err(error) => return Err(problem(error.to_string())),
        }
    }
}

/// The files that Cargo compiled the package and its path dependencies from.
fn sources(folder: &Path, package: &str) -> Vec<PathBuf> {
    let name = format!("lib{}.d", package.replace('-', "_"));
    let Ok(text) = fs::read_to_string(folder.join(TARGET).join("release").join(name)) else { return Vec::new() };
    let Some((_, list)) = text.split_once(": ") else { return Vec::new() };
    // Spaces inside of names are written with a backslash.
    let list = list.lines().next().unwrap_or_default().replace("\\ ", "\u{0}");
    list.split_whitespace().map(|path| PathBuf::from(path.replace('\u{0}', " "))).filter(|path| path.is_file()).collect()
}

/// Keeps packages of one name, from different folders, apart (FNV-1a).
fn hash(path: &Path) -> u64 {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
