//! What each backend has of what can be asked for, and the words for what it has not. Measures nothing.
//!
//! Invariant: what is not refused here is measured: a PE finds nothing that its backend does not have.

use peerweave_types::ReduceOp;

use super::config::{BackendName, BenchArgs, Buffers, Clock};
use super::op::BenchOp;

/// An error for what the backend cannot do, or this command with it.
pub(super) fn check_backend(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    if args.window && args.backend != BackendName::Nccl {
        return Err("--window: --backend nccl alone has it".to_owned());
    }
    match args.backend {
        BackendName::Host if args.graph.is_some() => Err("--graph: the host backend has no graphs".to_owned()),
        BackendName::Host => Ok(()),
        BackendName::Nccl => check_nccl(args, redops),
        BackendName::Nvshmem => check_nvshmem(args, redops),
    }
}

/// Whether a backend has a reduction.
pub(super) fn has_reduction(backend: BackendName, redop: ReduceOp) -> bool {
    match backend {
        BackendName::Host => true,
        BackendName::Nccl => !matches!(redop, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor),
        BackendName::Nvshmem => !matches!(redop, ReduceOp::Avg | ReduceOp::PreMulSum),
    }
}

/// What tells the time, and whether the backend has what the options about time ask for.
pub(super) fn clock(args: &BenchArgs) -> Result<Clock, String> {
    if args.backend == BackendName::Nvshmem {
        return Ok(args.clock.unwrap_or(Clock::Events));
    }
    for (given, option) in [(args.nbi, "--nbi"), (args.each, "--each"), (args.clock == Some(Clock::Events), "--clock events")] {
        if given {
            return Err(format!("{option}: --backend nvshmem alone has it"));
        }
    }
    Ok(Clock::Wall)
}

/// What NCCL cannot do, or this command with it.
fn check_nccl(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("--backend nccl: {what}"));
    if args.op.is_one_sided() || args.op.meets() {
        return refuse(&format!("{} is no operation of NCCL", args.op.name()));
    }
    if let Some(redop) = redops.iter().find(|redop| !has_reduction(args.backend, **redop)) {
        return refuse(&format!("{redop} is no reduction of NCCL"));
    }
    for (given, option) in [
        (args.dirty, "--dirty is for caches of processors"),
        (args.window && args.buffers == Buffers::Private, "--window: NCCL has windows of memory of its own allocator alone"),
    ] {
        if given {
            return refuse(option);
        }
    }
    Ok(())
}

/// What NVSHMEM cannot do, or this command with it.
fn check_nvshmem(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("--backend nvshmem: {what}"));
    let op = args.op;
    match op {
        BenchOp::Reduce | BenchOp::AllToAllV | BenchOp::Gather | BenchOp::Scatter | BenchOp::SendRecv => {
            return refuse(&format!("{} is no operation of NVSHMEM", op.name()));
        }
        BenchOp::Atomics => return refuse("atomics are for kernels: from the host NVSHMEM has none that complete"),
        _ => {}
    }
    if let Some(redop) = redops.iter().find(|redop| !has_reduction(args.backend, **redop)) {
        return refuse(&format!("{redop} is no reduction of NVSHMEM"));
    }
    let puts_and_gets = matches!(op, BenchOp::Put | BenchOp::Get | BenchOp::PutSignal);
    let private = args.buffers == Buffers::Private;
    for (given, why) in [
        (args.threads, "--threads: each PE is a process with a GPU of its own".to_owned()),
        (args.dirty, "--dirty is for caches of processors".to_owned()),
        (args.nbi && !puts_and_gets, format!("--nbi: {} has no such form", op.name())),
        (args.nbi && args.graph.is_some(), "--graph: NVSHMEM puts and gets with nbi on streams of its own".to_owned()),
        (args.nbi && private, "--nbi: both sides must be symmetric memory".to_owned()),
        (
            private && !puts_and_gets && op != BenchOp::PingPong,
            format!("--buffers private: {} takes symmetric memory", op.name()),
        ),
        (
            args.graph.is_some() && matches!(op, BenchOp::P | BenchOp::G | BenchOp::PingPong),
            format!("--graph: the value of {} changes from call to call", op.name()),
        ),
    ] {
        if given {
            return refuse(&why);
        }
    }
    Ok(())
}
