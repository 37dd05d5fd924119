//! Checks every function that kernels call, with the kernels of `peerweave-check-kernels`.

use peerweave_check_kernels::{FINISHED, RESULT_WORDS, atomic, collective, context, rma, signal, team, wait, warp};
use peerweave_check_kernels::{for_each_bulk, for_each_collective, for_each_rma};
use peerweave_cuda::{CudaError, Gpu, LaunchConfig, Team};
use peerweave_device::launch::Kernel;
use peerweave_types::{KernelArgs, KernelTeam, SymSlice, bf16, f16};

use super::Outcome;
use super::rows::Rows;

/// Number of threads of a block: two full warps and a part of a third warp.
const THREADS: u32 = 72;

/// Runs a kernel on all PEs. `args` receives symmetric memory for the result, and returns the
/// arguments of the kernel. The kernel itself compares values, and writes the number of wrong
/// values and the first wrong value to this memory. A failure on one PE is an error on all PEs,
/// because only all PEs together can free the memory.
fn check<A: KernelArgs>(gpu: &Gpu, kernel: &Kernel<A>, blocks: u32, args: impl FnOnce(SymSlice<u64>) -> A) -> Outcome {
    let result = gpu.alloc::<u64>(RESULT_WORDS)?;
    let args = args(result.slice());
    let loaded = gpu.load(kernel).map(drop);
    gpu.barrier("loaded")?;
    let stream = gpu.stream()?;
    let config = LaunchConfig::new(blocks, THREADS).shared_bytes(1024).cooperative();
    let ran = loaded.and_then(|()| stream.launch_with(kernel, config, args)).and_then(|()| result.read(&stream));
    let outcome = ran.map_err(|error| error.to_string()).and_then(|found| match found[..4] {
        [0, ..] if found[RESULT_WORDS - 1] == FINISHED => Ok(()),
        [0, ..] => Err(format!(
            "the kernel did not complete: the last word of its result is {:#x}, expected {FINISHED:#x}",
            found[RESULT_WORDS - 1]
        )),
        [count, line, value, expected] => Err(format!(
            "wrong values: {count}; the first, at source line {line} of the kernel, is {value:#x}, expected {expected:#x}"
        )),
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

/// Creates the teams that the checks use in addition to the team of all PEs: all PEs in reverse
/// order, and each PE alone.
fn other_teams(gpu: &Gpu) -> Result<Vec<Team>, CudaError> {
    let me = gpu.pe().get();
    let reversed = gpu.split(Some(0), -i64::from(me))?;
    let alone = gpu.split(Some(u64::from(me)), 0)?;
    Ok([reversed, alone].into_iter().flatten().collect())
}

pub(crate) fn run(gpu: &Gpu, table: &mut Rows) {
    table.check("load the kernels for checks of device functions", || Ok(gpu.load_crate(signal::check_signal::KERNEL.ptx())?));
    let mut others = Vec::new();
    table.check("create the teams for checks of device functions", || {
        others = other_teams(gpu)?;
        Ok(())
    });
    let teams: Vec<KernelTeam> = [KernelTeam::WORLD].into_iter().chain(others.iter().map(Team::kernel_team)).collect();
    let n = gpu.n_pes() as usize;
    macro_rules! rma {
        ($($t:ty: $($kernel:ident),*;)*) => {$($(
            table.check(stringify!($kernel), || {
                let (send, recv) = (gpu.alloc::<$t>(rma::ELEMENTS)?, gpu.alloc::<$t>(rma::ELEMENTS)?);
                let signal = gpu.alloc::<u64>(rma::SIGNALS)?;
                check(gpu, &rma::$kernel::KERNEL, 1, |result| (send.slice(), recv.slice(), signal.slice(), result))?;
                gpu.free(send)?;
                gpu.free(recv)?;
                Ok(gpu.free(signal)?)
            });
        )*)*};
    }
    macro_rules! words {
        ($($module:ident, $t:ty: $kernel:ident),*) => {$(
            table.check(stringify!($kernel), || {
                let words = gpu.alloc::<$t>($module::WORDS)?;
                check(gpu, &$module::$kernel::KERNEL, 1, |result| (words.slice(), result))?;
                Ok(gpu.free(words)?)
            });
        )*};
    }
    macro_rules! collectives {
        ($($t:ty, $operators:ident: $($kernel:ident),*;)*) => {$($(
            table.check(stringify!($kernel), || {
                for &team in &teams {
                    let elements = collective::ELEMENTS * n;
                    let (send, recv) = (gpu.alloc::<$t>(elements)?, gpu.alloc::<$t>(elements)?);
                    check(gpu, &collective::$kernel::KERNEL, 1, |result| (team, send.slice(), recv.slice(), result))?;
                    gpu.free(send)?;
                    gpu.free(recv)?;
                }
                Ok(())
            });
        )*)*};
    }
    for_each_rma!(rma);
    for_each_bulk!(rma);
    table.check("check_warp", || check(gpu, &warp::check_warp::KERNEL, 2, |result| (result,)));
    words!(signal, u64: check_signal);
    words!(wait, i32: check_wait_i32, wait, u32: check_wait_u32, wait, i64: check_wait_i64, wait, u64: check_wait_u64);
    words!(atomic, i32: check_atomic_i32, atomic, u32: check_atomic_u32, atomic, i64: check_atomic_i64, atomic, u64: check_atomic_u64);
    words!(atomic, f32: check_atomic_f32, atomic, f64: check_atomic_f64);
    words!(atomic, f16: check_atomic_f16, atomic, bf16: check_atomic_bf16);
    table.check("check_team_all", || {
        let words = gpu.alloc::<u64>(3 * team::WORDS)?;
        check(gpu, &team::check_team_all::KERNEL, 3, |result| (words.slice(), result))?;
        Ok(gpu.free(words)?)
    });
    table.check("check_team", || {
        for &team in &teams {
            let words = gpu.alloc::<u64>(3 * team::WORDS)?;
            check(gpu, &team::check_team::KERNEL, 3, |result| (team, words.slice(), result))?;
            gpu.free(words)?;
        }
        Ok(())
    });
    table.check("check_context", || {
        for &team in &teams {
            let words = gpu.alloc::<u64>(context::WORDS)?;
            check(gpu, &context::check_context::KERNEL, 1, |result| (team, words.slice(), result))?;
            gpu.free(words)?;
        }
        Ok(())
    });
    for_each_collective!(collectives);
    table.check("destroy the teams of checks of device functions", || Ok(others.into_iter().try_for_each(Team::destroy)?));
}
