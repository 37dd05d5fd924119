//! One kernel for each primitive of `peerweave-device`, and the single instruction expected in it.
//!
//! The kernels are generated from the same lists as the expected instructions, and compiled like
//! any crate of kernels.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use peerweave_build::{Request, Toolchain, Variant};

use super::{Outcome, PtxError, barriers, text};

/// A call of a primitive, with the instruction expected for it.
struct Probe {
    /// The Rust expression that calls the primitive; may use the parameters in [`PARAMETERS`].
    call: String,
    /// The expected instruction that accesses or orders memory.
    expected: String,
}

/// The parameters of every probe.
const PARAMETERS: &str = "p32: *mut u32, p64: *mut u64, i32_: *mut i32, i64_: *mut i64, f32_: *mut f32, f64_: *mut f64, \
                          line: *mut u128, bytes: *mut u8, a: u32, b: u64, out: *mut u64";

const REACHES: [(&str, &str); 3] = [("Cta", "cta"), ("Gpu", "gpu"), ("Sys", "sys")];
const ORDERS: [(&str, &str); 4] = [("Relaxed", "relaxed"), ("Acquire", "acquire"), ("Release", "release"), ("AcqRel", "acq_rel")];

/// For each type: the Rust type, a pointer, a value, and PTX's types for bits, additions and
/// comparisons.
const INTEGERS: [(&str, &str, &str, &str, &str, &str); 4] = [
    ("u32", "p32", "a", "b32", "u32", "u32"),
    ("i32", "i32_", "a as i32", "b32", "s32", "s32"),
    ("u64", "p64", "b", "b64", "u64", "u64"),
    ("i64", "i64_", "b as i64", "b64", "u64", "s64"),
];

fn probes(sm: u32) -> Vec<Probe> {
    let mut all = Vec::new();
    let mut add = |call: String, expected: String| all.push(Probe { call, expected });
    for (reach, scope) in REACHES {
        for (t, p, value, bits) in [("u32", "p32", "a", "b32"), ("u64", "p64", "b", "b64")] {
            for order in ["relaxed", "acquire"] {
                let call = format!("out.write(<{t} as gpu::Access<gpu::{reach}>>::load_{order}({p}) as u64)");
                add(call, format!("ld.{order}.{scope}.global.{bits}"));
            }
            for order in ["relaxed", "release"] {
                let call = format!("<{t} as gpu::Access<gpu::{reach}>>::store_{order}({p}, {value})");
                add(call, format!("st.{order}.{scope}.global.{bits}"));
            }
        }
        add(format!("<gpu::{reach} as gpu::Fence>::acq_rel()"), format!("fence.acq_rel.{scope}"));
        add(format!("<gpu::{reach} as gpu::Fence>::seq_cst()"), format!("fence.sc.{scope}"));
        for (order, semantics) in ORDERS {
            for (t, p, value, bits, plus, compare) in INTEGERS {
                let rmw = format!("<{t} as gpu::Rmw<gpu::{reach}, gpu::{order}>>");
                let prefix = format!("atom.{semantics}.{scope}.global");
                for (name, operation) in [
                    ("fetch_add", format!("add.{plus}")),
                    ("fetch_and", format!("and.{bits}")),
                    ("fetch_or", format!("or.{bits}")),
                    ("fetch_xor", format!("xor.{bits}")),
                    ("fetch_min", format!("min.{compare}")),
                    ("fetch_max", format!("max.{compare}")),
                    ("swap", format!("exch.{bits}")),
                ] {
                    add(format!("out.write({rmw}::{name}({p}, {value}) as u64)"), format!("{prefix}.{operation}"));
                }
                add(format!("out.write({rmw}::compare_swap({p}, {value}, {value}) as u64)"), format!("{prefix}.cas.{bits}"));
            }
            for (t, p, value) in [("f32", "f32_", "f32::from_bits(a)"), ("f64", "f64_", "f64::from_bits(b)")] {
                add(
                    format!(
                        "out.write(<{t} as gpu::FloatAdd<gpu::{reach}, gpu::{order}>>::fetch_add({p}, {value}).to_bits() as u64)"
                    ),
                    format!("atom.{semantics}.{scope}.global.add.{t}"),
                );
            }
            // Before sm_90 there is no atomic addition to bf16, so a loop of compare-and-swap
            // replaces the addition.
            for t in ["f16", "bf16"].into_iter().filter(|t| *t == "f16" || sm >= 90) {
                let value = format!("peerweave_device::types::{t}");
                let call = format!(
                    "<{value} as gpu::FloatAdd<gpu::{reach}, gpu::{order}>>::fetch_add(bytes.cast(), {value}::from_bits(a as u16))"
                );
                add(format!("out.write({call}.to_bits() as u64)"), format!("atom.{semantics}.{scope}.global.add.noftz.{t}"));
            }
        }
        for (order, semantics) in [ORDERS[0], ORDERS[2]] {
            for (t, p, value, bits, plus, compare) in INTEGERS {
                let reduce = format!("<{t} as gpu::Reduce<gpu::{reach}, gpu::{order}>>");
                for (name, operation) in [
                    ("add", format!("add.{plus}")),
                    ("and", format!("and.{bits}")),
                    ("or", format!("or.{bits}")),
                    ("xor", format!("xor.{bits}")),
                    ("min", format!("min.{compare}")),
                    ("max", format!("max.{compare}")),
                ] {
                    add(format!("{reduce}::{name}({p}, {value})"), format!("red.{semantics}.{scope}.global.{operation}"));
                }
            }
        }
    }
    add("let [x, y] = gpu::load_line_relaxed(line); out.write(x ^ y)".into(), "ld.relaxed.sys.global.b128".into());
    add("gpu::store_line_relaxed(line, [b, b])".into(), "st.relaxed.sys.global.b128".into());
    words(&mut add);
    vectors(&mut add);
    if sm >= 90 {
        newer(&mut add);
    }
    all
}

