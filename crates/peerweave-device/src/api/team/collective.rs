//! Collectives of a team, by one thread, or by all threads of a warp or of a block.
//!
//! A collective puts data into the members' results, and a reduction reads the members' operands:
//! by stores and loads if a member is mapped, and over the network otherwise. Each collective
//! begins or ends with a synchronisation of the team ([`Context::meet_as`]), which orders the
//! collective and completes its puts.
//!
//! Kernels call collectives in many places, with many types. So the functions that move data are
//! not inlined: puts to all members, which move bytes, one function for each scope; and reductions,
//! one function for each type and operator, for mapped members and for others.
//!
//! Invariant: elements are combined in rank order, so that every member gets the same bits.

use super::Team;
use super::combine::{Combine, Reducible};
use super::meet::Collective;
use crate::api::context::{Bases, Pes, Reach};
use crate::api::memory::bulk::Lent;
use crate::api::scope::{Block, Scope, Thread, Warp};
use crate::api::value::{self, Global, Side, Strong};
use crate::api::views::address;
use crate::api::{Context, Failed, network};
use peerweave_types::{KernelContext, KernelOp, KernelTeam, Plain, SymOffset, SymSlice};

/// Bytes of a vector.
const VECTOR: usize = 16;

/// The result of [`give_each`]: the outcome, and [`Lent::parity`] after the call.
struct Given {
    outcome: Result<(), Failed>,
    parity: u32,
}

/// Puts to every member the `bytes` bytes that lie `stride` times the member's rank after `from`.
/// Puts over the network may be outstanding when it returns. Each rank begins with itself, then its
/// neighbour, so that not all ranks store to the same member at the same time.
///
/// # Safety
/// The parts and the lent memory are from one context of this thread. At both offsets (target,
/// source) every member's heap has the bytes, for all ranks.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the numbers stay in registers; a struct of them would be in memory")]
unsafe fn give_each<S: Scope>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    lent: Lent,
    (team, operation): (KernelTeam, KernelOp),
    (to, from): (SymOffset, SymOffset),
    bytes: usize,
    stride: usize,
) -> Given {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    context.lent.set(lent);
    // Stores of earlier calls may read the buffers.
    context.bulk_pending.set(lent.is_some());
    let give = || {
        let members = context.team(operation, team)?;
        let mut rank = members.my_rank();
        for _ in 0..members.size() {
            let source = context.my_base() + from.0 + (rank as usize * stride) as u64;
            match members.reach(context, operation, rank)? {
                Reach::Mapped(base) if base + to.0 == source => {}
                // SAFETY: the caller promises the bytes in both heaps, and the member is mapped.
                Reach::Mapped(base) => unsafe {
                    context.copy_to_peer::<S, true>(address(base + to.0), address(source), bytes, true);
                },
                Reach::Network => {
                    network::put::<S>(context.my_base() + to.0, source, bytes, members.member(rank), true);
                }
            }
            rank = if rank + 1 == members.size() { 0 } else { rank + 1 };
        }
        Ok(())
    };
    let outcome = give();
    context.finish_bulk();
    Given { outcome, parity: context.lent.get().parity() }
}

/// Combines `count` elements of all members, which are mapped, and stores the result to the ranks
/// from `first` up to `end`. The elements are shared by `threads` threads; this is number `thread`.
///
/// # Errors
/// If this PE is not in the team.
///
/// # Safety
/// The parts are from one context of this thread; all members are mapped. At both offsets
/// (target, source) every member's heap has `count` elements.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the numbers stay in registers; a struct of them would be in memory")]
unsafe fn combine_near<T: Reducible, C: Combine<T>>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    (team, operation): (KernelTeam, KernelOp),
    (to, from): (SymOffset, SymOffset),
    count: usize,
    (first, end): (u32, u32),
    (thread, threads): (usize, usize),
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let members = context.team(operation, team)?;
    // The cache of the last PE would not help: each load is from another PE.
    let base = |rank| context.table_base(members.member(rank));
    let (size, vectors) = (members.size(), vectors::<T>(to, from, count));
    let mut at = thread;
    while at < vectors {
        let place = (at * VECTOR) as u64;
        // SAFETY: the vector lies within the elements, in a mapped heap, and is aligned because
        // heaps have a larger alignment.
        let load = |rank| unsafe { Strong::load_vector(address::<u8>(base(rank) + from.0 + place)) };
        let mut sum = T::unpack(load(0));
        let mut rank = 1;
        while rank + 3 < size {
            // Four loads are in flight.
            let held: [_; 4] = core::array::from_fn(|k| load(rank + k as u32));
            for vector in held {
                sum = T::zip::<C>(sum, T::unpack(vector));
            }
            rank += 4;
        }
        while rank < size {
            sum = T::zip::<C>(sum, T::unpack(load(rank)));
            rank += 1;
        }
        let result = T::pack(sum);
        for rank in first..end {
            // SAFETY: as for the load.
            unsafe { Global::store_vector(address::<u8>(base(rank) + to.0 + place), result) };
        }
        at += threads;
    }
    let mut at = vectors * per_vector::<T>() + thread;
    while at < count {
        let place = (at * size_of::<T>()) as u64;
        // SAFETY: the element lies within the elements of a mapped heap.
        let load = |rank| unsafe { value::load::<T, Strong>(address(base(rank) + from.0 + place)) }.widen();
        let mut sum = load(0);
        for rank in 1..size {
            sum = C::combine(sum, load(rank));
        }
        for rank in first..end {
            // SAFETY: as for the load.
            unsafe { value::store::<T, Global>(address(base(rank) + to.0 + place), T::narrow(sum)) };
        }
        at += threads;
    }
    Ok(())
}

