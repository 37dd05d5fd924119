//! The buffers and the calls of one measurement, which has one operation, size and element type.
//! The code of this module is generic over the element type, so it is compiled for several types.
//! The code in `measure.rs` is compiled only once.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use peerweave::{MaybeDest, MaybeSource, ReduceOp, Result, Scalar, Stream, StreamDest, StreamSource, Symmetric, World};

use super::calls::{self, Calls, Setting, Words};
use super::memory::{self, Memory};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, Part, Placement, Tile, View};
use crate::workload::pattern::{Sample, tile};

/// The buffers of a PE for one element type, large enough for the largest case of that type.
pub struct Buffers<T, M> {
    /// Memory of inputs.
    pub send: M,
    /// Memory of results.
    pub recv: M,
    /// Symmetric memory that is the remote side of one-sided operations. PE 0 accesses this memory
    /// on PE 1. In a ping-pong, PE 1 also accesses this memory on PE 0.
    pub target: Symmetric<T>,
    /// Word that operations use as a signal or as a counter.
    pub word: Symmetric<u64>,
}

/// Selects one of the memories in [`Buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Memory of inputs.
    Send,
    /// Memory of results.
    Recv,
    /// Symmetric memory that is the remote side of one-sided operations. PE 0 accesses this memory
    /// on PE 1. In a ping-pong, PE 1 also accesses this memory on PE 0.
    Target,
}

/// One case of the measurement, in place or out of place: its memory and its calls. A user of this
/// trait does not know the element type, so the methods take an element as its bits, zero-extended
/// to 64 bits.
pub trait Operands {
    /// Returns the operation, its counts and this PE's rank.
    fn view(&self) -> &View;
    /// Returns the closure that makes the timed calls. For calls that return a word, the closure
    /// compares the word with the expected word, and counts differences in `wrong`.
    fn calls<'a>(&'a self, wrong: &'a Cell<u64>) -> Calls<'a>;
    /// Fills the range `part` of the buffer that `side` selects with elements of `part.of`, a
    /// sequence such as the input of one rank. `round` also determines the values, so inputs differ
    /// between rounds.
    fn fill(&self, side: Side, part: &Part, round: u64) -> Result<()>;
    /// Writes the value for unwritten elements (`poison`) to a range of the buffer that `side`
    /// selects.
    fn spoil(&self, side: Side, range: Range<usize>) -> Result<()>;
    /// Rewrites the buffer that `side` selects without changing its values. Then the cache lines of
    /// the buffer are in the state "modified" in the cache of this PE's CPU core.
    fn rewrite(&self, side: Side);
    /// Compares the range `part` of the buffer that `side` selects with the elements that
    /// [`fill`](Self::fill) would write there in round `round`. Returns the number of elements that
    /// differ.
    fn count_wrong(&self, side: Side, part: &Part, round: u64) -> Result<u64>;
    /// Counts the elements of a range that no longer have the value for unwritten elements, which
    /// [`spoil`](Self::spoil) stores. `side` selects the buffer that contains the range.
    fn count_unspoiled(&self, side: Side, range: Range<usize>) -> Result<u64>;
    /// Returns the length, in elements, of the range of result memory that this case uses.
    fn recv_len(&self) -> usize;
    /// Returns the symmetric word that the calls use as a signal or as a counter.
    fn word(&self) -> &Symmetric<u64>;
    /// Overwrites the first element of the target memory with the low bits of `bits`.
    fn store_target(&self, bits: u64) -> Result<()>;
    /// Returns whether the bits of the first element of the target memory are the low bits of
    /// `bits`.
    fn target_is(&self, bits: u64) -> Result<bool>;
    /// Returns the size of an element in bytes.
    fn element_bytes(&self) -> usize;
}

/// A group of operations ([`Reducing`] or [`Moving`]). All operations of a group are compiled for
/// the same element types.
pub trait Work<T: Sample>: Sized {
    /// Returns the closure that makes the timed calls of `operands`. The closure adds the number of
    /// wrong words that the calls return to `wrong`.
    fn calls<'a, M>(operands: &'a Typed<'a, T, M, Self>, wrong: &'a Cell<u64>) -> Calls<'a>
    where
        for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>;
}

/// Marker type for operations that reduce elements, such as all-reduce. The calls of these
/// operations are compiled for every numeric type.
pub enum Reducing {}

/// Marker type for operations that only move elements, such as broadcast. The calls of these
/// operations are compiled for only one element type of each size.
pub enum Moving {}

macro_rules! work {
    ($work:ident, $($number:ident)?, |$operands:ident, $wrong:ident| $calls:expr) => {
        impl<T: Sample $(+ $number)?> Work<T> for $work {
            fn calls<'a, M>($operands: &'a Typed<'a, T, M, Self>, $wrong: &'a Cell<u64>) -> Calls<'a>
            where
                for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
            {
                $calls
            }
        }
    };
}

