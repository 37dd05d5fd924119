//! Addresses at which this PE can access the memory of other PEs.

use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::LocalAddress;
use crate::check;
use crate::world::team::Team;
use peerweave_types::{Element, Rank};

/// Direct access to the memory of other ranks.
impl Team {
    /// Returns the address at which threads of this PE can access the copy of `buffer` on rank
    /// `rank`. Returns `None` if that copy is not mapped into the host address space of this
    /// process.
    ///
    /// On the host backend, the memory of all PEs is mapped. On GPUs, only kernels can access the
    /// memory of other PEs: use [`Team::peer_device_address`].
    ///
    /// The address is valid until the allocation is released or the last handle of the world is
    /// dropped. Other PEs may access the same memory at any time. So accesses through the address
    /// must be atomic, or ordered by signals or barriers.
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
    ///     // SAFETY: `first` is one live element; all PEs access it atomically before the barrier.
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
    /// [`Misuse`](crate::Misuse) if `rank` is not a rank of the team, or if the buffer has been
    /// released or belongs to another world. Also [`Misuse`](crate::Misuse) after finalize.
    pub fn peer_ptr<T: Element>(&self, buffer: &Symmetric<T>, rank: Rank) -> Result<Option<*mut T>> {
        Ok(match self.peer_address("peer_ptr", buffer, rank)? {
            Some(LocalAddress::Host(address)) => Some(address.cast()),
            _ => None,
        })
    }

    /// Returns the address at which the device of this PE can access the copy of `buffer` on rank
    /// `rank`. Returns `None` if that copy is not mapped for the device.
    ///
    /// [`Team::peer_ptr`] says how long the address is valid, and how accesses must be ordered.
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
