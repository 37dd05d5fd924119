//! Options with a few named values.
//!
//! `of_communicator.rs` has the options.

use std::ffi::c_int;

use crate::{Version, sys};

/// Whether a feature is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Policy for the number of CTAs, and thus of SMs, that NCCL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// The number of CTAs with the highest speed.
    Default,
    /// Fewer CTAs if that costs little performance.
    Efficiency,
    /// No CTAs if copy engines and the network can do the work. Requires NCCL 2.28.
    Zero,
}

/// The use of a communicator's collectives in graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUsage {
    /// No collective is captured.
    Never,
    /// Collectives are captured into one graph at a time, with no other launch concurrently.
    One,
    /// Collectives are captured into several graphs, or are also launched directly. NCCL's default.
    Mixed,
}

/// Whether host code can query the logical endpoints of windows in a fabric (CFT). Requires NCCL
/// 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCftMode {
    /// Enabled; creating the communicator fails if it is not supported.
    Enable,
    /// Disabled.
    Disable,
    /// Enabled if the hardware supports it.
    Fallback,
}

/// The NVLink switch operations (NVLS) that the host side uses. Requires NCCL 2.32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvlsHostMode {
    /// All operations.
    Enable,
    /// All except the NVLS transport and the registration of buffers for it.
    DisableTransport,
    /// All except multimem instructions in NCCL's symmetric kernels and copies.
    DisableSymmetricMultimem,
    /// All except the operations of the two variants above.
    DisableBoth,
    /// No operations, including operations that later versions add.
    Disable,
}

/// An option that NCCL represents as a number.
pub(crate) trait Choice: Copy {
    fn number(self) -> c_int;

    /// Returns the version that introduced this value, if that is later than the version that
    /// introduced the field.
    fn since(self) -> Option<Version> {
        None
    }
}

impl Choice for Switch {
    fn number(self) -> c_int {
        c_int::from(self == Self::On)
    }
}

impl Choice for CtaPolicy {
    fn number(self) -> c_int {
        match self {
            Self::Default => sys::NCCL_CTA_POLICY_DEFAULT,
            Self::Efficiency => sys::NCCL_CTA_POLICY_EFFICIENCY,
            Self::Zero => sys::NCCL_CTA_POLICY_ZERO,
        }
    }

    fn since(self) -> Option<Version> {
        (self == Self::Zero).then_some(Version::new(2, 28, 0))
    }
}

impl CtaPolicy {
    pub(crate) fn raw(self) -> c_int {
        self.number()
    }
}

impl Choice for GraphUsage {
    fn number(self) -> c_int {
        match self {
            Self::Never => 0,
            Self::One => 1,
            Self::Mixed => 2,
        }
    }
}

impl Choice for HostCftMode {
    fn number(self) -> c_int {
        match self {
            Self::Enable => sys::NCCL_HOST_CFT_ENABLE,
            Self::Disable => sys::NCCL_HOST_CFT_DISABLE,
            Self::Fallback => sys::NCCL_HOST_CFT_FALLBACK,
        }
    }
}

impl Choice for NvlsHostMode {
    fn number(self) -> c_int {
        match self {
            Self::Enable => sys::NCCL_NVLS_HOST_ENABLE,
            Self::DisableTransport => sys::NCCL_NVLS_HOST_DISABLE_TRANSPORT,
            Self::DisableSymmetricMultimem => sys::NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM,
            Self::DisableBoth => sys::NCCL_NVLS_HOST_DISABLE_TRANSPORT | sys::NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM,
            Self::Disable => sys::NCCL_NVLS_HOST_DISABLE,
        }
    }
}