/// Checks that each member can be reached. The type parameter makes the compiler place the function
/// in the crate of the kernel.
///
/// # Errors
/// If a member cannot be reached.
///
/// # Safety
/// The parts are from one context of this thread.
#[cold]
#[inline(never)]
#[expect(clippy::extra_unused_type_parameters, reason = "makes it generic, and so part of the kernel's crate")]
unsafe fn reach_all<Here>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    (team, operation): (KernelTeam, KernelOp),
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let members = context.team(operation, team)?;
    (0..members.size()).try_for_each(|rank| members.reach(context, operation, rank).map(drop))
}

/// Like [`combine_near`], if some members are not mapped: their elements are read over the network,
/// word by word, and the result is stored to the mapped members.
///
/// # Errors
/// If this PE is not in the team.
///
/// # Safety
/// As for [`combine_near`], except that members may be reached over the network instead.
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the numbers stay in registers; a struct of them would be in memory")]
unsafe fn combine_far<T: Reducible, C: Combine<T>>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    (team, operation): (KernelTeam, KernelOp),
    (to, from): (SymOffset, SymOffset),
    count: usize,
    (first, end): (u32, u32),
    (thread, threads): (usize, usize),
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let members = context.team(operation, team)?;
    let base = |rank| context.table_base(members.member(rank));
    let vectors = vectors::<T>(to, from, count);
    let mut at = thread;
    while at < vectors {
        let place = (at * VECTOR) as u64;
        let load = |rank| match base(rank) {
            0 => network::load_vector(context.my_base() + from.0 + place, members.member(rank)),
            // SAFETY: the vector lies within the elements, in a mapped heap, and is aligned because
            // heaps have a larger alignment.
            base => unsafe { Strong::load_vector(address::<u8>(base + from.0 + place)) },
        };
        let sum = (1..members.size()).fold(T::unpack(load(0)), |sum, rank| T::zip::<C>(sum, T::unpack(load(rank))));
        for base in (first..end).map(base).filter(|base| *base != 0) {
            // SAFETY: as for the load.
            unsafe { Global::store_vector(address::<u8>(base + to.0 + place), T::pack(sum)) };
        }
        at += threads;
    }
    let mut at = vectors * per_vector::<T>() + thread;
    while at < count {
        let place = (at * size_of::<T>()) as u64;
        let load = |rank| {
            let element: T = match base(rank) {
                0 => network::g(context.my_base() + from.0 + place, members.member(rank)),
                // SAFETY: the element lies within the elements of a mapped heap.
                base => unsafe { value::load::<T, Strong>(address(base + from.0 + place)) },
            };
            element.widen()
        };
        let sum = (1..members.size()).fold(load(0), |sum, rank| C::combine(sum, load(rank)));
        for base in (first..end).map(base).filter(|base| *base != 0) {
            // SAFETY: as for the load.
            unsafe { value::store::<T, Global>(address(base + to.0 + place), T::narrow(sum)) };
        }
        at += threads;
    }
    Ok(())
}

/// Puts `bytes` bytes of this PE's own result to the members that are not mapped. All threads of
/// the scope call it, and may have written the result. The synchronisation that follows completes
/// the puts.
///
/// # Safety
/// The parts are from one context of this thread. At the offset every member's heap has the
/// bytes.
#[cold]
#[inline(never)]
unsafe fn give_far<S: Scope>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    (team, operation): (KernelTeam, KernelOp),
    result: SymOffset,
    bytes: usize,
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let members = context.team(operation, team)?;
    S::sync();
    let here = context.my_base() + result.0;
    for rank in 0..members.size() {
        if members.mapped_base(context, rank) == 0 {
            network::put::<S>(here, here, bytes, members.member(rank), true);
        }
    }
    Ok(())
}

