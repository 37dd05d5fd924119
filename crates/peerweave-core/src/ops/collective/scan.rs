//! Scans. In an exclusive scan, each rank gets the reduction of the elements of all lower ranks. In
//! an inclusive scan, the reduction also includes the elements of the rank itself.

use crate::arguments::reduction::Reduction;
use crate::arguments::span::{Dest, Source, StreamDest, StreamSource};
use crate::backend::CollectiveKind;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::Number;

/// Scans, also called prefix reductions. Rank `r` gets the reduction of the elements of ranks 0 to
/// `r`, or 0 to `r - 1` in an exclusive scan. The elements are combined in rank order.
///
/// # Collective
/// Every rank of the team must make the call, with the same element type, count and reduction. All
/// ranks must make the collective calls of this team in the same order.
impl Team {
    /// Reduces the elements of this rank and of all lower ranks: rank `r` gets the reduction of the
    /// elements of ranks 0 to `r`.
    ///
    /// # Shapes
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Misuse`](crate::Misuse) for
    /// [`ReduceOp::Avg`](crate::ReduceOp::Avg); [`Error::Unsupported`](crate::Error::Unsupported)
    /// if [`Caps::reduction`](crate::Caps::reduction) returns `None` for the scan.
    ///
    /// # Example
    /// ```
    /// use peerweave::{ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let me = team.my_rank().get();
    /// let mut sum = [0];
    /// team.scan_blocking(&[me + 1], &mut sum, ReduceOp::Sum)?;
    /// assert_eq!(sum[0], (1..=me + 1).sum());
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan<T: Number>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "scan";
        let prepared = check::scan(CALL, self, CollectiveKind::Scan, send.span(), recv.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::scan`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scan`].
    pub fn scan_blocking<T: Number>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "scan_blocking";
        let prepared = check::scan(CALL, self, CollectiveKind::Scan, send.span(), recv.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::scan`], but the result replaces the elements in `buffer`.
    ///
    /// # Shapes
    /// `buffer` has `n` elements on every rank.
    ///
    /// # Errors
    /// As for [`Team::scan`].
    pub fn scan_in_place<T: Number>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "scan_in_place";
        let prepared = check::scan_in_place(CALL, self, CollectiveKind::Scan, buffer.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::scan_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scan_in_place`].
    pub fn scan_in_place_blocking<T: Number>(&self, mut buffer: impl Dest<T>, op: impl Into<Reduction<T>>) -> Result<()> {
        const CALL: &str = "scan_in_place_blocking";
        let prepared = check::scan_in_place(CALL, self, CollectiveKind::Scan, buffer.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Reduces the elements of all lower ranks: each rank `r` above 0 gets the reduction of the
    /// elements of ranks 0 to `r - 1`. On rank 0, `recv` does not change.
    ///
    /// # Shapes
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::scan`].
    ///
    /// # Example
    /// ```
    /// use peerweave::{ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let me = team.my_rank().get();
    /// let mut sum = [0];
    /// team.exclusive_scan_blocking(&[me + 1], &mut sum, ReduceOp::Sum)?;
    /// assert_eq!(sum[0], (1..=me).sum()); // still 0 on rank 0
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exclusive_scan<T: Number>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "exclusive_scan";
        let prepared = check::scan(CALL, self, CollectiveKind::ExclusiveScan, send.span(), recv.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::exclusive_scan`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::exclusive_scan`].
    pub fn exclusive_scan_blocking<T: Number>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "exclusive_scan_blocking";
        let prepared = check::scan(CALL, self, CollectiveKind::ExclusiveScan, send.span(), recv.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::exclusive_scan`], but the result replaces the elements in `buffer`. On rank 0,
    /// `buffer` does not change.
    ///
    /// # Shapes
    /// `buffer` has `n` elements on every rank.
    ///
    /// # Errors
    /// As for [`Team::scan`].
    pub fn exclusive_scan_in_place<T: Number>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "exclusive_scan_in_place";
        let prepared = check::scan_in_place(CALL, self, CollectiveKind::ExclusiveScan, buffer.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::exclusive_scan_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::exclusive_scan_in_place`].
    pub fn exclusive_scan_in_place_blocking<T: Number>(
        &self,
        mut buffer: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "exclusive_scan_in_place_blocking";
        let prepared = check::scan_in_place(CALL, self, CollectiveKind::ExclusiveScan, buffer.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
