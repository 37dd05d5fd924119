//! Collectives of a team, by one thread, or by all threads of a warp or of a block.
//!
//! A collective puts data into the members' results, and a reduction reads the members' operands:
//! by stores and loads if a member is mapped, and over the network otherwise. Each collective
//! begins or ends with a synchronisation of the team ([`Team::meet`](super::Team::meet)), which
//! orders the collective and completes its puts.
//!
//! Invariant: elements are combined in rank order, so that every member gets the same bits.

use super::Team;
use super::combine::{Combine, Reducible};
use crate::api::context::Reach;
use crate::api::scope::{Block, Scope, Thread, Warp};
use crate::api::value::{self, Side, Strong};
use crate::api::views::address;
use crate::api::{Context, Failed, network};
use peerweave_types::{KernelOp, KernelTeam, Plain, SymOffset, SymSlice};

/// Bytes of a vector.
const VECTOR: usize = 16;

impl Context {
    /// Puts the elements of one member's part to a member.
    #[inline(always)]
    fn give<T: Plain, S: Scope>(
        &self,
        team: &Team,
        operation: KernelOp,
        rank: u32,
        to: SymSlice<T>,
        from: SymSlice<T>,
    ) -> Result<(), Failed> {
        let (to, source, bytes) = (to.offset().0, self.my_base() + from.offset().0, to.size_bytes() as usize);
        match team.reach(self, operation, rank)? {
            Reach::Mapped(base) if base + to == source => {}
            // SAFETY: `SymSlice` promises the elements in both heaps, `to` and `from` have one
            // length, and the member is mapped.
            Reach::Mapped(base) => unsafe { self.copy_to_peer::<S, true>(address(base + to), address(source), bytes, true) },
            Reach::Network => network::put::<S>(self.my_base() + to, source, bytes, team.member(rank), true),
        }
        Ok(())
    }

    /// Puts to every member the elements that `from` returns for its rank, and synchronises. Each
    /// rank begins with itself, then its neighbour, so that not all ranks store to the same member
    /// at the same time.
    #[inline(always)]
    fn give_each<T: Plain, S: Scope>(
        &self,
        members: &Team,
        operation: KernelOp,
        to: SymSlice<T>,
        from: impl Fn(u32) -> SymSlice<T>,
    ) -> Result<(), Failed> {
        for step in 0..members.size() {
            let rank = (members.my_rank() + step) % members.size();
            self.give::<T, S>(members, operation, rank, to, from(rank))?;
        }
        members.meet::<S>(self, operation)
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
        let count = to.len().min(from.len());
        let (to, from) = (to.truncate(count), from.truncate(count));
        if members.my_rank() == root {
            return self.give_each::<T, S>(&members, operation, to, |_| from);
        }
        members.meet::<S>(self, operation)
    }

