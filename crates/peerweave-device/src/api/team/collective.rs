//! Collectives of a team, called by one thread, or by all threads of a warp or of a block.
//!
//! A collective puts data into the results of the members, and a reduction also reads the operands
//! of the members. Mapped members are accessed by loads and stores, and unmapped members over the
//! network. Each collective ends with a synchronisation of the team ([`Context::meet_as`]), which
//! completes the puts. A reduction also begins with a synchronisation of the team.
//!
//! Kernels call collectives in many places, with many types. To limit the code size, the functions
//! that move data are not inlined. [`give_each`] moves bytes, so it is compiled once for each
//! scope. Reductions are compiled for each element type and operator: they use [`combine_near`] if
//! all members are mapped, and [`combine_far`] if not.
//!
//! Invariant: elements are combined in rank order, so that the result does not depend on the member
//! that computes it.

use super::Team;
use super::combine::{Combine, Reducible};
use super::meet::Collective;
use crate::api::context::{Bases, Pes, Reach};
use crate::api::memory::bulk::Lent;
use crate::api::report::Report;
use crate::api::scope::{Block, Scope, Thread, Warp};
use crate::api::value::{self, Global, Side, Strong};
use crate::api::views::address;
use crate::api::{Context, Failed, network};
use peerweave_types::{FailureKind, KernelContext, KernelOp, KernelTeam, Plain, SymOffset, SymSlice};

/// Size of a vector in bytes.
const VECTOR: usize = 16;

/// The result of [`give_each`]: success or failure, and the new parities of the barriers for bulk
/// copies ([`Lent::parity`]).
struct Given {
    outcome: Result<(), Failed>,
    parity: u32,
}

/// Puts a range of this PE's heap to every member of the team, including this PE. The range for
/// rank `r` has `bytes` bytes and starts at the offset `from + r * stride`. In the heap of rank
/// `r`, the bytes are stored at the offset `to`. When the function returns, puts over the network
/// may be outstanding.
///
/// This PE puts to itself first, then to the higher ranks, and last to the lower ranks. So the
/// members do not all put to the same member at the same time.
///
/// # Safety
/// `raw`, `pes`, `bases` and `lent` are from one context of this thread. The target range and the
/// source ranges for all ranks lie in every member's heap.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "separate parameters stay in registers; a struct would be placed in memory")]
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
    // Bulk stores of earlier calls may still read the lent buffers.
    context.bulk_pending.set(lent.is_some());
    let give = || {
        let members = context.team(operation, team)?;
        let mut rank = members.my_rank();
        for _ in 0..members.size() {
            let source = context.my_base() + from.0 + (rank as usize * stride) as u64;
            match members.reach(context, operation, rank)? {
                Reach::Mapped(base) if base + to.0 == source => {}
                // SAFETY: the caller promises both ranges, and the member is mapped.
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

/// Combines `count` elements of all members, if all members are mapped. Stores the result in the
/// heaps of the members with the ranks from `first` up to, but not including, `end`. The work is
/// divided among `threads` threads, and this thread has number `thread`.
///
/// # Errors
/// If the team does not exist, or if this PE is not a member.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread, and all members are mapped. Every
/// member's heap has `count` elements at the offset of the target, `to`, and at the offset of the
/// source, `from`.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "separate parameters stay in registers; a struct would be placed in memory")]
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
    // The cache of the last PE is not used, because consecutive loads are from different PEs.
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
            // Keeps four loads in flight.
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

/// Checks that this PE can reach every member. The type parameter makes the compiler generate the
/// function in the kernel's crate.
///
/// # Errors
/// If a member cannot be reached.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread.
#[cold]
#[inline(never)]
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the type parameter makes the compiler generate the function in the kernel's crate"
)]
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

/// Like [`combine_near`], but works if some members are not mapped. Elements of unmapped members
/// are read over the network, word by word. The result is stored only in the heaps of mapped
/// members.
///
/// # Errors
/// If the team does not exist, or if this PE is not a member.
///
/// # Safety
/// As for [`combine_near`], but a member need not be mapped if this PE can reach the member over
/// the network.
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "separate parameters stay in registers; a struct would be placed in memory")]
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

/// Puts `bytes` bytes at the offset `result` of this PE's heap to the same offset on each member
/// that is not mapped. All threads of the scope call this function, after they have written these
/// bytes. The next synchronisation of the team completes the puts.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread. Every member's heap has `bytes`
/// bytes at the offset `result`.
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

/// Returns the number of elements that one vector contains; 0 if an element is larger than a
/// vector.
#[inline(always)]
const fn per_vector<T>() -> usize {
    VECTOR / size_of::<T>()
}

