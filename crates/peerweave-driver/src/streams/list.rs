//! Which streams some memory was handed to.
//!
//! Neither waits nor frees: who does hands [`Streams::all`] to [`retire`](crate::retire).
//! Invariants: a stream is noted before work that uses the memory is enqueued on it; it is let go
//! only when nobody can enqueue more and what it had is done; a list that is inside another one has
//! no stream that the outer one lacks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::{fences, private, relaxed, wait};
use crate::DriverError;
use crate::cudarc::driver::CudaStream;
use crate::library::with_context_kept;

/// The handles that every context has: the default stream as null and as 1, and 2 for the stream of
/// whichever thread asks.
const LAST_OF_EVERY_CONTEXT: usize = 2;
const PER_THREAD: usize = 2;

/// Whether the handle is one that every context has: which stream it is depends on the thread's
/// current context.
pub(crate) fn is_of_every_context(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() <= LAST_OF_EVERY_CONTEXT
}

/// Whether the handle stands for another stream in each thread: `CudaContext::per_thread_stream`.
#[inline]
pub fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// An error for the stream of each thread. What it was given to do can be waited for, or freed
/// after, by no other thread.
///
/// # Errors
/// [`DriverError::PerThreadStream`].
#[inline]
pub fn refuse_per_thread(call: &'static str, stream: &CudaStream) -> Result<(), DriverError> {
    if is_per_thread(stream) { Err(DriverError::PerThreadStream { call }) } else { Ok(()) }
}

/// The streams that some memory was handed to, each once.
///
/// Streams that nobody else has any more are let go when there are many, so that memory that lives
/// long can be used on any number of them.
#[derive(Default)]
pub struct Streams {
    /// What is noted here is noted there first.
    outer: Option<Arc<Streams>>,
    known: Mutex<Known>,
    /// The one that was noted last, to be compared only: one of those that are known.
    last: AtomicPtr<CudaStream>,
}

#[derive(Default)]
struct Known {
    streams: BTreeMap<Key, Arc<Noted>>,
    /// With so many it is worth a look which ones can go.
    look_at: usize,
}

/// A stream that a list knows, and those that are inside it: so that its number tells whether one
/// of those does.
struct Noted {
    held: Arc<Held>,
}

/// The one handle that all lists have of a stream: so that the number of its handles tells whether
/// somebody else has one.
struct Held {
    stream: Arc<CudaStream>,
}

/// What all lists hold now, by the address of cudarc's value. An entry goes with what it stands
/// for.
static HELD: Mutex<BTreeMap<usize, Weak<Held>>> = Mutex::new(BTreeMap::new());

impl Held {
    fn of(key: Key, stream: &Arc<CudaStream>) -> Arc<Self> {
        let new = || Arc::new(Self { stream: Arc::clone(stream) });
        // What is never let go need not be counted, and each list knows it fastest by the value
        // that it was given.
        let Key::Made(value) = key else { return new() };
        let mut all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&value).and_then(Weak::upgrade).unwrap_or_else(|| {
            let held = new();
            all.insert(value, Arc::downgrade(&held));
            held
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let value = Arc::as_ptr(&self.stream).addr();
        // It may have been noted again meanwhile.
        if all.get(&value).is_some_and(|held| held.strong_count() == 0) {
            all.remove(&value);
        }
    }
}

/// What tells streams apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// One that was made, by cudarc's value: two values of one handle are noted twice, since each
    /// may get more work while the other is gone.
    Made(usize),
    /// One that every context has, of which cudarc makes a new value each time.
    OfContext(usize, usize),
}

impl Key {
    fn of(stream: &Arc<CudaStream>) -> Self {
        match stream.cu_stream().addr() {
            handle if handle <= LAST_OF_EVERY_CONTEXT => Self::OfContext(stream.context().cu_ctx().addr(), handle),
            _ => Self::Made(Arc::as_ptr(stream).addr()),
        }
    }
}

impl Streams {
    /// So many are kept without a look at what they do.
    const MANY: usize = 32;

    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// None yet, for a part of the memory of `outer`: what is noted here is noted there too.
    pub fn within(outer: &Arc<Self>) -> Self {
        Self { outer: Some(Arc::clone(outer)), ..Self::default() }
    }

