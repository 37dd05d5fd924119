//! The collectives and transfers of a communicator, issued immediately. `signatures.rs` declares
//! these calls, `group` records these calls in groups, and `configured.rs` adds a configuration.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::{Element, Rank};

use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::member::spans;
use crate::ops::check::{CallBuilder, Checked, Prepared};
use crate::ops::holds::Holds;
use crate::ops::operation::Operations;
use crate::ops::reduction::Reduction;
use crate::ops::shapes;
use crate::ops::signatures::{collectives, transfers};
use crate::{Call, CollConfig};

macro_rules! at_once {
    ($($(#[$doc:meta])* $Call:ident $name:ident($($argument:ident: $Type:ty),*);)*) => {
        $(
            $(#[$doc])*
            pub fn $name<'a, T: Element>(&self, stream: &'a Arc<CudaStream>, $($argument: $Type),*) -> Result<(), NcclError> {
                self.run(Call::$Call, stream, None, |builder| shapes::$name(builder, $($argument),*))
            }
        )*
    };
}

/// Collectives. The documentation of [`all_reduce`](Self::all_reduce) applies to all calls that
/// enqueue work.
///
/// These calls return when the work has been enqueued, and not when the work is complete.
/// [`Communicator::wait`] waits for completion. Buffers may be dropped at any time after the call.
/// The memory of the buffers stays allocated until the stream has completed the work. Counts are in
/// elements.
impl Communicator {
    collectives!(at_once);
}

/// Sends, receives, and calls that are composed of several NCCL operations. The documentation of
/// [`all_reduce`](Self::all_reduce) also applies to these calls.
impl Communicator {
    transfers!(at_once);
}

impl Communicator {
    /// Checks one call, issues the call, and increases the number of issued calls.
    ///
    /// `prepare` checks the arguments and records the operations. Only `prepare` depends on the
    /// types of the buffers. So only `prepare` and this small function are compiled separately for
    /// each call and element type. [`run_prepared`](Self::run_prepared) is compiled once.
    #[inline]
    pub(crate) fn run<'a>(
        &self,
        call: Call,
        stream: &'a Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: impl FnOnce(&mut CallBuilder<'_, 'a>) -> Checked<Prepared>,
    ) -> Result<(), NcclError> {
        let mut prepare = Some(prepare);
        self.run_prepared(call, stream, config, &mut |builder| prepare.take().expect("`prepare` is called at most once")(builder))
    }

    /// Checks one call and issues the call. Also increases the number of issued calls. `prepare`
    /// checks the arguments and records the operations. `prepare` is called at most once.
    ///
    /// As in a group, all checks precede the acquisition of the communicator's lock. In the common
    /// case no other thread holds the lock, and no stream is being captured. One atomic operation
    /// then acquires the lock and marks this thread as possibly blocked in NCCL.
    ///
    /// NCCL's own code evicts the instructions of this function from the processor's caches. Most
    /// of the cost of this function is the time to fetch these instructions. Rare cases are
    /// therefore separate functions, which keep this function small.
    fn run_prepared<'a>(
        &self,
        call: Call,
        stream: &'a Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: &mut dyn FnMut(&mut CallBuilder<'_, 'a>) -> Checked<Prepared>,
    ) -> Result<(), NcclError> {
        let inner = &self.inner;
        let span = spans::if_enabled(inner, call.name());
        let (mut holds, mut operations) = (Holds::default(), Operations::default());
        let capturing = inner.begin_call(call.name(), stream)?;
        let mut builder = CallBuilder::new(call, inner, stream, capturing, &mut holds, &mut operations);
        prepare(&mut builder).map_err(|error| *error)?;
        let issued = builder.issue(config);
        // Saves the calls of two drop functions, which would have no effect.
        if holds.is_free_of_drops() && span.is_none() {
            std::mem::forget(holds);
            std::mem::forget(span);
        }
        issued.map_err(|error| *error)
    }
}
