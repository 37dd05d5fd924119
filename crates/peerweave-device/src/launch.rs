//! A kernel on the host: its name, its PTX, and how it runs on CPU threads. Not compiled for GPUs.
//!
//! `#[kernel]` makes these constants; a launch takes them. Invariant: the tuple `A` is the
//! parameter list of the entry in the PTX after its first parameter, the address of the context,
//! and of the function for the host.

use core::fmt;
use core::marker::PhantomData;
use peerweave_types::{KernelArgs, KernelContext};

/// Runs one thread of a kernel on the host: the context, then the arguments.
///
/// # Safety
/// The pointer is that of a live [`KernelContext`] whose addresses are those of this process, and
/// all memory that the arguments name is allocated until the call returns.
pub type HostEntry<A> = unsafe fn(*const KernelContext, A);

/// A kernel that takes the arguments `A`, a tuple.
///
/// `#[kernel]` makes one for each function: `ring::KERNEL` beside `fn ring`.
pub struct Kernel<A> {
    name: &'static str,
    ptx: &'static PtxImage,
    host: HostEntry<A>,
    args: PhantomData<fn(A)>,
}

impl<A: KernelArgs> Kernel<A> {
    /// Describes a kernel. `name` is the name of its entry in every variant of `ptx`.
    ///
    /// # Safety
    /// The entry in the PTX takes the address of a [`KernelContext`] and then exactly the arguments
    /// `A` by value.
    pub const unsafe fn new(name: &'static str, ptx: &'static PtxImage, host: HostEntry<A>) -> Self {
        Self { name, ptx, host, args: PhantomData }
    }

    /// The name of the entry in the PTX.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The PTX of the crate that the kernel belongs to.
    pub const fn ptx(&self) -> &'static PtxImage {
        self.ptx
    }

    /// The function that runs one thread on the host.
    pub const fn host(&self) -> HostEntry<A> {
        self.host
    }
}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The PTX of a crate of kernels, in as many variants as were built.
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
    /// The variants; empty if no toolchain was found.
    pub variants: &'static [PtxVariant],
    /// Why there is no PTX, and what to install; empty where there is.
    pub problem: &'static str,
}

/// One build of a crate of kernels.
#[derive(Debug)]
pub struct PtxVariant {
    /// The architecture that it was built for, as `sm_90` says it: it runs on this one and on later
    /// ones.
    pub sm: u32,
    /// Whether it calls NVSHMEM's device library and must be linked with it.
    pub network: bool,
    /// The PTX.
    pub text: &'static str,
}

/// No variant of a [`PtxImage`] runs on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoVariant {
    /// The architecture that was asked for.
    pub sm: u32,
    /// Whether NVSHMEM's device library was asked for.
    pub network: bool,
    /// Why there is no PTX at all; empty where there is some.
    pub problem: &'static str,
}

impl fmt::Display for NoVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = if self.network { "with" } else { "without" };
        write!(f, "kernels have no PTX for sm_{} {with} NVSHMEM's device library", self.sm)?;
        if self.problem.is_empty() { Ok(()) } else { write!(f, ": {}", self.problem) }
    }
}

impl core::error::Error for NoVariant {}

impl PtxImage {
    /// The variant for the newest architecture that is not newer than `sm`.
    ///
    /// # Errors
    /// [`NoVariant`] where there is none.
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
    fn image_without_ptx_error_says_what_to_install() {
        static NONE: PtxImage = PtxImage { variants: &[], problem: "install a compiler" };
        let error = NONE.select(90, true).unwrap_err();
        assert_eq!(error.to_string(), "kernels have no PTX for sm_90 with NVSHMEM's device library: install a compiler");
    }
}
