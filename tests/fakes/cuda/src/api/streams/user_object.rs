//! User objects, and their references from graphs.

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::abi::{Code, CuGraph, CuUserObject, HostFn, Out, Result};
use crate::calls::exports;
use crate::machine::driver::driver;
use crate::streams::graph;
use crate::sync::lock;
use crate::work::user_object::{Held, USER_OBJECTS, UserObject};

fn find(object: CuUserObject) -> Result<Arc<UserObject>> {
    driver()?;
    USER_OBJECTS.find(object.0)
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
        driver()?;
        object.set(CuUserObject(UserObject::create(destroy, data as usize, references)))
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
        // With the flag MOVE, the graph takes over the caller's references. Without MOVE, the graph
        // adds references of its own.
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