work!(Reducing, Scalar, |operands, _wrong| {
    calls::reducing(&operands.setting, operands.redop.expect("every case of an operation that reduces elements has a reduction"))
});
work!(Moving, , |operands, wrong| match operands.setting.view.op.is_one_sided() {
    true => calls::one_sided(&operands.setting, &operands.target, Words { word: &operands.buffers.word, wrong }),
    false => calls::moving(&operands.setting),
});

/// Implementation of [`Operands`] for elements of type `T` in memory of type `M`. `W` is
/// [`Reducing`] if the operation reduces elements, and [`Moving`] if the operation only moves
/// elements.
pub struct Typed<'a, T, M, W> {
    setting: Setting<'a, M>,
    buffers: &'a Buffers<T, M>,
    /// The range of [`Buffers::target`] that this case uses.
    target: Symmetric<T>,
    redop: Option<ReduceOp>,
    work: PhantomData<W>,
}

impl<'a, T: Sample, M: Memory<T>, W> Typed<'a, T, M, W> {
    /// Selects the memory of one case, in place or out of place. The case uses the first elements
    /// of each buffer in `buffers`.
    ///
    /// # Errors
    /// The buffers are too short.
    pub fn new(
        world: &'a World,
        stream: Option<&'a Stream>,
        config: &Config,
        case: &Case,
        placement: Placement,
        buffers: &'a Buffers<T, M>,
    ) -> Result<Self> {
        let rank = world.my_pe().index();
        let view =
            View { op: config.op, counts: case.counts, n_pes: world.n_pes(), rank, root: case.root.unwrap_or(0), placement };
        let (send_len, recv_len) = geometry::lengths(&view);
        let setting = Setting {
            world,
            stream,
            waits: config.compare.is_empty(),
            nbi: config.nbi,
            view,
            send: buffers.send.range(0..send_len)?,
            recv: buffers.recv.range(0..recv_len)?,
        };
        let target = buffers.target.slice(0..if view.op.is_one_sided() { recv_len } else { 0 })?;
        Ok(Self { setting, buffers, target, redop: case.redop, work: PhantomData })
    }
}

impl<T: Sample, M: Memory<T>, W> Typed<'_, T, M, W> {
    fn tile(&self, of: Tile, round: u64) -> Vec<T> {
        tile(of, self.redop, self.setting.view.n_pes, round)
    }
}

impl<T: Sample, M: Memory<T>, W: Work<T>> Operands for Typed<'_, T, M, W>
where
    for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
{
    fn view(&self) -> &View {
        &self.setting.view
    }

    fn calls<'a>(&'a self, wrong: &'a Cell<u64>) -> Calls<'a> {
        W::calls(self, wrong)
    }

    fn fill(&self, side: Side, part: &Part, round: u64) -> Result<()> {
        let tile = self.tile(part.of, round);
        match side {
            Side::Send => memory::fill(&self.buffers.send, part, &tile),
            Side::Recv => memory::fill(&self.buffers.recv, part, &tile),
            Side::Target => memory::fill(&self.buffers.target, part, &tile),
        }
    }

    fn spoil(&self, side: Side, range: Range<usize>) -> Result<()> {
        match side {
            Side::Send => memory::spoil(&self.buffers.send, range),
            Side::Recv => memory::spoil(&self.buffers.recv, range),
            Side::Target => memory::spoil(&self.buffers.target, range),
        }
    }

    fn rewrite(&self, side: Side) {
        match side {
            Side::Send => memory::rewrite(&self.setting.send),
            Side::Recv => memory::rewrite(&self.setting.recv),
            Side::Target => memory::rewrite(&self.target),
        }
    }

    fn count_wrong(&self, side: Side, part: &Part, round: u64) -> Result<u64> {
        let tile = self.tile(part.of, round);
        match side {
            Side::Send => memory::count_wrong(&self.buffers.send, part, &tile),
            Side::Recv => memory::count_wrong(&self.buffers.recv, part, &tile),
            Side::Target => memory::count_wrong(&self.buffers.target, part, &tile),
        }
    }

    fn count_unspoiled(&self, side: Side, range: Range<usize>) -> Result<u64> {
        match side {
            Side::Send => memory::count_unspoiled(&self.buffers.send, range),
            Side::Recv => memory::count_unspoiled(&self.buffers.recv, range),
            Side::Target => memory::count_unspoiled(&self.buffers.target, range),
        }
    }

    fn recv_len(&self) -> usize {
        self.setting.recv.count()
    }

    fn word(&self) -> &Symmetric<u64> {
        &self.buffers.word
    }

    fn store_target(&self, bits: u64) -> Result<()> {
        self.buffers.target.store(0, T::from_bits64(bits))
    }

    fn target_is(&self, bits: u64) -> Result<bool> {
        Ok(self.buffers.target.load(0)?.bits64() == T::from_bits64(bits).bits64())
    }

    fn element_bytes(&self) -> usize {
        size_of::<T>()
    }
}
