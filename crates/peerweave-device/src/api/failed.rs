//! The error of a kernel's operations.

use core::fmt;
use peerweave_types::FailureKind;

/// The error that a failed operation in a kernel returns. The first failure on a PE also writes a
/// report to the context's status, which the host reads. The report contains the operation, the
/// missing PE, the expected value and the value found. After a failure, the kernel should end.
///
/// A kernel returns the error with `?`. `#[kernel]` ends the thread when it receives the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a kernel that continues after a failure may use data that has not arrived"]
pub struct Failed {
    kind: FailureKind,
}

impl Failed {
    #[inline]
    pub(crate) const fn new(kind: FailureKind) -> Self {
        Self { kind }
    }

    /// Returns the kind of failure.
    #[inline]
    pub const fn kind(self) -> FailureKind {
        self.kind
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an operation of the kernel failed: {}", self.kind)
    }
}

impl core::error::Error for Failed {}
