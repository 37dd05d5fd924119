//! Launches of kernels on a stream. A launch checks the arguments, and enqueues an [`Op::Launch`].
//!
//! Invariant: when a launch is enqueued, each view of symmetric memory in its arguments lies in one
//! live allocation. That allocation belongs to the world of the stream.
#![allow(unsafe_code)]

use crate::arguments::span::Owner;
use crate::arguments::symmetric::{Region, Symmetric};
use crate::backend::error::{MisuseKind, misuse};
use crate::backend::{BoundKernel, Keep, Kept, Launch, Op};
use crate::shared::Shared;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_device::launch::{HostEntry, Kernel, PtxImage};
use peerweave_types::{ArgVisitor, Dim3, Element, KernelArg, KernelArgs, KernelContext, KernelTeam, SymOffset, SymSlice};
use std::fmt;
use std::sync::Arc;

/// The names of the arguments of a launch, for error messages.
const ARGUMENTS: [&str; 16] = [
    "args.0", "args.1", "args.2", "args.3", "args.4", "args.5", "args.6", "args.7", "args.8", "args.9", "args.10", "args.11",
    "args.12", "args.13", "args.14", "args.15",
];

/// The shape of a launch: the number of blocks, the number of threads in each block, and the size
/// of the dynamic shared memory. The shape also says whether blocks may wait for each other.
///
/// ```
/// use peerweave::LaunchShape;
///
/// let shape = LaunchShape::new(16, (32, 8)).shared_bytes(4096).cooperative();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    cooperative: bool,
}

impl LaunchShape {
    /// Creates a shape with `grid` blocks of `block` threads each. The shape has no dynamic shared
    /// memory, and is not cooperative.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false }
    }

    /// Sets the size of the dynamic shared memory of each block, in bytes. The initial content of
    /// that memory is unspecified.
    #[must_use]
    pub fn shared_bytes(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Makes the launch cooperative: all blocks run at the same time, so they may wait for each
    /// other. The launch fails if the backend cannot run all blocks at the same time.
    #[must_use]
    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }
}

/// An argument of a launch, for a kernel parameter of type `P`. A value of type `P` is always
/// possible. For the parameter type `SymSlice<T>`, a `&Symmetric<T>` is possible too. For
/// `KernelTeam`, a `&Team` is possible too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed to a kernel's parameter of type `{P}`",
    note = "pass a value of the parameter's own type, `&Symmetric<T>` for a `SymSlice<T>`, or `&Team` for a `KernelTeam`"
)]
pub trait LaunchArg<P: KernelArg>: sealed::Argument<P> {}

/// The arguments of a launch for a kernel with the parameters `A`: a tuple of [`LaunchArg`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of arguments for a kernel with the parameters `{A}`",
    note = "pass one argument for each parameter, in a tuple: `(&x, 5)`, `(&x,)` for one parameter, `()` for no parameters"
)]
pub trait LaunchArgs<A: KernelArgs>: sealed::Arguments<A> {}

mod sealed {
    use super::{Kept, Result, Shared};
    use std::sync::Arc;

    pub trait Argument<P> {
        /// Returns the value that the kernel gets for this argument. If the value refers to memory,
        /// also adds the owners of that memory to `held`.
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
        fn bind(&self, name: &'static str, shared: &Arc<Shared>, held: &mut Kept) -> Result<P>;
    }

