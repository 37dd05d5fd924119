//! Enqueues work on a stream: a host function that the CUDA driver runs.
//!
//! The callers pass the work. Invariant: work is freed once: after it has run, or with the graph
//! into which it was captured.

use core::ffi::c_void;
use std::sync::Arc;

use peerweave_fake_common::driver;

use super::state::live;
use super::world::World;
use crate::abi::{Result, invalid};
use crate::call::faults::Effect;
use crate::call::{self, undefined};
use crate::settings;

struct Launch {
    effect: Effect,
    work: Box<dyn Fn() + Send + Sync>,
}

extern "C" fn run_once(data: *mut c_void) {
    // SAFETY: the launch was boxed for this one call.
    let launch = unsafe { Box::from_raw(data.cast::<Launch>()) };
    run(&launch);
}

extern "C" fn run_again(data: *mut c_void) {
    // SAFETY: the graph keeps the launch until the graph is destroyed.
    run(unsafe { &*data.cast::<Launch>() });
}

extern "C" fn forget(data: *mut c_void) {
    // SAFETY: the graph was destroyed, and calls this function once.
    drop(unsafe { Box::from_raw(data.cast::<Launch>()) });
}

fn run(launch: &Launch) {
    launch.effect.suffer();
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&launch.work)).is_err() {
        undefined("work on a stream panicked");
    }
}

/// Enqueues work of the running call. Errors of the work contain the name of that call.
pub(crate) fn on_stream(stream: *mut c_void, work: impl Fn(&Arc<World>, &'static str) + Send + Sync + 'static) -> Result {
    if settings::get().noop {
        return Ok(());
    }
    let (world, name) = (live(), call::function());
    let stream = stream.addr();
    let launch = Launch { effect: call::take_effect(), work: Box::new(move || work(&world, name)) };
    let data = Box::into_raw(Box::new(launch)).cast::<c_void>();
    let launched = match driver::is_capturing(stream) {
        Ok(false) => driver::launch(stream, run_once, data),
        Ok(true) => {
            // From here on, the graph frees the launch.
            driver::keep_in_graph(stream, data, forget)?;
            return Ok(driver::launch(stream, run_again, data)?);
        }
        Err(failure) => Err(failure),
    };
    if launched.is_err() {
        forget(data);
    }
    Ok(launched?)
}

/// Enqueues work and waits for the stream, for a call that returns a value.
pub(crate) fn through_stream(stream: *mut c_void, work: impl Fn(&Arc<World>, &'static str) + Send + Sync + 'static) -> Result {
    if driver::is_capturing(stream.addr())? {
        return invalid("a call that returns a value cannot be captured");
    }
    on_stream(stream, work)?;
    Ok(driver::synchronize(stream.addr())?)
}
