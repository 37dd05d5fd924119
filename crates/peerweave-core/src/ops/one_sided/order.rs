//! Order and completion of the one-sided operations of this PE.

use crate::world::stream::Stream;
use crate::world::ticket::{Ticket, decode};
use crate::world::world::World;
use crate::{Result, call, check};

impl World {
    /// Orders puts, signals and atomics of this PE: a target sees those issued before the fence
    /// earlier than those issued after it. The fence completes no operation.
    ///
    /// # Ordering
    /// Runs after earlier operations of `stream`.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize or for a stream of another world; errors of the
    /// backend.
    pub fn fence(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "fence";
        call::submit(CALL, self.team(), stream, check::fence(CALL, &self.shared)?, decode::nothing)
    }

    /// Like [`World::fence`], for operations of the calling thread.
    ///
    /// # Errors
    /// As for [`World::fence`].
    #[inline]
    pub fn fence_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::fence("fence_blocking", &self.shared)?)
    }

    /// Completes the earlier puts, gets, signals and atomics of this PE, including `nbi` forms, at
    /// their targets.
    ///
    /// # Ordering
    /// Runs after earlier operations of `stream`.
    ///
    /// # Errors
    /// As for [`World::fence`]; [`Error::Peer`](crate::Error::Peer) if a PE is known to have died:
    /// see [Dead targets](crate::Team#dead-targets).
    pub fn quiet(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "quiet";
        call::submit(CALL, self.team(), stream, check::quiet(CALL, &self.shared)?, decode::nothing)
    }

    /// Like [`World::quiet`], for operations of the calling thread.
    ///
    /// # Errors
    /// As for [`World::quiet`].
    #[inline]
    pub fn quiet_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::quiet("quiet_blocking", &self.shared)?)
    }
}
