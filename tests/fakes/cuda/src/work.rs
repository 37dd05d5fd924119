//! The kinds of work that a stream runs and a graph replays. Queues are in [`crate::stream`],
//! copies in [`crate::transfer`]. Invariant: work can run any number of times, because graphs
//! replay it.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::abi::Result;
use crate::calls;
use crate::context::Context;
use crate::event::Event;
use crate::graph::Plan;
use crate::memory::GraphMemory;
use crate::modules::Launched;
use crate::transfer::{self, Copy, Fill};

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
    /// The end of an allocation, given by address and number.
    Free {
        address: u64,
        id: u64,
    },
    /// The beginning or end of an allocation that belongs to a graph; the graph owns its address as
    /// long as the graph lives.
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
            Work::Copy(copy) => copy.run(context),
            Work::Fill(fill) => fill.run(context),
            Work::Host { function, data } => {
                // SAFETY: the caller promised that the function may be called with this data on any
                // thread, once per launch.
                calls::as_host_function(|| unsafe { function(*data as *mut c_void) });
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
            Work::Free { address, id } => crate::memory::finish_free(*address, *id),
            Work::Graph(plan) => plan.run(context),
            Work::Kernel(kernel) => kernel.run(context),
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

    /// `CUgraphNodeType`.
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
        // Cyclic, as the driver compares.
        0 if bytes == 4 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => found.wrapping_sub(value) as i64 >= 0,
        1 => found == value,
        2 => found & value != 0,
        _ if bytes == 4 => !(found as u32 | value as u32) != 0,
        _ => !(found | value) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn wait_value_geq_compares_cyclically() {
        assert!(holds(5, 5, 8, 0));
        assert!(!holds(4, 5, 8, 0));
        assert!(holds(1, u64::from(u32::MAX), 4, 0));
    }

    #[test]
    fn wait_value_nor_depends_on_the_word_width() {
        assert!(!holds(0xffff_0000, 0x0000_ffff, 4, 3));
        assert!(holds(0xffff_0000, 0x0000_fffe, 4, 3));
    }
}
