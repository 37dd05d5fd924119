//! Implements capture: the work of captured streams becomes nodes of a graph instead of running.
//! Graphs are in [`crate::graph`]. Invariant: a stream belongs to at most one capture, and its
//! position is the set of nodes on which its next node depends.

use core::ffi::{c_int, c_uint};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::abi::{Code, CuGraph, CuGraphNode, CuStream, In, Out, Result};
use crate::calls::exports;
use crate::context::{self, Context};
use crate::driver::driver;
use crate::graph::{self, Graph, Node};
use crate::memory::GraphMemory;
use crate::stream::{self, Kind, Stream};
use crate::sync::lock;
use crate::table;
use crate::work::Work;

const GLOBAL: c_int = 0;
/// The relaxed mode. Mode 1, between global and relaxed, is thread-local: it restricts only the
/// thread that began the capture.
const RELAXED: c_int = 2;

/// All active captures.
#[derive(Default)]
pub(crate) struct Captures {
    next: u64,
    active: HashMap<u64, Capture>,
    of_stream: HashMap<usize, u64>,
}

struct Capture {
    origin: usize,
    mode: c_int,
    thread: ThreadId,
    graph: usize,
    body: Arc<Mutex<Graph>>,
    invalid: bool,
    positions: HashMap<usize, Position>,
}

#[derive(Default)]
struct Position {
    nodes: Vec<usize>,
    /// Nodes last returned to a caller; they stay allocated as long as the caller may read them.
    shown: Vec<CuGraphNode>,
}

/// Number of captures; if it is 0, the lock is not acquired.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_MODE: core::cell::Cell<c_int> = const { core::cell::Cell::new(GLOBAL) };
    /// The last query whose result was that a stream is not captured: number of changes at that
    /// time, stream, context.
    static NOT_CAPTURING: core::cell::Cell<Option<(u64, usize, usize)>> = const { core::cell::Cell::new(None) };
}

impl Captures {
    fn of(&mut self, stream: &Stream) -> Option<(u64, &mut Capture)> {
        let id = *self.of_stream.get(&stream.handle)?;
        self.active.get_mut(&id).map(|capture| (id, capture))
    }
}

fn with<T>(run: impl FnOnce(&mut Captures) -> T) -> Result<T> {
    Ok(run(&mut lock(&driver()?.captures)))
}

/// Adds the work as a node if the stream is captured; returns `None` if it is not and the work must
/// run.
pub(crate) fn add(stream: &Arc<Stream>, work: &Work) -> Option<Result<usize>> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
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
    .ok()
    .flatten()
}

/// Returns the capture of a stream, and the nodes on which its next node depends.
pub(crate) fn position(stream: &Arc<Stream>) -> Result<Option<(u64, Vec<usize>)>> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(None);
    }
    with(|captures| match captures.of(stream) {
        None => Ok(None),
        Some((_, capture)) if capture.invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some((id, capture)) => Ok(Some((id, capture.positions.get(&stream.handle).map_or_else(Vec::new, |at| at.nodes.clone())))),
    })?
}

