//! What a kernel knows of its job: the entry, and the questions that cost nothing.

use super::Failed;
use core::marker::PhantomData;
use peerweave_types::{FailureKind, KernelContext};

/// A kernel's way to its peers: every operation is a method of it.
///
/// `#[kernel]` makes one from the first parameter of the entry. It is a few numbers in registers; each thread has its own.
pub struct Context {
    raw: *const KernelContext,
    pub(crate) my_pe: u32,
    pub(crate) n_pes: u32,
    /// A context belongs to the thread that made it.
    local: PhantomData<*const ()>,
}

impl Context {
    /// Looks at what the host has written, and refuses a context of another version. Called by the entry that `#[kernel]` makes.
    ///
    /// # Errors
    /// [`FailureKind::Version`]. The status is not written then: nobody knows where it lies.
    ///
    /// # Safety
    /// The pointer is that of a context in memory that this thread can read, whose addresses are valid here, and which nobody
    /// writes until the kernel has ended.
    #[inline]
    pub unsafe fn enter(raw: *const KernelContext) -> Result<Self, Failed> {
        // SAFETY: the caller promises a readable context, which starts with its version in every version.
        let version = unsafe { (*raw).version };
        if version != KernelContext::VERSION {
            return Err(Failed::new(FailureKind::Version));
        }
        // SAFETY: a context of this version, readable and not written by anybody: the caller promises it.
        let (my_pe, n_pes) = unsafe { ((*raw).my_pe, (*raw).n_pes) };
        Ok(Self { raw, my_pe, n_pes, local: PhantomData })
    }

    /// This PE.
    #[inline]
    pub fn my_pe(&self) -> u32 {
        self.my_pe
    }

    /// Number of PEs of the job.
    #[inline]
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// The context as the host wrote it.
    #[inline]
    pub(crate) fn raw(&self) -> &KernelContext {
        // SAFETY: `enter` was promised a context that is readable, and written by nobody, while the kernel runs.
        unsafe { &*self.raw }
    }

    /// Number of this PE among the PEs of its node.
    #[inline]
    pub fn node_pe(&self) -> u32 {
        self.raw().node_pe
    }

    /// Number of PEs of this PE's node.
    #[inline]
    pub fn node_n_pes(&self) -> u32 {
        self.raw().node_n_pes
    }
}
