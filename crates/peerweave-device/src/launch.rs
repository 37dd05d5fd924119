//! Description of a kernel for the host: its name, its PTX, and the function that runs the kernel
//! on CPU threads. Not compiled for GPUs.
//!
//! `#[kernel]` creates a constant of type [`Kernel`] for each kernel, and a launch takes that
//! constant. Invariant: the arguments of a [`Kernel<A>`](Kernel) form the tuple `A`. The kernel's
//! entry in the PTX has the address of the context as first parameter, followed by the elements of
//! `A`.

use core::fmt;
use core::marker::PhantomData;
use peerweave_types::{KernelArgs, KernelContext};

/// A function that runs one thread of a kernel on the host, given the context and the arguments.
///
/// # Safety
/// The pointer points to a live [`KernelContext`] whose addresses are valid in this process. All
/// memory that the arguments refer to stays allocated until the call returns.
pub type HostEntry<A> = unsafe fn(*const KernelContext, A);

/// A kernel whose arguments form the tuple `A`.
///
/// `#[kernel]` creates a constant of this type for the function: `ring::KERNEL` for `fn ring`.
pub struct Kernel<A> {
    name: &'static str,
    ptx: &'static PtxImage,
    host: HostEntry<A>,
    args: PhantomData<fn(A)>,
}

impl<A: KernelArgs> Kernel<A> {
    /// Creates the description of a kernel. `name` is the name of the kernel's entry in every
    /// variant of `ptx`.
    ///
    /// # Safety
    /// The entry in the PTX takes the address of a [`KernelContext`], and then exactly the
    /// arguments `A`, by value.
    pub const unsafe fn new(name: &'static str, ptx: &'static PtxImage, host: HostEntry<A>) -> Self {
        Self { name, ptx, host, args: PhantomData }
    }

    /// Returns the name of the kernel's entry point in the PTX.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the PTX of the kernel's crate.
    pub const fn ptx(&self) -> &'static PtxImage {
        self.ptx
    }

    /// Returns the function that executes the kernel for one thread on the host.
    pub const fn host(&self) -> HostEntry<A> {
        self.host
    }
}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The PTX of a crate of kernels, in all variants that the crate's build has compiled.
///
/// ```
/// use peerweave_device::launch::{PtxImage, PtxVariant};
///
/// static IMAGE: PtxImage = PtxImage {
///     variants: &[
///         PtxVariant { sm: 70, network: false, text: ".version 8.4 …" },
///         PtxVariant { sm: 90, network: false, text: ".version 8.4 …" },
///     ],
///     problem: "",
/// };
/// assert_eq!(IMAGE.select(86, false).unwrap().sm, 70);
/// assert_eq!(IMAGE.select(100, false).unwrap().sm, 90);
/// assert!(IMAGE.select(90, true).is_err());
/// ```
#[derive(Debug)]
pub struct PtxImage {
    /// The compiled variants of the PTX; empty if the build found no toolchain.
    pub variants: &'static [PtxVariant],
    /// The reason why the build has no PTX, and the packages that must be installed; empty if the
    /// build has PTX.
    pub problem: &'static str,
}

/// One compiled variant of the PTX of a crate of kernels.
#[derive(Debug)]
pub struct PtxVariant {
    /// The architecture for which the PTX was built: 90 means `sm_90`. The PTX also runs on later
    /// architectures.
    pub sm: u32,
    /// Whether the PTX calls NVSHMEM's device library and must be linked with it.
    pub network: bool,
    /// The text of the PTX.
    pub text: &'static str,
}

/// The error that [`PtxImage::select`] returns if no variant satisfies the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoVariant {
    /// The requested architecture: 90 means `sm_90`.
    pub sm: u32,
    /// Whether a variant that calls NVSHMEM's device library was requested.
    pub network: bool,
    /// The value of [`PtxImage::problem`]: the reason why the build has no PTX; empty if the build
    /// has PTX.
    pub problem: &'static str,
}

impl fmt::Display for NoVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_or_without = if self.network { "with" } else { "without" };
        write!(f, "the kernels have no PTX for sm_{} {with_or_without} NVSHMEM's device library", self.sm)?;
        if self.problem.is_empty() { Ok(()) } else { write!(f, ": {}", self.problem) }
    }
}

impl core::error::Error for NoVariant {}

impl PtxImage {
    /// Returns the variant for the newest architecture that is not newer than `sm`. The variant
    /// calls NVSHMEM's device library if and only if `network` is true.
    ///
    /// # Errors
    /// [`NoVariant`] if there is no variant that satisfies the conditions on `sm` and on `network`.
    pub fn select(&self, sm: u32, network: bool) -> Result<&'static PtxVariant, NoVariant> {
        self.variants
            .iter()
            .filter(|variant| variant.network == network && variant.sm <= sm)
            .max_by_key(|variant| variant.sm)
            .ok_or(NoVariant { sm, network, problem: self.problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn error_for_missing_ptx_says_what_to_install() {
        static NONE: PtxImage = PtxImage { variants: &[], problem: "install a compiler" };
        let error = NONE.select(90, true).unwrap_err();
        assert_eq!(error.to_string(), "the kernels have no PTX for sm_90 with NVSHMEM's device library: install a compiler");
    }
}
