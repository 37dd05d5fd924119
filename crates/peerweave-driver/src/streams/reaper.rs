//! The threads that free memory after streams have completed, so that destructors need not wait.
//!
//! Work that uses memory may never end, for example a collective whose peer died. So a destructor
//! only records the streams that used the memory. A reaper thread frees the memory when these
//! streams have completed. Each device has its own reaper thread. So a stuck device delays freeing
//! only the memory of that device.
//!
//! Invariants: memory is freed only after an event on each of these streams is complete. The events
//! are recorded when the memory is retired, or later if the stream is being captured. If the
//! completion cannot be known, the memory is leaked. No retired function can end the thread that
//! runs it. Every retired function is either run or leaked.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Keep, free, private, refuse_per_thread, wait_until};
use crate::cudarc::driver::sys::CUevent;
use crate::cudarc::driver::{CudaContext, CudaStream};
use crate::library::{bind, with_context_kept};
use crate::streams::capture::{cannot_be_asked, relax_this_thread};
use crate::streams::exit::BeforeExit;
use crate::{Api, CudaCode, CudaError, Driver, DriverError};

/// A function that frees a value that was passed to [`retire`]. A thread of this crate runs the
/// function while the context of the value's device is current. The function may call the driver.
pub type Retired = Box<dyn FnOnce() + Send>;

struct Entry {
    context: Option<Arc<CudaContext>>,
    events: Vec<Event>,
    /// The function to run. Dropping the entry leaks the function instead of dropping it, because
    /// the function owns memory that a stream may still use.
    free: ManuallyDrop<Retired>,
    _pending: Pending,
}

/// An event that must complete before the function of a retired value is run.
struct Event {
    event: CUevent,
    /// Whether the event is recorded. While the stream is being captured, the event is not
    /// recorded, because the event would become part of the graph. The event is recorded after the
    /// capture, which is later than necessary but never too early.
    is_recorded: bool,
    /// The stream, which is kept alive so that its event can complete.
    stream: Arc<CudaStream>,
}

/// Whether the streams that used a retired value have completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// All events of the retired value are complete, so the value can be freed.
    Ready,
    /// At least one event of the retired value is not recorded yet or not complete yet.
    Busy,
    /// Recording or querying an event failed, so the driver will never report whether the streams
    /// have completed.
    Unknown,
}

// SAFETY: the shared value is a handle of the driver, whose functions may be called from any
// thread. The channel synchronises: after the event is sent, only the reaper uses it. The test
// `memory_is_freed_after_stream_work_completes` in tests/memory.rs would catch a violation.
unsafe impl Send for Event {}

/// Number of values that were passed to [`retire`] or [`drop_later`], and are not yet freed or
/// leaked. Includes the values of all devices.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Counts one value in [`PENDING`]. Creating this guard increments the number, and dropping it
/// decrements the number.
struct Pending;

impl Pending {
    fn new() -> Self {
        PENDING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        PENDING.fetch_sub(1, Ordering::Release);
    }
}

/// Interval at which busy streams are queried again.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// Time without a retired value after which a reaper thread destroys its streams for freeing
/// memory.
const IDLE: Duration = Duration::from_secs(1);

/// For each device, the channel to its reaper thread. The reaper thread of the key `None` gets the
/// values that belong to no device.
static REAPERS: Mutex<BTreeMap<Option<usize>, Sender<Entry>>> = Mutex::new(BTreeMap::new());

fn send(entry: Entry) {
    let device = entry.context.as_ref().map(|context| context.ordinal());
    let mut reapers = REAPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if reapers.entry(device).or_insert_with(start).send(entry).is_err() {
        // The thread could not be started. The value is leaked, which is safe. The next call tries
        // to start the thread again.
        reapers.remove(&device);
    }
}

fn start() -> Sender<Entry> {
    // The driver has already registered its exit handler, because a context or a graph exists.
    BeforeExit::register();
    let (sender, receiver) = channel();
    if let Err(error) = std::thread::Builder::new().name("peerweave-reaper".into()).spawn(move || reap(&receiver)) {
        tracing::error!(%error, "cannot start the thread that frees dropped device memory, so the memory is leaked");
    }
    sender
}

