//! The current context of each thread.

use std::cell::RefCell;
use std::sync::Arc;

use super::context::{CONTEXTS, Context};
use super::driver::driver;
use crate::abi::{Code, CuContext, Result};

thread_local! {
    /// The context stack of the thread; the last element is current.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the handle of the calling thread's current context, even if the context has failed; 0
/// means none.
pub(crate) fn current_handle() -> usize {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Returns the current context of the calling thread; fails if the context has an error.
pub(crate) fn current() -> Result<Arc<Context>> {
    driver()?;
    let handle = current_handle();
    if handle == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    let context = CONTEXTS.get(handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
    context.check()?;
    Ok(context)
}

/// Returns a context by its handle; null means the current context.
pub(crate) fn by_handle(handle: CuContext) -> Result<Arc<Context>> {
    if handle.0 == 0 {
        return current();
    }
    driver()?;
    CONTEXTS.find(handle.0)
}

/// Makes a context current; the previous current context stays below it on the stack.
pub(crate) fn push(handle: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
}

/// Removes the current context from the stack.
pub(crate) fn pop() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}