    /// Notes that work which uses the memory is about to be enqueued on a stream.
    ///
    /// A stream that [`is_per_thread`] is noted too; then [`retire`](crate::retire) leaks the
    /// memory. The thread's current context stays what it is.
    #[inline]
    pub fn note(&self, stream: &Arc<CudaStream>) {
        // Noted streams are kept alive, so that a noted address belongs to no other stream. Either
        // the thread that releases streams sees the caller's handle, or the caller sees that `last`
        // was cleared: see `forget_last`.
        fences::light();
        if self.last.load(Ordering::Relaxed) != Arc::as_ptr(stream).cast_mut() {
            self.noted(stream);
        }
    }

    fn noted(&self, stream: &Arc<CudaStream>) -> Arc<Noted> {
        let mut idle = Vec::new();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(stream);
        let noted = match known.streams.get(&key) {
            Some(noted) => Arc::clone(noted),
            None => {
                let noted = match &self.outer {
                    Some(outer) => outer.noted(stream),
                    None => Arc::new(Noted { held: Held::of(key, stream) }),
                };
                if known.streams.len() >= known.look_at.max(Self::MANY) {
                    if self.forget_last() {
                        idle = with_context_kept(|| known.let_go(self.outer.is_none()));
                    }
                    known.look_at = 2 * known.streams.len();
                }
                known.streams.insert(key, Arc::clone(&noted));
                noted
            }
        };
        // One that every context has is kept forever, but of the values that stand for it only the
        // first.
        if matches!(key, Key::Made(_)) || Arc::ptr_eq(&noted.held.stream, stream) {
            self.last.store(Arc::as_ptr(stream).cast_mut(), Ordering::Relaxed);
        }
        drop(known);
        // Destroys streams, which is the driver's time and not to be waited for by others, and
        // nothing that the caller's context is to show.
        if !idle.is_empty() {
            with_context_kept(|| relaxed(|| drop(idle)));
        }
        noted
    }

    /// Has `note` look into the list again. Then handles may be counted; the two fences order that
    /// against a thread that makes a handle of a weak one and notes it. `false` where the system
    /// has no such fence: then all streams stay.
    fn forget_last(&self) -> bool {
        self.last.store(std::ptr::null_mut(), Ordering::Relaxed);
        fences::heavy()
    }

    /// The streams that are noted now.
    pub fn all(&self) -> Vec<Arc<CudaStream>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.streams.values().map(|noted| Arc::clone(&noted.held.stream)).collect()
    }

    /// Whether none was noted.
    pub fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).streams.is_empty()
    }
}

impl Known {
    /// Takes out what gets no more work and has none. `outermost`: no other list is responsible for
    /// it.
    fn let_go(&mut self, outermost: bool) -> Vec<Arc<Noted>> {
        // With a handle of somebody else's, work may be enqueued at any moment, above all between
        // its noting and its enqueuing. And a list that is inside this one must not know more than
        // this one.
        let goes = |key: &Key, noted: &Arc<Noted>| {
            matches!(key, Key::Made(_))
                && (!outermost || Arc::strong_count(noted) == 1)
                && is_ours_alone(&noted.held.stream)
                && is_idle(&noted.held.stream)
        };
        let keys: Vec<Key> = self.streams.iter().filter(|(key, noted)| goes(key, noted)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.streams.remove(key)).collect()
    }
}

/// Whether nobody but the lists has a handle, apart from what keeps a private stream until it is
/// destroyed and does nothing else.
fn is_ours_alone(stream: &Arc<CudaStream>) -> bool {
    let is_alone = Arc::strong_count(stream) == 1 + usize::from(private::is_left(stream));
    // What others enqueued before they let their handles go is seen by who asks next whether it is
    // done.
    fence(Ordering::Acquire);
    is_alone
}

/// Whether a stream has nothing left to do. One that cannot be asked may have.
fn is_idle(stream: &Arc<CudaStream>) -> bool {
    matches!(wait(stream, Instant::now()), Ok(true))
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Streams({})", known.streams.len())
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn collecting_streams_makes_readers_reload_the_list() {
        let streams = Streams::new();
        streams.last.store(std::ptr::dangling_mut(), Ordering::Relaxed);
        assert!(streams.forget_last());
        assert!(streams.last.load(Ordering::Relaxed).is_null());
    }
}
