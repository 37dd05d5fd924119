//! The options that are chosen among a few, rather than counted or written.
//!
//! Which option takes which is `of_communicator.rs`.

use std::ffi::c_int;

use crate::{Version, sys};

/// Whether something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// How many processors of the device (CTAs) NCCL takes from computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// As many as are fastest.
    Default,
    /// Few, where that costs little.
    Efficiency,
    /// None, where copy engines and the network can do it. NCCL 2.28.
    Zero,
}

/// How collectives of a communicator are captured into graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUsage {
    /// They are not.
    Never,
    /// Into one graph at a time, with nothing launched beside it.
    One,
    /// Into several graphs, or some into graphs and others not. NCCL's default.
    Mixed,
}

/// Whether host code can ask for a fabric's names of windows. NCCL 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCftMode {
    /// It can, or making the communicator fails.
    Enable,
    /// It cannot.
    Disable,
    /// It can where the hardware allows.
    Fallback,
}

/// Which of NVLink's switch operations (NVLS) the host side uses. NCCL 2.32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvlsHostMode {
    /// All.
    Enable,
    /// Not the NVLS transport, nor the registration of buffers for it.
    DisableTransport,
    /// No multimem instructions in NCCL's symmetric kernels and copies.
    DisableSymmetricMultimem,
    /// Neither of the two above.
    DisableBoth,
    /// None, also of those that later versions may bring.
    Disable,
}

/// An option that NCCL takes as a number.
pub(crate) trait Choice: Copy {
    fn number(self) -> c_int;

    /// The version that brought this value, where that is later than its field.
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