/// Adds the primitives for 64-bit words, which the synchronisation protocols use.
fn words(add: &mut impl FnMut(String, String)) {
    let word = "gpu::Word64::at(p64 as u64)";
    for (call, expected) in [
        ("out.write(W.load_relaxed())", "ld.relaxed.sys.global.b64"),
        ("out.write(W.load_acquire())", "ld.acquire.sys.global.b64"),
        ("W.store_relaxed(b)", "st.relaxed.sys.global.b64"),
        ("W.store_release(b)", "st.release.sys.global.b64"),
        ("W.add_release(b)", "red.release.sys.global.add.u64"),
        ("<gpu::Word64 as Word>::fence_release()", "fence.acq_rel.sys"),
        ("<gpu::Word64 as Word>::fence_acquire()", "fence.acq_rel.sys"),
        ("put_signal::signal(W, b, SignalOp::Set)", "st.release.sys.global.b64"),
        ("put_signal::signal(W, b, SignalOp::Add)", "red.release.sys.global.add.u64"),
    ] {
        add(call.replace('W', word).replace(&format!("{word}ord"), "Word"), expected.into());
    }
}

/// Adds the primitives used by copies.
fn vectors(add: &mut impl FnMut(String, String)) {
    for (name, space) in [("global", "global."), ("generic", ""), ("relaxed", "relaxed.sys.global.")] {
        add(format!("let [x, y] = gpu::load_vector_{name}(bytes); out.write(x ^ y)"), format!("ld.{space}v2.b64"));
        add(format!("gpu::store_vector_{name}(bytes, [b, b])"), format!("st.{space}v2.b64"));
    }
    for (t, bits, value) in [("u8", "b8", "b as u8"), ("u16", "b16", "b as u16"), ("u32", "b32", "a"), ("u64", "b64", "b")] {
        for (form, space) in [("global", "global."), ("generic", ""), ("strong", "relaxed.sys.global.")] {
            let piece = format!("<{t} as gpu::Piece>");
            add(format!("out.write({piece}::load_{form}(bytes.cast()) as u64)"), format!("ld.{space}{bits}"));
            add(format!("{piece}::store_{form}(bytes.cast(), {value})"), format!("st.{space}{bits}"));
        }
    }
    add("out.write(gpu::load_constant(p64))".into(), "ld.global.b64".into());
}

