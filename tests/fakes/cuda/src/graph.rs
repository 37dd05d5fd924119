//! Graphs, their instances, and how an instance runs. [`crate::capture`] creates graphs from
//! streams. Invariant: a node's dependencies come before it in the list, so that nodes can run in
//! the order of the list.

use core::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::abi::{Code, CuGraph, CuGraphExec, CuGraphNode, CuStream, HostNodeParams, In, Out, Result};
use crate::calls::exports;
use crate::context::Context;
use crate::driver::driver;
use crate::stream;
use crate::sync::lock;
use crate::user_object::Held;
use crate::work::Work;

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// A graph, complete or during its capture.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) held: Vec<Held>,
    pub(crate) capturing: bool,
}

/// The work of an instance; it outlives the instance during a launch.
pub(crate) struct Plan {
    nodes: Vec<Node>,
    /// Held during a launch: an instance has one launch at a time.
    turn: Mutex<()>,
    _held: Vec<Held>,
}

/// An executable instance of a graph.
pub(crate) struct Exec {
    plan: Arc<Plan>,
    flags: c_ulonglong,
}

impl Plan {
    fn of(graph: &Graph) -> Result<Plan> {
        let held = graph.held.iter().map(Held::again).collect::<Result<Vec<_>>>()?;
        Ok(Plan { nodes: graph.nodes.clone(), turn: Mutex::new(()), _held: held })
    }

    /// Runs every node after its dependencies; branches run at the same time.
    pub(crate) fn run(&self, context: &Arc<Context>) -> Result {
        let _turn = lock(&self.turn);
        let is_chain = self.nodes.iter().enumerate().all(|(index, node)| index == 0 || node.after.contains(&(index - 1)));
        if is_chain {
            return self.nodes.iter().try_for_each(|node| node.work.run(context));
        }
        let done = Mutex::new(vec![None::<Result>; self.nodes.len()]);
        let changed = Condvar::new();
        thread::scope(|scope| {
            for (index, node) in self.nodes.iter().enumerate() {
                let (done, changed) = (&done, &changed);
                scope.spawn(move || {
                    let mut finished = lock(done);
                    while node.after.iter().any(|before| finished[*before].is_none()) {
                        finished = changed.wait(finished).unwrap_or_else(PoisonError::into_inner);
                    }
                    let failed = node.after.iter().find_map(|before| finished[*before].filter(Result::is_err));
                    drop(finished);
                    let result = failed.unwrap_or_else(|| node.work.run(context));
                    lock(done)[index] = Some(result);
                    changed.notify_all();
                });
            }
        });
        let results = lock(&done);
        results.iter().flatten().copied().find(Result::is_err).unwrap_or(Ok(()))
    }
}

/// Returns a graph by its handle.
pub(crate) fn find(graph: CuGraph) -> Result<Arc<Mutex<Graph>>> {
    driver()?.graphs.get(graph.0).ok_or(Code::INVALID_VALUE)
}

/// Returns the handle of a node: the number of the graph and that of the node.
pub(crate) fn node_handle(graph: usize, index: usize) -> CuGraphNode {
    CuGraphNode((graph << 16) | (index + 1))
}

/// Finds the graph and the index of a node.
pub(crate) fn find_node(node: CuGraphNode) -> Result<(Arc<Mutex<Graph>>, usize)> {
    let graph = find(CuGraph(node.0 >> 16))?;
    let index = (node.0 & 0xffff).checked_sub(1).ok_or(Code::INVALID_VALUE)?;
    if index >= lock(&graph).nodes.len() {
        return Err(Code::INVALID_VALUE);
    }
    Ok((graph, index))
}

fn add(node: &Out<CuGraphNode>, graph: CuGraph, after: &In<CuGraphNode>, count: usize, work: Work) -> Result {
    node.required()?;
    let found = find(graph)?;
    let mut places = Vec::new();
    for before in after.array(count)? {
        if before.0 >> 16 != graph.0 {
            return Err(Code::INVALID_VALUE);
        }
        places.push(find_node(before)?.1);
    }
    let mut found = lock(&found);
    found.nodes.push(Node { work, after: places });
    node.set(node_handle(graph.0, found.nodes.len() - 1))
}

fn instantiate(exec: &Out<CuGraphExec>, graph: CuGraph, flags: c_ulonglong) -> Result {
    exec.required()?;
    let found = find(graph)?;
    let graph = lock(&found);
    if graph.capturing {
        return Err(Code::ILLEGAL_STATE);
    }
    let plan = Arc::new(Plan::of(&graph)?);
    exec.set(CuGraphExec(driver()?.execs.add(Exec { plan, flags })))
}

fn find_exec(exec: CuGraphExec) -> Result<Arc<Exec>> {
    driver()?.execs.get(exec.0).ok_or(Code::INVALID_VALUE)
}