    #[inline(always)]
    fn fcollect_any<T: Plain, S: Scope>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
        let operation = KernelOp::Fcollect;
        let members = self.team(operation, team)?;
        let count = from.len().min(to.len() / members.size() as usize);
        let from = from.truncate(count);
        let mine = members.my_rank() as usize * count;
        self.give_each::<T, S>(&members, operation, to.slice(mine..mine + count), |_| from)
    }

    #[inline(always)]
    fn alltoall_any<T: Plain, S: Scope>(&self, team: KernelTeam, to: SymSlice<T>, from: SymSlice<T>) -> Result<(), Failed> {
        let operation = KernelOp::Alltoall;
        let members = self.team(operation, team)?;
        let count = from.len().min(to.len()) / members.size() as usize;
        let mine = members.my_rank() as usize * count;
        let theirs = |rank: u32| from.slice(rank as usize * count..).truncate(count);
        self.give_each::<T, S>(&members, operation, to.slice(mine..mine + count), theirs)
    }

    #[inline(always)]
    fn reduce_any<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        team: KernelTeam,
        to: SymSlice<T>,
        from: SymSlice<T>,
    ) -> Result<(), Failed> {
        let operation = KernelOp::Reduce;
        let members = self.team(operation, team)?;
        let count = to.len().min(from.len());
        members.meet::<S>(self, operation)?;
        // Each rank reduces a share of whole vectors, and stores it to every member; the last
        // rank's share extends to the end. This is correct in place too, because only the rank that
        // writes a share reads it.
        let per_vector = (VECTOR / size_of::<T>()).max(1);
        let share = count.div_ceil(per_vector).div_ceil(members.size() as usize) * per_vector;
        let start = (members.my_rank() as usize * share).min(count);
        let end = (start + share).min(count);
        let offsets = (to.slice(start..end).offset(), from.slice(start..end).offset());
        let everyone = 0..members.size();
        let mut outcome = Ok(());
        for rank in everyone.clone() {
            outcome = outcome.and(members.reach(self, operation, rank).map(drop));
        }
        if outcome.is_ok() {
            // SAFETY: `SymSlice` promises the elements in every heap, and all members are
            // reachable: checked above.
            unsafe { self.combine::<T, S, C>(&members, offsets, end - start, everyone) };
        }
        outcome?;
        self.give_result::<T, S>(&members, to.slice(start..end));
        members.meet::<S>(self, operation)
    }

    #[inline(always)]
    fn reducescatter_any<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        team: KernelTeam,
        to: SymSlice<T>,
        from: SymSlice<T>,
    ) -> Result<(), Failed> {
        let operation = KernelOp::ReduceScatter;
        let members = self.team(operation, team)?;
        let count = to.len().min(from.len() / members.size() as usize);
        members.meet::<S>(self, operation)?;
        let mine = members.my_rank();
        let offsets = (to.offset(), from.slice(mine as usize * count..).offset());
        for rank in 0..members.size() {
            members.reach(self, operation, rank)?;
        }
        // SAFETY: `SymSlice` promises the elements in every heap, and all members are reachable:
        // checked above.
        unsafe { self.combine::<T, S, C>(&members, offsets, count, mine..mine + 1) };
        members.meet::<S>(self, operation)
    }

    /// Puts this PE's result of [`Self::combine`] to the members that are not mapped. The
    /// synchronisation that follows completes the puts.
    #[inline(always)]
    fn give_result<T: Plain, S: Scope>(&self, members: &Team, result: SymSlice<T>) {
        if !self.has_network() || members.all_mapped() {
            return;
        }
        // The whole scope has written the result.
        S::sync();
        let here = self.my_base() + result.offset().0;
        for rank in 0..members.size() {
            if members.mapped_base(self, rank) == 0 {
                network::put::<S>(here, here, result.size_bytes() as usize, members.member(rank), true);
            }
        }
    }

    /// Combines `count` elements of all members, and stores the result to the mapped members among
    /// `receivers`. Elements of members that are not mapped are read over the network, word by
    /// word.
    ///
    /// # Safety
    /// At both offsets (target, source) every member's heap has as many elements; all members are
    /// mapped, or reached by the network.
    #[inline(always)]
    unsafe fn combine<T: Reducible, S: Scope, C: Combine<T>>(
        &self,
        members: &Team,
        (to, from): (SymOffset, SymOffset),
        count: usize,
        receivers: core::ops::Range<u32>,
    ) {
        let base = |rank| members.mapped_base(self, rank);
        // A constant in kernels compiled without the network, which then check no member.
        let network = network::available();
        let size = members.size();
        let aligned = ((to.0 | from.0) as usize).is_multiple_of(VECTOR) && VECTOR.is_multiple_of(size_of::<T>());
        let per_vector = VECTOR / size_of::<T>();
        let vectors = if aligned { count / per_vector } else { 0 };
        let mut at = S::rank();
        while at < vectors {
            let place = (at * VECTOR) as u64;
            let load = |rank| match base(rank) {
                0 if network => network::load_vector(self.my_base() + from.0 + place, members.member(rank)),
                // SAFETY: the vector lies within the elements, in a mapped heap, aligned: heaps are
                // aligned to more.
                base => unsafe { Strong::load_vector(address::<u8>(base + from.0 + place)) },
            };
            let mut sum = T::unpack(load(0));
            let mut rank = 1;
            while rank + 3 < size {
                // Four loads in flight.
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
            for base in receivers.clone().map(base).filter(|base| !network || *base != 0) {
                // SAFETY: as for the load.
                unsafe { crate::api::value::Global::store_vector(address::<u8>(base + to.0 + place), result) };
            }
            at += S::size();
        }
        let mut at = vectors * per_vector + S::rank();
        while at < count {
            let place = (at * size_of::<T>()) as u64;
            let load = |rank| {
                let element: T = match base(rank) {
                    0 if network => network::g(self.my_base() + from.0 + place, members.member(rank)),
                    // SAFETY: the element lies within the elements of a mapped heap.
                    base => unsafe { value::load::<T, Strong>(address(base + from.0 + place)) },
                };
                element.widen()
            };
            let mut sum = load(0);
            for rank in 1..size {
                sum = C::combine(sum, load(rank));
            }
            for base in receivers.clone().map(base).filter(|base| !network || *base != 0) {
                // SAFETY: as for the load.
                unsafe { value::store::<T, value::Global>(address(base + to.0 + place), T::narrow(sum)) };
            }
            at += S::size();
        }
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
