//! Creates and destroys contexts, makes contexts current, and waits for the streams of a context.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{Code, CuContext, CuDevice, Out, Result};
use crate::calls::{exports, functions};
use crate::machine::context::{CONTEXTS, Context};
use crate::machine::current::{self, by_handle, current, current_handle};
use crate::machine::device::Device;
use crate::machine::driver::driver;
use crate::memory::plain::free_all_of_context;
use crate::streams::stream::{GREATEST_PRIORITY, close_all};
use crate::streams::submit::synchronize_context;
use crate::sync::lock;

/// Ends a context: closes its streams and frees its memory.
fn destroy(context: &Context) {
    context.mark_destroyed();
    close_all(context);
    free_all_of_context(context.handle);
}

/// Creates the device's primary context if necessary, and adds one reference.
fn retain_primary(device: &Device) -> usize {
    let mut primary = lock(&device.primary);
    if primary.retained == 0 {
        if primary.handle == 0 {
            primary.handle = CONTEXTS.reserve();
        }
        let context = Context::new(primary.handle, device.ordinal, true, primary.flags);
        CONTEXTS.insert(primary.handle, Arc::new(context));
    }
    primary.retained += 1;
    primary.handle
}

/// Releases one reference; the last release destroys the context.
fn release_primary(device: &Device) -> Result {
    let mut primary = lock(&device.primary);
    if primary.retained == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    primary.retained -= 1;
    let handle = primary.handle;
    let last = primary.retained == 0;
    drop(primary);
    if last && let Some(context) = CONTEXTS.get(handle) {
        destroy(&context);
    }
    Ok(())
}

/// Resets the primary context regardless of its references.
fn reset_primary(device: &Device) {
    let (handle, flags, retained) = {
        let primary = lock(&device.primary);
        (primary.handle, primary.flags, primary.retained)
    };
    if let Some(context) = CONTEXTS.get(handle) {
        destroy(&context);
        if retained > 0 {
            CONTEXTS.insert(handle, Arc::new(Context::new(handle, device.ordinal, true, flags)));
        }
    }
}

fn create(out: &Out<CuContext>, flags: c_uint, device: CuDevice) -> Result {
    out.required()?;
    let driver = driver()?;
    let device = driver.device(device)?.ordinal;
    let handle = CONTEXTS.reserve();
    CONTEXTS.insert(handle, Arc::new(Context::new(handle, device, false, flags)));
    current::push(handle);
    out.set(CuContext(handle))
}

exports! {
    4000 fn cuCtxSetCurrent(context: CuContext) {
        driver()?;
        if context.0 != 0 {
            CONTEXTS.find(context.0)?;
        }
        current::pop();
        if context.0 != 0 {
            current::push(context.0);
        }
        Ok(())
    }

    4000 fn cuCtxGetCurrent(context: Out<CuContext>) {
        driver()?;
        context.set(CuContext(current_handle()))
    }

    4000 fn cuCtxPushCurrent_v2(context: CuContext) {
        driver()?;
        CONTEXTS.find(context.0)?;
        current::push(context.0);
        Ok(())
    }

    4000 fn cuCtxPopCurrent_v2(context: Out<CuContext>) {
        driver()?;
        let popped = current::pop().ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(CuContext(popped));
        Ok(())
    }

    2000 fn cuCtxGetDevice(device: Out<CuDevice>) {
        device.set(current()?.device as CuDevice)
    }

    13000 fn cuCtxGetDevice_v2(device: Out<CuDevice>, context: CuContext) {
        device.set(by_handle(context)?.device as CuDevice)
    }

    2000 fn cuCtxSynchronize() {
        let context = current()?;
        synchronize_context(&context)
    }

    13000 fn cuCtxSynchronize_v2(context: CuContext) {
        let context = by_handle(context)?;
        synchronize_context(&context)
    }

    3020 fn cuCtxCreate_v2(context: Out<CuContext>, flags: c_uint, device: CuDevice) {
        create(&context, flags, device)
    }

    11040 fn cuCtxCreate_v3(context: Out<CuContext>, _affinity: usize, _count: c_int, flags: c_uint, device: CuDevice) {
        create(&context, flags, device)
    }

    12050 fn cuCtxCreate_v4(context: Out<CuContext>, _params: usize, flags: c_uint, device: CuDevice) {
        create(&context, flags, device)
    }

    4000 fn cuCtxDestroy_v2(context: CuContext) {
        driver()?;
        let context = CONTEXTS.find(context.0)?;
        if context.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        destroy(&context);
        if current_handle() == context.handle {
            current::pop();
        }
        Ok(())
    }

    3020 fn cuCtxGetApiVersion(context: CuContext, version: Out<c_uint>) {
        by_handle(context)?;
        version.set(3020)
    }

    12000 fn cuCtxGetId(context: CuContext, id: Out<u64>) {
        id.set(by_handle(context)?.id)
    }

    7000 fn cuCtxGetFlags(flags: Out<c_uint>) {
        flags.set(current()?.flags.load(Ordering::Relaxed) as c_uint)
    }

    12010 fn cuCtxSetFlags(flags: c_uint) {
        current()?.flags.store(flags as i32, Ordering::Relaxed);
        Ok(())
    }

    3010 fn cuCtxGetLimit(value: Out<usize>, limit: c_int) {
        let context = current()?;
        let limits = lock(&context.limits);
        value.set(*limits.get(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?)
    }

    3010 fn cuCtxSetLimit(limit: c_int, value: usize) {
        let context = current()?;
        *lock(&context.limits).get_mut(&limit).ok_or(Code::UNSUPPORTED_LIMIT)? = value;
        Ok(())
    }

    3020 fn cuCtxGetCacheConfig(config: Out<c_int>) {
        config.set(current()?.cache.load(Ordering::Relaxed))
    }

    3020 fn cuCtxSetCacheConfig(config: c_int) {
        current()?.cache.store(config, Ordering::Relaxed);
        Ok(())
    }

    5050 fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(GREATEST_PRIORITY);
        Ok(())
    }

    7000 fn cuDevicePrimaryCtxRetain(context: Out<CuContext>, device: CuDevice) {
        context.required()?;
        context.set(CuContext(retain_primary(driver()?.device(device)?)))
    }

    11000 fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) {
        release_primary(driver()?.device(device)?)
    }

    11000 fn cuDevicePrimaryCtxReset_v2(device: CuDevice) {
        reset_primary(driver()?.device(device)?);
        Ok(())
    }

    7000 fn cuDevicePrimaryCtxGetState(device: CuDevice, flags: Out<c_uint>, active: Out<c_int>) {
        let primary = lock(&driver()?.device(device)?.primary);
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.retained > 0))
    }

    11000 fn cuDevicePrimaryCtxSetFlags_v2(device: CuDevice, flags: c_uint) {
        lock(&driver()?.device(device)?.primary).flags = flags;
        Ok(())
    }
}

functions! {
    /// Fake only: fails the current context with this code, as an illegal address in a kernel does.
    /// The code is sticky.
    ///
    /// Queued work is dropped, and every later call that uses the context returns the code. Codes
    /// below 1 are refused.
    fn peerweave_fake_context_fail(code: c_int) {
        if code <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        current()?.fail(Code(code));
        Ok(())
    }
}
