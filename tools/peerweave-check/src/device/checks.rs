//! Checks every function that kernels call, with the kernels of `peerweave-check-kernels`.

use peerweave_check_kernels::{FINISHED, RESULT_WORDS, atomic, collective, rma, signal, team, wait};
use peerweave_check_kernels::{for_each_collective, for_each_rma};
use peerweave_cuda::{Gpu, LaunchConfig, Symmetric};
use peerweave_device::launch::Kernel;
use peerweave_types::{KernelArgs, KernelTeam, bf16, f16};

use super::Outcome;
use super::rows::Rows;

/// Number of threads of a block: two full warps and a part of a third warp.
const THREADS: u32 = 72;

/// Runs a kernel on all PEs and compares the values that the kernel wrote. A failure on one PE is
/// an error on all PEs, so that all PEs free or keep the same memory.
fn check<A: KernelArgs>(gpu: &Gpu, kernel: &Kernel<A>, blocks: u32, result: Symmetric<u64>, args: A) -> Outcome {
    let loaded = gpu.load(kernel).map(drop);
    gpu.barrier("loaded")?;
    let stream = gpu.stream()?;
    let config = LaunchConfig::new(blocks, THREADS).shared_bytes(1024).cooperative();
    let ran = loaded.and_then(|()| stream.launch_with(kernel, config, args)).and_then(|()| result.read(&stream));
    let outcome = ran.map_err(|error| error.to_string()).and_then(|found| match found[..4] {
        [0, ..] if found[RESULT_WORDS - 1] == FINISHED => Ok(()),
        [0, ..] => Err("the kernel did not write its last word, so the kernel did not complete".to_owned()),
        [count, line, value, expected] => {
            Err(format!("{count} wrong values; the first, at source line {line}, is {value:#x}, expected {expected:#x}"))
        }
        _ => Err(format!("the result of the kernel has {} words, expected {RESULT_WORDS}", found.len())),
    });
    let text = outcome.as_ref().err().cloned().unwrap_or_default();
    let all = gpu.rendezvous().exchange("check device/outcome", text.as_bytes())?;
    if let Some(failed) = all.iter().position(|text| !text.is_empty()) {
        gpu.recover()?;
        outcome?;
        return Err(format!("the kernel failed on PE {failed}").into());
    }
    Ok(gpu.free(result)?)
}

pub(crate) fn run(gpu: &Gpu, table: &mut Rows) {
    table.check("load all kernels of the part `checks`", || Ok(gpu.load_crate(signal::check_signal::KERNEL.ptx())?));
    let n = gpu.n_pes() as usize;
    macro_rules! rma {
        ($($t:ty: $($kernel:ident),*;)*) => {$($(
            table.check(stringify!($kernel), || {
                let (send, recv) = (gpu.alloc::<$t>(rma::ELEMENTS)?, gpu.alloc::<$t>(rma::ELEMENTS)?);
                let (signal, result) = (gpu.alloc::<u64>(1)?, gpu.alloc::<u64>(RESULT_WORDS)?);
                let args = (send.slice(), recv.slice(), signal.slice(), result.slice());
                check(gpu, &rma::$kernel::KERNEL, 1, result, args)?;
                gpu.free(send)?;
                gpu.free(recv)?;
                Ok(gpu.free(signal)?)
            });
        )*)*};
    }
    macro_rules! words {
        ($($module:ident, $t:ty: $kernel:ident),*) => {$(
            table.check(stringify!($kernel), || {
                let (words, result) = (gpu.alloc::<$t>($module::WORDS)?, gpu.alloc::<u64>(RESULT_WORDS)?);
                let args = (words.slice(), result.slice());
                check(gpu, &$module::$kernel::KERNEL, 1, result, args)?;
                Ok(gpu.free(words)?)
            });
        )*};
    }
    macro_rules! collectives {
        ($($t:ty, $operators:ident: $($kernel:ident),*;)*) => {$($(
            table.check(stringify!($kernel), || {
                let elements = collective::ELEMENTS * n;
                let (send, recv) = (gpu.alloc::<$t>(elements)?, gpu.alloc::<$t>(elements)?);
                let result = gpu.alloc::<u64>(RESULT_WORDS)?;
                let args = (KernelTeam::WORLD, send.slice(), recv.slice(), result.slice());
                check(gpu, &collective::$kernel::KERNEL, 1, result, args)?;
                gpu.free(send)?;
                Ok(gpu.free(recv)?)
            });
        )*)*};
    }
    for_each_rma!(rma);
    words!(signal, u64: check_signal);
    words!(wait, i32: check_wait_i32, wait, u32: check_wait_u32, wait, i64: check_wait_i64, wait, u64: check_wait_u64);
    words!(atomic, i32: check_atomic_i32, atomic, u32: check_atomic_u32, atomic, i64: check_atomic_i64, atomic, u64: check_atomic_u64);
    words!(atomic, f32: check_atomic_f32, atomic, f64: check_atomic_f64);
    words!(atomic, f16: check_atomic_f16, atomic, bf16: check_atomic_bf16);
    table.check("check_team_all", || {
        let (words, result) = (gpu.alloc::<u64>(3 * team::WORDS)?, gpu.alloc::<u64>(RESULT_WORDS)?);
        let args = (words.slice(), result.slice());
        check(gpu, &team::check_team_all::KERNEL, 3, result, args)?;
        Ok(gpu.free(words)?)
    });
    table.check("check_team", || {
        let (words, result) = (gpu.alloc::<u64>(3 * team::WORDS)?, gpu.alloc::<u64>(RESULT_WORDS)?);
        let args = (KernelTeam::WORLD, words.slice(), result.slice());
        check(gpu, &team::check_team::KERNEL, 3, result, args)?;
        Ok(gpu.free(words)?)
    });
    for_each_collective!(collectives);
}
