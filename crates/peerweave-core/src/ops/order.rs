//! Order and completion of this PE's puts, gets and signals.

use crate::world::stream::Stream;
use crate::world::ticket::{Ticket, decode};
use crate::world::world::World;
use crate::{Result, call, check};

impl World {
    /// Orders: what this PE put and signalled before it is visible to a target before what it puts and signals there afterwards. Completes nothing.
    ///
    /// # Ordering
    /// Runs after what was enqueued before it on `stream`.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize or for a stream of another world; what the backend reports.
    pub fn fence(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "fence";
        call::submit(CALL, self.team(), stream, check::fence(CALL, &self.shared)?, decode::nothing)
    }

    /// As [`World::fence`], for what this thread did, on the calling thread.
    ///
    /// # Errors
    /// As [`World::fence`].
    #[inline]
    pub fn fence_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::fence("fence_blocking", &self.shared)?)
    }

    /// Completes: what this PE put, got and signalled before it, `nbi` forms included, is done at its targets.
    ///
    /// # Ordering
    /// Runs after what was enqueued before it on `stream`.
    ///
    /// # Errors
    /// As [`World::fence`].
    pub fn quiet(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "quiet";
        call::submit(CALL, self.team(), stream, check::quiet(CALL, &self.shared)?, decode::nothing)
    }

    /// As [`World::quiet`], for what this thread did, on the calling thread.
    ///
    /// # Errors
    /// As [`World::fence`].
    #[inline]
    pub fn quiet_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::quiet("quiet_blocking", &self.shared)?)
    }
}
