//! What a backend can do, as data.

/// What a backend does, and how: data, read before an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Bytes of symmetric heap of each PE.
    pub heap_bytes: usize,
    /// How ordinary (private) buffers take part in operations between PEs.
    pub private_buffers: PrivateBuffers,
    /// Whether PEs compare their calls before running them.
    pub call_checking: CallChecking,
    /// Largest number of teams that one PE can belong to at a time, the world included.
    pub max_teams: usize,
    /// Largest alignment of an allocation, in bytes: a power of two.
    pub max_align_bytes: usize,
    /// The instruction set or device that computes, in words.
    pub compute: String,
}

impl Caps {
    /// Starts from what every backend has: ordinary buffers by staging, no call checking, allocations aligned to at most a page.
    pub fn new(heap_bytes: usize, max_teams: usize, compute: impl Into<String>) -> Self {
        Self {
            heap_bytes,
            private_buffers: PrivateBuffers::Staged,
            call_checking: CallChecking::Never,
            max_teams,
            max_align_bytes: 4096,
            compute: compute.into(),
        }
    }
}

/// How ordinary buffers take part in operations between PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrivateBuffers {
    /// Through memory that both sides see: one copy more.
    Staged,
    /// Read from the other process's memory by the kernel.
    CrossMemoryAttach,
    /// They do not: operations on them are refused.
    Refused,
}

/// Whether PEs compare operation, count, type, root and reduction before they run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallChecking {
    /// Always: it costs nothing here.
    Always,
    /// When `PEERWEAVE_CHECK_CALLS=1`; and it is on.
    On,
    /// When `PEERWEAVE_CHECK_CALLS=1`; and it is off.
    Off,
    /// It is not offered.
    Never,
}
