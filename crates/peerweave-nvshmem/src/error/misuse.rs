//! Mistakes of the caller, found before NVSHMEM is called.

use peerweave_types::Pe;

/// A mistake of the caller: which call, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// The call.
    pub call: &'static str,
    /// What is wrong with it.
    pub kind: MisuseKind,
}

/// What is wrong with a call: the value that was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A number outside of what is allowed.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Which argument or option.
        what: &'static str,
        /// Its value.
        found: i64,
        /// What is allowed.
        expected: &'static str,
    },
    /// Something of the wrong length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// What.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it should have.
        expected: usize,
        /// In what both are counted: elements, bytes.
        unit: &'static str,
    },
    /// A range that is not inside the memory.
    #[error("{what} is {start}..{end} of {len} elements")]
    OutOfRange {
        /// Which range.
        what: &'static str,
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// Text that cannot be what it should be.
    #[error("{what}: {why}")]
    Text {
        /// Which argument or option.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A PE that the job does not have.
    #[error("{what} is {found}, the job has {n_pes} PEs")]
    Pe {
        /// Which argument.
        what: &'static str,
        /// Its value.
        found: Pe,
        /// How many there are.
        n_pes: u32,
    },
    /// A rank that the team does not have.
    #[error("{what} is rank {found}, the team has {ranks}")]
    Rank {
        /// Which argument.
        what: &'static str,
        /// Its value.
        found: usize,
        /// How many there are.
        ranks: usize,
    },
    /// Memory or a stream of another device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Which argument.
        what: &'static str,
        /// Where it is.
        found: usize,
        /// Where it should be.
        expected: usize,
    },
    /// Symmetric memory, or a team, of another context, or of one that ended.
    #[error("{what} belongs to another NVSHMEM context")]
    WrongContext {
        /// Which argument.
        what: &'static str,
    },
    /// Something cannot be given up, since it is still used.
    #[error("{what} is still used by {by}")]
    InUse {
        /// What.
        what: &'static str,
        /// By whom.
        by: &'static str,
    },
    /// Outside memory that the other PE cannot be reached from.
    #[error("{what} is neither symmetric nor registered, and {pe} is not reachable without the network: register it first")]
    Unregistered {
        /// Which argument.
        what: &'static str,
        /// The other PE.
        pe: Pe,
    },
    /// Two buffers of a call share memory.
    #[error("{read} and {written} share memory at {address:#x}")]
    Overlap {
        /// The argument that is read.
        read: &'static str,
        /// The argument that is written.
        written: &'static str,
        /// The first address that both have.
        address: u64,
    },
    /// A reduction that is not defined for these elements, or that NVSHMEM does not have.
    #[error("{op} of {} elements is not among NVSHMEM's reductions", dtype.rust_name())]
    Reduction {
        /// The reduction.
        op: peerweave_types::ReduceOp,
        /// The elements' type.
        dtype: peerweave_types::DType,
    },
    /// This context is already initialised, with something else.
    #[error("NVSHMEM is one for each process and already runs with {what} {found}, not {asked}")]
    AlreadyInitialized {
        /// Which argument differs.
        what: &'static str,
        /// What it runs with.
        found: String,
        /// What was asked for.
        asked: String,
    },
    /// The call is not possible in this place.
    #[error("{why}")]
    Context {
        /// Why not, and what to do instead.
        why: &'static str,
    },
}
