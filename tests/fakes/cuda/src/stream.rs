//! Streams: queues of work, each with a thread that runs it in order. The work is in
//! [`crate::work`], events in [`crate::event`]. Invariant: `completed <= submitted`, and the n-th
//! submission is complete exactly when `completed >= n`.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::abi::{Code, CuContext, CuDevice, CuStream, HostFn, Out, Result, StreamCallback};
use crate::calls;
use crate::calls::{exports, functions};
use crate::capture;
use crate::context::{self, Context, current};
use crate::driver::driver;
use crate::sync::lock;
use crate::work::Work;

/// The greatest priority; lower numbers are more urgent.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Role of a stream in the implicit order of the legacy stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The context's stream 0: ordered after and before all work of blocking streams.
    Legacy,
    Blocking,
    NonBlocking,
}

/// One stream.
pub(crate) struct Stream {
    pub(crate) handle: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    priority: c_int,
    id: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
    gates: Mutex<Vec<Arc<Gate>>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Submission>,
    submitted: u64,
    completed: u64,
    closing: bool,
    has_thread: bool,
}

struct Submission {
    /// Work of other streams that must complete first.
    after: Vec<(Arc<Stream>, u64)>,
    run: Run,
}

/// Kind of a submission.
pub(crate) enum Run {
    /// Work that is skipped if the context has failed. If the work fails, the context fails.
    Work(Work),
    /// A function that runs in any case, with the context's error (0 means none).
    Always(Box<dyn FnOnce(c_int) + Send>),
}

