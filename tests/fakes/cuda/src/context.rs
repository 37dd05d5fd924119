//! Contexts, the current context of each thread, and sticky errors. [`crate::device`] has queries
//! about devices. Invariant: once a context has an error, every call that uses it returns that
//! error.

use core::ffi::{c_int, c_uint};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

use crate::abi::{Code, CuContext, CuDevice, Out, Result};
use crate::calls::{exports, functions};
use crate::device::Device;
use crate::driver::driver;
use crate::stream::Stream;
use crate::sync::lock;
use crate::table::changed;

/// One context.
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: usize,
    pub(crate) primary: bool,
    pub(crate) id: u64,
    flags: AtomicI32,
    error: AtomicI32,
    destroyed: AtomicBool,
    pub(crate) streams: Mutex<Vec<Weak<Stream>>>,
    /// Held from the time when a submission reads the state of other streams until it is queued.
    pub(crate) submission: Mutex<()>,
    /// Handles of the legacy stream (`None`) and of each thread's default stream.
    pub(crate) implicit: Mutex<HashMap<Option<ThreadId>, usize>>,
    /// Devices whose memory this context may access.
    pub(crate) peers: Mutex<HashSet<usize>>,
    limits: Mutex<HashMap<c_int, usize>>,
    cache: AtomicI32,
}

impl Context {
    fn new(handle: usize, device: usize, primary: bool, flags: u32) -> Context {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Context {
            handle,
            device,
            primary,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            flags: AtomicI32::new(flags as i32),
            error: AtomicI32::new(0),
            destroyed: AtomicBool::new(false),
            streams: Mutex::default(),
            submission: Mutex::default(),
            implicit: Mutex::default(),
            peers: Mutex::default(),
            limits: Mutex::new(HashMap::from([(0, 1024), (1, 7_995_392), (2, 8 << 20), (3, 2), (4, 2048), (5, 64), (6, 0)])),
            cache: AtomicI32::new(0),
        }
    }

    /// Returns the sticky error as a code of the interface; 0 means none.
    pub(crate) fn error(&self) -> c_int {
        self.error.load(Ordering::Acquire)
    }

    /// Returns an error if the context has failed or was destroyed.
    pub(crate) fn check(&self) -> Result {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match self.error() {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Records a failure of accepted work; the first such error is sticky.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        changed();
    }

    /// Returns the streams that are alive.
    pub(crate) fn live_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = lock(&self.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits for all work of all streams of the context.
    pub(crate) fn synchronize(&self) -> Result {
        self.check()?;
        crate::capture::forbid_in_context(self)?;
        let targets: Vec<_> = self.live_streams().into_iter().map(|stream| (stream.submitted(), stream)).collect();
        for (target, stream) in targets {
            stream.wait_until(target);
        }
        self.check()
    }

    fn destroy(self: &Arc<Context>) {
        let Ok(driver) = driver() else { return };
        self.destroyed.store(true, Ordering::Release);
        changed();
        driver.contexts.remove(self.handle);
        for stream in self.live_streams() {
            driver.streams.remove(stream.handle);
            stream.close();
        }
        crate::memory::free_all_of_context(self.handle);
    }
}

thread_local! {
    /// The context stack of the thread; the last element is current.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the handle of the calling thread's current context in any state; 0 means none.
pub(crate) fn current_handle() -> usize {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Returns the current context of the calling thread; fails if the context has an error.
pub(crate) fn current() -> Result<Arc<Context>> {
    let driver = driver()?;
    let handle = CURRENT.with_borrow(|stack| stack.last().copied()).filter(|handle| *handle != 0).ok_or(Code::INVALID_CONTEXT)?;
    let context = driver.contexts.get(handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
    context.check()?;
    Ok(context)
}

/// Returns a context by its handle; null means the current one.
pub(crate) fn by_handle(handle: CuContext) -> Result<Arc<Context>> {
    if handle.0 == 0 {
        return current();
    }
    driver()?.contexts.get(handle.0).ok_or(Code::INVALID_CONTEXT)
}

/// Creates the device's primary context if necessary, and adds one reference.
pub(crate) fn retain_primary(device: &Device) -> usize {
    let mut primary = lock(&device.primary);
    if primary.retained == 0 {
        let Ok(driver) = driver() else { return 0 };
        if primary.handle == 0 {
            primary.handle = driver.contexts.reserve();
        }
        let context = Context::new(primary.handle, device.ordinal, true, primary.flags);
        driver.contexts.insert(primary.handle, Arc::new(context));
    }
    primary.retained += 1;
    primary.handle
}

/// Releases one reference; the last release destroys the context.
pub(crate) fn release_primary(device: &Device) -> Result {
    let mut primary = lock(&device.primary);
    if primary.retained == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    primary.retained -= 1;
    let handle = primary.handle;
    let last = primary.retained == 0;
    drop(primary);
    if last && let Some(context) = driver()?.contexts.get(handle) {
        context.destroy();
    }
    Ok(())
}

/// Resets the primary context regardless of its references.
pub(crate) fn reset_primary(device: &Device) {
    let (handle, flags, retained) = {
        let primary = lock(&device.primary);
        (primary.handle, primary.flags, primary.retained)
    };
    let Ok(driver) = driver() else { return };
    if let Some(context) = driver.contexts.get(handle) {
        context.destroy();
        if retained > 0 {
            driver.contexts.insert(handle, Arc::new(Context::new(handle, device.ordinal, true, flags)));
        }
    }
}

fn create(out: &Out<CuContext>, flags: c_uint, device: CuDevice) -> Result {
    out.required()?;
    let driver = driver()?;
    let device = driver.device(device)?.ordinal;
    let handle = driver.contexts.reserve();
    driver.contexts.insert(handle, Arc::new(Context::new(handle, device, false, flags)));
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    out.set(CuContext(handle))
}

exports! {
    4000 fn cuCtxSetCurrent(context: CuContext) {
        let driver = driver()?;
        if context.0 != 0 && driver.contexts.get(context.0).is_none() {
            return Err(Code::INVALID_CONTEXT);
        }
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            if context.0 != 0 {
                stack.push(context.0);
            }
        });
        Ok(())
    }

    4000 fn cuCtxGetCurrent(context: Out<CuContext>) {
        driver()?;
        context.set(CuContext(current_handle()))
    }

    4000 fn cuCtxPushCurrent_v2(context: CuContext) {
        driver()?.contexts.get(context.0).ok_or(Code::INVALID_CONTEXT)?;
        CURRENT.with_borrow_mut(|stack| stack.push(context.0));
        Ok(())
    }

    4000 fn cuCtxPopCurrent_v2(context: Out<CuContext>) {
        driver()?;
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
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
        current()?.synchronize()
    }

    13000 fn cuCtxSynchronize_v2(context: CuContext) {
        by_handle(context)?.synchronize()
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
        let context = driver()?.contexts.get(context.0).ok_or(Code::INVALID_CONTEXT)?;
        if context.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        context.destroy();
        CURRENT.with_borrow_mut(|stack| {
            if stack.last() == Some(&context.handle) {
                stack.pop();
            }
        });
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
        greatest.set_if_wanted(crate::stream::GREATEST_PRIORITY);
        Ok(())
    }
}

functions! {
    /// Fake only: fails the device of the current context, as an illegal address in a kernel does. The
    /// code is sticky.
    ///
    /// Drops queued work; every later call that uses the context returns the code. The code 0 is
    /// refused.
    fn peerweave_fake_context_fail(code: c_int) {
        if code <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        current()?.fail(Code(code));
        Ok(())
    }
}