    pub trait Arguments<A> {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
        fn bind(&self, shared: &Arc<Shared>, held: &mut Kept) -> Result<A>;
    }
}

const CALL: &str = "launch";

impl<P: KernelArg> LaunchArg<P> for P {}
impl<P: KernelArg> sealed::Argument<P> for P {
    #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
    fn bind(&self, name: &'static str, shared: &Arc<Shared>, held: &mut Kept) -> Result<P> {
        /// A visitor of the symmetric memory views in one argument, which adds the owner of each
        /// view's memory to `held`. `outside` is the offset and the size, in bytes, of the first
        /// view that lies outside of live allocations; `None` if there is no such view.
        struct Look<'a> {
            shared: &'a Arc<Shared>,
            held: &'a mut Kept,
            outside: Option<(u64, u64)>,
        }
        impl ArgVisitor for Look<'_> {
            fn symmetric(&mut self, offset: SymOffset, bytes: u64) {
                if bytes == 0 {
                    return;
                }
                match Region::containing(self.shared, offset, bytes) {
                    Some(region) => self.held.extend([Owner::Region(&region).hold()]),
                    None => {
                        self.outside.get_or_insert((offset.0, bytes));
                    }
                }
            }
            fn device(&mut self, _address: u64, _bytes: u64) {}
        }
        let mut look = Look { shared, held, outside: None };
        self.visit(&mut look);
        match look.outside {
            Some((offset, bytes)) => {
                let found = format!("a view of {bytes} bytes at symmetric offset {offset}");
                let expected = "a view inside a single allocation that this world has not released";
                Err(misuse(CALL, MisuseKind::Value { argument: name, found, expected }))
            }
            None => Ok(*self),
        }
    }
}

impl<T: Element> LaunchArg<SymSlice<T>> for &Symmetric<T> where SymSlice<T>: KernelArg {}
impl<T: Element> sealed::Argument<SymSlice<T>> for &Symmetric<T> {
    #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
    fn bind(&self, name: &'static str, shared: &Arc<Shared>, held: &mut Kept) -> Result<SymSlice<T>> {
        let remote = self.remote();
        check::region(CALL, shared, name, remote.region)?;
        held.extend([Owner::Region(remote.region).hold()]);
        Ok(self.view())
    }
}

impl LaunchArg<KernelTeam> for &Team {}
impl sealed::Argument<KernelTeam> for &Team {
    #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
    fn bind(&self, name: &'static str, shared: &Arc<Shared>, _held: &mut Kept) -> Result<KernelTeam> {
        self.inner.shared.same_world(CALL, shared, name)?;
        check::team(CALL, self)?;
        Ok(shared.backend.kernel_team(self.inner.id))
    }
}

impl LaunchArgs<()> for () {}
impl sealed::Arguments<()> for () {
    #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
    fn bind(&self, _shared: &Arc<Shared>, _held: &mut Kept) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($parameter:ident $argument:ident $index:tt),*) => {
        impl<$($parameter: KernelArg, $argument: LaunchArg<$parameter>),*> LaunchArgs<($($parameter,)*)> for ($($argument,)*) {}
        impl<$($parameter: KernelArg, $argument: LaunchArg<$parameter>),*> sealed::Arguments<($($parameter,)*)> for ($($argument,)*) {
            #[allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its methods")]
            fn bind(&self, shared: &Arc<Shared>, held: &mut Kept) -> Result<($($parameter,)*)> {
                Ok(($(sealed::Argument::<$parameter>::bind(&self.$index, ARGUMENTS[$index], shared, held)?,)*))
            }
        }
    };
}

tuples!(P0 A0 0);
tuples!(P0 A0 0, P1 A1 1);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9, P10 A10 10);
tuples!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9, P10 A10 10, P11 A11 11);

/// A kernel and its arguments, which a backend runs as a [`BoundKernel`].
struct Bound<A> {
    name: &'static str,
    ptx: &'static PtxImage,
    host: HostEntry<A>,
    args: A,
}

impl<A> fmt::Debug for Bound<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<A: KernelArgs> BoundKernel for Bound<A> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ptx(&self) -> &'static PtxImage {
        self.ptx
    }

    unsafe fn run_thread(&self, context: *const KernelContext) {
        // SAFETY: the caller fulfils the contract of the entry.
        unsafe { (self.host)(context, self.args) }
    }

    fn arguments(&self, with: &mut dyn FnMut(*const u8, usize, usize)) {
        self.args.each(with);
    }

    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        self.args.visit(visitor);
    }
}

