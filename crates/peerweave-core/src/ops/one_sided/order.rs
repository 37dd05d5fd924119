//! Ordering and completion of the one-sided operations of this PE.

use crate::world::stream::Stream;
use crate::world::ticket::{Ticket, decode};
use crate::world::world::World;
use crate::{Result, call, check};

impl World {
    /// Orders the puts, signals and atomics of this PE. If a target sees an operation that was
    /// issued after the fence, the target also sees all operations on this target that were issued
    /// before the fence. The fence does not complete any operation.
    ///
    /// # Ordering
    /// The fence runs after earlier operations of `stream`.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize, and for a stream that belongs to another world;
    /// errors of the backend.
    pub fn fence(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "fence";
        call::submit(CALL, self.team(), stream, check::fence(CALL, &self.shared)?, decode::nothing)
    }

    /// Like [`World::fence`], but runs on the calling thread, and orders the operations that this
    /// thread has issued.
    ///
    /// # Errors
    /// As for [`World::fence`].
    #[inline]
    pub fn fence_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::fence("fence_blocking", &self.shared)?)
    }

    /// Completes the earlier puts, gets, signals and atomics of this PE, including `nbi` forms.
    /// When the quiet is complete, puts, signals and atomics are complete at their targets, and the
    /// data of gets is in the destination buffers.
    ///
    /// # Ordering
    /// The quiet runs after earlier operations of `stream`.
    ///
    /// # Errors
    /// As for [`World::fence`]; [`Error::Peer`](crate::Error::Peer) if any PE of the job is known
    /// to have died: see [Dead targets](crate::Team#dead-targets).
    pub fn quiet(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "quiet";
        call::submit(CALL, self.team(), stream, check::quiet(CALL, &self.shared)?, decode::nothing)
    }

    /// Like [`World::quiet`], but runs on the calling thread, and completes the operations that
    /// this thread has issued.
    ///
    /// # Errors
    /// As for [`World::quiet`].
    #[inline]
    pub fn quiet_blocking(&self) -> Result<()> {
        call::run_unit(&self.shared, check::quiet("quiet_blocking", &self.shared)?)
    }
}
