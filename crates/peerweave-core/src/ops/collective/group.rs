//! Groups of operations. The backend gets a group as one operation, and runs the sends and receives
//! of the group at the same time.
//!
//! Invariants: the memory of the operations in a group lives as long as the group. [`Group`] holds
//! clones of the owners; [`BlockingGroup`] borrows the memory for `'env`. No operation runs before
//! the closure has returned. If the closure or the check of an operation fails, no operation of the
//! group runs. A group runs only operations that were checked for its own team: if a closure swaps
//! two groups, both calls fail.

use crate::arguments::Parts;
use crate::arguments::reduction::Reduction;
use crate::arguments::signal::SignalUpdate;
use crate::arguments::span::{Dest, MaybeDest, MaybeSource, Source, StreamDest, StreamSource, maybe_span};
use crate::arguments::symmetric::Symmetric;
use crate::backend::{CollectiveKind, Direction, Keep, Kept, Op, VectorCounts};
use crate::check::{self, Prepared};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Error, Result, call};
use peerweave_types::{Element, Number, Rank};
use std::marker::PhantomData;
use std::sync::Arc;

/// Stores `error` in `refused`, unless an earlier error is stored there. The group call then fails
/// with the stored error, even if the closure ignores the errors of its calls.
fn keep_first(refused: &mut Option<Error>, error: &Error) {
    if refused.is_none() {
        *refused = Some(error.clone());
    }
}

/// A builder for a stream-ordered group of operations: see [`Team::group`].
#[derive(Debug)]
pub struct Group {
    team: Team,
    ops: Vec<Op>,
    held: Kept,
    refused: Option<Error>,
}

impl Group {
    fn push(&mut self, prepared: Result<Prepared<'_>>) -> Result<()> {
        let (op, held) = prepared.inspect_err(|error| keep_first(&mut self.refused, error))?.into_held();
        self.ops.push(op);
        self.held.extend(held);
        Ok(())
    }
}

/// A builder for a group of operations that runs on the calling thread: see
/// [`Team::group_blocking`].
#[derive(Debug)]
pub struct BlockingGroup<'env> {
    team: Team,
    ops: Vec<Op>,
    /// The owners of the memory that the operations of the group use. If the group fails before its
    /// work has ended, the owners keep the memory allocated.
    held: Kept,
    refused: Option<Error>,
    /// Ties the group to `'env`, the lifetime for which the group borrows the memory of its
    /// operations.
    env: PhantomData<&'env mut &'env ()>,
}

impl BlockingGroup<'_> {
    fn push(&mut self, prepared: Result<Prepared<'_>>) -> Result<()> {
        let (op, held) = prepared.inspect_err(|error| keep_first(&mut self.refused, error))?.into_held();
        self.ops.push(op);
        self.held.extend(held);
        Ok(())
    }
}