fn reap(receiver: &Receiver<Entry>) {
    relax_this_thread();
    let mut waiting: Vec<Entry> = Vec::new();
    loop {
        // Without a pending entry, the thread sleeps until an entry arrives. The senders live as
        // long as the process.
        let next = if !waiting.is_empty() {
            receiver.recv_timeout(ASK_AGAIN)
        } else if free::has_streams() {
            receiver.recv_timeout(IDLE)
        } else {
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match next {
            Ok(entry) => waiting.push(entry),
            Err(RecvTimeoutError::Timeout) if waiting.is_empty() => {
                if let Some(_inside) = BeforeExit::enter() {
                    free::destroy_streams();
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return waiting.into_iter().for_each(Entry::leak),
        }
        let inside = BeforeExit::enter();
        if inside.is_none() || is_over() {
            // The process is exiting, and the driver releases all memory.
            waiting.drain(..).for_each(Entry::leak);
            continue;
        }
        waiting = waiting.into_iter().filter_map(|entry| caught(|| entry.step()).flatten()).collect();
        caught(private::sweep);
    }
}

/// Runs a function that may panic, such as a user's destructor or a logger. Returns `None` if the
/// function panics. The reaper thread must continue, because it also frees other retired values.
fn caught<R>(run: impl FnOnce() -> R) -> Option<R> {
    // The payload of the panic may be a value of the user, whose destructor may also panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(std::mem::forget).ok()
}

impl Event {
    fn readiness(&mut self, api: &Api) -> Readiness {
        if !self.is_recorded {
            // The handle of the default stream refers to the current context.
            match bind(self.stream.context()).and_then(|()| self.record(api)) {
                Ok(()) if self.is_recorded => {}
                Ok(()) => return Readiness::Busy,
                Err(_) => return Readiness::Unknown,
            }
        }
        // SAFETY: the event is live, because it is destroyed only when the entry is run.
        match unsafe { api.cuEventQuery(self.event) } {
            Ok(CudaCode::SUCCESS) => Readiness::Ready,
            Ok(CudaCode::NOT_READY) => Readiness::Busy,
            // A capture began between the query and the recording.
            Ok(CudaCode::CAPTURED_EVENT) => {
                self.is_recorded = false;
                Readiness::Busy
            }
            _ => Readiness::Unknown,
        }
    }

    /// Records this event in its stream, unless the stream is being captured.
    fn record(&mut self, api: &Api) -> Result<(), DriverError> {
        if cannot_be_asked(&self.stream)? {
            return Ok(());
        }
        // SAFETY: both handles are live.
        CudaError::check("cuEventRecord", unsafe { api.cuEventRecord(self.event, self.stream.cu_stream()) }?)?;
        // If a capture has begun since the check, the event is part of the graph. Querying the
        // event would then invalidate the capture.
        self.is_recorded = !cannot_be_asked(&self.stream)?;
        Ok(())
    }
}

impl Entry {
    fn new(context: Option<Arc<CudaContext>>, events: Vec<Event>, free: Retired) -> Self {
        Self { context, events, free: ManuallyDrop::new(free), _pending: Pending::new() }
    }

    fn readiness(&mut self) -> Readiness {
        if self.events.is_empty() {
            return Readiness::Ready;
        }
        let Ok(driver) = Driver::get() else { return Readiness::Unknown };
        let mut all = Readiness::Ready;
        for event in &mut self.events {
            match event.readiness(driver.api()) {
                Readiness::Ready => {}
                Readiness::Busy => all = Readiness::Busy,
                Readiness::Unknown => return Readiness::Unknown,
            }
        }
        all
    }

    /// Frees the retired value by running the entry's function, if the work that uses the value is
    /// complete. Returns the entry if a stream is still busy with this work. Leaks the value if the
    /// driver cannot report whether the work is complete.
    fn step(mut self) -> Option<Self> {
        match self.readiness() {
            Readiness::Busy => return Some(self),
            Readiness::Ready => self.run(),
            Readiness::Unknown => {
                self.leak();
                tracing::warn!("device memory is leaked, because its streams cannot be queried");
            }
        }
        None
    }

    fn run(self) {
        let bound = self.context.as_ref().is_none_or(|context| bind(context).is_ok());
        destroy(&self.events);
        // If binding fails, the context is broken and its memory cannot be freed.
        if bound && caught(ManuallyDrop::into_inner(self.free)).is_none() {
            tracing::error!("a function that frees a dropped value panicked, so the value may be leaked");
        }
    }

    /// Leaks this entry: the function, the events and their streams. Call this function if the
    /// driver cannot report whether the streams have completed.
    fn leak(self) {
        std::mem::forget((self.context, self.events));
    }
}

/// Frees a value on a device: calls `free` after all work that is now pending on `streams` has
/// completed. Returns without waiting and never fails. A value that cannot be freed safely is
/// leaked.
///
/// If one of the streams is a per-thread stream, the value is leaked, because this call cannot find
/// the work on that stream. The thread's current context does not change, because destructors call
/// this function.
///
/// `free` runs on a thread of this crate with the device's context current. `free` may call the
/// driver and wait for the device.
pub fn retire(context: &Arc<CudaContext>, streams: impl IntoIterator<Item = Arc<CudaStream>>, free: Retired) {
    match with_context_kept(|| record(streams)) {
        Ok(events) => send(Entry::new(Some(Arc::clone(context)), events, free)),
        Err(error) => {
            std::mem::forget(free);
            if !is_over() {
                tracing::warn!(%error, "device memory is leaked, because the driver cannot report when the memory is no longer in use");
            }
        }
    }
}

/// Returns whether the driver has shut down because the process is exiting. The driver's exit
/// handler runs while threads are still running (observed on H200).
pub(crate) fn is_over() -> bool {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    Driver::get()
        .is_ok_and(|driver| unsafe { matches!(driver.api().cuCtxGetCurrent(&raw mut context), Ok(CudaCode::DEINITIALIZED)) })
}

/// Destroys events. The driver frees a pending event only after the event has completed.
fn destroy(events: &[Event]) {
    if let Ok(driver) = Driver::get() {
        for event in events {
            // SAFETY: the event has no other user.
            let _ = unsafe { driver.api().cuEventDestroy_v2(event.event) };
        }
    }
}

fn record(streams: impl IntoIterator<Item = Arc<CudaStream>>) -> Result<Vec<Event>, DriverError> {
    let mut events = Vec::new();
    let recorded = record_all(&mut events, streams);
    if recorded.is_err() {
        destroy(&events);
    }
    recorded.map(|()| events)
}

fn record_all(events: &mut Vec<Event>, streams: impl IntoIterator<Item = Arc<CudaStream>>) -> Result<(), DriverError> {
    /// The flag `CU_EVENT_DISABLE_TIMING`: events without timing are the fastest.
    const DISABLE_TIMING: u32 = 2;
    let api = Driver::get()?.api();
    for stream in streams {
        // The handle would refer to the per-thread stream of this thread, which is not the stream
        // with the work.
        refuse_per_thread("retire", &stream)?;
        bind(stream.context())?;
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        CudaError::check("cuEventCreate", unsafe { api.cuEventCreate(&raw mut event, DISABLE_TIMING) }?)?;
        let mut event = Event { event, is_recorded: false, stream };
        let recorded = event.record(api);
        events.push(event);
        recorded?;
    }
    Ok(())
}

/// Drops values on a reaper thread. The driver's callbacks use this function, because the
/// destructor of a value may call the driver, which is forbidden inside a callback.
pub(crate) fn drop_later(kept: Vec<Keep>) {
    send(Entry::new(None, Vec::new(), Box::new(move || drop(kept))));
}

/// Waits until all values passed to [`retire`] have been freed or leaked. Returns `false` if values
/// are still pending at the deadline.
///
/// Call this function before measuring memory, and before reporting that an allocation ran out of
/// memory. Do not call this function from a function that is passed to `retire`.
pub fn drain_retired(deadline: Instant) -> bool {
    wait_until::<std::convert::Infallible>(deadline, || Ok(PENDING.load(Ordering::Acquire) == 0)).unwrap_or(false)
}

/// Calls `allocate`. If the call fails and `ran_out` returns `true` for the error, waits for at
/// most a second until all values passed to [`retire`] have been freed. Then calls `allocate`
/// again. Do not call this function from a function that is passed to `retire`.
///
/// # Errors
/// Returns the last error of `allocate`.
pub fn alloc_when_freed<T, E>(mut allocate: impl FnMut() -> Result<T, E>, ran_out: impl FnOnce(&E) -> bool) -> Result<T, E> {
    match allocate() {
        Err(error) if ran_out(&error) => {
            drain_retired(Instant::now() + Duration::from_secs(1));
            allocate()
        }
        done => done,
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_drop_of_a_value_runs_on_another_thread() {
        struct Told(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let (sender, receiver) = channel();
        let kept: Keep = Arc::new(Mutex::new(Told(sender)));
        drop_later(vec![kept]);
        let by = receiver.recv_timeout(Duration::from_secs(60)).expect("the reaper drops the value");
        assert_ne!(by, std::thread::current().id());
        assert!(drain_retired(Instant::now() + Duration::from_secs(60)));
    }
}
