//! The strided all-to-all: an all-to-all whose elements are strided in the buffers.

use crate::arguments::span::{Dest, Source, StreamDest, StreamSource};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Strides};

/// The strided all-to-all: an all-to-all whose elements are strided in the buffers.
impl Team {
    /// Like [`Team::all_to_all`], but the elements in the buffers are strided. Element `i` that
    /// this rank sends is at index `i * strides.source` of `send`. Element `i` that this rank
    /// receives is at index `i * strides.dest` of `recv`. `i` counts the elements of all parts, in
    /// rank order.
    ///
    /// # Collective
    /// `strides.count` is the number of elements that each rank sends to each rank, and must be the
    /// same on all ranks. The strides may differ between ranks.
    ///
    /// # Shapes
    /// In a team of `n` ranks, `send` has at least `(n * strides.count - 1) * strides.source + 1`
    /// elements, and `recv` has at least `(n * strides.count - 1) * strides.dest + 1` elements. The
    /// two buffers do not overlap. Elements that lie between the strided elements of `recv` do not
    /// change.
    ///
    /// # Errors
    /// As for [`Team::all_to_all`]; [`Misuse`](crate::Misuse) for a stride of 0.
    ///
    /// # Example
    /// ```
    /// use peerweave::{Strides, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let n = team.size();
    /// // Sends element `r` of the first of two columns to rank `r`, which fills its second column.
    /// let mine: Vec<u32> = (0..2 * n as u32).map(|i| 100 * team.my_rank().get() + i).collect();
    /// let mut columns = vec![0; 2 * n];
    /// let strides = Strides { count: 1, source: 2, dest: 2 };
    /// team.all_to_all_strided_blocking(&mine, &mut columns[1..], strides)?;
    /// for (rank, row) in columns.chunks(2).enumerate() {
    ///     assert_eq!(row, [0, 100 * rank as u32 + 2 * team.my_rank().get()]);
    /// }
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_to_all_strided<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        strides: Strides,
    ) -> Result<Ticket> {
        const CALL: &str = "all_to_all_strided";
        let prepared = check::all_to_all_strided(CALL, self, send.span(), recv.span(), strides)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_to_all_strided`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_strided`].
    pub fn all_to_all_strided_blocking<T: Element>(
        &self,
        mut send: impl Source<T>,
        mut recv: impl Dest<T>,
        strides: Strides,
    ) -> Result<()> {
        const CALL: &str = "all_to_all_strided_blocking";
        let prepared = check::all_to_all_strided(CALL, self, send.span(), recv.span(), strides)?;
        call::run_unit(&self.inner.shared, prepared)
    }
}