/// Blocks a stream until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Stream {
    fn make(context: &Arc<Context>, kind: Kind, priority: c_int) -> Result<Arc<Stream>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let driver = driver()?;
        let handle = driver.streams.reserve();
        let stream = Arc::new(Stream {
            handle,
            context: Arc::clone(context),
            kind,
            priority,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            queue: Mutex::default(),
            changed: Condvar::new(),
            gates: Mutex::default(),
        });
        driver.streams.insert(handle, Arc::clone(&stream));
        lock(&context.streams).push(Arc::downgrade(&stream));
        Ok(stream)
    }

    pub(crate) fn submitted(&self) -> u64 {
        lock(&self.queue).submitted
    }

    fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.submitted == queue.completed
    }

    /// Waits until the n-th submission is complete.
    pub(crate) fn wait_until(&self, target: u64) {
        let mut queue = lock(&self.queue);
        while queue.completed < target {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Enqueues work, or adds it to the graph of the stream's capture.
    pub(crate) fn submit(self: &Arc<Stream>, work: Work) -> Result {
        self.context.check()?;
        if let Some(captured) = capture::add(self, &work) {
            return captured.map(|_| ());
        }
        self.push(Run::Work(work));
        Ok(())
    }

    /// Enqueues work even during a capture, and returns its number.
    pub(crate) fn push(self: &Arc<Stream>, run: Run) -> u64 {
        let _order = lock(&self.context.submission);
        let others: Vec<Arc<Stream>> = match self.kind {
            Kind::NonBlocking => Vec::new(),
            Kind::Legacy => self.context.live_streams().into_iter().filter(|other| other.kind == Kind::Blocking).collect(),
            Kind::Blocking => self.context.live_streams().into_iter().filter(|other| other.kind == Kind::Legacy).collect(),
        };
        let after =
            others.into_iter().filter(|other| !other.is_idle()).map(|other| (Arc::clone(&other), other.submitted())).collect();
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(Submission { after, run });
        queue.submitted += 1;
        let number = queue.submitted;
        if !queue.has_thread {
            queue.has_thread = true;
            let stream = Arc::clone(self);
            let spawned = thread::Builder::new().name("fake-cuda-stream".to_owned()).spawn(move || stream.serve());
            spawned.expect("a thread for the stream");
        }
        self.changed.notify_all();
        number
    }

    /// Waits for all earlier submissions.
    pub(crate) fn synchronize(self: &Arc<Stream>) -> Result {
        self.context.check()?;
        capture::forbid_in_stream(self)?;
        let target = match self.kind {
            // A marker, so that blocking streams are waited for too.
            Kind::Legacy => self.push(Run::Always(Box::new(|_| ()))),
            _ => self.submitted(),
        };
        self.wait_until(target);
        self.context.check()
    }

    /// Makes the thread end when the queue is empty.
    pub(crate) fn close(&self) {
        lock(&self.queue).closing = true;
        self.changed.notify_all();
    }

    fn serve(self: Arc<Stream>) {
        loop {
            let mut queue = lock(&self.queue);
            let next = loop {
                if let Some(next) = queue.waiting.pop_front() {
                    break next;
                }
                if queue.closing {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            for (other, target) in next.after {
                other.wait_until(target);
            }
            match next.run {
                Run::Work(work) => {
                    if self.context.error() == 0
                        && let Err(code) = work.run(&self.context)
                    {
                        self.context.fail(code);
                    }
                }
                Run::Always(run) => run(self.context.error()),
            }
            lock(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }
}

/// Returns the stream of a handle, including null and the two special handles.
pub(crate) fn resolve(handle: CuStream) -> Result<Arc<Stream>> {
    let driver = driver()?;
    let thread = match handle.0 {
        0 | 1 => None,
        2 => Some(thread::current().id()),
        other => return driver.streams.get(other).ok_or(Code::INVALID_HANDLE),
    };
    let context = current()?;
    let mut implicit = lock(&context.implicit);
    if let Some(stream) = implicit.get(&thread).and_then(|handle| driver.streams.get(*handle)) {
        return Ok(stream);
    }
    let kind = if thread.is_none() { Kind::Legacy } else { Kind::Blocking };
    let stream = Stream::make(&context, kind, 0)?;
    implicit.insert(thread, stream.handle);
    Ok(stream)
}

/// Returns the legacy stream of the current context, which functions without a stream argument use.
pub(crate) fn legacy() -> Result<Arc<Stream>> {
    resolve(CuStream(0))
}

fn create(out: &Out<CuStream>, flags: c_uint, priority: c_int) -> Result {
    out.required()?;
    if flags > NON_BLOCKING {
        return Err(Code::INVALID_VALUE);
    }
    let kind = if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
    let stream = Stream::make(&current()?, kind, priority.clamp(GREATEST_PRIORITY, 0))?;
    out.set(CuStream(stream.handle))
}

exports! {
    2000 fn cuStreamCreate(stream: Out<CuStream>, flags: c_uint) {
        create(&stream, flags, 0)
    }

    5050 fn cuStreamCreateWithPriority(stream: Out<CuStream>, flags: c_uint, priority: c_int) {
        create(&stream, flags, priority)
    }

    4000 fn cuStreamDestroy_v2(stream: CuStream) {
        if stream.0 <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let driver = driver()?;
        let found = driver.streams.get(stream.0).ok_or(Code::INVALID_HANDLE)?;
        capture::invalidate_stream(&found);
        driver.streams.remove(stream.0);
        // Queued work still runs: the thread keeps the stream until then.
        found.close();
        Ok(())
    }

    2000 fn cuStreamSynchronize(stream: CuStream) {
        resolve(stream)?.synchronize()
    }

    2000 fn cuStreamQuery(stream: CuStream) {
        let stream = resolve(stream)?;
        stream.context.check()?;
        capture::forbid_in_stream(&stream)?;
        let behind = match stream.kind {
            Kind::Legacy => stream.context.live_streams().iter().any(|other| other.kind == Kind::Blocking && !other.is_idle()),
            _ => false,
        };
        if behind || !stream.is_idle() { Err(Code::NOT_READY) } else { stream.context.check() }
    }

    10000 fn cuLaunchHostFunc(stream: CuStream, function: HostFn, data: *mut c_void) {
        launch_host_function(stream, function, data)
    }

    13020 fn cuLaunchHostFunc_v2(stream: CuStream, function: HostFn, data: *mut c_void, mode: c_uint) {
        if mode > 1 {
            return Err(Code::INVALID_VALUE);
        }
        launch_host_function(stream, function, data)
    }

    5000 fn cuStreamAddCallback(stream: CuStream, callback: StreamCallback, data: *mut c_void, flags: c_uint) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let given = stream;
        let stream = resolve(stream)?;
        // Callbacks cannot be captured.
        capture::forbid_in_stream(&stream)?;
        let data = data as usize;
        stream.push(Run::Always(Box::new(move |error| {
            // SAFETY: the caller promised that the callback may be called once, on any thread, with
            // this data.
            calls::as_host_function(|| unsafe { callback(given, error, data as *mut c_void) });
        })));
        Ok(())
    }

    5050 fn cuStreamGetPriority(stream: CuStream, priority: Out<c_int>) {
        priority.set(resolve(stream)?.priority)
    }

    5050 fn cuStreamGetFlags(stream: CuStream, flags: Out<c_uint>) {
        flags.set(c_uint::from(resolve(stream)?.kind == Kind::NonBlocking))
    }

    9020 fn cuStreamGetCtx(stream: CuStream, context: Out<CuContext>) {
        context.set(CuContext(resolve(stream)?.context.handle))
    }

    12050 fn cuStreamGetCtx_v2(stream: CuStream, context: Out<CuContext>, green: Out<usize>) {
        green.set(0)?;
        context.set(CuContext(resolve(stream)?.context.handle))
    }

    12080 fn cuStreamGetDevice(stream: CuStream, device: Out<CuDevice>) {
        device.set(resolve(stream)?.context.device as CuDevice)
    }

    12000 fn cuStreamGetId(stream: CuStream, id: Out<c_ulonglong>) {
        id.set(resolve(stream)?.id)
    }

    8000 fn cuStreamWaitValue32_v2(stream: CuStream, address: u64, value: u32, flags: c_uint) {
        wait_value(stream, address, u64::from(value), 4, flags)
    }

    9000 fn cuStreamWaitValue64_v2(stream: CuStream, address: u64, value: u64, flags: c_uint) {
        wait_value(stream, address, value, 8, flags)
    }

    8000 fn cuStreamWriteValue32_v2(stream: CuStream, address: u64, value: u32, flags: c_uint) {
        write_value(stream, address, u64::from(value), 4, flags)
    }

    9000 fn cuStreamWriteValue64_v2(stream: CuStream, address: u64, value: u64, flags: c_uint) {
        write_value(stream, address, value, 8, flags)
    }
}

fn launch_host_function(stream: CuStream, function: HostFn, data: *mut c_void) -> Result {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    resolve(stream)?.submit(Work::Host { function, data: data as usize })
}

fn wait_value(stream: CuStream, address: u64, value: u64, bytes: u64, flags: c_uint) -> Result {
    let stream = resolve(stream)?;
    if !address.is_multiple_of(bytes) || flags & !0x4000_0003 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    crate::transfer::check(stream.context.device, address, bytes, crate::address::Need::Read, false)?;
    stream.submit(Work::WaitValue { address, value, bytes, condition: flags & 3 })
}

fn write_value(stream: CuStream, address: u64, value: u64, bytes: u64, flags: c_uint) -> Result {
    let stream = resolve(stream)?;
    if !address.is_multiple_of(bytes) || flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    crate::transfer::check(stream.context.device, address, bytes, crate::address::Need::Write, false)?;
    stream.submit(Work::Write { address, value, bytes })
}

functions! {
    /// Fake only: blocks the stream at this point until [`peerweave_fake_stream_unblock`], like a
    /// kernel that never ends.
    fn peerweave_fake_stream_block(stream: CuStream) {
        let stream = resolve(stream)?;
        let gate = Arc::new(Gate::default());
        lock(&stream.gates).push(Arc::clone(&gate));
        stream.push(Run::Always(Box::new(move |_| {
            let mut open = lock(&gate.open);
            while !*open {
                open = gate.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
            }
        })));
        Ok(())
    }
}

functions! {
    /// Fake only: unblocks the stream.
    fn peerweave_fake_stream_unblock(stream: CuStream) {
        for gate in lock(&resolve(stream)?.gates).drain(..) {
            *lock(&gate.open) = true;
            gate.opened.notify_all();
        }
        Ok(())
    }
}

/// Returns the context for a call that has no stream argument and is not allowed during a capture.
pub(crate) fn outside_capture() -> Result<Arc<Context>> {
    capture::forbid_unsafe()?;
    context::current()
}
