//! Invalid arguments that are found before NVSHMEM is called.

use peerweave_types::Pe;

/// An invalid argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// Name of the call.
    pub call: &'static str,
    /// The invalid argument, its value, and the expected value.
    pub kind: MisuseKind,
}

/// The kinds of misuse, each with the value found and the expected value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// An argument or an option is outside its valid range.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Name of the argument or option.
        what: &'static str,
        /// Value of the argument.
        found: i64,
        /// Description of valid values.
        expected: &'static str,
    },
    /// An argument has a wrong length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument.
        found: usize,
        /// The expected length.
        expected: usize,
        /// Unit of both lengths: "elements" or "bytes".
        unit: &'static str,
    },
    /// A range exceeds the memory.
    #[error("{what} is {start}..{end}, expected a range within {len} elements")]
    OutOfRange {
        /// Name of the argument.
        what: &'static str,
        /// Index of the first element.
        start: usize,
        /// Index one past the last element.
        end: usize,
        /// Number of elements of the memory.
        len: usize,
    },
    /// A text argument is invalid.
    #[error("{what}: {why}")]
    Text {
        /// The argument or option.
        what: &'static str,
        /// The reason why the argument is invalid.
        why: &'static str,
    },
    /// A PE number is not below the number of PEs of the job.
    #[error("{what} is {found}, expected a PE below {n_pes}")]
    Pe {
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        found: Pe,
        /// Number of PEs of the job.
        n_pes: u32,
    },
    /// A rank is not below the number of ranks of the team.
    #[error("{what} is rank {found}, expected a rank below {ranks}")]
    Rank {
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        found: usize,
        /// Number of ranks of the team.
        ranks: usize,
    },
    /// Memory or a stream belongs to another device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Name of the argument.
        what: &'static str,
        /// Ordinal of the argument's device.
        found: usize,
        /// Ordinal of the device that NVSHMEM uses.
        expected: usize,
    },
    /// Symmetric memory or a team belongs to another context, or to a finalised context.
    #[error("{what} belongs to another NVSHMEM context, expected this context")]
    WrongContext {
        /// Name of the argument.
        what: &'static str,
    },
    /// A resource cannot be released because it is still in use.
    #[error("{what} is still used by {by}")]
    InUse {
        /// The resource that was to be released.
        what: &'static str,
        /// The user.
        by: &'static str,
    },
    /// Memory is neither symmetric nor registered, and the other PE of the transfer is reached only
    /// over the network.
    #[error("{what} is neither symmetric nor registered, and {pe} is reached only over the network: register it first")]
    Unregistered {
        /// Name of the argument.
        what: &'static str,
        /// The other PE.
        pe: Pe,
    },
    /// A buffer that the call reads overlaps a buffer that the call writes.
    #[error("{read} and {written} overlap at {address:#x}, expected separate memory")]
    Overlap {
        /// The argument that is read.
        read: &'static str,
        /// The argument that is written.
        written: &'static str,
        /// The first address that is in both buffers.
        address: u64,
    },
    /// NVSHMEM does not support this reduction for the element type.
    #[error("{op} of {} elements is not supported by NVSHMEM", dtype.rust_name())]
    Reduction {
        /// The reduction.
        op: peerweave_types::ReduceOp,
        /// The element type.
        dtype: peerweave_types::DType,
    },
    /// NVSHMEM already runs in this process, and was initialised with other arguments.
    #[error("NVSHMEM already runs in this process with {what} {found}, expected {asked}; a process can run only one NVSHMEM")]
    AlreadyInitialized {
        /// Name of the argument that differs.
        what: &'static str,
        /// Value in the running context.
        found: String,
        /// Requested value.
        asked: String,
    },
    /// The call is not possible in the present state of the context.
    #[error("{why}")]
    Context {
        /// The reason, and what to do instead.
        why: &'static str,
    },
}
