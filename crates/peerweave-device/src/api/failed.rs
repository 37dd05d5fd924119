//! Failures of a kernel's operations.

use core::fmt;
use peerweave_types::FailureKind;

/// An operation of a kernel has failed. The first failure of a PE has been written to the context's
/// status, where the host finds the operation, the PE that is missing and the values; nothing is
/// left for the kernel to do but to end.
///
/// A kernel returns it with `?`; `#[kernel]` then ends the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a kernel that goes on after a failure works on data that has not arrived"]
pub struct Failed {
    kind: FailureKind,
}

impl Failed {
    #[inline]
    pub(crate) const fn new(kind: FailureKind) -> Self {
        Self { kind }
    }

    /// Why.
    #[inline]
    pub const fn kind(self) -> FailureKind {
        self.kind
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation of a kernel failed: {}", self.kind)
    }
}

impl core::error::Error for Failed {}
