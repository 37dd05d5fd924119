//! The kinds of work that a stream runs and a graph replays. Invariants: work can run any number of
//! times, because graphs replay it. The dependencies of a node precede the node in the list, so
//! that nodes can run in the order of the list.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::event::Event;
use super::kernel::Launched;
use super::user_object::Held;
use crate::abi::Result;
use crate::calls::as_host_function;
use crate::machine::context::Context;
use crate::memory::plain::{GraphMemory, finish_free};
use crate::memory::transfer::{self, Copy, Fill};
use crate::sync::{lock, wait_while};

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    Empty,
    Copy(Copy),
    Fill(Fill),
    Host {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
    WaitValue {
        address: u64,
        value: u64,
        bytes: u64,
        condition: c_uint,
    },
    Write {
        address: u64,
        value: u64,
        bytes: u64,
    },
    /// A free of the allocation with this address and number.
    Free {
        address: u64,
        id: u64,
    },
    /// An allocation that belongs to a graph. The graph owns the address as long as the graph
    /// lives, so running this node or a `GraphFree` node has no effect.
    GraphAlloc(Arc<GraphMemory>),
    GraphFree,
    Graph(Arc<Plan>),
    Kernel(Arc<Launched>),
    RecordEvent(Arc<Event>),
    WaitEvent(Arc<Event>),
}

/// Interval at which a waiting stream polls memory.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

impl Work {
    /// Runs the work.
    pub(crate) fn run(&self, context: &Arc<Context>) -> Result {
        match self {
            Work::Empty | Work::GraphAlloc(_) | Work::GraphFree => Ok(()),
            Work::Copy(copy) => copy.run(context.device),
            Work::Fill(fill) => fill.run(context.device),
            Work::Host { function, data } => {
                // SAFETY: the caller promised that the function may be called with this data on any
                // thread, once per launch.
                as_host_function(|| unsafe { function(*data as *mut c_void) });
                Ok(())
            }
            Work::WaitValue { address, value, bytes, condition } => {
                while !holds(transfer::load(context.device, *address, *bytes)?, *value, *bytes, *condition) {
                    // After the context is destroyed, no work can write the word any more.
                    context.check()?;
                    std::thread::sleep(LOOK_AGAIN);
                }
                Ok(())
            }
            Work::Write { address, value, bytes } => {
                transfer::store(context.device, *address, &value.to_ne_bytes()[..*bytes as usize])
            }
            Work::Free { address, id } => finish_free(*address, *id),
            Work::Graph(plan) => plan.run(context),
            Work::Kernel(kernel) => kernel.run(context.device),
            Work::RecordEvent(event) => {
                event.begin_recording().finish();
                Ok(())
            }
            Work::WaitEvent(event) => {
                event.wait_for_latest();
                Ok(())
            }
        }
    }

    /// Returns the `CUgraphNodeType`.
    pub(crate) fn node_kind(&self) -> c_int {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Host { .. } => 3,
            Work::Graph(_) => 4,
            Work::Empty | Work::Free { .. } => 5,
            Work::WaitEvent(_) => 6,
            Work::RecordEvent(_) => 7,
            Work::GraphAlloc(_) => 10,
            Work::GraphFree => 11,
            Work::WaitValue { .. } | Work::Write { .. } => 12,
        }
    }
}

/// Evaluates the condition of `CUstreamWaitValue_flags`.
fn holds(found: u64, value: u64, bytes: u64, condition: c_uint) -> bool {
    match condition {
        // As in the driver, the comparison wraps around: 0 is greater than the largest word.
        0 if bytes == 4 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => found.wrapping_sub(value) as i64 >= 0,
        1 => found == value,
        2 => found & value != 0,
        _ if bytes == 4 => !(found as u32 | value as u32) != 0,
        _ => !(found | value) != 0,
    }
}

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// The work of an executable graph. During a launch, the plan outlives a destroyed instance.
pub(crate) struct Plan {
    nodes: Vec<Node>,
    /// Locked during a launch: an instance runs one launch at a time.
    turn: Mutex<()>,
    _held: Vec<Held>,
}

impl Plan {
    /// Returns a plan of these nodes, with references to the same user objects.
    pub(crate) fn new(nodes: &[Node], held: &[Held]) -> Result<Plan> {
        Ok(Plan { nodes: nodes.to_vec(), turn: Mutex::new(()), _held: Held::again(held)? })
    }

    /// Runs every node after its dependencies; branches run at the same time.
    fn run(&self, context: &Arc<Context>) -> Result {
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
                    let is_early =
                        |finished: &mut Vec<Option<Result>>| node.after.iter().any(|before| finished[*before].is_none());
                    let finished = wait_while(changed, lock(done), is_early);
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

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn stream_wait_value_geq_compares_with_wraparound() {
        assert!(holds(5, 5, 8, 0));
        assert!(!holds(4, 5, 8, 0));
        assert!(holds(1, u64::from(u32::MAX), 4, 0));
    }

    #[test]
    fn nor_wait_on_a_32_bit_word_ignores_the_upper_32_bits() {
        assert!(!holds(0xffff_0000, 0x0000_ffff, 4, 3));
        assert!(holds(0xffff_0000, 0x0000_fffe, 4, 3));
    }
}
