//! The active captures. Invariant: a stream belongs to at most one capture.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use super::graph::Graph;
use super::stream::Stream;
use crate::abi::{Code, CuGraphNode, Result};
use crate::memory::plain::GraphMemory;
use crate::sync::lock;
use crate::work::piece::Work;

/// The mode that restricts all threads.
pub(super) const GLOBAL: c_int = 0;
/// The relaxed mode. Mode 1, between global and relaxed, is thread-local: it restricts only the
/// thread that began the capture.
pub(super) const RELAXED: c_int = 2;

/// Refuses a mode that does not exist.
pub(super) fn check_mode(mode: c_int) -> Result {
    if (GLOBAL..=RELAXED).contains(&mode) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// All active captures.
pub(super) struct Captures {
    pub(super) next: u64,
    pub(super) active: BTreeMap<u64, Capture>,
    pub(super) of_stream: BTreeMap<usize, u64>,
}

pub(super) struct Capture {
    pub(super) origin: usize,
    pub(super) mode: c_int,
    pub(super) thread: ThreadId,
    pub(super) graph: usize,
    pub(super) body: Arc<Mutex<Graph>>,
    pub(super) invalid: bool,
    pub(super) positions: BTreeMap<usize, Position>,
}

#[derive(Default)]
pub(super) struct Position {
    pub(super) nodes: Vec<usize>,
    /// The nodes that a query last returned. The list stays allocated as long as the caller may
    /// read it.
    pub(super) shown: Vec<CuGraphNode>,
}

static CAPTURES: Mutex<Captures> = Mutex::new(Captures { next: 0, active: BTreeMap::new(), of_stream: BTreeMap::new() });

/// Number of active captures. If the number is 0, the lock is not acquired.
pub(super) static ACTIVE: AtomicUsize = AtomicUsize::new(0);

impl Captures {
    /// Makes every later call that uses the capture fail.
    pub(super) fn invalidate(&mut self, id: u64) {
        if let Some(capture) = self.active.get_mut(&id) {
            capture.invalid = true;
        }
    }

    pub(super) fn of(&mut self, stream: &Stream) -> Option<(u64, &mut Capture)> {
        let id = *self.of_stream.get(&stream.handle)?;
        self.active.get_mut(&id).map(|capture| (id, capture))
    }
}

/// Runs a function while the captures are locked.
pub(super) fn with<T>(run: impl FnOnce(&mut Captures) -> T) -> T {
    run(&mut lock(&CAPTURES))
}

/// Returns whether any stream is captured.
pub(crate) fn any() -> bool {
    ACTIVE.load(Ordering::Acquire) > 0
}

/// Returns the capture of a stream, and the nodes on which its next node depends.
pub(crate) fn position(stream: &Arc<Stream>) -> Result<Option<(u64, Vec<usize>)>> {
    if !any() {
        return Ok(None);
    }
    with(|captures| match captures.of(stream) {
        None => Ok(None),
        Some((_, capture)) if capture.invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some((id, capture)) => Ok(Some((id, capture.positions.get(&stream.handle).map_or_else(Vec::new, |at| at.nodes.clone())))),
    })
}

/// Invalidates the capture of a stream, if it is captured.
pub(crate) fn invalidate(stream: &Arc<Stream>) {
    with(|captures| {
        if let Some((_, capture)) = captures.of(stream) {
            capture.invalid = true;
        }
    });
}

/// Returns whether an allocation that satisfies `is` was captured into the graph of the stream's
/// capture.
pub(crate) fn has_graph_memory(stream: &Arc<Stream>, is: impl Fn(&GraphMemory) -> bool) -> bool {
    with(|captures| {
        captures.of(stream).is_some_and(|(_, capture)| {
            lock(&capture.body).nodes.iter().any(|node| matches!(&node.work, Work::GraphAlloc(memory) if is(memory)))
        })
    })
}
