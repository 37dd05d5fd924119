//! A kernel thread: a coroutine with its own stack.
//!
//! Invariant: a fiber is created, resumed and dropped on one thread of the host.

use super::{Current, SuspendReason};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

/// The handle by which a kernel thread suspends itself.
pub(crate) type Suspend = Yielder<(), SuspendReason>;

/// The type of the thread-local variable `CURRENT`, which contains the address of the running
/// kernel thread's state.
type CurrentKey = LocalKey<Cell<*const Current>>;

/// The reason why [`Fiber::resume`] returned: the thread suspended itself, returned, or panicked
/// with a message.
pub(crate) enum Step {
    Suspended(SuspendReason),
    Returned,
    Panicked(String),
}

/// A thread of a kernel, which runs as a coroutine on a host thread.
pub(crate) struct Fiber {
    coroutine: Coroutine<(), SuspendReason, (), DefaultStack>,
    /// State of the thread, shared with the coroutine. While the thread runs, `CURRENT` contains
    /// the address of this state.
    current: Rc<Current>,
}

/// The stacks of one run. The stacks of ended threads are reused, also by later runs.
pub(crate) struct Stacks {
    bytes: usize,
    free: Vec<DefaultStack>,
}

/// Free stacks of ended runs, by their size in bytes. Later runs reuse these stacks, because the
/// allocation of a stack often takes longer than a whole kernel.
static FREE: Mutex<BTreeMap<usize, Vec<DefaultStack>>> = Mutex::new(BTreeMap::new());

/// Maximum number of stacks of each size in [`FREE`]. A stack occupies memory only for the pages
/// that a thread has used.
const MOST_FREE: usize = 8192;

/// Number of stacks that a run takes from [`FREE`] at once, when its own list of free stacks is
/// empty.
const TAKEN_TOGETHER: usize = 64;

impl Stacks {
    /// Creates an empty pool of free stacks. Each stack has `bytes` bytes, and is allocated when a
    /// thread needs it.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, free: Vec::new() }
    }

    fn take(&mut self) -> io::Result<DefaultStack> {
        if self.free.is_empty()
            && let Some(free) = FREE.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.bytes)
        {
            self.free = free.split_off(free.len().saturating_sub(TAKEN_TOGETHER));
        }
        self.free.pop().map_or_else(|| DefaultStack::new(self.bytes), Ok)
    }

    /// Adds the stack of an ended thread to the free stacks.
    pub(crate) fn give(&mut self, fiber: Fiber) {
        self.free.push(fiber.coroutine.into_stack());
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut all = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let free = all.entry(self.bytes).or_default();
        free.append(&mut self.free);
        let more = free.split_off(free.len().min(MOST_FREE));
        drop(all);
        drop(more);
    }
}

impl Fiber {
    /// Creates a kernel thread. When the thread is first resumed, it calls `body`.
    ///
    /// # Safety
    /// `body` outlives the fiber. The fiber ends when it is dropped, ended by [`Self::end`], or
    /// passed to [`Stacks::give`].
    pub(crate) unsafe fn new(stacks: &mut Stacks, body: &dyn Fn(), current: Current) -> io::Result<Self> {
        let current = Rc::new(current);
        let own = current.clone();
        let stack = stacks.take()?;
        let main = move |suspend: &Suspend, ()| {
            own.suspend.set(suspend);
            body();
        };
        // SAFETY: the caller guarantees that the coroutine does not outlive `body`. The coroutine
        // owns its other captures.
        let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, main) };
        Ok(Self { coroutine, current })
    }

    /// Returns the state of this kernel thread, such as its indices and its handle for suspension.
    pub(crate) fn current(&self) -> &Current {
        &self.current
    }

    /// Runs the thread until it suspends itself, returns or panics.
    pub(crate) fn resume(&mut self, key: &'static CurrentKey) -> Step {
        key.set(Rc::as_ptr(&self.current));
        let result = catch_unwind(AssertUnwindSafe(|| self.coroutine.resume(())));
        key.set(std::ptr::null());
        match result {
            Ok(CoroutineResult::Yield(why)) => Step::Suspended(why),
            Ok(CoroutineResult::Return(())) => Step::Returned,
            Err(panic) => Step::Panicked(message(&*panic)),
        }
    }

    /// Ends a thread that has not returned: unwinds the frames of the thread, so that the
    /// destructors in these frames run.
    pub(crate) fn end(mut self, key: &'static CurrentKey) {
        key.set(Rc::as_ptr(&self.current));
        // A panic of a destructor is ignored, because the run has already failed.
        let unwound = catch_unwind(AssertUnwindSafe(|| self.coroutine.force_unwind()));
        key.set(std::ptr::null());
        drop(unwound);
    }
}

/// Returns the message of a panic from its payload.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "the panic payload is not a string".to_string())
}