/// Calls that run several operations as one group.
///
/// # Example
/// ```
/// use peerweave::{Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// // A ring: every rank sends to its right neighbor and receives from its left one, at the same time.
/// let size = team.size() as u32;
/// let (right, left) = (Rank::new((team.my_rank().get() + 1) % size), Rank::new((team.my_rank().get() + size - 1) % size));
/// let (mine, mut theirs) = ([team.my_rank().get(); 2], [u32::MAX; 2]);
/// team.group_blocking(|g| {
///     g.send(&mine, right)?;
///     g.recv(&mut theirs, left)
/// })?;
/// assert_eq!(theirs, [left.get(); 2]);
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Enqueues a group of operations, which runs as one operation. The closure `members` adds the
    /// operations to the group. The sends and receives of the group run at the same time, so their
    /// order does not matter, and a rank may send to itself. The other operations run in the order
    /// in which they were added.
    ///
    /// # Collective
    /// A group that contains collective operations follows the rules of those operations.
    ///
    /// # Errors
    /// Before anything is enqueued:
    /// - The error that `members` returns.
    /// - The first error that a method of the group returned, if `members` ignored that error.
    /// - [`Misuse`](crate::Misuse) if a receive overlaps another send or receive in the group.
    /// - [`Misuse`](crate::Misuse) if the number of sends to this rank itself differs from the
    ///   number of receives from this rank itself.
    ///
    /// Later: the errors of the operations in the group.
    pub fn group(&self, stream: &Stream, members: impl FnOnce(&mut Group) -> Result<()>) -> Result<Ticket> {
        const CALL: &str = "group";
        check::team(CALL, self)?;
        check::stream(CALL, self, stream)?;
        let pools = &self.inner.shared.pools;
        let mut group = Group { team: self.clone(), ops: pools.members(), held: pools.kept(), refused: None };
        members(&mut group)?;
        let Group { team, ops, held, refused } = group;
        check::same_team(CALL, self, &team)?;
        refused.map_or(Ok(()), Err)?;
        let prepared = check::group(CALL, self, ops)?;
        let submitted = call::enqueue(stream, &prepared, &|| Keep::many(held.clone()))?;
        Ok(Ticket::new(submitted, &self.inner.shared, decode::nothing))
    }

    /// Like [`Team::group`], but runs on the calling thread. The operations may also use slices,
    /// vectors and arrays that live longer than the group.
    ///
    /// Code that drops a buffer before the group runs does not compile:
    /// ```compile_fail,E0597
    /// # use peerweave::{Rank, World};
    /// # let world = World::from_env().unwrap();
    /// world.team().group_blocking(|g| {
    ///     let gone = vec![1.0f32];
    ///     g.send(&gone, Rank::new(0))
    /// }).unwrap();
    /// ```
    /// Code that receives twice into the same buffer does not compile either:
    /// ```compile_fail,E0499
    /// # use peerweave::{Rank, World};
    /// # let world = World::from_env().unwrap();
    /// # let mut once = vec![1.0f32];
    /// world.team().group_blocking(|g| {
    ///     g.recv(&mut once, Rank::new(0))?;
    ///     g.recv(&mut once, Rank::new(0))
    /// }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`Team::group`].
    pub fn group_blocking<'env>(&self, members: impl FnOnce(&mut BlockingGroup<'env>) -> Result<()>) -> Result<()> {
        const CALL: &str = "group_blocking";
        check::team(CALL, self)?;
        let (pools, env) = (&self.inner.shared.pools, PhantomData);
        let mut group = BlockingGroup { team: self.clone(), ops: pools.members(), held: pools.kept(), refused: None, env };
        members(&mut group)?;
        let BlockingGroup { team, ops, held, refused, env: _ } = group;
        check::same_team(CALL, self, &team)?;
        refused.map_or(Ok(()), Err)?;
        let prepared = check::group(CALL, self, ops)?;
        call::run_kept(&self.inner.shared, &prepared, &|| Keep::many(held.clone()))
    }
}

