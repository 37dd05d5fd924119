//! Tests a crate of kernels outside the repository, as a user would write it. The crate builds,
//! runs on the host, and contains PTX if a compiler for PTX is installed.

use peerweave_build::Toolchain;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = r#"
[package]
name = "stranger"
version = "0.1.0"
edition = "2024"

[workspace]

[dependencies]
peerweave-device = { path = "CRATES/peerweave-device" }

# Only the host program launches kernels. The crate is not built for GPUs.
[target.'cfg(not(target_arch = "nvptx64"))'.dependencies]
peerweave = { path = "CRATES/peerweave", optional = true }

[build-dependencies]
peerweave-build = { path = "CRATES/peerweave-build" }

[features]
program = ["peerweave"]

[[bin]]
name = "stranger"
required-features = ["program"]
"#;

const BUILD: &str = "fn main() {\n    peerweave_build::Kernels::new().architectures(&[70]).build();\n}\n";

const LIBRARY: &str = r"
//! Kernels of a crate outside the repository.
#![no_std]

use peerweave_device::prelude::*;

/// Arguments of the kernel.
#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
pub struct Buffers {
    pub source: SymSlice<f32>,
    pub target: SymSlice<f32>,
}

/// Puts this PE's elements, times `factor`, to the next PE.
#[kernel]
pub fn shift(ctx: &Context, buffers: Buffers, factor: f32) -> Result<(), Failed> {
    let next = (ctx.my_pe() + 1) % ctx.n_pes();
    let source = ctx.local(buffers.source);
    for i in (gpu::thread_rank() as usize..source.len()).step_by(gpu::block_threads() as usize) {
        source.write(i, factor * source.read(i));
    }
    gpu::sync_threads();
    ctx.put_block(buffers.target, buffers.source, next);
    ctx.barrier_all_block()
}
";

const PROGRAM: &str = r#"
use peerweave::{Result, on_threads};
use stranger::{Buffers, shift};

fn main() {
    let received = on_threads(3, |world| -> Result<f32> {
        let stream = world.stream()?;
        let (source, target) = (world.alloc::<f32>(100)?, world.alloc_zeroed::<f32>(100)?);
        source.fill(world.my_pe().get() as f32 + 1.0)?;
        let buffers = Buffers { source: source.view(), target: target.view() };
        stream.launch(&shift::KERNEL, 1, 64, (buffers, 10.0))?.wait()?;
        target.load(99)
    });
    for (pe, received) in received.unwrap().into_iter().enumerate() {
        println!("PE {pe} received {}", received.unwrap());
    }
    let ptx = shift::KERNEL.ptx();
    println!("problem: {}", ptx.problem.lines().next().unwrap_or("none"));
    for variant in ptx.variants {
        println!("sm_{}: {}", variant.sm, variant.text.contains(".visible .entry shift("));
    }
}
"#;

/// Writes the test crate to a folder outside the repository, and returns the folder.
fn write_crate(name: &str) -> PathBuf {
    let crates =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the manifest of peerweave-build lies in the folder of crates");
    let folder = std::env::temp_dir().join(format!("peerweave-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("src")).unwrap();
    let put = |file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
    put("Cargo.toml", &MANIFEST.replace("CRATES", crates.to_str().expect("the path of the repository is UTF-8")));
    put("build.rs", BUILD);
    put("src/lib.rs", LIBRARY);
    put("src/main.rs", PROGRAM);
    // Uses the versions of dependencies with which the repository is tested.
    let lock = crates.parent().expect("the folder of crates has a parent, the repository").join("Cargo.lock");
    fs::copy(lock, folder.join("Cargo.lock")).unwrap();
    folder
}

/// Runs the program of the test crate with the environment variables, and returns its standard
/// output.
fn run(folder: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(folder).args(["run", "--quiet", "--features", "program"]);
    // The target directory lies outside of the folder, so that a later test run reuses the build.
    command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("stranger"));
    for name in ["RUSTC", "RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "PEERWEAVE_PTX", "PEERWEAVE_PTX_RUSTC"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{variables:?}: {}\n{said}\n{printed}", output.status);
    printed.into_owned()
}

const RECEIVED: &str = "PE 0 received 30\nPE 1 received 10\nPE 2 received 20\n";

#[test]
fn external_kernel_crate_runs_with_and_without_a_ptx_compiler() {
    let folder = write_crate("stranger");
    // If no compiler for PTX is found, the program builds and runs without PTX, and prints the
    // packages to install.
    let printed = run(&folder, &[("PEERWEAVE_PTX_RUSTC", "/nowhere/rustc")]);
    assert!(printed.starts_with(RECEIVED), "{printed}");
    assert!(printed.contains("problem: PEERWEAVE_PTX_RUSTC is /nowhere/rustc") && printed.contains("rust-web-src"), "{printed}");

    // Prefers Debian's compiler, even if other compilers are installed.
    let debian = Path::new("/usr/lib/rustlib/src/rust/library/core").is_dir();
    let mut with_compiler = vec![("PEERWEAVE_PTX", "require")];
    if debian {
        with_compiler.push(("PEERWEAVE_PTX_RUSTC", "/usr/bin/rustc"));
    }
    match Toolchain::find() {
        Ok(_) => {
            let printed = run(&folder, &with_compiler);
            assert_eq!(printed, format!("{RECEIVED}problem: none\nsm_70: true\n"));
        }
        Err(problem) => {
            let wanted = std::env::var_os("PEERWEAVE_REQUIRE").is_some_and(|wanted| wanted.to_string_lossy().contains("ptx"));
            assert!(!wanted, "{problem}");
            eprintln!("PTX is not checked: {problem}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}
