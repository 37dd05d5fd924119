//! PEs of `bench` that measure NCCL or NVSHMEM on GPUs: one library alone, or the contenders of a
//! comparison. Without the feature `cuda`, each function returns an error that names the missing
//! feature.
//!
//! ```text
//!   nccl.rs       a PE with NCCL         nccl_calls.rs     its calls
//!   nvshmem.rs    a PE with NVSHMEM      nvshmem_calls.rs  its calls
//!   trial.rs      the measurement of one case, the same for both
//!   agreement.rs  barriers and agreement of PEs
//! ```

#[cfg(feature = "cuda")]
pub(crate) mod agreement;
#[cfg(feature = "cuda")]
pub(crate) mod nccl;
#[cfg(feature = "cuda")]
mod nccl_calls;
#[cfg(feature = "cuda")]
pub(crate) mod nvshmem;
#[cfg(feature = "cuda")]
pub(crate) mod nvshmem_calls;
#[cfg(feature = "cuda")]
pub(crate) mod trial;

use crate::workload::config::Config;
#[cfg(feature = "cuda")]
use crate::workload::{args::Contender, op::BenchOp};

/// An error that ends the measurement of a PE.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Advice that error messages give on machines without an NVIDIA driver.
#[cfg(feature = "cuda")]
pub const NO_DRIVER: &str =
    "install NVIDIA's GPU driver, which has libcuda (the CUDA toolkit does not); a container needs access to the host's driver";

/// Error message of a command that was built without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub const NOT_BUILT_IN: &str = "this command was built without support for GPUs; build it with `--features cuda`";

/// Returns the collective of the portable API for an operation of `bench`. Returns `None` if the
/// operation has only one algorithm, so that route tables do not apply.
#[cfg(feature = "cuda")]
pub fn collective_kind(op: BenchOp) -> Option<peerweave::cuda::CollectiveKind> {
    use peerweave::cuda::CollectiveKind as Kind;
    Some(match op {
        BenchOp::AllReduce => Kind::AllReduce,
        BenchOp::Reduce => Kind::Reduce,
        BenchOp::Broadcast => Kind::Broadcast,
        BenchOp::AllGather => Kind::AllGather,
        BenchOp::ReduceScatter => Kind::ReduceScatter,
        BenchOp::AllToAll => Kind::AllToAll,
        BenchOp::Gather => Kind::Gather,
        BenchOp::Scatter => Kind::Scatter,
        _ => return None,
    })
}

/// Returns the method (value of `PEERWEAVE_ROUTE`) with this name, if the method supports the
/// operation.
///
/// # Errors
/// The message names the operation and the method.
#[cfg(feature = "cuda")]
pub fn method(op: BenchOp, name: &str) -> Result<peerweave::cuda::Method, String> {
    let method = peerweave::cuda::Method::ALL.into_iter().find(|method| method.name() == name);
    let method = method.filter(|method| collective_kind(op).is_some_and(|kind| method.serves(kind)));
    method.ok_or_else(|| {
        format!(
            "--compare own:{name}: {name} is not a method of the operation {}, expected a method that PEERWEAVE_ROUTE accepts for this operation",
            op.name()
        )
    })
}

/// Checks each `own:METHOD` in the option `--compare`, which stands for Peerweave's kernels with
/// the algorithm METHOD. The operation must have this algorithm.
///
/// # Errors
/// The message names the first algorithm that the operation lacks.
#[cfg(feature = "cuda")]
pub fn check_methods(config: &Config) -> Result<(), String> {
    config.compare.iter().try_for_each(|contender| match contender {
        Contender::Own(Some(name)) => method(config.op, name).map(drop),
        _ => Ok(()),
    })
}

/// Returns [`NOT_BUILT_IN`] as an error, because this command was built without support for GPUs.
#[cfg(not(feature = "cuda"))]
pub fn check_methods(_: &Config) -> Result<(), String> {
    Err(NOT_BUILT_IN.to_owned())
}

/// Measures NCCL on all PEs of this process.
#[cfg(feature = "cuda")]
pub(crate) fn nccl_pe(config: &Config) -> Result<(), Failure> {
    nccl::run(config)
}

/// Measures NVSHMEM on the PE of this process.
#[cfg(feature = "cuda")]
pub(crate) fn nvshmem_pe(config: &Config) -> Result<(), Failure> {
    nvshmem::run(config)
}

/// Returns the number of GPUs; `None` if the driver does not report the number.
#[cfg(feature = "cuda")]
pub fn device_count() -> Result<Option<usize>, String> {
    Ok(peerweave_driver::Driver::get().and_then(peerweave_driver::Driver::device_count).ok())
}

/// Returns [`NOT_BUILT_IN`] as an error, because this command was built without support for GPUs.
#[cfg(not(feature = "cuda"))]
pub(crate) fn nccl_pe(_: &Config) -> Result<(), Failure> {
    Err(NOT_BUILT_IN.into())
}

/// Returns [`NOT_BUILT_IN`] as an error, because this command was built without support for GPUs.
#[cfg(not(feature = "cuda"))]
pub(crate) fn nvshmem_pe(_: &Config) -> Result<(), Failure> {
    Err(NOT_BUILT_IN.into())
}

/// Returns [`NOT_BUILT_IN`] as an error, because this command was built without support for GPUs.
#[cfg(not(feature = "cuda"))]
pub fn device_count() -> Result<Option<usize>, String> {
    Err(NOT_BUILT_IN.to_owned())
}