/// Returns the number of whole vectors in `count` elements. Returns 0 if `to` or `from` is not
/// aligned to vectors, or if an element does not fit evenly in a vector.
#[inline(always)]
fn vectors<T>(to: SymOffset, from: SymOffset, count: usize) -> usize {
    let aligned = ((to.0 | from.0) as usize).is_multiple_of(VECTOR) && VECTOR.is_multiple_of(size_of::<T>());
    if aligned { count / per_vector::<T>() } else { 0 }
}

impl Context {
    /// Puts `count` elements to `to` on every member of the team. The elements for rank `r` start
    /// at element `r * stride` of `from`. When the call returns, puts over the network may be
    /// outstanding.
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
        // SAFETY: the parts are from this context. `SymSlice` promises the elements in every heap,
        // and the callers pass ranges that lie in both slices.
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
        let members = self.team(operation, team)?;
        if root >= members.size() {
            let report = Report { pe: root, team: team.index(), expected: u64::from(members.size()), ..Report::of(operation) };
            return Err(self.fail(FailureKind::NoSuchPeer, report));
        }
        if members.my_rank() == root {
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
        // Each rank reduces one share, and stores the result to every member. Shares consist of
        // whole vectors, except the last share, which ends at `count`. The reduction also works in
        // place, because only one rank reads and writes a share.
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
            // SAFETY: the parts are from this context, and `SymSlice` promises the elements in
            // every heap.
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

    /// Combines `count` elements of all members. Stores the result in the heaps of the mapped
    /// members with the ranks from `receivers.0` up to, but not including, `receivers.1`.
    ///
    /// # Errors
    /// If a member cannot be reached.
    ///
    /// # Safety
    /// `offsets` contains the offset of the target, then the offset of the source. Every member's
    /// heap has `count` elements at each of these offsets.
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
            // On GPUs `available` is a constant, so kernels without the network do not contain
            // `combine_far`. In these kernels `reach_all` succeeds only if all members are mapped.
            if network::available() {
                // SAFETY: the parts are from this context; the caller promises the elements.
                return unsafe { combine_far::<T, C>(raw, pes, bases, of, offsets, count, receivers, threads) };
            }
        }
        // SAFETY: the parts are from this context, and all members are mapped. The caller promises
        // the elements.
        unsafe { combine_near::<T, C>(raw, pes, bases, of, offsets, count, receivers, threads) }
    }
}

/// Declares the collectives of [`Context`] for one scope: a thread, a warp or a block. `$words`
/// names the threads that call the methods.
macro_rules! scoped {
    ($scope:ident, $words:literal: $broadcast:ident, $fcollect:ident, $alltoall:ident, $reduce:ident, $reducescatter:ident) => {
        impl Context {
            #[doc = concat!("Copies `from` on the member with rank `root` to `to` on every member. Called by ", $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. The
            /// call of the member `root` may overwrite `to` on members that have not yet made this
            /// call. If the lengths of `to` and `from` differ, the shorter length is used.
            ///
            /// # Errors
            /// As for [`Self::barrier`]. [`FailureKind::NoSuchPeer`] if `root` is not a rank of the
            /// team; the report contains `root` as the PE and the size of the team as the expected
            /// value.
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

            #[doc = concat!("Concatenates the members' `from` in rank order, and writes the result to `to` on every member. Called by ", $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. A
            /// member that makes this call may overwrite `to` on members that have not yet made
            /// this call. `to` should be as long as the `from` of all members together. If `to` is
            /// shorter, an equal number of elements is copied from each member.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $fcollect<T: Plain>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
                self.fcollect_any::<T, $scope>(team, to, from)
            }

            #[doc = concat!("Copies part `j` of `from` to part `i` of `to` on the member with rank `j`, where `i` is the rank of this PE. Called by ",
                $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. A
            /// member that makes this call may overwrite `to` on members that have not yet made
            /// this call. `from` and `to` have one part for each member, and all parts have the
            /// same length. Elements after the last part are not copied.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $alltoall<T: Plain>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
                self.alltoall_any::<T, $scope>(team, to, from)
            }

            #[doc = concat!("Combines the members' `from` element by element, and writes the result to `to` on every member. Called by ", $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. A
            /// member's `to` is overwritten only after all members have made this call. If the
            /// lengths of `to` and `from` differ, the shorter length is used. `to` and `from` may
            /// be the same slice.
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

            #[doc = concat!("Combines the members' `from` element by element, and writes part `i` of the result to `to` on the member with rank `i`. Called by ", $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. A
            /// member's `to` is overwritten only after all members have made this call. `from`
            /// should be `team_n_pes` times as long as `to`. If `from` is shorter, each member gets
            /// a shorter part, and all parts have the same length. `to` must not overlap `from`.
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
