//! Checks that the backend supports the options.
//!
//! Invariant: every unsupported combination is refused here, before a PE is started.

use peerweave_types::{DType, ReduceOp};

use super::args::{BackendName, BenchArgs, Buffers, Clock};
use super::op::BenchOp;

/// Checks all options that depend on the backend. Returns an error that names an option that the
/// backend lacks, or that this command does not support with the backend.
pub(super) fn check_backend(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    if args.window && args.backend != BackendName::Nccl {
        return Err("--window is supported only with --backend nccl".to_owned());
    }
    check_comparison(args)?;
    if args.op == BenchOp::Moe && args.buffers == Buffers::Private {
        return Err("moe requires --buffers symmetric".to_owned());
    }
    if args.explain && args.backend != BackendName::Cuda {
        return Err("--explain is supported only with --backend cuda".to_owned());
    }
    if args.explain && !args.op.has_route() {
        return Err(format!("--explain is not supported by {}, which has only one method", args.op.name()));
    }
    match args.backend {
        BackendName::Host if args.graph.is_some() => Err("--graph is not supported with --backend host".to_owned()),
        BackendName::Host => Ok(()),
        BackendName::Cuda => check_cuda(args),
        BackendName::Nccl => check_nccl(args, redops),
        BackendName::Nvshmem => check_nvshmem(args, redops),
    }
}

/// Returns an error for options that a comparison does not support.
fn check_comparison(args: &BenchArgs) -> Result<(), String> {
    if args.compare.is_empty() {
        return Ok(());
    }
    let op = args.op;
    let lacks = |dtype: &DType| !is_compared(op, *dtype);
    for (given, why) in [
        (args.backend != BackendName::Cuda, "is supported only with --backend cuda".to_owned()),
        (!op.has_route() && op != BenchOp::SendRecv, format!("does not support the operation {}", op.name())),
        (args.buffers == Buffers::Private, "requires --buffers symmetric".to_owned()),
        (
            args.datatype.0.len() == 1 && args.datatype.0.iter().any(lacks),
            "does not support reductions of 8-bit floats and 16-bit integers".to_owned(),
        ),
    ] {
        if given {
            return Err(format!("--compare {why}"));
        }
    }
    Ok(())
}

/// Returns whether a comparison supports the operation for elements of type `dtype`. Reductions of
/// 8-bit floats and 16-bit integers are not supported, because some contenders lack them.
pub(super) fn is_compared(op: BenchOp, dtype: DType) -> bool {
    !op.reduces() || !matches!(dtype, DType::F8E4M3 | DType::F8E5M2 | DType::I16 | DType::U16)
}

/// Returns whether a backend supports the element type.
pub(super) fn has_type(backend: BackendName, dtype: DType) -> bool {
    match backend {
        BackendName::Host | BackendName::Cuda => true,
        BackendName::Nccl | BackendName::Nvshmem => !matches!(dtype, DType::I16 | DType::U16),
    }
}

/// Returns whether a backend supports a reduction.
pub(super) fn has_reduction(backend: BackendName, redop: ReduceOp) -> bool {
    match backend {
        BackendName::Host | BackendName::Cuda => true,
        BackendName::Nccl => !matches!(redop, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor),
        BackendName::Nvshmem => !matches!(redop, ReduceOp::Avg | ReduceOp::PreMulSum),
    }
}

/// Returns the clock to use, or an error for timing options that the backend does not support.
pub(super) fn clock(args: &BenchArgs) -> Result<Clock, String> {
    if args.backend == BackendName::Nvshmem {
        return Ok(args.clock.unwrap_or(Clock::Events));
    }
    if args.nbi && !args.op.has_nbi() {
        return Err(format!("--nbi is not supported by {}", args.op.name()));
    }
    for (given, option) in [(args.each, "--each"), (args.clock == Some(Clock::Events), "--clock events")] {
        if given {
            return Err(format!("{option} is supported only with --backend nvshmem"));
        }
    }
    Ok(Clock::Wall)
}

/// Returns an error for options that this command does not support with the portable API on GPUs.
fn check_cuda(args: &BenchArgs) -> Result<(), String> {
    for (given, option) in [
        (args.dirty, "--dirty is supported only with --backend host"),
        (args.graph.is_some() && args.compare.is_empty(), "--graph is supported only with --compare (such as --compare own)"),
        (args.threads, "--threads is not supported, because the cuda backend needs a process for each PE"),
    ] {
        if given {
            return Err(format!("--backend cuda: {option}"));
        }
    }
    Ok(())
}

/// Returns an error for unsupported options of `--backend nccl`. NCCL lacks some operations and
/// reductions, and this command does not support all options with NCCL.
fn check_nccl(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("--backend nccl: {what}"));
    if args.op.is_one_sided() || args.op.is_synchronization() || args.op.is_portable_only() || args.op == BenchOp::AllGatherV {
        return refuse(&format!("NCCL has no operation {}", args.op.name()));
    }
    if let Some(redop) = redops.iter().find(|redop| !has_reduction(args.backend, **redop)) {
        return refuse(&format!("NCCL has no reduction {redop}"));
    }
    for (given, option) in [
        (args.dirty, "--dirty is supported only with --backend host"),
        (args.window && args.buffers == Buffers::Private, "--window requires --buffers symmetric (memory of NCCL's allocator)"),
    ] {
        if given {
            return refuse(option);
        }
    }
    Ok(())
}

/// Returns an error for unsupported options of `--backend nvshmem`. NVSHMEM lacks some operations
/// and reductions, and this command does not support all options with NVSHMEM.
fn check_nvshmem(args: &BenchArgs, redops: &[ReduceOp]) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("--backend nvshmem: {what}"));
    let op = args.op;
    match op {
        op if op.is_portable_only() => return refuse(&format!("NVSHMEM has no operation {} on streams", op.name())),
        BenchOp::Reduce
        | BenchOp::AllToAllV
        | BenchOp::AllGatherV
        | BenchOp::Gather
        | BenchOp::Scatter
        | BenchOp::SendRecv
        | BenchOp::PutStrided => {
            return refuse(&format!("NVSHMEM has no operation {} on streams", op.name()));
        }
        BenchOp::Atomics => return refuse("NVSHMEM has no atomics on streams, only in kernels"),
        _ => {}
    }
    if let Some(redop) = redops.iter().find(|redop| !has_reduction(args.backend, **redop)) {
        return refuse(&format!("NVSHMEM has no reduction {redop}"));
    }
    let puts_and_gets = matches!(op, BenchOp::Put | BenchOp::Get | BenchOp::PutSignal);
    let private = args.buffers == Buffers::Private;
    for (given, why) in [
        (args.threads, "--threads is not supported, because NVSHMEM needs a process for each PE".to_owned()),
        (args.dirty, "--dirty is supported only with --backend host".to_owned()),
        (args.nbi && !puts_and_gets, format!("--nbi is not supported by {}", op.name())),
        (
            args.nbi && args.graph.is_some(),
            "--graph is not supported with --nbi, because NVSHMEM enqueues nonblocking calls in internal streams".to_owned(),
        ),
        (args.nbi && private, "--nbi requires --buffers symmetric".to_owned()),
        (private && !puts_and_gets && op != BenchOp::PingPong, format!("--buffers private is not supported by {}", op.name())),
        (
            args.graph.is_some() && matches!(op, BenchOp::P | BenchOp::G | BenchOp::PingPong),
            format!("--graph is not supported by {}, because a CUDA graph cannot replay this operation", op.name()),
        ),
    ] {
        if given {
            return refuse(&why);
        }
    }
    Ok(())
}
