//! Creates graphs node by node, instantiates graphs, and launches the instances.

use core::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::{Arc, Mutex};

use crate::abi::{Code, CuGraph, CuGraphExec, CuGraphNode, CuStream, HostNodeParams, In, Out, Result};
use crate::calls::exports;
use crate::machine::driver::driver;
use crate::streams::graph::{GRAPHS, Graph, find, find_node, node_handle, parts};
use crate::streams::stream::resolve;
use crate::streams::submit::submit;
use crate::sync::lock;
use crate::table::Table;
use crate::work::piece::{Node, Plan, Work};
use crate::work::user_object::Held;

/// All instances that are not destroyed.
static EXECS: Table<Exec> = Table::new(0x55, Code::INVALID_VALUE);

/// An executable instance of a graph.
struct Exec {
    plan: Arc<Plan>,
    flags: c_ulonglong,
}

fn add(node: &Out<CuGraphNode>, graph: CuGraph, after: &In<CuGraphNode>, count: usize, work: Work) -> Result {
    node.required()?;
    let found = find(graph)?;
    let mut places = Vec::new();
    for before in after.array(count)? {
        if parts(before).0 != graph.0 {
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
    let plan = Arc::new(plan_of(&graph)?);
    exec.set(CuGraphExec(EXECS.add(Exec { plan, flags })))
}

fn find_exec(exec: CuGraphExec) -> Result<Arc<Exec>> {
    driver()?;
    EXECS.find(exec.0)
}

fn plan_of(graph: &Graph) -> Result<Plan> {
    Plan::new(&graph.nodes, &graph.held)
}

/// Writes the handles of the nodes that satisfy `is`, or only their number if `nodes` is null.
fn list(graph: CuGraph, nodes: &Out<CuGraphNode>, count: &Out<usize>, is: impl Fn(&Node) -> bool) -> Result {
    let found = find(graph)?;
    let found = lock(&found);
    let wanted = found.nodes.iter().enumerate().filter(|(_, node)| is(node));
    let handles: Vec<_> = wanted.map(|(index, _)| node_handle(graph.0, index)).collect();
    if nodes.is_null() {
        return count.set(handles.len());
    }
    let capacity = count.get()?;
    nodes.set_array(capacity, &handles)?;
    count.set(handles.len().min(capacity))
}

exports! {
    10000 fn cuGraphCreate(graph: Out<CuGraph>, flags: c_uint) {
        graph.required()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver()?;
        graph.set(CuGraph(GRAPHS.add(Mutex::default())))
    }

    10000 fn cuGraphDestroy(graph: CuGraph) {
        let found = find(graph)?;
        if lock(&found).capturing {
            return Err(Code::ILLEGAL_STATE);
        }
        GRAPHS.remove(graph.0);
        Ok(())
    }

    10000 fn cuGraphClone(clone: Out<CuGraph>, graph: CuGraph) {
        clone.required()?;
        let found = find(graph)?;
        let made = {
            let found = lock(&found);
            Graph { nodes: found.nodes.clone(), held: Held::again(&found.held)?, capturing: false }
        };
        clone.set(CuGraph(GRAPHS.add(Mutex::new(made))))
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
        let plan = plan_of(&lock(&child))?;
        add(&node, graph, &after, count, Work::Graph(Arc::new(plan)))
    }

    10000 fn cuGraphGetNodes(graph: CuGraph, nodes: Out<CuGraphNode>, count: Out<usize>) {
        list(graph, &nodes, &count, |_| true)
    }

    10000 fn cuGraphGetRootNodes(graph: CuGraph, nodes: Out<CuGraphNode>, count: Out<usize>) {
        list(graph, &nodes, &count, |node| node.after.is_empty())
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
        submit(&resolve(stream)?, Work::Graph(plan))
    }

    11010 fn cuGraphUpload(exec: CuGraphExec, stream: CuStream) {
        // There is nothing to upload; the call only takes its place in the order of the stream.
        find_exec(exec)?;
        submit(&resolve(stream)?, Work::Empty)
    }

    10000 fn cuGraphExecDestroy(exec: CuGraphExec) {
        // A running launch keeps the plan until the launch is complete.
        driver()?;
        EXECS.remove(exec.0).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    12000 fn cuGraphExecGetFlags(exec: CuGraphExec, flags: Out<c_ulonglong>) {
        flags.set(find_exec(exec)?.flags)
    }
}
