//! Puts and gets, which transfer data to or from the memory of a target PE. The target PE makes no
//! call. Signals are in `signal.rs`, atomics in `atomic.rs`.
//!
//! The caller describes the memory of the target PE by a [`Symmetric`] handle. A put or get
//! accesses the elements that this handle has on the target PE.

use crate::arguments::SignalUpdate;
use crate::arguments::buffer::{Buffer, element_bits, is_word};
use crate::arguments::span::{Dest, Source, StreamDest, StreamSource, borrowed, borrowed_mut};
use crate::arguments::symmetric::Symmetric;
use crate::backend::Direction;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Rank, Strides};
use std::slice::{from_mut, from_ref};

/// Puts and gets.
///
/// # Dead targets
/// One-sided operations (puts, gets, signals, atomics) and tests of signal words do not wait for
/// other PEs. So a single operation may succeed although its target has died or left the job. The
/// next wait or barrier then returns [`Error::Peer`](crate::Error::Peer).
///
/// On the `host` backend, about one small operation in a thousand checks whether its target is
/// alive. A program that repeats operations, for example to get a lock that a dead PE holds, gets
/// [`Error::Peer`](crate::Error::Peer) within milliseconds. About one
/// [`quiet`](crate::World::quiet) in a thousand checks whether any PE has died. If a word can no
/// longer change, a test of that word returns the same error as a wait.
///
/// On the `cuda` backend, single operations do not check their targets. Every quiet, whether of the
/// world or of a [`Context`](crate::Context), checks all PEs. The quiet fails if the connection
/// between a PE and the rendezvous has closed.
///
/// # Example
/// ```
/// use peerweave::{Compare, Rank, Strides, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
/// let (data, words) = (world.alloc_zeroed::<i32>(4)?, world.alloc_zeroed::<u64>(1)?);
/// let arrived = words.signal(0)?;
///
/// team.put_signal_blocking(&[1, 2, 3, 4], &data, arrived.set(1), right)?; // to the right neighbor
/// team.wait_until_blocking(&arrived, Compare::Eq, 1)?; // from the left one
/// assert_eq!(data.to_vec()?, [1, 2, 3, 4]);
/// team.barrier_blocking()?; // all have read
///
/// team.p_blocking(&data, 0, 9, right)?;
/// assert_eq!(team.g_blocking(&data, 0, right)?, 9);
///
/// let every_other = Strides { count: 2, source: 1, dest: 2 };
/// team.put_strided_blocking(&[7, 8], &data, every_other, right)?;
/// let mut back = [0; 4];
/// team.get_blocking(&data, &mut back, right)?;
/// assert_eq!(back, [7, 2, 8, 4]);
///
/// data.release()?; // collective, like the allocation
/// words.release()?;
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Copies `source` to `dest` on rank `rank`.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each.
    ///
    /// # Ordering
    /// The put runs after earlier operations of `stream`. When the put is complete, `source` may be
    /// reused. The data is visible at the target after a [`quiet`](crate::World::quiet) or barrier.
    /// Two puts to the same rank are ordered only if a [`fence`](crate::World::fence) separates
    /// them.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the lengths differ, or if `rank` is not a rank of the team.
    /// Also [`Misuse`](crate::Misuse) if a handle belongs to another world or is no longer valid.
    /// If `rank` is this rank, also [`Misuse`](crate::Misuse) if `source` and `dest` overlap.
    /// [`Error::Peer`](crate::Error::Peer) if the target is known to have died or left the job: see
    /// [Dead targets](Team#dead-targets).
    #[inline]
    pub fn put<T: Element>(
        &self,
        stream: &Stream,
        mut source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "put";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), None, false, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::put`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::put`].
    #[inline]
    pub fn put_blocking<T: Element>(&self, mut source: impl Source<T>, dest: &Symmetric<T>, rank: Rank) -> Result<()> {
        let prepared = check::put("put_blocking", self, source.span(), dest.remote(), None, false, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::put`], but the put may complete as late as the next
    /// [`quiet`](crate::World::quiet). Until that quiet, the stream keeps `source` alive, and the
    /// caller must not change `source`.
    ///
    /// # Errors
    /// As for [`Team::put`].
    #[inline]
    pub fn put_nbi<T: Element>(
        &self,
        stream: &Stream,
        mut source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "put_nbi";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), None, true, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::put_nbi`], but the calling thread issues the put. A `source` in ordinary memory
    /// may be reused when the call returns. A symmetric `source` may be reused after the next
    /// [`quiet`](crate::World::quiet_blocking).
    ///
    /// # Errors
    /// As for [`Team::put`].
    #[inline]
    pub fn put_nbi_blocking<T: Element>(&self, mut source: impl Source<T>, dest: &Symmetric<T>, rank: Rank) -> Result<()> {
        let prepared = check::put("put_nbi_blocking", self, source.span(), dest.remote(), None, true, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Copies `source` on rank `rank` to `dest`.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each.
    ///
    /// # Ordering
    /// The get runs after earlier operations of `stream`. When the get is complete, the data is in
    /// `dest`.
    ///
    /// # Errors
    /// As for [`Team::put`].
    #[inline]
    pub fn get<T: Element>(
        &self,
        stream: &Stream,
        source: &Symmetric<T>,
        mut dest: impl StreamDest<T>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "get";
        let prepared = check::get(CALL, self, source.remote(), dest.span(), false, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::get`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::get`].
    #[inline]
    pub fn get_blocking<T: Element>(&self, source: &Symmetric<T>, mut dest: impl Dest<T>, rank: Rank) -> Result<()> {
        let prepared = check::get("get_blocking", self, source.remote(), dest.span(), false, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::get`], but the data is in `dest` only after the next
    /// [`quiet`](crate::World::quiet). The stream keeps `dest` alive until that quiet.
    ///
    /// # Errors
    /// As for [`Team::get`].
    #[inline]
    pub fn get_nbi<T: Element>(
        &self,
        stream: &Stream,
        source: &Symmetric<T>,
        mut dest: impl StreamDest<T>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "get_nbi";
        let prepared = check::get(CALL, self, source.remote(), dest.span(), true, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::get_nbi`], but the calling thread issues the get. If `dest` is ordinary memory,
    /// the data is in `dest` when the call returns. If `dest` is symmetric, the data is in `dest`
    /// after the next [`quiet`](crate::World::quiet_blocking).
    ///
    /// # Errors
    /// As for [`Team::get`].
    #[inline]
    pub fn get_nbi_blocking<T: Element>(&self, source: &Symmetric<T>, mut dest: impl Dest<T>, rank: Rank) -> Result<()> {
        let prepared = check::get("get_nbi_blocking", self, source.remote(), dest.span(), true, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Copies strided elements of `source` to strided elements of `dest` on rank `rank`.
    ///
    /// # Shapes
    /// Element `i * strides.source` of `source` is copied to element `i * strides.dest` of `dest`,
    /// for `i` in `0..strides.count`. `source` and `dest` must contain all of these elements.
    ///
    /// # Ordering
    /// As for [`Team::put`].
    ///
    /// # Errors
    /// As for [`Team::put`]; [`Misuse`](crate::Misuse) if a stride is 0, or if an element to copy
    /// lies outside its buffer.
    pub fn put_strided<T: Element>(
        &self,
        stream: &Stream,
        mut source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "put_strided";
        let prepared = check::strided(CALL, self, Direction::Send, source.span(), dest.remote(), strides, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::put_strided`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::put_strided`].
    pub fn put_strided_blocking<T: Element>(
        &self,
        mut source: impl Source<T>,
        dest: &Symmetric<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<()> {
        const CALL: &str = "put_strided_blocking";
        let prepared = check::strided(CALL, self, Direction::Send, source.span(), dest.remote(), strides, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Copies strided elements of `source` on rank `rank` to strided elements of `dest`.
    ///
    /// # Shapes
    /// As for [`Team::put_strided`].
    ///
    /// # Ordering
    /// As for [`Team::get`].
    ///
    /// # Errors
    /// As for [`Team::put_strided`].
    pub fn get_strided<T: Element>(
        &self,
        stream: &Stream,
        source: &Symmetric<T>,
        mut dest: impl StreamDest<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "get_strided";
        let prepared = check::strided(CALL, self, Direction::Receive, dest.span(), source.remote(), strides, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::get_strided`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::get_strided`].
    pub fn get_strided_blocking<T: Element>(
        &self,
        source: &Symmetric<T>,
        mut dest: impl Dest<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<()> {
        const CALL: &str = "get_strided_blocking";
        let prepared = check::strided(CALL, self, Direction::Receive, dest.span(), source.remote(), strides, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Sets element `index` of `dest` on rank `rank` to `value`.
    ///
    /// # Ordering
    /// As for [`Team::put`].
    ///
    /// # Errors
    /// As for [`Team::put`]; [`Misuse`](crate::Misuse) if `dest` has no element `index`.
    pub fn p<T: Element>(&self, stream: &Stream, dest: &Symmetric<T>, index: usize, value: T, rank: Rank) -> Result<Ticket> {
        const CALL: &str = "p";
        if !is_word::<T>() {
            let value = Buffer::from(vec![value]);
            let prepared = check::put_value(CALL, self, value.span(), dest.remote(), index, rank)?;
            return call::submit(CALL, self, stream, prepared, decode::nothing);
        }
        let prepared = check::put_element(CALL, self, dest.remote(), index, element_bits(value), rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::p`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::p`].
    #[inline]
    pub fn p_blocking<T: Element>(&self, dest: &Symmetric<T>, index: usize, value: T, rank: Rank) -> Result<()> {
        const CALL: &str = "p_blocking";
        if !is_word::<T>() {
            let prepared = check::put_value(CALL, self, borrowed(from_ref(&value)), dest.remote(), index, rank)?;
            return call::run_unit(&self.inner.shared, prepared);
        }
        let prepared = check::put_element(CALL, self, dest.remote(), index, element_bits(value), rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Gets element `index` of `source` on rank `rank`. The ticket returns the value of the
    /// element.
    ///
    /// # Ordering
    /// As for [`Team::get`].
    ///
    /// # Errors
    /// As for [`Team::get`]; [`Misuse`](crate::Misuse) if `source` has no element `index`.
    pub fn g<T: Element>(&self, stream: &Stream, source: &Symmetric<T>, index: usize, rank: Rank) -> Result<Ticket<T>> {
        const CALL: &str = "g";
        if !is_word::<T>() {
            let into = Buffer::<T>::zeroed(1);
            let prepared = check::get_value(CALL, self, source.remote(), index, into.span(), rank)?;
            let ticket = call::submit(CALL, self, stream, prepared, decode::nothing)?;
            return Ok(ticket.with_result(move || into.first()));
        }
        let prepared = check::get_element(CALL, self, source.remote(), index, rank)?;
        call::submit(CALL, self, stream, prepared, decode::element)
    }

    /// Like [`Team::g`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::g`].
    #[inline]
    pub fn g_blocking<T: Element>(&self, source: &Symmetric<T>, index: usize, rank: Rank) -> Result<T> {
        const CALL: &str = "g_blocking";
        if !is_word::<T>() {
            let mut value = T::zeroed();
            let into = borrowed_mut(from_mut(&mut value));
            call::run_unit(&self.inner.shared, check::get_value(CALL, self, source.remote(), index, into, rank)?)?;
            return Ok(value);
        }
        let prepared = check::get_element(CALL, self, source.remote(), index, rank)?;
        call::run(&self.inner.shared, prepared).map(decode::element)
    }

    /// Copies `source` to `dest` on rank `rank`, then changes a signal word on that rank. A PE that
    /// has waited for the new value of the word sees the data.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each. `dest` does not contain the signal word.
    ///
    /// # Ordering
    /// As for [`Team::put`]. At the target, the word changes after the data is visible.
    ///
    /// # Errors
    /// As for [`Team::put`]; [`Misuse`](crate::Misuse) if the signal word belongs to another world,
    /// has been released, or lies in `dest`.
    #[inline]
    pub fn put_signal<T: Element>(
        &self,
        stream: &Stream,
        mut source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        update: SignalUpdate<'_>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "put_signal";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), Some(update), false, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::put_signal`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::put_signal`].
    #[inline]
    pub fn put_signal_blocking<T: Element>(
        &self,
        mut source: impl Source<T>,
        dest: &Symmetric<T>,
        update: SignalUpdate<'_>,
        rank: Rank,
    ) -> Result<()> {
        const CALL: &str = "put_signal_blocking";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), Some(update), false, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }

    /// Like [`Team::put_signal`], but `source` must not change before the next
    /// [`quiet`](crate::World::quiet). The stream keeps `source` alive until that quiet.
    ///
    /// # Errors
    /// As for [`Team::put_signal`].
    #[inline]
    pub fn put_signal_nbi<T: Element>(
        &self,
        stream: &Stream,
        mut source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        update: SignalUpdate<'_>,
        rank: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "put_signal_nbi";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), Some(update), true, rank)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::put_signal_nbi`], but the calling thread issues the put. A `source` in ordinary
    /// memory may be reused when the call returns. A symmetric `source` may be reused after the
    /// next [`quiet`](crate::World::quiet_blocking).
    ///
    /// # Errors
    /// As for [`Team::put_signal`].
    #[inline]
    pub fn put_signal_nbi_blocking<T: Element>(
        &self,
        mut source: impl Source<T>,
        dest: &Symmetric<T>,
        update: SignalUpdate<'_>,
        rank: Rank,
    ) -> Result<()> {
        const CALL: &str = "put_signal_nbi_blocking";
        let prepared = check::put(CALL, self, source.span(), dest.remote(), Some(update), true, rank)?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
