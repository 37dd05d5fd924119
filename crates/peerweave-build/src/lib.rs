//! Compiles a crate of kernels to PTX, and embeds the PTX in the crate. The crate's `build.rs`
//! calls this library.
//!
//! A complete `build.rs`:
//!
//! ```no_run
//! # #[allow(clippy::needless_doctest_main)]
//! fn main() {
//!     peerweave_build::kernels();
//! }
//! ```
//!
//! The build script starts a second Cargo, which has its own target directory and compiles the
//! crate for `nvptx64-nvidia-cuda`. The second Cargo runs the same build script, which does nothing
//! in that case. When the first Cargo then compiles the crate, `#[kernel]` includes the PTX from
//! `OUT_DIR`.
//!
//! If no compiler for PTX is installed, the crate is built without PTX. A launch on a GPU then
//! fails with an error that names the packages to install.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `PEERWEAVE_PTX` | `auto` (the default), `off` (builds no PTX), `require` (fails if the PTX cannot be built) |
//! | `PEERWEAVE_PTX_RUSTC` | the only `rustc` to use |
//!
//! ```text
//!   toolchain.rs  finds a rustc that has, or can build, `core` for the target
//!   compile.rs    runs the second Cargo
//!   ptx.rs        lists the kernels and the undefined functions of a PTX text
//!   embed.rs      writes the file that `#[kernel]` includes
//! ```

/// The README, whose examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod compile;
mod embed;
mod ptx;
mod toolchain;

pub use compile::{Request, compile};
pub use ptx::{entries, undefined};
pub use toolchain::{Core, Toolchain};

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// Target triple for which kernels are compiled.
pub const TARGET: &str = "nvptx64-nvidia-cuda";

/// A variant of a crate's PTX: the architecture for which the kernels are compiled, and whether the
/// kernels call NVSHMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// The lowest GPU architecture that can run the PTX: 90 means `sm_90`.
    pub sm: u32,
    /// Whether the variant calls NVSHMEM's device library (feature `nvshmem` of
    /// `peerweave-device`).
    pub network: bool,
}

impl Variant {
    /// Returns the name of the file that contains the variant, such as `mapped-sm_90.ptx`.
    pub fn file_name(self) -> String {
        format!("{}-sm_{}.ptx", if self.network { "network" } else { "mapped" }, self.sm)
    }

    /// Returns the variant whose [`file_name`](Self::file_name) is `name`; `None` for other names.
    fn of_file(name: &str) -> Option<Self> {
        let (flavour, sm) = name.strip_suffix(".ptx")?.split_once("-sm_")?;
        let network = match flavour {
            "mapped" => false,
            "network" => true,
            _ => return None,
        };
        Some(Self { sm: sm.parse().ok()?, network })
    }
}

/// The reason why the PTX could not be built. In most cases, the text also names a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

/// Compiles the kernels of the crate whose `build.rs` calls this function. The PTX has two
/// variants: one for GPUs from `sm_70` on, and one for GPUs from `sm_90` on.
///
/// # Panics
/// Panics if the function is called outside of a build script, or if `PEERWEAVE_PTX` has an unknown
/// value. With `PEERWEAVE_PTX=require`, also panics if the PTX cannot be built.
pub fn kernels() {
    Kernels::new().build();
}

/// A builder that compiles a crate of kernels with options. The function [`kernels`] uses the
/// default options.
#[derive(Clone, Debug)]
#[must_use]
pub struct Kernels {
    variants: Vec<Variant>,
    require: bool,
    on_request: bool,
}

impl Default for Kernels {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernels {
    /// Returns a builder with the default options: one variant for GPUs from `sm_70` on, one for
    /// GPUs from `sm_90` on, and no variant that calls NVSHMEM.
    pub fn new() -> Self {
        Self { variants: [70, 90].map(|sm| Variant { sm, network: false }).to_vec(), require: false, on_request: false }
    }

    /// Replaces the GPU architectures for which the kernels are compiled. Each number adds one
    /// variant; 90 means `sm_90`. If [`network`](Self::network) has been called, each number also
    /// adds a variant that calls NVSHMEM.
    pub fn architectures(mut self, architectures: &[u32]) -> Self {
        let network = self.variants.iter().any(|variant| variant.network);
        self.variants = architectures.iter().map(|&sm| Variant { sm, network: false }).collect();
        if network { self.network() } else { self }
    }

    /// Adds, for each architecture, a variant that calls NVSHMEM's device library. The kernels of
    /// such a variant can also access PEs whose memory is not mapped.
    pub fn network(mut self) -> Self {
        let more: Vec<Variant> = self.variants.iter().map(|variant| Variant { network: true, ..*variant }).collect();
        self.variants.extend(more);
        self.variants.sort_unstable();
        self.variants.dedup();
        self
    }

    /// Makes the build fail if the PTX cannot be built, as `PEERWEAVE_PTX=require` does. The
    /// settings `PEERWEAVE_PTX=off` and [`on_request`](Self::on_request) have priority over this
    /// option.
    pub fn require(mut self) -> Self {
        self.require = true;
        self
    }

    /// Compiles the kernels only if `PEERWEAVE_PTX=require` is set. This option is useful for
    /// kernels that take minutes to compile.
    pub fn on_request(mut self) -> Self {
        self.on_request = true;
        self
    }

