//! Records the work of captured streams as nodes of a graph. Invariant: the nodes of a capture are
//! those of its streams, in the order of the calls.

use core::ffi::{c_int, c_uint};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use super::captures::{ACTIVE, Capture, Position, RELAXED, any, check_mode, with};
use super::graph::{self, GRAPHS, Graph};
use super::refusals::{captured_blocking, forbid_legacy};
use super::stream::{self, Kind, Stream};
use crate::abi::{Code, CuGraph, CuGraphNode, CuStream, In, Out, Result};
use crate::sync::lock;
use crate::work::piece::{Node, Work};

/// Adds the work as a node if the stream is captured. Returns `None` if the stream is not captured;
/// then the caller must run the work.
pub(crate) fn add(stream: &Arc<Stream>, work: &Work) -> Option<Result<usize>> {
    if !any() {
        return None;
    }
    if let Err(code) = forbid_legacy(stream) {
        return Some(Err(code));
    }
    with(|captures| {
        let (_, capture) = captures.of(stream)?;
        if capture.invalid {
            return Some(Err(Code::STREAM_CAPTURE_INVALIDATED));
        }
        let position = capture.positions.entry(stream.handle).or_default();
        let mut body = lock(&capture.body);
        body.nodes.push(Node { work: work.clone(), after: position.nodes.clone() });
        let index = body.nodes.len() - 1;
        position.nodes = vec![index];
        Some(Ok(index))
    })
}

/// Adds the stream to a capture, because the stream waits for an event that was recorded in that
/// capture.
pub(crate) fn join(stream: &Arc<Stream>, capture: u64, nodes: &[usize]) -> Result {
    with(|captures| {
        let other = captures.of(stream).map(|(id, _)| id).filter(|id| *id != capture);
        if let Some(other) = other {
            captures.invalidate(other);
            captures.invalidate(capture);
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        let found = captures.active.get_mut(&capture).ok_or(Code::CAPTURED_EVENT)?;
        if found.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if stream.kind == Kind::Legacy {
            found.invalid = true;
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        let position = found.positions.entry(stream.handle).or_default();
        let merged: BTreeSet<usize> = position.nodes.iter().chain(nodes).copied().collect();
        position.nodes = merged.into_iter().collect();
        captures.of_stream.insert(stream.handle, capture);
        Ok(())
    })
}

/// Begins the capture of a stream.
pub(crate) fn begin(stream: CuStream, mode: c_int) -> Result {
    check_mode(mode)?;
    let stream = stream::resolve(stream)?;
    stream.context.check()?;
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    with(|captures| {
        if captures.of(&stream).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let body = Arc::new(Mutex::new(Graph { capturing: true, ..Graph::default() }));
        let graph = GRAPHS.reserve();
        GRAPHS.insert(graph, Arc::clone(&body));
        captures.next += 1;
        let id = captures.next;
        let positions = BTreeMap::from([(stream.handle, Position::default())]);
        let capture =
            Capture { origin: stream.handle, mode, thread: thread::current().id(), graph, body, invalid: false, positions };
        captures.active.insert(id, capture);
        captures.of_stream.insert(stream.handle, id);
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Returns whether work of another stream was not joined to the origin stream.
fn has_unjoined(capture: &Capture) -> bool {
    let body = lock(&capture.body);
    let mut past = BTreeSet::new();
    let mut open: Vec<usize> = capture.positions.get(&capture.origin).map_or_else(Vec::new, |at| at.nodes.clone());
    while let Some(index) = open.pop() {
        if past.insert(index) {
            open.extend(&body.nodes[index].after);
        }
    }
    capture.positions.iter().any(|(stream, at)| *stream != capture.origin && at.nodes.iter().any(|index| !past.contains(index)))
}

/// Ends the capture that began in a stream, and returns its graph.
pub(crate) fn end(stream: CuStream, out: &Out<CuGraph>) -> Result {
    out.set(CuGraph(0))?;
    let stream = stream::resolve(stream)?;
    let capture = with(|captures| {
        let (id, capture) = captures.of(&stream).ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        captures.of_stream.retain(|_, of| *of != id);
        let capture = captures.active.remove(&id).ok_or(Code::ILLEGAL_STATE)?;
        ACTIVE.fetch_sub(1, Ordering::AcqRel);
        Ok(capture)
    })?;
    lock(&capture.body).capturing = false;
    let failed = if capture.invalid {
        Some(Code::STREAM_CAPTURE_INVALIDATED)
    } else if has_unjoined(&capture) {
        Some(Code::STREAM_CAPTURE_UNJOINED)
    } else {
        None
    };
    if let Some(code) = failed {
        GRAPHS.remove(capture.graph);
        return Err(code);
    }
    out.set(CuGraph(capture.graph))
}

/// Writes whether a stream is captured, its capture, and the nodes on which its next node depends.
pub(crate) fn info(
    stream: CuStream,
    status: &Out<c_int>,
    id: &Out<u64>,
    graph: &Out<CuGraph>,
    nodes: &Out<usize>,
    count: &Out<usize>,
) -> Result {
    status.required()?;
    let stream = stream::resolve(stream)?;
    // According to the manual, a query does not invalidate the capture.
    if stream.kind == Kind::Legacy && any() && captured_blocking(&stream)?.is_some() {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    with(|captures| {
        let Some((number, capture)) = captures.of(&stream) else { return status.set(0) };
        if capture.invalid {
            return status.set(2);
        }
        status.set(1)?;
        id.set_if_wanted(number);
        graph.set_if_wanted(CuGraph(capture.graph));
        let handle = capture.graph;
        let position = capture.positions.entry(stream.handle).or_default();
        position.shown = position.nodes.iter().map(|index| graph::node_handle(handle, *index)).collect();
        nodes.set_if_wanted(position.shown.as_ptr() as usize);
        count.set_if_wanted(position.shown.len());
        Ok(())
    })
}

/// Replaces, or extends, the nodes on which the next node of a captured stream depends.
pub(crate) fn update(stream: CuStream, nodes: &In<CuGraphNode>, count: usize, flags: c_uint) -> Result {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::resolve(stream)?;
    let given = nodes.array(count)?;
    with(|captures| {
        let (_, capture) = captures.of(&stream).ok_or(Code::ILLEGAL_STATE)?;
        let length = lock(&capture.body).nodes.len();
        let mut places = BTreeSet::new();
        for node in given {
            let (graph, index) = graph::parts(node);
            if graph != capture.graph || index >= length {
                return Err(Code::INVALID_VALUE);
            }
            places.insert(index);
        }
        let position = capture.positions.entry(stream.handle).or_default();
        if flags == 0 {
            places.extend(position.nodes.iter().copied());
        }
        position.nodes = places.into_iter().collect();
        Ok(())
    })
}
