//! Atomic operations on single elements of symmetric memory, on any rank.

use super::context::Context;
use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::AtomicKind;
use crate::call;
use crate::check;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use peerweave_types::{AtomicElement, AtomicInteger, Rank};

macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident, $blocking:ident: $kind:ident <$bound:ident> ($($operand:ident),*) [$($words:expr),*] -> $result:ident;)*) => {
        /// Atomic operations on element `index` of `dest` on rank `rank`.
        ///
        /// Atomic operations of all PEs are atomic with respect to each other. On 64-bit words,
        /// they are also atomic with respect to signals. Atomic operations are not atomic with
        /// respect to puts or local stores.
        ///
        /// # Ordering
        /// Stream-ordered forms run after earlier operations of `stream`. Atomic operations do not
        /// order other operations. Operations without a result are complete at the target after a
        /// [`quiet`](crate::World::quiet).
        ///
        /// # Errors
        /// [`Misuse`](crate::Misuse) if `dest` has no element `index`, or if `rank` is not a rank
        /// of the team. Also [`Misuse`](crate::Misuse) if the team, stream or buffer belongs to
        /// another world or is no longer valid. [`Error::Peer`](crate::Error::Peer) if the target
        /// is known to have died or left the job: see [Dead targets](Team#dead-targets).
        ///
        /// # Example
        /// ```
        /// use peerweave::{Rank, World};
        ///
        /// # fn main() -> peerweave::Result<()> {
        /// let world = World::from_env()?;
        /// let team = world.team();
        /// let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
        /// let counter = world.alloc_zeroed::<i64>(1)?; // only the left neighbor changes it
        /// assert_eq!(team.atomic_fetch_add_blocking(&counter, 0, 5, right)?, 0);
        /// assert_eq!(team.atomic_compare_swap_blocking(&counter, 0, 5, -1, right)?, 5);
        /// assert_eq!(team.atomic_fetch_blocking(&counter, 0, right)?, -1);
        /// counter.release()?; // collective, like the allocation
        /// assert!(world.finalize()?.is_clean());
        /// # Ok(())
        /// # }
        /// ```
        impl Team {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Misuse`](crate::Misuse) if `dest` has no element `index`, or if `rank` is not a
            /// rank of the team. Also [`Misuse`](crate::Misuse) if the team, stream or buffer
            /// belongs to another world or is no longer valid. [`Error::Peer`](crate::Error::Peer)
            /// if the target is known to have died or left the job: see [Dead
            /// targets](Team#dead-targets).
            ///
            /// The method with `_blocking` in its name does the same on the calling thread.
            pub fn $name<T: $bound>(&self, stream: &Stream, dest: &Symmetric<T>, index: usize, $($operand: T,)* rank: Rank) -> Result<Ticket<atomics!(@type $result)>> {
                const CALL: &str = stringify!($name);
                let prepared = check::atomic(CALL, self, dest.remote(), index, AtomicKind::$kind, [$($words),*], rank)?;
                call::submit(CALL, self, stream, prepared, atomics!(@decode $result))
            }

            $(#[$doc])*
            /// Does the same as the method without `_blocking` in its name, but on the calling
            /// thread.
            ///
            /// # Errors
            /// As for the method without `_blocking` in its name.
            #[inline]
            pub fn $blocking<T: $bound>(&self, dest: &Symmetric<T>, index: usize, $($operand: T,)* rank: Rank) -> Result<atomics!(@type $result)> {
                const CALL: &str = stringify!($blocking);
                let prepared = check::atomic(CALL, self, dest.remote(), index, AtomicKind::$kind, [$($words),*], rank)?;
                call::run(&self.inner.shared, prepared).map(atomics!(@decode $result))
            }
        )*}

        /// Atomic operations of a context. The methods have the same names as the methods of
        /// [`Team`]. If an operation has a result, its ticket returns the result. Operations
        /// without a result are complete after the next [`quiet`](Context::quiet).
        impl Context {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As for the method of [`Team`] with the same name.
            #[inline]
            pub fn $name<T: $bound>(&self, dest: &Symmetric<T>, index: usize, $($operand: T,)* rank: Rank) -> Result<atomics!(@issued $result)> {
                self.team().$name(self.stream(), dest, index, $($operand,)* rank).map(atomics!(@issue $result))
            }
        )*}
    };
    (@type old) => { T };
    (@type nothing) => { () };
    (@issued old) => { Ticket<T> };
    (@issued nothing) => { () };
    (@issue old) => { std::convert::identity };
    (@issue nothing) => { drop };
    (@decode old) => { decode::number::<T> };
    (@decode nothing) => { decode::nothing };
}

atomics! {
    /// Returns the value of element `index` of `dest` on rank `rank`.
    atomic_fetch, atomic_fetch_blocking: Fetch<AtomicElement> () [0, 0] -> old;
    /// Sets element `index` of `dest` on rank `rank` to `value`.
    atomic_set, atomic_set_blocking: Set<AtomicElement> (value) [value.to_word(), 0] -> nothing;
    /// Sets element `index` of `dest` on rank `rank` to `value`, and returns the old value.
    atomic_swap, atomic_swap_blocking: Swap<AtomicElement> (value) [value.to_word(), 0] -> old;
    /// Sets element `index` of `dest` on rank `rank` to `value` if the old value is `expected`.
    /// Returns the old value.
    atomic_compare_swap, atomic_compare_swap_blocking: CompareSwap<AtomicInteger> (expected, value) [value.to_word(), expected.to_word()] -> old;
    /// Adds `value` to element `index` of `dest` on rank `rank`. The sum wraps on overflow.
    atomic_add, atomic_add_blocking: Add<AtomicInteger> (value) [value.to_word(), 0] -> nothing;
    /// Adds `value` to element `index` of `dest` on rank `rank`, and returns the old value. The sum
    /// wraps on overflow.
    atomic_fetch_add, atomic_fetch_add_blocking: FetchAdd<AtomicInteger> (value) [value.to_word(), 0] -> old;
    /// Adds 1 to element `index` of `dest` on rank `rank`. The sum wraps on overflow.
    atomic_inc, atomic_inc_blocking: Inc<AtomicInteger> () [0, 0] -> nothing;
    /// Adds 1 to element `index` of `dest` on rank `rank`, and returns the old value. The sum wraps
    /// on overflow.
    atomic_fetch_inc, atomic_fetch_inc_blocking: FetchInc<AtomicInteger> () [0, 0] -> old;
    /// Bitwise AND: in element `index` of `dest` on rank `rank`, keeps only the bits that are set
    /// in `mask`.
    atomic_and, atomic_and_blocking: And<AtomicInteger> (mask) [mask.to_word(), 0] -> nothing;
    /// Bitwise AND: in element `index` of `dest` on rank `rank`, keeps only the bits that are set
    /// in `mask`. Returns the old value.
    atomic_fetch_and, atomic_fetch_and_blocking: FetchAnd<AtomicInteger> (mask) [mask.to_word(), 0] -> old;
    /// In element `index` of `dest` on rank `rank`, sets the bits that are set in `mask`.
    atomic_or, atomic_or_blocking: Or<AtomicInteger> (mask) [mask.to_word(), 0] -> nothing;
    /// In element `index` of `dest` on rank `rank`, sets the bits that are set in `mask`. Returns
    /// the old value.
    atomic_fetch_or, atomic_fetch_or_blocking: FetchOr<AtomicInteger> (mask) [mask.to_word(), 0] -> old;
    /// In element `index` of `dest` on rank `rank`, inverts the bits that are set in `mask`.
    atomic_xor, atomic_xor_blocking: Xor<AtomicInteger> (mask) [mask.to_word(), 0] -> nothing;
    /// In element `index` of `dest` on rank `rank`, inverts the bits that are set in `mask`.
    /// Returns the old value.
    atomic_fetch_xor, atomic_fetch_xor_blocking: FetchXor<AtomicInteger> (mask) [mask.to_word(), 0] -> old;
}