/// Returns the number of elements of a vector; 0 if an element is larger than a vector.
#[inline(always)]
const fn per_vector<T>() -> usize {
    VECTOR / size_of::<T>()
}

/// Returns the number of whole vectors among `count` elements, which are combined as vectors; 0 if
/// vectors are not aligned at both offsets.
#[inline(always)]
fn vectors<T>(to: SymOffset, from: SymOffset, count: usize) -> usize {
    let aligned = ((to.0 | from.0) as usize).is_multiple_of(VECTOR) && VECTOR.is_multiple_of(size_of::<T>());
    if aligned { count / per_vector::<T>() } else { 0 }
}

impl Context {
    /// Calls [`give_each`] for `count` elements.
    #[inline(always)]
    fn give<T: Plain, S: Scope>(
        &self,
        of: (KernelTeam, KernelOp),
        to: SymSlice<T>,
        from: SymSlice<T>,
        count: usize,
        stride: usize,
    ) -> Result<(), Failed> {
        let (raw, pes, bases) = self.parts();
        let (mut lent, bytes, stride) = (self.lent.get(), count * size_of::<T>(), stride * size_of::<T>());
        // SAFETY: the parts are from this context; `SymSlice` promises the elements in every heap,
        // and the callers take no more than both slices have.
        let given = unsafe { give_each::<S>(raw, pes, bases, lent, of, (to.offset(), from.offset()), bytes, stride) };
        lent.set_parity(given.parity);
        self.lent.set(lent);
        given.outcome
    }

    #[inline(always)]
    fn broadcast_any<T: Plain, S: Scope>(
        &self,
        team: KernelTeam,
        to: SymSlice<T>,
        from: SymSlice<T>,
        root: u32,
    ) -> Result<(), Failed> {
        let operation = KernelOp::Broadcast;
        if self.team(operation, team)?.my_rank() == root {
            self.give::<T, S>((team, operation), to, from, to.len().min(from.len()), 0)?;
        }
        self.meet_as::<S, Collective>(operation, team)
    }

    #[inline(always)]
    fn fcollect_any<T: Plain, S: Scope>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
        let operation = KernelOp::Fcollect;
        let members = self.team(operation, team)?;
        let count = from.len().min(to.len() / members.size() as usize);
        let mine = to.slice(members.my_rank() as usize * count..);
        self.give::<T, S>((team, operation), mine, from, count, 0)?;
        self.meet_as::<S, Collective>(operation, team)
    }

    #[inline(always)]
    fn alltoall_any<T: Plain, S: Scope>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
        let operation = KernelOp::Alltoall;
        let members = self.team(operation, team)?;
        let count = from.len().min(to.len()) / members.size() as usize;
        let mine = to.slice(members.my_rank() as usize * count..);
        self.give::<T, S>((team, operation), mine, from, count, count)?;
        self.meet_as::<S, Collective>(operation, team)
    }

    #[inline(always)]
    fn reduce_any<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        team: KernelTeam,
        to: SymSlice<T>,
        from: SymSlice<T>,
    ) -> Result<(), Failed> {
        let operation = KernelOp::Reduce;
        self.meet_as::<S, Collective>(operation, team)?;
        let members = self.team(operation, team)?;
        // Each rank reduces a share of whole vectors, and stores it to every member; the last
        // rank's share extends to the end. This is correct in place too, because only the rank that
        // writes a share reads it.
        let count = to.len().min(from.len());
        let per_vector = per_vector::<T>().max(1);
        let share = count.div_ceil(per_vector).div_ceil(members.size() as usize) * per_vector;
        let start = (members.my_rank() as usize * share).min(count);
        let end = (start + share).min(count);
        let offsets = (to.slice(start..end).offset(), from.slice(start..end).offset());
        // SAFETY: `SymSlice` promises the elements in every heap.
        unsafe { self.combine::<T, S, C>(&members, operation, offsets, end - start, (0, members.size()))? };
        if !members.all_mapped() {
            let (raw, pes, bases) = self.parts();
            // SAFETY: the parts are from this context; the elements are as above.
            unsafe { give_far::<S>(raw, pes, bases, (team, operation), offsets.0, (end - start) * size_of::<T>())? };
        }
        self.meet_as::<S, Collective>(operation, team)
    }

    #[inline(always)]
    fn reducescatter_any<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        team: KernelTeam,
        to: SymSlice<T>,
        from: SymSlice<T>,
    ) -> Result<(), Failed> {
        let operation = KernelOp::ReduceScatter;
        self.meet_as::<S, Collective>(operation, team)?;
        let members = self.team(operation, team)?;
        let (mine, count) = (members.my_rank(), to.len().min(from.len() / members.size() as usize));
        let offsets = (to.offset(), from.slice(mine as usize * count..).offset());
        // SAFETY: `SymSlice` promises the elements in every heap.
        unsafe { self.combine::<T, S, C>(&members, operation, offsets, count, (mine, mine + 1))? };
        self.meet_as::<S, Collective>(operation, team)
    }

    /// Combines `count` elements of all members, and stores the result to those of the ranks
    /// `receivers`, from the first up to the second, that are mapped.
    ///
    /// # Errors
    /// If a member cannot be reached.
    ///
    /// # Safety
    /// At both offsets (target, source) every member's heap has as many elements.
    #[inline(always)]
    unsafe fn combine<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        members: &Team,
        operation: KernelOp,
        offsets: (SymOffset, SymOffset),
        count: usize,
        receivers: (u32, u32),
    ) -> Result<(), Failed> {
        let ((raw, pes, bases), of, threads) = (self.parts(), (members.team(), operation), (S::rank(), S::size()));
        if !members.all_mapped() {
            // SAFETY: the parts are from this context.
            unsafe { reach_all::<()>(raw, pes, bases, of)? };
            // This is a constant. Kernels compiled without the network end here, because
            // `reach_all` has found all members mapped.
            if network::available() {
                // SAFETY: the parts are from this context; the caller promises the rest.
                return unsafe { combine_far::<T, C>(raw, pes, bases, of, offsets, count, receivers, threads) };
            }
        }
        // SAFETY: the parts are from this context, and the members are mapped; the caller promises
        // the rest.
        unsafe { combine_near::<T, C>(raw, pes, bases, of, offsets, count, receivers, threads) }
    }
}

