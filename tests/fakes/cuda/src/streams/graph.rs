//! Graphs, and the handles of their nodes.

use std::sync::{Arc, Mutex};

use crate::abi::{Code, CuGraph, CuGraphNode, Result};
use crate::machine::driver::driver;
use crate::sync::lock;
use crate::table::Table;
use crate::work::piece::Node;
use crate::work::user_object::Held;

/// All graphs that are not destroyed.
pub(crate) static GRAPHS: Table<Mutex<Graph>> = Table::new(0x54, Code::INVALID_VALUE);

/// A graph, complete or during its capture.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) held: Vec<Held>,
    pub(crate) capturing: bool,
}

/// Returns a graph by its handle.
pub(crate) fn find(graph: CuGraph) -> Result<Arc<Mutex<Graph>>> {
    driver()?;
    GRAPHS.find(graph.0)
}

/// Returns the handle of a node, which combines the handle of the graph and the index of the node.
pub(crate) fn node_handle(graph: usize, index: usize) -> CuGraphNode {
    CuGraphNode((graph << 16) | (index + 1))
}

/// Returns the parts of a node's handle: the handle of its graph, and the index of the node. If the
/// handle is invalid, no graph has a node with that index.
pub(crate) fn parts(node: CuGraphNode) -> (usize, usize) {
    (node.0 >> 16, (node.0 & 0xffff).wrapping_sub(1))
}

/// Returns the graph and the index of a node, given the node's handle.
pub(crate) fn find_node(node: CuGraphNode) -> Result<(Arc<Mutex<Graph>>, usize)> {
    let (graph, index) = parts(node);
    let graph = find(CuGraph(graph))?;
    if index >= lock(&graph).nodes.len() {
        return Err(Code::INVALID_VALUE);
    }
    Ok((graph, index))
}
