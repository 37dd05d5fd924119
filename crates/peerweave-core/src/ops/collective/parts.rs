//! Collectives whose parts may have a different length for each rank: the stream-ordered forms, and
//! the forms that run on the calling thread.

use crate::arguments::Parts;
use crate::arguments::span::{Dest, MaybeDest, MaybeSource, Source, StreamDest, StreamSource, maybe_span};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Rank};
use std::sync::Arc;

/// Collectives whose parts may have a different length for each rank.
///
/// [`Parts`] gives the length and the offset of each part. A caller may pass the `Parts` in an
/// `Arc`, which saves an allocation if the same parts are used again.
///
/// # Collective
/// Every rank of the team must make the call. All ranks must make the collective calls of this team
/// in the same order.
///
/// # Errors
/// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for:
/// - a list whose length is not the number of ranks,
/// - a part that is not inside its buffer,
/// - parts that overlap in a buffer that receives the parts,
/// - a buffer for a single part, if the lengths of the buffer and the part differ,
/// - a `root` that is not a rank of the team,
/// - buffers that overlap, belong to another world or have been released.
///
/// On the `host` backend, also [`Error::Mismatch`](crate::Error::Mismatch) if two ranks pass
/// different lengths for the same part. The `cuda` backend does not compare the lengths of
/// individual parts.
impl Team {
    /// Copies the elements of all ranks to every rank. Each rank may contribute a different number
    /// of elements.
    ///
    /// # Shapes
    /// `send` is the part that this rank contributes. `recv` receives the parts of all ranks. All
    /// ranks pass the same lengths, but the offsets may differ between ranks. Parts do not overlap
    /// each other, and `recv` does not overlap `send`. Elements of `recv` between the parts do not
    /// change.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for:
    /// - a list whose length is not the number of ranks,
    /// - a part that is not inside its buffer,
    /// - parts that overlap in a buffer that receives the parts,
    /// - a buffer for a single part, if the lengths of the buffer and the part differ,
    /// - buffers that overlap, belong to another world or have been released.
    ///
    /// On the `host` backend, also [`Error::Mismatch`](crate::Error::Mismatch) if two ranks pass
    /// different lengths for the same part. The `cuda` backend does not compare the lengths of
    /// individual parts.
    ///
    /// # Example
    /// ```
    /// use peerweave::{Parts, Rank, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let (team, stream) = (world.team(), world.stream()?);
    /// let me = team.my_rank().index();
    /// let parts = Parts::packed((1..=team.size()).collect::<Vec<_>>()); // rank r has r + 1 elements
    /// let (mine, all) = (world.alloc::<u64>(team.size())?, world.alloc_zeroed::<u64>(parts.end())?);
    /// mine.fill(me as u64)?;
    /// team.all_gather_v(&stream, &mine.slice(..me + 1)?, &all, parts.clone())?.wait()?;
    /// for rank in (0..team.size() as u32).map(Rank::new) {
    ///     assert!(all.slice(parts.range(rank))?.to_vec()?.iter().all(|&x| x == u64::from(rank.get())));
    /// }
    /// mine.release()?;
    /// all.release()?;
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_gather_v<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        parts: impl Into<Arc<Parts>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_gather_v";
        let prepared = check::all_gather_v(CALL, self, send.span(), recv.span(), &parts.into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_gather_v`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`].
    pub fn all_gather_v_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        parts: impl Into<Arc<Parts>>,
    ) -> Result<()> {
        const CALL: &str = "all_gather_v_blocking";
        let prepared = check::all_gather_v(CALL, self, send.span(), recv.span(), &parts.into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::all_gather_v`], but `buffer` receives the result, and already contains the part
    /// of this rank before the call.
    ///
    /// # Shapes
    /// `buffer` has room for the parts of all ranks. The parts do not overlap each other.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`].
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        parts: impl Into<Arc<Parts>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_gather_v_in_place";
        let prepared = check::all_gather_v_in_place(CALL, self, buffer.span(), &parts.into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_gather_v_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v_in_place`].
    pub fn all_gather_v_in_place_blocking<T: Element>(
        &self,
        mut buffer: impl Dest<T>,
        parts: impl Into<Arc<Parts>>,
    ) -> Result<()> {
        const CALL: &str = "all_gather_v_in_place_blocking";
        let prepared = check::all_gather_v_in_place(CALL, self, buffer.span(), &parts.into())?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Copies the elements of all ranks to the root. Each rank may contribute a different number of
    /// elements.
    ///
    /// # Shapes
    /// `send` is the part that this rank contributes, and may have any length. On the root, `parts`
    /// gives the length of each part, and the offset of each part in `recv`. The part of a rank is
    /// as long as `send` on that rank. The parts do not overlap each other. On the other ranks,
    /// `recv` and `parts` are ignored, and may be [`none()`](crate::none) and `Parts::default()`.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`]; [`Misuse`](crate::Misuse) if `root` is not a rank of the
    /// team, or if the root passes no `recv`.
    ///
    /// # Example
    /// ```
    /// use peerweave::{Parts, Rank, World, none};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let (team, root) = (world.team(), Rank::new(0));
    /// let me = team.my_rank().get();
    /// let words = vec![me; me as usize]; // rank r sends r words
    /// if team.my_rank() == root {
    ///     let parts = Parts::packed((0..team.size()).collect::<Vec<_>>());
    ///     let mut all = vec![0; parts.end()];
    ///     team.gather_v_blocking(&words, &mut all, parts, root)?;
    ///     assert!(all.is_sorted());
    /// } else {
    ///     team.gather_v_blocking(&words, none(), Parts::default(), root)?;
    /// }
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn gather_v<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        recv: impl MaybeDest<T, Argument: StreamDest<T>>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "gather_v";
        let mut recv = recv.into_option();
        let prepared = check::gather_v(CALL, self, send.span(), maybe_span(&mut recv), &parts.into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::gather_v`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::gather_v`].
    pub fn gather_v_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        recv: impl MaybeDest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "gather_v_blocking";
        let mut recv = recv.into_option();
        let prepared = check::gather_v(CALL, self, send.span(), maybe_span(&mut recv), &parts.into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::gather_v`], but each rank passes one buffer. On the root, `buffer` receives the
    /// result, and already contains the root's own part before the call.
    ///
    /// # Shapes
    /// On the root, `buffer` has room for the parts of all ranks. The parts do not overlap each
    /// other. On each other rank, `buffer` is the part to send, and is only read.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`]. Also [`Misuse`](crate::Misuse) if `root` is not a rank of the
    /// team.
    pub fn gather_v_in_place<T: Element>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "gather_v_in_place";
        let prepared = check::gather_v_in_place(CALL, self, buffer.span(), &parts.into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::gather_v_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::gather_v_in_place`].
    pub fn gather_v_in_place_blocking<T: Element>(
        &self,
        mut buffer: impl Dest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "gather_v_in_place_blocking";
        let prepared = check::gather_v_in_place(CALL, self, buffer.span(), &parts.into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Sends one part of `send` on the root to each rank. The parts may have different lengths.
    ///
    /// # Shapes
    /// On the root, `parts` gives the length of each part, and the offset of each part in `send`.
    /// The parts may overlap each other, but `send` does not overlap `recv`. On ranks other than
    /// the root, `send` and `parts` are ignored, and may be [`none()`](crate::none) and
    /// `Parts::default()`. On every rank, including the root, `recv` is as long as the part for
    /// that rank.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`]; [`Misuse`](crate::Misuse) if `root` is not a rank of the
    /// team, or if the root passes no `send`.
    ///
    /// # Example
    /// ```
    /// use peerweave::{Parts, Rank, World, none};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let (team, root) = (world.team(), Rank::new(0));
    /// let mut mine = vec![0u32; 1 + team.my_rank().index()];
    /// if team.my_rank() == root {
    ///     let parts = Parts::packed((1..=team.size()).collect::<Vec<_>>());
    ///     let all: Vec<u32> = (0..team.size() as u32).map(Rank::new).flat_map(|rank| vec![rank.get(); 1 + rank.index()]).collect();
    ///     team.scatter_v_blocking(&all, &mut mine, parts, root)?;
    /// } else {
    ///     team.scatter_v_blocking(none(), &mut mine, Parts::default(), root)?;
    /// }
    /// assert!(mine.iter().all(|&x| x == team.my_rank().get()));
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn scatter_v<T: Element>(
        &self,
        stream: &Stream,
        send: impl MaybeSource<T, Argument: StreamSource<T>>,
        mut recv: impl StreamDest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "scatter_v";
        let mut send = send.into_option();
        let prepared = check::scatter_v(CALL, self, maybe_span(&mut send), recv.span(), &parts.into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::scatter_v`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scatter_v`].
    pub fn scatter_v_blocking<T: Element>(
        &self,
        send: impl MaybeSource<T>,
        mut recv: impl Dest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "scatter_v_blocking";
        let mut send = send.into_option();
        let prepared = check::scatter_v(CALL, self, maybe_span(&mut send), recv.span(), &parts.into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::scatter_v`], but each rank passes one buffer. On the root, `buffer` contains
    /// all parts, and the root's own part is not moved.
    ///
    /// # Shapes
    /// On the root, `buffer` contains the parts for all ranks, and is only read. On every other
    /// rank, `buffer` receives the part for that rank.
    ///
    /// # Errors
    /// As for [`Team::all_gather_v`]. Also [`Misuse`](crate::Misuse) if `root` is not a rank of the
    /// team.
    pub fn scatter_v_in_place<T: Element>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "scatter_v_in_place";
        let prepared = check::scatter_v_in_place(CALL, self, buffer.span(), &parts.into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::scatter_v_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::scatter_v_in_place`].
    pub fn scatter_v_in_place_blocking<T: Element>(
        &self,
        mut buffer: impl Dest<T>,
        parts: impl Into<Arc<Parts>>,
        root: Rank,
    ) -> Result<()> {
        const CALL: &str = "scatter_v_in_place_blocking";
        let prepared = check::scatter_v_in_place(CALL, self, buffer.span(), &parts.into(), root)?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
