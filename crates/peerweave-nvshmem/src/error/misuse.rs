//! Invalid calls that are detected before NVSHMEM is called.

use peerweave_types::Pe;

/// The error for an invalid call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// Name of the call.
    pub call: &'static str,
    /// The reason why the call is invalid.
    pub kind: MisuseKind,
}

/// The reason why a call is invalid. Most variants have the value found and the expected value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// The value of an argument or of an option is invalid.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Name of the argument or option.
        what: &'static str,
        /// The invalid value of the argument or option.
        found: i64,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// The length of an argument is wrong.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument, in the unit that the field `unit` names.
        found: usize,
        /// Expected length of the argument, in the unit that the field `unit` names.
        expected: usize,
        /// Unit of the lengths: "elements" or "bytes".
        unit: &'static str,
    },
    /// A range of elements is not inside the memory.
    #[error("{what} is {start}..{end}, expected a range within {len} elements")]
    OutOfRange {
        /// Name of the argument.
        what: &'static str,
        /// Index of the first element in the range.
        start: usize,
        /// Index one past the last element in the range.
        end: usize,
        /// Number of elements in the memory that must contain the range.
        len: usize,
    },
    /// A name, a text or an id is invalid.
    #[error("{what}: {why}")]
    Text {
        /// Name of the argument or option.
        what: &'static str,
        /// The reason why the argument is invalid.
        why: &'static str,
    },
    /// A PE number is not less than the number of PEs in the job.
    #[error("{what} is {found}, expected a PE below {n_pes}")]
    Pe {
        /// Name of the argument.
        what: &'static str,
        /// The invalid PE number that the caller passed.
        found: Pe,
        /// Number of PEs in the job.
        n_pes: u32,
    },
    /// A rank is not less than the number of ranks in the team.
    #[error("{what} is rank {found}, expected a rank below {ranks}")]
    Rank {
        /// Name of the argument.
        what: &'static str,
        /// The invalid rank that the caller passed.
        found: usize,
        /// Number of ranks in the team.
        ranks: usize,
    },
    /// Memory or a stream belongs to a device that NVSHMEM does not use.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Name of the argument.
        what: &'static str,
        /// Ordinal of the device to which the argument belongs.
        found: usize,
        /// Ordinal of the device that NVSHMEM uses.
        expected: usize,
    },
    /// Symmetric memory or a team belongs to another context, for example to a context that has
    /// been finalised.
    #[error("{what} belongs to another NVSHMEM context, expected this context")]
    WrongContext {
        /// Name of the argument.
        what: &'static str,
    },
    /// A resource cannot be released because it is still in use.
    #[error("{what} is still used by {by}")]
    InUse {
        /// Name of the resource that the call cannot release.
        what: &'static str,
        /// Description of the objects that can still use the resource, such as a captured graph.
        by: &'static str,
    },
    /// The other PE in the transfer is reached only over the network, and the memory is neither
    /// symmetric nor registered. Strided transfers and blocking transfers of one value also return
    /// this error for such a PE, because NVSHMEM does not support them over the network.
    #[error("{pe} is reached only over the network: register {what}, or use a call that works over the network")]
    Unregistered {
        /// Name of the argument.
        what: &'static str,
        /// The PE to or from which the data would be transferred.
        pe: Pe,
    },
    /// Two buffers of the call overlap, and the call writes at least one of the two.
    #[error("{read} and {written} overlap at {address:#x}, expected separate memory")]
    Overlap {
        /// Name of one of the two buffers, for example the source of a put, or the target of a get.
        read: &'static str,
        /// Name of the other buffer, for example the target of a put, or the source of a get.
        written: &'static str,
        /// The first address that is in both buffers.
        address: u64,
    },
    /// NVSHMEM does not support this reduction for the element type.
    #[error("NVSHMEM does not support the reduction `{op}` for elements of type {}", dtype.rust_name())]
    Reduction {
        /// The reduction.
        op: peerweave_types::ReduceOp,
        /// The element type.
        dtype: peerweave_types::DType,
    },
    /// NVSHMEM already runs in this process with different arguments, was initialised by other
    /// code, or has already read different settings.
    #[error("NVSHMEM already runs in this process with {what} {found}, expected {asked}; a process can run only one NVSHMEM")]
    AlreadyInitialized {
        /// Name of the argument or setting that differs. The text is "an initialisation" if other
        /// code has initialised NVSHMEM.
        what: &'static str,
        /// The value with which NVSHMEM already runs. For a setting, the name and the value that
        /// NVSHMEM has read. "by other code" if other code has initialised NVSHMEM.
        found: String,
        /// The value that this call requests.
        asked: String,
    },
    /// The call is not possible with this memory, stream or team, or in the present state of the
    /// process.
    #[error("{why}")]
    Context {
        /// The reason why the call is not possible, and in most cases a remedy.
        why: &'static str,
    },
}
