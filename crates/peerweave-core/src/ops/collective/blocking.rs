//! Collective operations, sends and receives on the calling thread. The documentation of the
//! operations is in `on_stream.rs`.

use crate::arguments::reduction::Reduction;
use crate::arguments::span::{Dest, MaybeDest, MaybeSource, Source, maybe_span};
use crate::backend::{CollectiveKind, Direction, VectorCounts};
use crate::world::team::Team;
use crate::{Result, call, check};
use peerweave_types::{Element, Number, Rank};
use std::sync::Arc;

/// Collective operations on the calling thread.
///
/// Each call does the same as the stream-ordered call without the suffix `_blocking`, and returns
/// when the operation is complete. Buffers may also be slices, vectors and arrays. The call itself
/// returns every error.
///
/// The calls are not ordered with operations on streams. All ranks must still make the collective
/// calls of a team in the same order, whether the calls are blocking or stream-ordered.
///
/// # Example
/// ```
/// use peerweave::{Rank, ReduceOp, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let mut sum = [0i64; 2];
/// team.all_reduce_blocking(&[1, 2], &mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum, [1, 2].map(|x| x * team.size() as i64));
/// let mut all = vec![0; 2 * team.size()];
/// team.all_gather_blocking(&sum, &mut all)?;
/// assert_eq!(all, sum.repeat(team.size()));
/// let mut copy = sum;
/// team.broadcast_in_place_blocking(&mut copy, Rank::new(0))?;
/// assert_eq!(copy, sum);
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Like [`Team::barrier`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::barrier`].
    #[inline]
    pub fn barrier_blocking(&self) -> Result<()> {
        const CALL: &str = "barrier_blocking";
        call::run_unit(&self.inner.shared, check::arrival(CALL, self, CollectiveKind::Barrier)?)
    }

    /// Like [`Team::sync`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::sync`].
    #[inline]
    pub fn sync_blocking(&self) -> Result<()> {
        const CALL: &str = "sync_blocking";
        call::run_unit(&self.inner.shared, check::arrival(CALL, self, CollectiveKind::Sync)?)
    }

    /// Like [`Team::all_reduce`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`].
    #[inline]
    pub fn all_reduce_blocking<T: Number>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "all_reduce_blocking";
        let prepared = check::all_reduce(CALL, self, send.span(), recv.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_reduce_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_in_place`].
    #[inline]
    pub fn all_reduce_in_place_blocking<T: Number>(&self, mut buffer: impl Dest<T>, op: impl Into<Reduction<T>>) -> Result<()> {
        const CALL: &str = "all_reduce_in_place_blocking";
        let prepared = check::all_reduce_in_place(CALL, self, buffer.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::reduce`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::reduce`].
    pub fn reduce_blocking<T: Number>(
        &self,
        mut send: impl Source<T>,
        recv: impl MaybeDest<T>,
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "reduce_blocking";
        let mut recv = recv.into_option();
        let prepared = check::reduce(CALL, self, send.span(), maybe_span(&mut recv), op.into().into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::reduce_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::reduce_in_place`].
    pub fn reduce_in_place_blocking<T: Number>(
        &self,
        mut buffer: impl Dest<T>,
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "reduce_in_place_blocking";
        let prepared = check::reduce_in_place(CALL, self, buffer.span(), op.into().into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::broadcast`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::broadcast`].
    #[inline]
    pub fn broadcast_blocking<T: Element>(&self, send: impl MaybeSource<T>, mut recv: impl Dest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "broadcast_blocking";
        let mut send = send.into_option();
        let prepared = check::broadcast(CALL, self, maybe_span(&mut send), recv.span(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::broadcast_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::broadcast_in_place`].
    #[inline]
    pub fn broadcast_in_place_blocking<T: Element>(&self, mut buffer: impl Dest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "broadcast_in_place_blocking";
        let prepared = check::broadcast_in_place(CALL, self, buffer.span(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_gather`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_gather`].
    #[inline]
    pub fn all_gather_blocking<T: Element>(&self, mut send: impl Source<T>, mut recv: impl Dest<T>) -> Result<()> {
        const CALL: &str = "all_gather_blocking";
        let prepared = check::all_gather(CALL, self, send.span(), recv.span())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_gather_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_gather_in_place`].
    #[inline]
    pub fn all_gather_in_place_blocking<T: Element>(&self, mut buffer: impl Dest<T>) -> Result<()> {
        const CALL: &str = "all_gather_in_place_blocking";
        let prepared = check::all_gather_in_place(CALL, self, buffer.span())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::reduce_scatter`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::reduce_scatter`].
    #[inline]
    pub fn reduce_scatter_blocking<T: Number>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "reduce_scatter_blocking";
        let prepared = check::reduce_scatter(CALL, self, send.span(), recv.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::reduce_scatter_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::reduce_scatter_in_place`].
    #[inline]
    pub fn reduce_scatter_in_place_blocking<T: Number>(
        &self,
        mut buffer: impl Dest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        const CALL: &str = "reduce_scatter_in_place_blocking";
        let prepared = check::reduce_scatter_in_place(CALL, self, buffer.span(), op.into().into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_to_all`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_to_all`].
    #[inline]
    pub fn all_to_all_blocking<T: Element>(&self, mut send: impl Source<T>, mut recv: impl Dest<T>) -> Result<()> {
        const CALL: &str = "all_to_all_blocking";
        let prepared = check::all_to_all(CALL, self, send.span(), recv.span())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_to_all_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_in_place`].
    #[inline]
    pub fn all_to_all_in_place_blocking<T: Element>(&self, mut buffer: impl Dest<T>) -> Result<()> {
        const CALL: &str = "all_to_all_in_place_blocking";
        let prepared = check::all_to_all_in_place(CALL, self, buffer.span())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_to_all_v`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_v`].
    #[inline]
    pub fn all_to_all_v_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        counts: impl Into<Arc<VectorCounts>>,
    ) -> Result<()> {
        const CALL: &str = "all_to_all_v_blocking";
        let prepared = check::all_to_all_v(CALL, self, send.span(), recv.span(), counts.into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_to_all_v_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_v_in_place`].
    #[inline]
    pub fn all_to_all_v_in_place_blocking<T: Element>(
        &self,
        mut buffer: impl Dest<T>,
        counts: impl Into<Arc<VectorCounts>>,
    ) -> Result<()> {
        const CALL: &str = "all_to_all_v_in_place_blocking";
        let prepared = check::all_to_all_v_in_place(CALL, self, buffer.span(), counts.into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::gather`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::gather`].
    #[inline]
    pub fn gather_blocking<T: Element>(&self, mut send: impl Source<T>, recv: impl MaybeDest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "gather_blocking";
        let mut recv = recv.into_option();
        let prepared = check::gather(CALL, self, send.span(), maybe_span(&mut recv), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::gather_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::gather_in_place`].
    #[inline]
    pub fn gather_in_place_blocking<T: Element>(&self, mut buffer: impl Dest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "gather_in_place_blocking";
        let prepared = check::gather_in_place(CALL, self, buffer.span(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::scatter`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scatter`].
    #[inline]
    pub fn scatter_blocking<T: Element>(&self, send: impl MaybeSource<T>, mut recv: impl Dest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "scatter_blocking";
        let mut send = send.into_option();
        let prepared = check::scatter(CALL, self, maybe_span(&mut send), recv.span(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::scatter_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scatter_in_place`].
    #[inline]
    pub fn scatter_in_place_blocking<T: Element>(&self, mut buffer: impl Dest<T>, root: Rank) -> Result<()> {
        const CALL: &str = "scatter_in_place_blocking";
        let prepared = check::scatter_in_place(CALL, self, buffer.span(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::send`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::send`].
    #[inline]
    pub fn send_blocking<T: Element>(&self, mut source: impl Source<T>, peer: Rank) -> Result<()> {
        const CALL: &str = "send_blocking";
        let prepared = check::point_to_point(CALL, self, Direction::Send, source.span(), peer, false)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::recv`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::recv`].
    #[inline]
    pub fn recv_blocking<T: Element>(&self, mut dest: impl Dest<T>, peer: Rank) -> Result<()> {
        const CALL: &str = "recv_blocking";
        let prepared = check::point_to_point(CALL, self, Direction::Receive, dest.span(), peer, false)?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
