//! The capabilities of a backend, as data.

/// The capabilities of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// The size of the symmetric heap of each PE, in bytes.
    pub heap_bytes: usize,
    /// How ordinary (private) buffers take part in operations between PEs.
    pub private_buffers: PrivateBuffers,
    /// Whether PEs compare their calls before they run them.
    pub call_checking: CallChecking,
    /// The number of teams that a PE can belong to at the same time, including the world.
    pub max_teams: usize,
    /// The largest alignment of an allocation, in bytes: a power of two.
    pub max_align_bytes: usize,
    /// A description of the instruction set or device that computes.
    pub compute: String,
}

impl Caps {
    /// The capabilities that every backend has: staged private buffers, no call checking,
    /// allocations aligned to at most a page.
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
    /// Through memory that both sides access, with one more copy.
    Staged,
    /// The operating system reads them from the memory of the other process.
    CrossMemoryAttach,
    /// Not at all: operations on them return an error.
    Refused,
}

/// Whether PEs compare operation, count, type, root and reduction before they run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallChecking {
    /// Always.
    Always,
    /// `PEERWEAVE_CHECK_CALLS=1` enables it, and it is enabled.
    On,
    /// `PEERWEAVE_CHECK_CALLS=1` enables it, and it is disabled.
    Off,
    /// It is not available.
    Never,
}
