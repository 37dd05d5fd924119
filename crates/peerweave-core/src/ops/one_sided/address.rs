//! The addresses at which this PE can access the memory of others.

use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::LocalAddress;
use crate::check;
use crate::world::team::Team;
use peerweave_types::{Element, Rank};

/// Direct access to the memory of other ranks.
impl Team {
    /// Returns the address at which threads of this PE can access the `buffer` of another rank, or
    /// `None` if that memory is not mapped here for the host.
    ///
    /// On the host backend, the memory of all PEs is mapped. On GPUs the address is one for
    /// kernels: see [`Team::peer_device_address`].
    ///
    /// The address is valid until the allocation is released or the last handle of the world is
    /// dropped. The rank and other PEs may access the memory at any time: accesses through the
    /// address must be atomic, or be ordered by signals or barriers.
    ///
    /// ```
    /// use peerweave::{Rank, World};
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let counters = world.alloc_zeroed::<u32>(1)?;
    /// if let Some(first) = team.peer_ptr(&counters, Rank::new(0))? {
    ///     // SAFETY: one live element, and all PEs access it atomically until the barrier.
    ///     let counter = unsafe { AtomicU32::from_ptr(first) };
    ///     counter.fetch_add(1, Ordering::Relaxed);
    /// }
    /// team.barrier_blocking()?;
    /// if team.my_rank() == Rank::new(0) && world.backend_name() == "host" {
    ///     assert_eq!(counters.load(0)?, team.size() as u32);
    /// }
    /// counters.release()?; // collective, like the allocation
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for a rank that the team does not have, for a buffer that was
    /// released or belongs to another world, and after finalize.
    pub fn peer_ptr<T: Element>(&self, buffer: &Symmetric<T>, rank: Rank) -> Result<Option<*mut T>> {
        Ok(match self.peer_address("peer_ptr", buffer, rank)? {
            Some(LocalAddress::Host(address)) => Some(address.cast()),
            _ => None,
        })
    }

    /// Returns the address at which the device of this PE can access the copy of a rank, or `None`
    /// if that memory is not mapped for the device.
    ///
    /// The address is valid as long as that of [`Team::peer_ptr`], under the same rules.
    ///
    /// # Errors
    /// As for [`Team::peer_ptr`].
    pub fn peer_device_address<T: Element>(&self, buffer: &Symmetric<T>, rank: Rank) -> Result<Option<u64>> {
        Ok(match self.peer_address("peer_device_address", buffer, rank)? {
            Some(LocalAddress::Device { address, .. }) => Some(address),
            _ => None,
        })
    }

    fn peer_address<T: Element>(&self, call: &'static str, buffer: &Symmetric<T>, rank: Rank) -> Result<Option<LocalAddress>> {
        let pe = check::peer_of(call, self, buffer.remote(), rank)?;
        Ok(self.inner.shared.backend.address_of(pe, buffer.offset()))
    }
}
