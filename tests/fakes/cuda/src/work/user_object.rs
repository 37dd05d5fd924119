//! User objects, whose lifetime a caller ties to graphs. Invariant: the destructor runs once, when
//! the last reference is released, on its own thread.

use core::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::abi::{Code, Result};
use crate::calls::as_host_function;
use crate::calls::settings::{VARIABLES, variable};
use crate::sync::lock;
use crate::table::Table;

/// All user objects that have references.
pub(crate) static USER_OBJECTS: Table<UserObject> = Table::new(0x56, Code::INVALID_VALUE);

/// One user object.
pub(crate) struct UserObject {
    handle: usize,
    references: Mutex<c_uint>,
    destroy: unsafe extern "C" fn(*mut c_void),
    data: usize,
}

/// References to a user object that a graph, or an instance of a graph, holds.
pub(crate) struct Held {
    pub(crate) object: Arc<UserObject>,
    pub(crate) count: c_uint,
}

impl UserObject {
    /// Creates an object with references of the caller, and returns its handle.
    pub(crate) fn create(destroy: unsafe extern "C" fn(*mut c_void), data: usize, references: c_uint) -> usize {
        let handle = USER_OBJECTS.reserve();
        let made = UserObject { handle, references: Mutex::new(references), destroy, data };
        USER_OBJECTS.insert(handle, Arc::new(made));
        handle
    }

    /// Adds references.
    pub(crate) fn retain(&self, count: c_uint) -> Result {
        let mut references = lock(&self.references);
        *references = references.checked_add(count).ok_or(Code::INVALID_VALUE)?;
        Ok(())
    }

    /// Removes references. Removing the last reference starts the destructor.
    pub(crate) fn release(&self, count: c_uint) -> Result {
        let mut references = lock(&self.references);
        if count == 0 || *references < count {
            return Err(Code::INVALID_VALUE);
        }
        *references -= count;
        if *references > 0 {
            return Ok(());
        }
        drop(references);
        USER_OBJECTS.remove(self.handle);
        let (destroy, data) = (self.destroy, self.data);
        let delay = Duration::from_millis(VARIABLES.number(variable::DESTROY_MS).unwrap_or(0));
        let run = move || {
            thread::sleep(delay);
            // SAFETY: the caller promised that the destructor may be called with this data on any
            // thread; the reference count ensures a single call.
            as_host_function(|| unsafe { destroy(data as *mut c_void) });
        };
        // The destructor does not run inside the releasing call, because the driver does not
        // guarantee that order either.
        thread::Builder::new()
            .name("fake-cuda-destroy".to_owned())
            .spawn(run)
            .expect("the system can start a thread for the destructor");
        Ok(())
    }
}

impl Held {
    /// Adds the same references for another graph or instance, and returns them.
    pub(crate) fn again(held: &[Held]) -> Result<Vec<Held>> {
        held.iter().map(Held::clone_references).collect()
    }

    fn clone_references(&self) -> Result<Held> {
        self.object.retain(self.count)?;
        Ok(Held { object: Arc::clone(&self.object), count: self.count })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.count > 0 {
            let _ = self.object.release(self.count);
        }
    }
}