/// Declares the public methods, one for each scope.
macro_rules! scoped {
    ($scope:ident, $words:literal: $broadcast:ident, $fcollect:ident, $alltoall:ident, $reduce:ident, $reducescatter:ident) => {
        impl Context {
            #[doc = concat!("Copies the elements of the member with rank `root` to `to` of every member, by ", $words, ".")]
            /// Every member makes this call, from the same block index, when its `to` may be
            /// written. If the lengths differ, the shorter one is used.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $broadcast<T: Plain>(
                &self,
                team: KernelTeam,
                to: SymSlice<T>,
                from: SymSlice<T>,
                root: u32,
            ) -> Result<(), Failed> {
                self.broadcast_any::<T, $scope>(team, to, from, root)
            }

            #[doc = concat!("Copies the elements of every member to `to` of every member, in rank order, by ", $words, ".")]
            /// Every member makes this call, from the same block index, when its `to` may be
            /// written. `to` is as long as all parts together; if it is shorter, the last parts are
            /// cut off.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $fcollect<T: Plain>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
                self.fcollect_any::<T, $scope>(team, to, from)
            }

            #[doc = concat!("Copies part `j` of this member's elements to part `i` of member `j`'s `to`, where `i` is this rank, by ",
                $words, ".")]
            /// Every member makes this call, from the same block index, when its `to` may be
            /// written. Parts are equal; remaining elements are not moved.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $alltoall<T: Plain>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
                self.alltoall_any::<T, $scope>(team, to, from)
            }

            #[doc = concat!("Combines the elements of all members, and gives every member the result in `to`, by ", $words, ".")]
            /// Every member makes this call, from the same block index, when its `to` may be
            /// written. If the lengths differ, the shorter one is used. `to` may be `from`.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $reduce<T: Reducible, C: Combine<T>>(
                &self,
                team: KernelTeam,
                to: SymSlice<T>,
                from: SymSlice<T>,
                _combine: C,
            ) -> Result<(), Failed> {
                self.reduce_any::<T, $scope, C>(team, to, from)
            }

            #[doc = concat!("Combines the elements of all members, and gives member `i` part `i` of the result, by ", $words, ".")]
            /// Every member makes this call, from the same block index, when its `to` may be
            /// written. `from` is as long as all parts together; if it is shorter, each part is
            /// shorter too. `to` does not overlap `from`.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $reducescatter<T: Reducible, C: Combine<T>>(
                &self,
                team: KernelTeam,
                to: SymSlice<T>,
                from: SymSlice<T>,
                _combine: C,
            ) -> Result<(), Failed> {
                self.reducescatter_any::<T, $scope, C>(team, to, from)
            }
        }
    };
}

scoped!(Thread, "this thread": broadcast, fcollect, alltoall, reduce, reducescatter);
scoped!(Warp, "all threads of the warp": broadcast_warp, fcollect_warp, alltoall_warp, reduce_warp, reducescatter_warp);
scoped!(Block, "all threads of the block": broadcast_block, fcollect_block, alltoall_block, reduce_block, reducescatter_block);