    /// Compiles the kernels, and writes the file that `#[kernel]` includes.
    ///
    /// # Panics
    /// Panics in the same cases as [`kernels`]. If [`require`](Self::require) has been called, also
    /// panics if the PTX cannot be built.
    pub fn build(self) {
        println!("cargo::rerun-if-env-changed=PEERWEAVE_PTX");
        println!("cargo::rerun-if-env-changed=PEERWEAVE_PTX_RUSTC");
        if in_second_cargo() {
            return;
        }
        let out = PathBuf::from(variable("OUT_DIR"));
        let mode = env::var("PEERWEAVE_PTX").unwrap_or_default();
        let require = match mode.as_str() {
            "" | "auto" if self.on_request => {
                return not_built(&out, "the PTX is built only on request: set PEERWEAVE_PTX=require and build again");
            }
            "" | "auto" => self.require,
            "off" => {
                return not_built(
                    &out,
                    "the PTX was not built, because PEERWEAVE_PTX is off: unset PEERWEAVE_PTX and build again",
                );
            }
            "require" => true,
            other => panic!("PEERWEAVE_PTX is {other:?}, expected auto, off or require"),
        };
        let outcome = self.compile_all(&out);
        if let Err(problem) = &outcome {
            assert!(!require, "cannot build PTX for the kernels of {}: {problem}", variable("CARGO_PKG_NAME"));
            println!("cargo::warning=no PTX for GPUs: {}", problem.0.lines().next().unwrap_or_default());
        }
        embed::write(&out, &outcome);
    }

    fn compile_all(&self, out: &Path) -> Result<Vec<(Variant, String)>, Problem> {
        let toolchain = Toolchain::find().inspect_err(|_| watch(&[]))?;
        let mut sources = Vec::new();
        let outcome = self.compile_each(&toolchain, out, &mut sources);
        if outcome.is_err() {
            // If the crate does not compile, its source files are unknown. This file does not
            // exist, so Cargo runs the build script at every build.
            sources.push(out.join("not-built"));
        }
        watch(&sources);
        outcome
    }

    fn compile_each(
        &self,
        toolchain: &Toolchain,
        out: &Path,
        sources: &mut Vec<PathBuf>,
    ) -> Result<Vec<(Variant, String)>, Problem> {
        let mut built = Vec::new();
        for &variant in &self.variants {
            let request = Request {
                manifest: PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("Cargo.toml"),
                package: variable("CARGO_PKG_NAME"),
                target_dir: target_dir(out),
                features: env::var("CARGO_CFG_FEATURE").ok(),
                variant,
            };
            let (text, read) = compile(toolchain, &request)?;
            sources.extend(read);
            built.push((variant, text));
        }
        Ok(built)
    }
}

/// Writes the file that `#[kernel]` includes, for a crate without PTX. A launch on a GPU then
/// returns an error that contains `reason`.
fn not_built(out: &Path, reason: &str) {
    watch(&[]);
    embed::write(out, &Err(Problem(reason.into())));
}

/// Embeds PTX files that the crate contains. This function needs no compiler for PTX, and is useful
/// for crates that are published with their PTX. `folder` is the path of the folder with the PTX
/// files, relative to the crate's directory. The files must have names that [`Variant::file_name`]
/// returns; other files are ignored.
///
/// If the folder contains no file with such a name, the kernels have no PTX and run only on the
/// host.
///
/// # Panics
/// Panics if the function is called outside of a build script, or if the folder or a PTX file
/// cannot be read.
pub fn committed(folder: &str) {
    if in_second_cargo() {
        return;
    }
    let folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join(folder);
    println!("cargo::rerun-if-changed={}", folder.display());
    let read = read_committed(&folder).unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    let none = || {
        Problem(format!(
            "the crate {} contains no PTX: its PTX folder has no file with a name such as mapped-sm_90.ptx",
            variable("CARGO_PKG_NAME")
        ))
    };
    let outcome = if read.is_empty() { Err(none()) } else { Ok(read) };
    embed::write(&PathBuf::from(variable("OUT_DIR")), &outcome);
}

/// Reads the PTX files in a folder. The name of a PTX file states its [`Variant`]; files with other
/// names are ignored. Returns each variant together with the text of its file, sorted by variant.
///
/// # Errors
/// Returns the I/O error if the folder or a PTX file cannot be read.
pub fn read_committed(folder: &Path) -> std::io::Result<Vec<(Variant, String)>> {
    let mut read = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(variant) = Variant::of_file(name) {
            read.push((variant, std::fs::read_to_string(&path)?));
        }
    }
    read.sort_unstable();
    Ok(read)
}

/// Returns whether this build script runs in the second Cargo. The build script of the first Cargo
/// has started the second Cargo, to compile the crate for the GPU.
fn in_second_cargo() -> bool {
    env::var("TARGET").is_ok_and(|target| target == TARGET) || env::var_os(compile::INSIDE).is_some()
}

fn variable(name: &str) -> String {
    env::var(name)
        .unwrap_or_else(|_| panic!("the environment variable {name} is not set; call this function only from a build script"))
}

/// Makes Cargo run the build script again when the crate or a file in `sources` changes.
fn watch(sources: &[PathBuf]) {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    for part in ["src", "Cargo.toml", "build.rs"] {
        let part = root.join(part);
        if part.exists() {
            println!("cargo::rerun-if-changed={}", part.display());
        }
    }
    for source in sources {
        println!("cargo::rerun-if-changed={}", source.display());
    }
}

/// Returns the target directory of the second Cargo, which compiles for the GPU. The directory is
/// inside the target directory of the Cargo that runs the build script. All crates of a workspace
/// therefore share the compiled `core`.
fn target_dir(out: &Path) -> PathBuf {
    let root = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    root.unwrap_or(out).join("peerweave-ptx")
}
