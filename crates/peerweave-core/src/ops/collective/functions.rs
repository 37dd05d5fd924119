//! Reductions by a function that the caller passes.

use crate::arguments::ReduceFn;
use crate::arguments::span::{Dest, MaybeDest, Source, StreamDest, StreamSource, maybe_span};
use crate::backend::CollectiveKind;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Rank};

/// Reductions by a function that the caller passes. The function combines elements in rank order:
/// `f(f(x0, x1), x2)` for three ranks.
///
/// # Collective
/// Every rank of the team must make the call, with the same element type and count. All ranks must
/// make the collective calls of this team in the same order. The functions that the ranks pass must
/// return the same result for the same arguments.
///
/// # Panics of the function
/// If the function panics on a PE, the call fails on that PE, and the error contains the panic
/// message. On the host backend, the team fails too: each other rank gets either its result or an
/// [`Error::Peer`](crate::Error::Peer) that names that PE. On GPUs, the team does not fail, and all
/// other ranks get their results.
///
/// # Cost on GPUs
/// The function runs on the host: see [`ReduceFn`](ReduceFn#on-gpus).
impl Team {
    /// Combines the elements of all ranks with `function`, and stores the result on every rank.
    ///
    /// # Shapes
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Error::Unsupported`](crate::Error::Unsupported) if
    /// [`Caps::reduce_functions`](crate::Caps::reduce_functions) is `false`;
    /// [`Misuse`](crate::Misuse) if `T` is larger than 512 bytes;
    /// [`Error::System`](crate::Error::System) if the function panics.
    ///
    /// # Example
    /// See [`ReduceFn`].
    pub fn all_reduce_with<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        function: &ReduceFn<T>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_reduce_with";
        let prepared = check::by_function(CALL, self, CollectiveKind::AllReduce, send.span(), recv.span(), function.erased())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_reduce_with`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_with`].
    pub fn all_reduce_with_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        function: &ReduceFn<T>,
    ) -> Result<()> {
        const CALL: &str = "all_reduce_with_blocking";
        let prepared = check::by_function(CALL, self, CollectiveKind::AllReduce, send.span(), recv.span(), function.erased())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Combines the elements of all ranks with `function`, and stores the result on rank `root`.
    ///
    /// # Shapes
    /// `send` has `n` elements on every rank. `recv` has `n` elements on the root. On the root, the
    /// two buffers do not overlap. On the other ranks, `recv` is ignored, and may be
    /// [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::all_reduce_with`]; [`Misuse`](crate::Misuse) if `root` is not a rank of the
    /// team, or if the root passes no `recv`.
    pub fn reduce_with<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        recv: impl MaybeDest<T, Argument: StreamDest<T>>,
        function: &ReduceFn<T>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "reduce_with";
        let mut recv = recv.into_option();
        let prepared = check::reduce_with(CALL, self, send.span(), maybe_span(&mut recv), function.erased(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::reduce_with`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::reduce_with`].
    pub fn reduce_with_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        recv: impl MaybeDest<T>,
        function: &ReduceFn<T>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "reduce_with_blocking";
        let mut recv = recv.into_option();
        let prepared = check::reduce_with(CALL, self, send.span(), maybe_span(&mut recv), function.erased(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Combines the elements of this rank and of all lower ranks with `function`: rank `r` gets the
    /// combination of the elements of ranks 0 to `r`.
    ///
    /// # Shapes
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_with`].
    ///
    /// # Example
    /// ```
    /// use peerweave::{ReduceFn, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let me = team.my_rank().get();
    /// let mut divisor = [0u32]; // the greatest common divisor over ranks 0 to `me`
    /// let gcd = ReduceFn::new(|mut a: u32, mut b: u32| {
    ///     while b != 0 {
    ///         (a, b) = (b, a % b);
    ///     }
    ///     a
    /// });
    /// team.scan_with_blocking(&[12 * (me + 1)], &mut divisor, &gcd)?;
    /// assert_eq!(divisor, [12]);
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan_with<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        function: &ReduceFn<T>,
    ) -> Result<Ticket> {
        const CALL: &str = "scan_with";
        let prepared = check::by_function(CALL, self, CollectiveKind::Scan, send.span(), recv.span(), function.erased())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::scan_with`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scan_with`].
    pub fn scan_with_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        function: &ReduceFn<T>,
    ) -> Result<()> {
        const CALL: &str = "scan_with_blocking";
        let prepared = check::by_function(CALL, self, CollectiveKind::Scan, send.span(), recv.span(), function.erased())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Combines the elements of all lower ranks with `function`: each rank `r` above 0 gets the
    /// combination of the elements of ranks 0 to `r - 1`. On rank 0, `recv` does not change.
    ///
    /// # Shapes
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_with`].
    ///
    /// # Example
    /// ```
    /// use peerweave::{ReduceFn, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let me = team.my_rank().get();
    /// // The largest value so far, and the rank that has it.
    /// let later_or_larger = ReduceFn::new(|a: [u32; 2], b: [u32; 2]| if b[0] >= a[0] { b } else { a });
    /// let mut before = [[0, u32::MAX]]; // unchanged on rank 0
    /// team.exclusive_scan_with_blocking(&[[7 * me, me]], &mut before, &later_or_larger)?;
    /// assert_eq!(before[0][1], me.wrapping_sub(1)); // the rank before this one
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exclusive_scan_with<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        function: &ReduceFn<T>,
    ) -> Result<Ticket> {
        const CALL: &str = "exclusive_scan_with";
        let kind = CollectiveKind::ExclusiveScan;
        let prepared = check::by_function(CALL, self, kind, send.span(), recv.span(), function.erased())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::exclusive_scan_with`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::exclusive_scan_with`].
    pub fn exclusive_scan_with_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        function: &ReduceFn<T>,
    ) -> Result<()> {
        const CALL: &str = "exclusive_scan_with_blocking";
        let kind = CollectiveKind::ExclusiveScan;
        let prepared = check::by_function(CALL, self, kind, send.span(), recv.span(), function.erased())?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
