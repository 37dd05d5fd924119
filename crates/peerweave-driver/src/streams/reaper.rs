//! The threads that free what streams have finished with, so that no destructor waits.
//!
//! What uses memory may never end: a collective whose peer died. So destructors only note which
//! streams used the memory, and a thread frees it when they have passed that point: one thread for
//! each device, so that a device that is stuck keeps only its own.
//!
//! Invariants: memory is freed after every event recorded at its retirement, or after it, has come,
//! and where that cannot be known it is leaked; nothing that others put in here ends the thread, or
//! gets dropped unfreed.

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
use crate::{Api, CudaCode, CudaError, Driver, DriverError};

/// What is freed by the reaper: something that may call the driver, with the context of its device
/// current.
pub type Retired = Box<dyn FnOnce() + Send>;

struct Entry {
    context: Option<Arc<CudaContext>>,
    events: Vec<Event>,
    /// Runs, or is leaked: it owns what a stream may still use, so that whatever ends an entry
    /// early does not drop it.
    free: ManuallyDrop<Retired>,
    _pending: Pending,
}

/// An event that marks the point a stream must pass.
struct Event {
    event: CUevent,
    /// Not while the stream is being captured: an event would mark a place in the graph, and not
    /// what the stream had to do before. It is recorded when the capture has ended, which is later
    /// than needed, and never too early.
    is_recorded: bool,
    /// The stream is kept so that its event can come.
    stream: Arc<CudaStream>,
}

/// What is known of the streams of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// They have passed all events.
    Ready,
    /// Not yet.
    Busy,
    /// The driver does not say, and never will.
    Unknown,
}

// SAFETY: shared is a handle of the driver, whose functions may be called from any thread;
// synchronised by the channel: only the reaper uses it once it is sent. Would be caught by the test
// `memory_is_freed_after_the_streams_that_used_it` in tests/memory.rs.
unsafe impl Send for Event {}

/// Entries that are not done with, of all devices.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// One of them.
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

/// How long until streams that are not through are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// After so long without anything to free, the thread lets go of what it frees with.
const IDLE: Duration = Duration::from_secs(1);

/// The threads' ends of their channels, by device; `None` is for what needs no device.
static REAPERS: Mutex<BTreeMap<Option<usize>, Sender<Entry>>> = Mutex::new(BTreeMap::new());

fn send(entry: Entry) {
    let device = entry.context.as_ref().map(|context| context.ordinal());
    let mut reapers = REAPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if reapers.entry(device).or_insert_with(start).send(entry).is_err() {
        // The thread could not be started: it is leaked, which is safe. The next one may have more
        // luck.
        reapers.remove(&device);
    }
}

fn start() -> Sender<Entry> {
    let (sender, receiver) = channel();
    if let Err(error) = std::thread::Builder::new().name("peerweave-reaper".into()).spawn(move || reap(&receiver)) {
        tracing::error!(%error, "no thread for freeing device memory");
    }
    sender
}