exports! {
    10000 fn cuGraphCreate(graph: Out<CuGraph>, flags: c_uint) {
        graph.required()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.set(CuGraph(driver()?.graphs.add(Mutex::default())))
    }

    10000 fn cuGraphDestroy(graph: CuGraph) {
        let found = find(graph)?;
        if lock(&found).capturing {
            return Err(Code::ILLEGAL_STATE);
        }
        driver()?.graphs.remove(graph.0);
        Ok(())
    }

    10000 fn cuGraphClone(clone: Out<CuGraph>, graph: CuGraph) {
        clone.required()?;
        let found = find(graph)?;
        let made = {
            let found = lock(&found);
            let held = found.held.iter().map(Held::again).collect::<Result<Vec<_>>>()?;
            Graph { nodes: found.nodes.clone(), held, capturing: false }
        };
        clone.set(CuGraph(driver()?.graphs.add(Mutex::new(made))))
    }

    10000 fn cuGraphAddEmptyNode(node: Out<CuGraphNode>, graph: CuGraph, after: In<CuGraphNode>, count: usize) {
        add(&node, graph, &after, count, Work::Empty)
    }

    10000 fn cuGraphAddHostNode(
        node: Out<CuGraphNode>, graph: CuGraph, after: In<CuGraphNode>, count: usize, params: In<HostNodeParams>,
    ) {
        let params = params.get()?;
        let function = params.function.ok_or(Code::INVALID_VALUE)?;
        add(&node, graph, &after, count, Work::Host { function, data: params.data as usize })
    }

    10000 fn cuGraphAddChildGraphNode(
        node: Out<CuGraphNode>, graph: CuGraph, after: In<CuGraphNode>, count: usize, child: CuGraph,
    ) {
        if child == graph {
            return Err(Code::INVALID_VALUE);
        }
        let child = find(child)?;
        let plan = Plan::of(&lock(&child))?;
        add(&node, graph, &after, count, Work::Graph(Arc::new(plan)))
    }

    10000 fn cuGraphGetNodes(graph: CuGraph, nodes: Out<CuGraphNode>, count: Out<usize>) {
        let found = find(graph)?;
        let length = lock(&found).nodes.len();
        if nodes.is_null() {
            return count.set(length);
        }
        let capacity = count.get()?;
        let handles: Vec<_> = (0..length).map(|index| node_handle(graph.0, index)).collect();
        nodes.set_array(capacity, &handles)?;
        count.set(length.min(capacity))
    }

    10000 fn cuGraphGetRootNodes(graph: CuGraph, nodes: Out<CuGraphNode>, count: Out<usize>) {
        let found = find(graph)?;
        let handles: Vec<_> = lock(&found)
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.after.is_empty())
            .map(|(index, _)| node_handle(graph.0, index))
            .collect();
        if nodes.is_null() {
            return count.set(handles.len());
        }
        let capacity = count.get()?;
        nodes.set_array(capacity, &handles)?;
        count.set(handles.len().min(capacity))
    }

    10000 fn cuGraphNodeGetType(node: CuGraphNode, kind: Out<c_int>) {
        let (graph, index) = find_node(node)?;
        kind.set(lock(&graph).nodes[index].work.node_kind())
    }

    11040 fn cuGraphInstantiateWithFlags(exec: Out<CuGraphExec>, graph: CuGraph, flags: c_ulonglong) {
        // AUTO_FREE_ON_LAUNCH, UPLOAD, DEVICE_LAUNCH, USE_NODE_PRIORITY.
        if flags & !15 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        instantiate(&exec, graph, flags)
    }

    11000 fn cuGraphInstantiate_v2(
        exec: Out<CuGraphExec>, graph: CuGraph, error_node: Out<CuGraphNode>, _log: Out<u8>, _log_bytes: usize,
    ) {
        error_node.set_if_wanted(CuGraphNode(0));
        instantiate(&exec, graph, 0)
    }

    10000 fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) {
        let plan = Arc::clone(&find_exec(exec)?.plan);
        stream::resolve(stream)?.submit(Work::Graph(plan))
    }

    11010 fn cuGraphUpload(exec: CuGraphExec, stream: CuStream) {
        // There is nothing to upload; only the order in the stream is kept.
        find_exec(exec)?;
        stream::resolve(stream)?.submit(Work::Empty)
    }

    10000 fn cuGraphExecDestroy(exec: CuGraphExec) {
        // A running launch keeps the plan until it is complete.
        driver()?.execs.remove(exec.0).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    12000 fn cuGraphExecGetFlags(exec: CuGraphExec, flags: Out<c_ulonglong>) {
        flags.set(find_exec(exec)?.flags)
    }
}