/// Adds the stream to the capture in which it waits for a recorded event.
pub(crate) fn join(stream: &Arc<Stream>, capture: u64, nodes: &[usize]) -> Result {
    with(|captures| {
        let other = captures.of(stream).map(|(id, _)| id).filter(|id| *id != capture);
        if let Some(other) = other {
            for id in [other, capture] {
                if let Some(capture) = captures.active.get_mut(&id) {
                    capture.invalid = true;
                }
            }
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
    })?
}

/// Refuses an operation that a capture cannot contain, and invalidates the capture.
pub(crate) fn refuse(stream: &Arc<Stream>, code: Code) -> Result {
    with(|captures| {
        if let Some((_, capture)) = captures.of(stream) {
            capture.invalid = true;
        }
    })?;
    Err(code)
}

/// Refuses to wait for, or query, an event that was recorded in a capture, and invalidates that
/// capture.
pub(crate) fn refuse_event(capture: u64) -> Result {
    with(|captures| {
        if let Some(capture) = captures.active.get_mut(&capture) {
            capture.invalid = true;
        }
    })?;
    Err(Code::CAPTURED_EVENT)
}

/// Refuses to wait for, or query, a captured stream.
pub(crate) fn forbid_in_stream(stream: &Arc<Stream>) -> Result {
    forbid_legacy(stream)?;
    match position(stream)? {
        Some(_) => refuse(stream, Code::STREAM_CAPTURE_UNSUPPORTED),
        None => Ok(()),
    }
}

/// Refuses to wait for a context that has a captured stream.
pub(crate) fn forbid_in_context(context: &Context) -> Result {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    for stream in context.live_streams() {
        if position(&stream)?.is_some() {
            return refuse(&stream, Code::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    Ok(())
}

/// Refuses work on the legacy stream if it would wait for a captured blocking stream.
pub(crate) fn forbid_legacy(stream: &Arc<Stream>) -> Result {
    if stream.kind != Kind::Legacy || ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    match captured_blocking(&stream.context)? {
        Some(other) => refuse(&other, Code::STREAM_CAPTURE_IMPLICIT),
        None => Ok(()),
    }
}

/// Returns a captured stream for which the legacy stream would wait.
fn captured_blocking(context: &Context) -> Result<Option<Arc<Stream>>> {
    for other in context.live_streams() {
        if other.kind == Kind::Blocking && position(&other)?.is_some() {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Refuses calls that are unsafe during captures, by the modes of the captures and of the thread.
pub(crate) fn forbid_unsafe() -> Result {
    if ACTIVE.load(Ordering::Acquire) == 0 || THREAD_MODE.get() == RELAXED {
        return Ok(());
    }
    let (me, mode) = (thread::current().id(), THREAD_MODE.get());
    with(|captures| {
        let mut forbidden = false;
        for capture in captures.active.values_mut() {
            let mine = capture.thread == me && capture.mode != RELAXED;
            let anyones = capture.mode == GLOBAL && mode == GLOBAL;
            if mine || anyones {
                capture.invalid = true;
                forbidden = true;
            }
        }
        if forbidden { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })?
}

/// Invalidates the capture of a stream that is destroyed during it.
pub(crate) fn invalidate_stream(stream: &Arc<Stream>) {
    let _ = with(|captures| {
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
    .unwrap_or(false)
}

fn begin(stream: CuStream, mode: c_int) -> Result {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::resolve(stream)?;
    stream.context.check()?;
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let driver = driver()?;
    let mut captures = lock(&driver.captures);
    if captures.of(&stream).is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let body = Arc::new(Mutex::new(Graph { capturing: true, ..Graph::default() }));
    let graph = driver.graphs.reserve();
    driver.graphs.insert(graph, Arc::clone(&body));
    captures.next += 1;
    let id = captures.next;
    let positions = HashMap::from([(stream.handle, Position::default())]);
    let capture = Capture { origin: stream.handle, mode, thread: thread::current().id(), graph, body, invalid: false, positions };
    captures.active.insert(id, capture);
    captures.of_stream.insert(stream.handle, id);
    ACTIVE.fetch_add(1, Ordering::AcqRel);
    Ok(())
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

fn end(stream: CuStream, out: &Out<CuGraph>) -> Result {
    out.set(CuGraph(0))?;
    let stream = stream::resolve(stream)?;
    let driver = driver()?;
    let mut captures = lock(&driver.captures);
    let (id, capture) = captures.of(&stream).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != stream.handle {
        capture.invalid = true;
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread::current().id() {
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    captures.of_stream.retain(|_, of| *of != id);
    let Some(capture) = captures.active.remove(&id) else { return Err(Code::ILLEGAL_STATE) };
    ACTIVE.fetch_sub(1, Ordering::AcqRel);
    drop(captures);
    lock(&capture.body).capturing = false;
    let failed = if capture.invalid {
        Some(Code::STREAM_CAPTURE_INVALIDATED)
    } else if has_unjoined(&capture) {
        Some(Code::STREAM_CAPTURE_UNJOINED)
    } else {
        None
    };
    if let Some(code) = failed {
        driver.graphs.remove(capture.graph);
        return Err(code);
    }
    out.set(CuGraph(capture.graph))
}

fn info(
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
    if stream.kind == Kind::Legacy && ACTIVE.load(Ordering::Acquire) > 0 && captured_blocking(&stream.context)?.is_some() {
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
    })?
}

fn update(stream: CuStream, nodes: &In<CuGraphNode>, count: usize, flags: c_uint) -> Result {
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
            let index = (node.0 & 0xffff).wrapping_sub(1);
            if node.0 >> 16 != capture.graph || index >= length {
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
    })?
}

exports! {
    10010 fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) {
        begin(stream, mode)
    }

    10000 fn cuStreamEndCapture(stream: CuStream, graph: Out<CuGraph>) {
        end(stream, &graph)
    }

    10000 fn cuStreamIsCapturing(stream: CuStream, status: Out<c_int>) {
        // Returns this thread's last answer while no state has changed. So the query is as cheap as
        // that of the real driver, and does not dominate measurements.
        let asked = (table::changes(), stream.0, context::current_handle());
        if ACTIVE.load(Ordering::Acquire) == 0 && NOT_CAPTURING.get() == Some(asked) {
            return status.set(0);
        }
        info(stream, &status, &Out::nowhere(), &Out::nowhere(), &Out::nowhere(), &Out::nowhere())?;
        NOT_CAPTURING.set((status.get()? == 0).then_some(asked));
        Ok(())
    }

    11030 fn cuStreamGetCaptureInfo_v2(
        stream: CuStream, status: Out<c_int>, id: Out<u64>, graph: Out<CuGraph>, nodes: Out<usize>, count: Out<usize>,
    ) {
        info(stream, &status, &id, &graph, &nodes, &count)
    }

    12030 fn cuStreamGetCaptureInfo_v3(
        stream: CuStream, status: Out<c_int>, id: Out<u64>, graph: Out<CuGraph>, nodes: Out<usize>, edges: Out<usize>,
        count: Out<usize>,
    ) {
        // Edges here carry no data.
        edges.set_if_wanted(0);
        info(stream, &status, &id, &graph, &nodes, &count)
    }

    11030 fn cuStreamUpdateCaptureDependencies(stream: CuStream, nodes: In<CuGraphNode>, count: usize, flags: c_uint) {
        update(stream, &nodes, count, flags)
    }

    12030 fn cuStreamUpdateCaptureDependencies_v2(
        stream: CuStream, nodes: In<CuGraphNode>, _edges: usize, count: usize, flags: c_uint,
    ) {
        update(stream, &nodes, count, flags)
    }

    10010 fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        let wanted = mode.get()?;
        if !(GLOBAL..=RELAXED).contains(&wanted) {
            return Err(Code::INVALID_VALUE);
        }
        mode.set(THREAD_MODE.replace(wanted))
    }
}