macro_rules! members {
    ($group:ty, $source:ident, $dest:ident $(, $env:lifetime)?) => {
        /// Methods that add operations to the group. Each method checks its arguments, then adds
        /// the operation of the [`Team`] method with the same name. If a check fails, the method
        /// adds nothing and returns the error.
        impl $(<$env>)? $group {
            /// Adds [`Team::send`] to the group. In a group, `peer` may also be this rank.
            ///
            /// # Errors
            /// As for [`Team::send`].
            pub fn send<T: Element>(&mut self, mut source: impl $source<T> $(+ $env)?, peer: Rank) -> Result<()> {
                let (team, source) = (self.team.clone(), source.span());
                self.push(check::point_to_point("group.send", &team, Direction::Send, source, peer, true))
            }

            /// Adds [`Team::recv`] to the group. In a group, `peer` may also be this rank.
            ///
            /// # Errors
            /// As for [`Team::recv`].
            pub fn recv<T: Element>(&mut self, mut dest: impl $dest<T> $(+ $env)?, peer: Rank) -> Result<()> {
                let (team, dest) = (self.team.clone(), dest.span());
                self.push(check::point_to_point("group.recv", &team, Direction::Receive, dest, peer, true))
            }

            /// Adds [`Team::put`] to the group.
            ///
            /// # Errors
            /// As for [`Team::put`].
            pub fn put<T: Element>(&mut self, mut source: impl $source<T> $(+ $env)?, dest: &$($env)? Symmetric<T>, rank: Rank) -> Result<()> {
                let (team, source) = (self.team.clone(), source.span());
                self.push(check::put("group.put", &team, source, dest.remote(), None, false, rank))
            }

            /// Adds [`Team::put_signal`] to the group.
            ///
            /// # Errors
            /// As for [`Team::put_signal`].
            pub fn put_signal<T: Element>(
                &mut self,
                mut source: impl $source<T> $(+ $env)?,
                dest: &$($env)? Symmetric<T>,
                update: SignalUpdate<$($env)?>,
                rank: Rank,
            ) -> Result<()> {
                let (team, source) = (self.team.clone(), source.span());
                self.push(check::put("group.put_signal", &team, source, dest.remote(), Some(update), false, rank))
            }

            /// Adds [`Team::get`] to the group.
            ///
            /// # Errors
            /// As for [`Team::get`].
            pub fn get<T: Element>(&mut self, source: &$($env)? Symmetric<T>, mut dest: impl $dest<T> $(+ $env)?, rank: Rank) -> Result<()> {
                let (team, dest) = (self.team.clone(), dest.span());
                self.push(check::get("group.get", &team, source.remote(), dest, false, rank))
            }

            /// Adds [`Team::signal`] to the group.
            ///
            /// # Errors
            /// As for [`Team::signal`].
            pub fn signal(&mut self, update: SignalUpdate<$($env)?>, rank: Rank) -> Result<()> {
                let team = self.team.clone();
                self.push(check::signal("group.signal", &team, update, rank))
            }

            /// Adds [`Team::barrier`] to the group.
            ///
            /// # Errors
            /// As for [`Team::barrier`].
            pub fn barrier(&mut self) -> Result<()> {
                let team = self.team.clone();
                self.push(check::arrival("group.barrier", &team, CollectiveKind::Barrier))
            }

            /// Adds [`Team::sync`] to the group.
            ///
            /// # Errors
            /// As for [`Team::sync`].
            pub fn sync(&mut self) -> Result<()> {
                let team = self.team.clone();
                self.push(check::arrival("group.sync", &team, CollectiveKind::Sync))
            }

            /// Adds [`Team::all_reduce`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_reduce`].
            pub fn all_reduce<T: Number>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
                op: impl Into<Reduction<T>>,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::all_reduce("group.all_reduce", &team, send, recv, op.into().into()))
            }

            /// Adds [`Team::all_reduce_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_reduce_in_place`].
            pub fn all_reduce_in_place<T: Number>(
                &mut self,
                mut buffer: impl $dest<T> $(+ $env)?,
                op: impl Into<Reduction<T>>,
            ) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::all_reduce_in_place("group.all_reduce_in_place", &team, buffer, op.into().into()))
            }

            /// Adds [`Team::reduce`] to the group.
            ///
            /// # Errors
            /// As for [`Team::reduce`].
            pub fn reduce<T: Number>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                recv: impl MaybeDest<T, Argument: $dest<T> $(+ $env)?>,
                op: impl Into<Reduction<T>>,
                root: Rank,
            ) -> Result<()> {
                let mut recv = recv.into_option();
                let (team, send, recv) = (self.team.clone(), send.span(), maybe_span(&mut recv));
                self.push(check::reduce("group.reduce", &team, send, recv, op.into().into(), root))
            }

            /// Adds [`Team::reduce_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::reduce_in_place`].
            pub fn reduce_in_place<T: Number>(
                &mut self,
                mut buffer: impl $dest<T> $(+ $env)?,
                op: impl Into<Reduction<T>>,
                root: Rank,
            ) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::reduce_in_place("group.reduce_in_place", &team, buffer, op.into().into(), root))
            }

            /// Adds [`Team::broadcast`] to the group.
            ///
            /// # Errors
            /// As for [`Team::broadcast`].
            pub fn broadcast<T: Element>(
                &mut self,
                send: impl MaybeSource<T, Argument: $source<T> $(+ $env)?>,
                mut recv: impl $dest<T> $(+ $env)?,
                root: Rank,
            ) -> Result<()> {
                let mut send = send.into_option();
                let (team, send, recv) = (self.team.clone(), maybe_span(&mut send), recv.span());
                self.push(check::broadcast("group.broadcast", &team, send, recv, root))
            }

            /// Adds [`Team::broadcast_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::broadcast_in_place`].
            pub fn broadcast_in_place<T: Element>(&mut self, mut buffer: impl $dest<T> $(+ $env)?, root: Rank) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::broadcast_in_place("group.broadcast_in_place", &team, buffer, root))
            }

            /// Adds [`Team::all_gather`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_gather`].
            pub fn all_gather<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::all_gather("group.all_gather", &team, send, recv))
            }

            /// Adds [`Team::all_gather_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_gather_in_place`].
            pub fn all_gather_in_place<T: Element>(&mut self, mut buffer: impl $dest<T> $(+ $env)?) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::all_gather_in_place("group.all_gather_in_place", &team, buffer))
            }

            /// Adds [`Team::reduce_scatter`] to the group.
            ///
            /// # Errors
            /// As for [`Team::reduce_scatter`].
            pub fn reduce_scatter<T: Number>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
                op: impl Into<Reduction<T>>,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::reduce_scatter("group.reduce_scatter", &team, send, recv, op.into().into()))
            }

            /// Adds [`Team::reduce_scatter_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::reduce_scatter_in_place`].
            pub fn reduce_scatter_in_place<T: Number>(
                &mut self,
                mut buffer: impl $dest<T> $(+ $env)?,
                op: impl Into<Reduction<T>>,
            ) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::reduce_scatter_in_place("group.reduce_scatter_in_place", &team, buffer, op.into().into()))
            }

            /// Adds [`Team::all_to_all`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_to_all`].
            pub fn all_to_all<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::all_to_all("group.all_to_all", &team, send, recv))
            }

            /// Adds [`Team::all_to_all_in_place`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_to_all_in_place`].
            pub fn all_to_all_in_place<T: Element>(&mut self, mut buffer: impl $dest<T> $(+ $env)?) -> Result<()> {
                let (team, buffer) = (self.team.clone(), buffer.span());
                self.push(check::all_to_all_in_place("group.all_to_all_in_place", &team, buffer))
            }

            /// Adds [`Team::all_to_all_v`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_to_all_v`].
            pub fn all_to_all_v<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
                counts: impl Into<Arc<VectorCounts>>,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::all_to_all_v("group.all_to_all_v", &team, send, recv, counts.into()))
            }

            /// Adds [`Team::all_gather_v`] to the group.
            ///
            /// # Errors
            /// As for [`Team::all_gather_v`].
            pub fn all_gather_v<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                mut recv: impl $dest<T> $(+ $env)?,
                parts: impl Into<Arc<Parts>>,
            ) -> Result<()> {
                let (team, send, recv) = (self.team.clone(), send.span(), recv.span());
                self.push(check::all_gather_v("group.all_gather_v", &team, send, recv, &parts.into()))
            }

            /// Adds [`Team::gather_v`] to the group.
            ///
            /// # Errors
            /// As for [`Team::gather_v`].
            pub fn gather_v<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                recv: impl MaybeDest<T, Argument: $dest<T> $(+ $env)?>,
                parts: impl Into<Arc<Parts>>,
                root: Rank,
            ) -> Result<()> {
                let mut recv = recv.into_option();
                let (team, send, recv) = (self.team.clone(), send.span(), maybe_span(&mut recv));
                self.push(check::gather_v("group.gather_v", &team, send, recv, &parts.into(), root))
            }

            /// Adds [`Team::scatter_v`] to the group.
            ///
            /// # Errors
            /// As for [`Team::scatter_v`].
            pub fn scatter_v<T: Element>(
                &mut self,
                send: impl MaybeSource<T, Argument: $source<T> $(+ $env)?>,
                mut recv: impl $dest<T> $(+ $env)?,
                parts: impl Into<Arc<Parts>>,
                root: Rank,
            ) -> Result<()> {
                let mut send = send.into_option();
                let (team, send, recv) = (self.team.clone(), maybe_span(&mut send), recv.span());
                self.push(check::scatter_v("group.scatter_v", &team, send, recv, &parts.into(), root))
            }

            /// Adds [`Team::gather`] to the group.
            ///
            /// # Errors
            /// As for [`Team::gather`].
            pub fn gather<T: Element>(
                &mut self,
                mut send: impl $source<T> $(+ $env)?,
                recv: impl MaybeDest<T, Argument: $dest<T> $(+ $env)?>,
                root: Rank,
            ) -> Result<()> {
                let mut recv = recv.into_option();
                let (team, send, recv) = (self.team.clone(), send.span(), maybe_span(&mut recv));
                self.push(check::gather("group.gather", &team, send, recv, root))
            }

            /// Adds [`Team::scatter`] to the group.
            ///
            /// # Errors
            /// As for [`Team::scatter`].
            pub fn scatter<T: Element>(
                &mut self,
                send: impl MaybeSource<T, Argument: $source<T> $(+ $env)?>,
                mut recv: impl $dest<T> $(+ $env)?,
                root: Rank,
            ) -> Result<()> {
                let mut send = send.into_option();
                let (team, send, recv) = (self.team.clone(), maybe_span(&mut send), recv.span());
                self.push(check::scatter("group.scatter", &team, send, recv, root))
            }
        }
    };
}

members!(Group, StreamSource, StreamDest);
members!(BlockingGroup<'env>, Source, Dest, 'env);