fn reap(receiver: &Receiver<Entry>) {
    relax_this_thread();
    let mut waiting: Vec<Entry> = Vec::new();
    loop {
        // With nothing to ask about, sleep until there is. The senders live as long as the process.
        let next = if !waiting.is_empty() {
            receiver.recv_timeout(ASK_AGAIN)
        } else if free::has_streams() {
            receiver.recv_timeout(IDLE)
        } else {
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match next {
            Ok(entry) => waiting.push(entry),
            Err(RecvTimeoutError::Timeout) if waiting.is_empty() => free::destroy_streams(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return waiting.into_iter().for_each(Entry::leak),
        }
        if is_over() {
            // The process ends, and the driver has taken everything back.
            waiting.drain(..).for_each(Entry::leak);
            continue;
        }
        waiting = waiting.into_iter().filter_map(|entry| caught(|| entry.step()).flatten()).collect();
        caught(private::sweep);
    }
}

/// Runs what may panic, a destructor of somebody else's value or what they log with: the thread
/// must go on, and with it all that others retire.
fn caught<R>(run: impl FnOnce() -> R) -> Option<R> {
    // What was thrown may be somebody else's value too.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(std::mem::forget).ok()
}

impl Event {
    fn readiness(&mut self, api: &Api) -> Readiness {
        if !self.is_recorded {
            // The default stream is that of the thread's context.
            match bind(self.stream.context()).and_then(|()| self.record(api)) {
                Ok(()) if self.is_recorded => {}
                Ok(()) => return Readiness::Busy,
                Err(_) => return Readiness::Unknown,
            }
        }
        // SAFETY: the event is destroyed only after the entry has run.
        match unsafe { api.cuEventQuery(self.event) } {
            Ok(CudaCode::SUCCESS) => Readiness::Ready,
            Ok(CudaCode::NOT_READY) => Readiness::Busy,
            // A capture began between the question and the recording.
            Ok(CudaCode::CAPTURED_EVENT) => {
                self.is_recorded = false;
                Readiness::Busy
            }
            _ => Readiness::Unknown,
        }
    }

    /// Records the event unless the stream is being captured.
    fn record(&mut self, api: &Api) -> Result<(), DriverError> {
        if cannot_be_asked(&self.stream)? {
            return Ok(());
        }
        // SAFETY: both handles are live.
        CudaError::check("cuEventRecord", unsafe { api.cuEventRecord(self.event, self.stream.cu_stream()) }?)?;
        // A capture that began between has the event now, and a question about it would spoil the
        // capture.
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

    /// Frees what is ready; gives it back where it is not yet.
    fn step(mut self) -> Option<Self> {
        match self.readiness() {
            Readiness::Busy => return Some(self),
            Readiness::Ready => self.run(),
            Readiness::Unknown => {
                self.leak();
                tracing::warn!("device memory is leaked: its streams cannot be asked whether they are done with it");
            }
        }
        None
    }

    fn run(self) {
        let bound = self.context.as_ref().is_none_or(|context| bind(context).is_ok());
        destroy(&self.events);
        // Or the context is broken, and its memory with it.
        if bound && caught(ManuallyDrop::into_inner(self.free)).is_none() {
            tracing::error!("a panic while retired memory was freed");
        }
    }

    /// With the events and their streams, which nobody can say to be done.
    fn leak(self) {
        std::mem::forget((self.context, self.events));
    }
}

/// Frees something of a device once all work is done that `streams` have now. Returns at once;
/// never fails: what cannot be freed safely is leaked.
///
/// What a per-thread stream was given to do cannot be known: then it is leaked. The thread's
/// current context stays what it is, since destructors call this.
///
/// `free` runs on a thread of this crate with the device's context current. It may call the driver
/// and wait for the device.
pub fn retire(context: &Arc<CudaContext>, streams: impl IntoIterator<Item = Arc<CudaStream>>, free: Retired) {
    match with_context_kept(|| record(streams)) {
        Ok(events) => send(Entry::new(Some(Arc::clone(context)), events, free)),
        Err(error) => {
            std::mem::forget(free);
            if !is_over() {
                tracing::warn!(%error, "device memory is leaked: it cannot be known when it is free");
            }
        }
    }
}

/// Whether the driver has ended with the process: its own exit handler runs while threads still do
/// (seen on H200).
pub(crate) fn is_over() -> bool {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    Driver::get()
        .is_ok_and(|driver| unsafe { matches!(driver.api().cuCtxGetCurrent(&raw mut context), Ok(CudaCode::DEINITIALIZED)) })
}

/// Destroys events. A stream that has not come to one yet still may.
fn destroy(events: &[Event]) {
    if let Ok(driver) = Driver::get() {
        for event in events {
            // SAFETY: nobody else has the event.
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
    /// `CU_EVENT_DISABLE_TIMING`: the cheapest event there is.
    const DISABLE_TIMING: u32 = 2;
    let api = Driver::get()?.api();
    for stream in streams {
        // This thread's is another one than that which the work is on.
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

/// Drops something on the reaper's thread: for callbacks of the driver, which may not call it.
pub(crate) fn drop_later(kept: Vec<Keep>) {
    send(Entry::new(None, Vec::new(), Box::new(move || drop(kept))));
}

/// Waits until everything retired so far has been freed, or the deadline has passed. Gives whether
/// it has.
///
/// For measuring memory, and before an allocation is given up for lack of it. Must not be called
/// from what `retire` was given.
pub fn settle(deadline: Instant) -> bool {
    wait_until::<std::convert::Infallible>(deadline, || Ok(PENDING.load(Ordering::Acquire) == 0)).unwrap_or(false)
}

/// Allocates; where memory `ran_out`, again after everything retired has been freed or a second has
/// passed: what was just dropped is perhaps not freed yet. Not to be called from what `retire` was
/// given.
///
/// # Errors
/// The last ones of `allocate`.
pub fn alloc_when_freed<T, E>(mut allocate: impl FnMut() -> Result<T, E>, ran_out: impl FnOnce(&E) -> bool) -> Result<T, E> {
    match allocate() {
        Err(error) if ran_out(&error) => {
            settle(Instant::now() + Duration::from_secs(1));
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
    fn what_needs_no_driver_is_dropped_on_the_other_thread() {
        struct Told(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let (sender, receiver) = channel();
        let kept: Keep = Arc::new(Mutex::new(Told(sender)));
        drop_later(vec![kept]);
        let by = receiver.recv_timeout(Duration::from_secs(10)).expect("it is dropped");
        assert_ne!(by, std::thread::current().id());
        assert!(settle(Instant::now() + Duration::from_secs(10)));
    }
}