/// Adds the primitives of sm_90.
fn newer(add: &mut impl FnMut(String, String)) {
    add("gpu::bulk::start_store(bytes, a, a)".into(), "cp.async.bulk.global.shared::cta.bulk_group".into());
    add("gpu::bulk::commit()".into(), "cp.async.bulk.commit_group".into());
    add("gpu::bulk::wait_read::<0>()".into(), "cp.async.bulk.wait_group.read".into());
    add("gpu::bulk::wait_written()".into(), "cp.async.bulk.wait_group".into());
    add("gpu::bulk::fence_global()".into(), "fence.proxy.async.global".into());
    add("gpu::bulk::fence_shared()".into(), "fence.proxy.async.shared::cta".into());
    add("gpu::bulk::invalidate(a)".into(), "mbarrier.inval.shared::cta.b64".into());
    add("out.write(gpu::bulk::test(a, 0) as u64)".into(), "mbarrier.try_wait.parity.shared::cta.b64".into());
    for (t, p, value, bits, plus, compare) in INTEGERS {
        let sum = format!("<{t} as gpu::multimem::Multimem>");
        add(format!("{sum}::store({p}, {value})"), format!("multimem.st.relaxed.sys.global.{compare}"));
        add(format!("out.write({sum}::load_add({p}) as u64)"), format!("multimem.ld_reduce.relaxed.sys.global.add.{plus}"));
        add(format!("{sum}::reduce_add({p}, {value})"), format!("multimem.red.relaxed.sys.global.add.{plus}"));
        for operation in ["min", "max"] {
            let order = format!("<{t} as gpu::multimem::MultimemOrd>");
            let load = format!("multimem.ld_reduce.relaxed.sys.global.{operation}.{compare}");
            add(format!("out.write({order}::load_{operation}({p}) as u64)"), load);
            let reduce = format!("multimem.red.relaxed.sys.global.{operation}.{compare}");
            add(format!("{order}::reduce_{operation}({p}, {value})"), reduce);
        }
        for operation in ["and", "or", "xor"] {
            let load = format!("multimem.ld_reduce.relaxed.sys.global.{operation}.{bits}");
            add(format!("out.write(<{t} as gpu::multimem::MultimemBits>::load_{operation}({p}) as u64)"), load);
        }
    }
    for (t, lanes, sum) in [("F32x4", "f32", "add"), ("F16x8", "f16x2", "add.acc::f32"), ("Bf16x8", "bf16x2", "add.acc::f32")] {
        let vector = format!("<gpu::multimem::{t} as gpu::multimem::Multimem>");
        let value = format!("gpu::multimem::{t}([a; 4])");
        add(format!("{vector}::store(bytes.cast(), {value})"), format!("multimem.st.relaxed.sys.global.v4.{lanes}"));
        add(
            format!("out.write({vector}::load_add(bytes.cast()).0[1] as u64)"),
            format!("multimem.ld_reduce.relaxed.sys.global.{sum}.v4.{lanes}"),
        );
        add(format!("{vector}::reduce_add(bytes.cast(), {value})"), format!("multimem.red.relaxed.sys.global.add.v4.{lanes}"));
    }
}

/// Compiles the probes for each architecture and compares their instructions with the expected
/// instructions. Also returns the path of the PTX.
pub(super) fn check(root: &Path, toolchain: &Toolchain, target_dir: &Path) -> Result<Vec<(Variant, PathBuf, Outcome)>, PtxError> {
    let mut outcomes = Vec::new();
    for sm in [70, 90] {
        let home = target_dir.join(format!("probes-sm_{sm}"));
        let probes = probes(sm);
        write(&home, &root.join("crates"), &probes)?;
        let request = Request {
            manifest: home.join("Cargo.toml"),
            package: "probes".to_owned(),
            target_dir: target_dir.to_owned(),
            features: None,
            variant: Variant { sm, network: false },
        };
        let (ptx, _) = peerweave_build::compile(toolchain, &request)?;
        let path = home.join("probes.ptx");
        fs::write(&path, &ptx).map_err(|error| PtxError::File { path: path.clone(), error })?;
        let mut outcome = compare(&ptx, &probes);
        outcome.faults.extend(barriers::fault(&ptx, "probe_barrier", 1));
        outcomes.push((request.variant, path, outcome));
    }
    Ok(outcomes)
}

