//! Keeps unused resources for later operations: streams, pinned memory, and empty lists of messages
//! and results.

use std::sync::Arc;

use peerweave_core::Error;
use peerweave_driver::PrivateStream;
use peerweave_driver::launch::MappedWords;

use super::State;
use crate::backend::error::driver;
use crate::backend::lock::lock;
use crate::backend::resources::{self, Pinned, Recorded, Staged, class_of};
use crate::collective::Message;
use crate::gpu::Gpu;

/// The lists of one operation: the messages that it sends and receives, and the pinned memory for
/// its results.
pub(crate) type Lists = (Vec<Message>, Vec<Staged>);

/// A stream that runs one blocking operation at a time. The event is recorded after each operation,
/// to mark its end.
pub(crate) struct Lane {
    pub(crate) stream: PrivateStream,
    pub(crate) event: Recorded,
}

impl State {
    /// Returns pinned memory of at least `bytes` bytes that no operation uses.
    pub(crate) fn pinned(&self, call: &'static str, bytes: usize) -> Result<Arc<Pinned>, Error> {
        let new = || MappedWords::new(&self.context, class_of(bytes) / size_of::<u32>()).map(Pinned::new);
        self.pinned.take(bytes, new).map_err(|error| driver(call, error))
    }

    /// Returns two empty lists for a new operation. The operation stores its messages in the first
    /// list, and the pinned memory of its results in the second list.
    pub(crate) fn take_lists(&self) -> Lists {
        lock(&self.lists).pop().unwrap_or_default()
    }

    /// Clears the lists of an operation, and makes them available to later operations.
    pub(crate) fn give_back_lists(&self, mut messages: Vec<Message>, mut results: Vec<Staged>) {
        const MOST: usize = 16;
        messages.clear();
        results.clear();
        let mut lists = lock(&self.lists);
        if lists.len() < MOST {
            lists.push((messages, results));
        }
    }

    /// Returns a stream that no operation uses, together with its event. The caller uses them for
    /// one blocking operation. Creates a stream if all streams are in use.
    pub(crate) fn take_lane(&self, call: &'static str, gpu: &Gpu) -> Result<Lane, Error> {
        let idle = lock(&self.idle).pop();
        if let Some(lane) = idle {
            return Ok(lane);
        }
        let made = || {
            let stream = PrivateStream::new(&self.context)?;
            let event = Recorded::new(&stream, false)?;
            Ok(Lane { stream, event })
        };
        let lane = made().map_err(|error| driver(call, error))?;
        resources::note(gpu, &lane.stream);
        Ok(lane)
    }

    /// Makes the stream of `lane` available to later blocking operations. All work in this stream
    /// must have ended.
    pub(crate) fn give_back(&self, lane: Lane) {
        lock(&self.idle).push(lane);
    }
}
