//! Runs a second Cargo, which compiles a crate for the GPU, and returns the crate's PTX.
//!
//! The first Cargo is the one that runs the build script. The second Cargo compiles the same
//! sources, but has its own target directory, flags and compiler.

use crate::toolchain::{Core, Toolchain, clean};
use crate::{Problem, TARGET, Variant, ptx};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that this crate sets for the second Cargo, which compiles for the GPU. The
/// value is the name of the package to compile. `#[kernel]` generates kernel entry points only in
/// this package.
pub(crate) const INSIDE: &str = "PEERWEAVE_PTX_PACKAGE";

/// Time limit of a build. The first build in a target directory also compiles `core` and all
/// dependencies.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Parameters of [`compile`]: the crate to compile, and the variant to build.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path of the crate's `Cargo.toml`.
    pub manifest: PathBuf,
    /// Name of the package.
    pub package: String,
    /// Target directory of the second Cargo, which compiles for the GPU. Crates with the same
    /// target directory share the compiled `core` and the compiled dependencies.
    pub target_dir: PathBuf,
    /// Features with which the package is compiled, separated by commas. `None` means the default
    /// features.
    pub features: Option<String>,
    /// The PTX variant to build.
    pub variant: Variant,
}

/// Compiles a crate of kernels. Returns the crate's PTX, and the source files of the crate and of
/// its path dependencies.
///
/// # Errors
/// [`Problem`] with the compiler's output if the crate cannot be compiled. [`Problem`] also if the
/// PTX calls functions that it does not define, or if a file cannot be created or read.
pub fn compile(toolchain: &Toolchain, request: &Request) -> Result<(String, Vec<PathBuf>), Problem> {
    let sm = request.variant.sm;
    let folder = request.target_dir.join(format!("sm_{sm}"));
    fs::create_dir_all(&folder).map_err(|error| Problem(format!("cannot create {}: {error}", folder.display())))?;
    // The PTX file is in the target directory, so that `cargo clean` deletes it together with
    // Cargo's fingerprints. A fingerprint without the PTX file would prevent a new compilation.
    let stem = format!("{}-{:016x}", request.package, hash(&request.manifest));
    let text_file = folder.join(format!("{stem}-{}", request.variant.file_name()));

    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    clean(&mut command);
    let immediate = toolchain.core == Core::Sources;
    let mut flags = vec![format!("-Ctarget-cpu=sm_{sm}"), format!("-Ctarget-feature=+{}", ptx_version(sm))];
    // Disables a pass of rustc that copies barriers into the paths of a branch. Threads of a warp
    // would then wait for each other at different instructions. LLVM's passes do not copy barriers.
    flags.push("-Zmir-enable-passes=-JumpThreading".into());
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
    // Unstable features are passed here, so that sources of kernels need none.
    command.args(["--crate-type=rlib", "--", "-Zcrate-attr=feature(abi_ptx)", "-Zcrate-attr=feature(asm_experimental_arch)"]);
    command.arg(format!("--emit=asm={}", text_file.display()));
    run(command, &folder.join(format!("{stem}.log")), toolchain)?;

    let text =
        fs::read_to_string(&text_file).map_err(|error| Problem(format!("cannot read {}: {error}", text_file.display())))?;
    let text = ptx::finish(&text);
    let missing: Vec<&str> = ptx::undefined(&text)
        .into_iter()
        .filter(|name| !(request.variant.network && name.starts_with("peerweave_nvshmem_")))
        .collect();
    if !missing.is_empty() {
        let advice = if immediate {
            "functions of other crates must be generic or `#[inline]` to be compiled into kernels"
        } else {
            "the precompiled core of this compiler has no functions for panics; run `rustup component add rust-src` to build a core without panics"
        };
        return Err(Problem(format!("the PTX calls undefined functions: {}. {advice}", missing.join(", "))));
    }
    Ok((text, sources(&folder, &request.package)))
}

/// Returns the target feature of `rustc` that selects a PTX version for the architecture `sm`.
/// Architectures from sm_100 on need PTX 8.6. Older architectures use PTX 8.4, which
/// `peerweave-device` needs for 128-bit atomics. PTX 8.4 requires a driver of CUDA 12.4 or newer.
fn ptx_version(sm: u32) -> &'static str {
    match sm {
        ..100 => "ptx84",
        _ => "ptx86",
    }
}

/// Runs a build, and waits until the build ends or exceeds the time limit. The output of the build
/// goes to the file `log`. A pipe would not be suitable, because a process that the build started
/// may outlive the build, and could keep the pipe open.
fn run(mut command: Command, log: &Path, toolchain: &Toolchain) -> Result<(), Problem> {
    let problem = |what: String| Problem(format!("{} ({}): {what}", toolchain.rustc.display(), toolchain.version));
    let file = fs::File::create(log).map_err(|error| problem(format!("cannot create {}: {error}", log.display())))?;
    let copy = file.try_clone().map_err(|error| problem(format!("cannot duplicate the handle of {}: {error}", log.display())))?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .spawn()
        .map_err(|error| problem(format!("cannot run {:?}: {error}", command.get_program())))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => {
                let text = fs::read_to_string(log).unwrap_or_default();
                return Err(problem(format!("the kernels do not compile for GPUs:\n{}", text.trim())));
            }
            Ok(None) if started.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // An error of `kill` is ignored, because the build has already failed.
                let _ = child.kill();
                let _ = child.wait();
                return Err(problem(format!("the build of the kernels timed out after {} s", DEADLINE.as_secs())));
            }
            Err(error) => return Err(problem(format!("cannot wait for the build: {error}"))),
        }
    }
}

/// Returns the source files of the package and of its path dependencies. Cargo's dep-info file
/// lists these files. Returns an empty list if the dep-info file cannot be read.
fn sources(folder: &Path, package: &str) -> Vec<PathBuf> {
    let name = format!("lib{}.d", package.replace('-', "_"));
    let Ok(text) = fs::read_to_string(folder.join(TARGET).join("release").join(name)) else { return Vec::new() };
    let Some((_, list)) = text.split_once(": ") else { return Vec::new() };
    // Spaces in file names are escaped by a backslash.
    let list = list.lines().next().unwrap_or_default().replace("\\ ", "\u{0}");
    list.split_whitespace().map(|path| PathBuf::from(path.replace('\u{0}', " "))).filter(|path| path.is_file()).collect()
}

/// Returns a hash of a path (FNV-1a). The hash distinguishes packages with the same name in
/// different directories.
fn hash(path: &Path) -> u64 {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
