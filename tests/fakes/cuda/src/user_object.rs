//! User objects, whose lifetime a caller ties to graphs. Graphs are in [`crate::graph`]. Invariant:
//! the destructor runs once, when the last reference is released, on its own thread.

use core::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::abi::{Code, CuGraph, CuUserObject, HostFn, Out, Result};
use crate::calls;
use crate::calls::exports;
use crate::driver::driver;
use crate::graph;
use crate::sync::lock;

/// One user object of a graph.
pub(crate) struct UserObject {
    handle: usize,
    references: Mutex<c_uint>,
    destroy: unsafe extern "C" fn(*mut c_void),
    data: usize,
}

/// References that a graph or an instance of one holds.
pub(crate) struct Held {
    object: Arc<UserObject>,
    count: c_uint,
}

impl UserObject {
    fn retain(&self, count: c_uint) -> Result {
        let mut references = lock(&self.references);
        *references = references.checked_add(count).ok_or(Code::INVALID_VALUE)?;
        Ok(())
    }

    fn release(&self, count: c_uint) -> Result {
        let mut references = lock(&self.references);
        if count == 0 || *references < count {
            return Err(Code::INVALID_VALUE);
        }
        *references -= count;
        if *references > 0 {
            return Ok(());
        }
        drop(references);
        if let Ok(driver) = driver() {
            driver.user_objects.remove(self.handle);
        }
        let (destroy, data) = (self.destroy, self.data);
        let run = move || {
            // SAFETY: the caller promised that the destructor may be called with this data on any
            // thread; the count makes it once.
            calls::as_host_function(|| unsafe { destroy(data as *mut c_void) });
        };
        // The releasing call does not run the destructor itself: the driver does not guarantee that
        // order either.
        thread::Builder::new().name("fake-cuda-destroy".to_owned()).spawn(run).expect("a thread for the destructor");
        Ok(())
    }
}

impl Held {
    /// Adds references for another holder.
    pub(crate) fn again(&self) -> Result<Held> {
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

fn find(object: CuUserObject) -> Result<Arc<UserObject>> {
    driver()?.user_objects.get(object.0).ok_or(Code::INVALID_VALUE)
}

exports! {
    11030 fn cuUserObjectCreate(
        object: Out<CuUserObject>, data: *mut c_void, destroy: HostFn, references: c_uint, flags: c_uint,
    ) {
        object.required()?;
        let destroy = destroy.ok_or(Code::INVALID_VALUE)?;
        // NO_DESTRUCTOR_SYNC, the only flag, is required: no call may wait for the destructor.
        if flags != 1 || references == 0 || references > i32::MAX as c_uint {
            return Err(Code::INVALID_VALUE);
        }
        let driver = driver()?;
        let handle = driver.user_objects.reserve();
        let made = UserObject { handle, references: Mutex::new(references), destroy, data: data as usize };
        driver.user_objects.insert(handle, Arc::new(made));
        object.set(CuUserObject(handle))
    }

    11030 fn cuUserObjectRetain(object: CuUserObject, count: c_uint) {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        find(object)?.retain(count)
    }

    11030 fn cuUserObjectRelease(object: CuUserObject, count: c_uint) {
        find(object)?.release(count)
    }

    11030 fn cuGraphRetainUserObject(graph: CuGraph, object: CuUserObject, count: c_uint, flags: c_uint) {
        if count == 0 || flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let graph = graph::find(graph)?;
        let object = find(object)?;
        // MOVE: the caller's references become the graph's.
        if flags == 0 {
            object.retain(count)?;
        }
        lock(&graph).held.push(Held { object, count });
        Ok(())
    }

    11030 fn cuGraphReleaseUserObject(graph: CuGraph, object: CuUserObject, count: c_uint) {
        let graph = graph::find(graph)?;
        let object = find(object)?;
        let released = {
            let mut graph = lock(&graph);
            let place = graph
                .held
                .iter()
                .position(|held| Arc::ptr_eq(&held.object, &object) && held.count >= count)
                .ok_or(Code::INVALID_VALUE)?;
            graph.held[place].count -= count;
            if graph.held[place].count == 0 { Some(graph.held.remove(place)) } else { None }
        };
        drop(released);
        object.release(count)
    }
}