impl Stream {
    /// Enqueues a kernel of `grid` blocks with `block` threads each. The kernel runs on this PE
    /// only; other PEs launch their own kernels.
    ///
    /// `args` is a tuple with one argument for each parameter of the kernel, except for the
    /// context. Each argument is a value of the type of its parameter, a `&Symmetric<T>` for a
    /// `SymSlice<T>`, or a `&Team` for a `KernelTeam`.
    ///
    /// The kernel starts when earlier operations of the stream are complete. Until the kernel has
    /// ended, the stream keeps alive the symmetric memory to which the arguments refer.
    ///
    /// # Errors
    /// Before anything is enqueued: [`Misuse`](crate::Misuse) for a shape that no GPU can run; for
    /// memory that has been released; for a team that has been destroyed; and for memory or a team
    /// of another world.
    ///
    /// From the ticket:
    /// - [`Error::Kernel`](crate::Error::Kernel) if a thread of the kernel, or an operation that
    ///   the kernel called, has failed. If the cause is a PE that did not arrive or cannot be
    ///   reached, the error names that PE.
    /// - [`Error::Peer`](crate::Error::Peer) if the kernel waited for a PE that has died. The error
    ///   names that PE.
    ///
    /// # Panics
    /// Panics if the backend runs kernels on the host, but the program has set an executor of
    /// kernels that is not the backend's executor.
    ///
    /// ```
    /// use peerweave::{Result, on_threads};
    /// use peerweave_device::prelude::*;
    ///
    /// /// Each thread stores its number into this PE's own copy.
    /// #[kernel]
    /// fn number(ctx: &Context, first: u32, dst: SymSlice<u32>) {
    ///     ctx.local(dst).write(gpu::thread_rank() as usize, first + gpu::thread_rank());
    /// }
    ///
    /// on_threads(2, |world| -> Result<()> {
    ///     let (stream, dst) = (world.stream()?, world.alloc_zeroed::<u32>(64)?);
    ///     stream.launch(&number::KERNEL, 1, 64, (7, &dst))?.wait()?;
    ///     assert_eq!(dst.load(63)?, 7 + 63);
    ///     Ok(())
    /// })?
    /// .into_iter()
    /// .collect::<Result<()>>()
    /// # .map_err(Into::<Box<dyn std::error::Error>>::into)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: impl LaunchArgs<A>,
    ) -> Result<Ticket> {
        self.launch_shaped(kernel, LaunchShape::new(grid, block), args)
    }

    /// Like [`Stream::launch`], but takes a [`LaunchShape`], which may also request dynamic shared
    /// memory and a cooperative launch.
    ///
    /// # Errors
    /// As for [`Stream::launch`]. The ticket of a cooperative launch also fails if the backend
    /// cannot run all blocks at the same time.
    ///
    /// # Panics
    /// As for [`Stream::launch`].
    pub fn launch_shaped<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        shape: LaunchShape,
        args: impl LaunchArgs<A>,
    ) -> Result<Ticket> {
        self.shared.usable(CALL)?;
        check::launch_shape(CALL, shape.grid, shape.block, shape.shared_bytes)?;
        let mut kept = self.shared.pools.kept();
        let args = args.bind(&self.shared, &mut kept)?;
        let bound = Bound { name: kernel.name(), ptx: kernel.ptx(), host: kernel.host(), args };
        let LaunchShape { grid, block, shared_bytes, cooperative } = shape;
        let op = Op::Launch(Launch { kernel: Arc::new(bound), grid, block, shared_bytes, cooperative });
        // SAFETY: `bind` has checked that the views of symmetric memory lie in live allocations,
        // and the queue holds these allocations. Views of device memory were made by `unsafe`
        // calls, whose callers guarantee that the views are valid.
        unsafe { call::launch(self, &op, &|| Keep::many(kept.clone()), decode::nothing) }
    }
}

#[cfg(test)]
mod tests {
    use super::sealed::Argument;
    use super::*;
    use crate::World;
    use crate::noop::Noop;

    #[test]
    fn launch_keeps_the_allocation_of_a_view_argument_alive() {
        let world = World::new(Noop::new(0, 1)).expect("the world is usable");
        let buffer = world.alloc_zeroed::<u32>(8).expect("the heap has room");
        let (view, mut held) = (buffer.view(), world.shared.pools.kept());
        let bound = Argument::<SymSlice<u32>>::bind(&view, "args.0", &world.shared, &mut held).expect("the view is allocated");
        assert_eq!((bound.offset(), held.list().len()), (view.offset(), 1));
        drop(buffer);
        assert!(world.finalize().expect("no operation is pending").leaked.iter().all(|buffer| !buffer.dropped));
        drop(held);
    }
}