/// A kernel with a barrier that returns a value, between branches on that value. A compiler that
/// may duplicate barriers does so in this kernel.
const BARRIER: &str = "
#[unsafe(no_mangle)]
pub unsafe extern \"ptx-kernel\" fn probe_barrier(word: *mut u64, value: u64, out: *mut u64) {
    let mut outcome = Ok(());
    if gpu::warp() == 0 {
        let mut looks = 0;
        while unsafe { gpu::Word64::at(word as u64) }.load_acquire() != value && outcome.is_ok() {
            looks += 1;
            if looks == 1000 { outcome = Err(()) }
        }
    }
    let failed = gpu::sync_threads_or(outcome.is_err());
    unsafe { out.write(if failed { if outcome.is_err() { 1 } else { 2 } } else { 3 }) };
}";

/// Writes the crate of the probes.
fn write(home: &Path, crates: &Path, probes: &[Probe]) -> Result<(), PtxError> {
    let mut source = String::from(
        "#![no_std]\n#![allow(unused)]\nuse peerweave_device::{Word, gpu, prelude::*, put_signal};\n\
         #[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { gpu::trap() }\n",
    );
    for (index, Probe { call, .. }) in probes.iter().enumerate() {
        writeln!(
            source,
            "#[unsafe(no_mangle)]\npub unsafe extern \"ptx-kernel\" fn probe_{index}({PARAMETERS}) {{ unsafe {{ {call}; }} }}"
        )
        .expect("writing to a string succeeds");
    }
    writeln!(source, "{BARRIER}").expect("writing to a string succeeds");
    let manifest = format!(
        "[package]\nname = \"probes\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         peerweave-device = {{ path = {:?} }}\n",
        crates.join("peerweave-device")
    );
    for (path, text) in [(home.join("Cargo.toml"), &manifest), (home.join("src").join("lib.rs"), &source)] {
        let folder = path.parent().expect("the path has a parent directory");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| PtxError::File { path: path.clone(), error })?;
    }
    Ok(())
}

/// Checks that each entry has the expected instruction and no other instruction that accesses or
/// orders memory.
fn compare(ptx: &str, probes: &[Probe]) -> Outcome {
    let mut outcome = Outcome::default();
    for (index, Probe { call, expected }) in probes.iter().enumerate() {
        let Some(body) = text::body(ptx, &format!("probe_{index}")) else {
            outcome.faults.push(format!("the PTX lacks the kernel for the call `{call}`"));
            continue;
        };
        let found: Vec<&str> = text::instructions(body)
            .map(text::operation)
            .filter(|operation| {
                let kind = operation.split('.').next().unwrap_or_default();
                ["ld", "st", "atom", "red", "fence", "membar", "multimem", "cp", "mbarrier"].contains(&kind)
                    && !operation.starts_with("ld.param")
                    // Except the store of the probe's own result.
                    && !(*operation == "st.global.b64" && call.contains("out.write("))
            })
            .collect();
        if found == [expected] {
            outcome.checked += 1;
        } else {
            outcome.faults.push(format!("the call `{call}` is compiled to {found:?}, expected `{expected}`"));
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_with_an_unexpected_ptx_instruction_is_reported() {
        let probe = |expected: &str| [Probe { call: "x".into(), expected: expected.into() }];
        let ptx = ".visible .entry probe_0(\n)\n{\n\tld.param.b64 %rd1, [p];\n\tatom.global.add.u64 %rd2, [%rd1], 1;\n}\n";
        assert_eq!(compare(ptx, &probe("atom.acq_rel.sys.global.add.u64")).faults.len(), 1);
        assert_eq!(compare(ptx, &probe("atom.global.add.u64")).checked, 1);
        assert_eq!(compare("", &probe("fence.acq_rel.sys")).faults.len(), 1);
    }
}
