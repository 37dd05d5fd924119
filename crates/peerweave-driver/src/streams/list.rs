//! The streams that use memory.
//!
//! The list neither waits nor frees: the owner passes [`Streams::all`] to
//! [`retire`](crate::retire). Invariants: a stream is recorded before work that uses the memory is
//! enqueued on it. It is removed only when no more work can be enqueued on it and its work is
//! complete. A nested list has no stream that its outer list lacks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::{fences, private, relaxed, wait};
use crate::DriverError;
use crate::cudarc::driver::CudaStream;
use crate::library::with_context_kept;

/// The highest of the handles that every context has: null and 1 are the default stream, 2 is the
/// per-thread stream.
const LAST_OF_EVERY_CONTEXT: usize = 2;
const PER_THREAD: usize = 2;

/// Returns whether every context has a stream with this handle, so that the thread's current
/// context determines the stream.
pub(crate) fn is_of_every_context(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() <= LAST_OF_EVERY_CONTEXT
}

/// Returns whether the handle is the per-thread stream: `CudaContext::per_thread_stream`.
#[inline]
pub fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// Fails for the per-thread stream, because no other thread can wait for its work or free memory
/// after it.
///
/// # Errors
/// [`DriverError::PerThreadStream`].
#[inline]
pub fn refuse_per_thread(call: &'static str, stream: &CudaStream) -> Result<(), DriverError> {
    if is_per_thread(stream) { Err(DriverError::PerThreadStream { call }) } else { Ok(()) }
}

/// The streams that use memory, each once.
///
/// Streams without other handles are removed when the list is long, so long-lived memory can be
/// used on any number of streams.
#[derive(Default)]
pub struct Streams {
    /// The outer list, where streams are recorded first.
    outer: Option<Arc<Streams>>,
    known: Mutex<Known>,
    /// The last recorded stream, used only for comparison.
    last: AtomicPtr<CudaStream>,
}

#[derive(Default)]
struct Known {
    streams: BTreeMap<Key, Arc<Noted>>,
    /// The list length at which unused streams are removed.
    look_at: usize,
}

/// A stream in a list and in its nested lists. The number of its handles shows whether a nested
/// list has it.
struct Noted {
    held: Arc<Held>,
}

/// The one handle that all lists share for a stream. So the number of the stream's handles shows
/// whether others exist.
struct Held {
    stream: Arc<CudaStream>,
}

/// The handles of all lists, by the address of cudarc's value. An entry is removed with its handle.
static HELD: Mutex<BTreeMap<usize, Weak<Held>>> = Mutex::new(BTreeMap::new());

impl Held {
    fn of(key: Key, stream: &Arc<CudaStream>) -> Arc<Self> {
        let new = || Arc::new(Self { stream: Arc::clone(stream) });
        // A stream that is never removed need not be counted, and each list finds it fastest by the
        // value with which it was recorded.
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
        // It may have been recorded again meanwhile.
        if all.get(&value).is_some_and(|held| held.strong_count() == 0) {
            all.remove(&value);
        }
    }
}

/// Identifies a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A created stream, identified by cudarc's value. Two values of one handle are recorded
    /// separately, because each may get more work while the other is dropped.
    Made(usize),
    /// A stream that every context has. cudarc returns a new value for it each time.
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
    /// Maximum length of a list that is kept without checking its streams.
    const MANY: usize = 32;

    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty list for a part of the memory of `outer`: streams recorded in it are also
    /// recorded in `outer`.
    pub fn within(outer: &Arc<Self>) -> Self {
        Self { outer: Some(Arc::clone(outer)), ..Self::default() }
    }

    /// Records that work that uses the memory is about to be enqueued on a stream.
    ///
    /// A per-thread stream is recorded too, and [`retire`](crate::retire) then leaks the memory.
    /// The thread's current context does not change.
    #[inline]
    pub fn note(&self, stream: &Arc<CudaStream>) {
        // Recorded streams are kept alive, so a recorded address belongs to no other stream. Either
        // the thread that removes streams sees the caller's handle, or the caller sees that `last`
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
        // A stream that every context has is kept forever, but only the first of its values.
        if matches!(key, Key::Made(_)) || Arc::ptr_eq(&noted.held.stream, stream) {
            self.last.store(Arc::as_ptr(stream).cast_mut(), Ordering::Relaxed);
        }
        drop(known);
        // Destroys streams after the lock is released: it takes the driver's time and must not
        // change the caller's context.
        if !idle.is_empty() {
            with_context_kept(|| relaxed(|| drop(idle)));
        }
        noted
    }

    /// Makes the next `note` search the list again. After this call, handles can be counted: its
    /// fence and the fence of `note` order the count with a thread that upgrades a weak handle and
    /// records it. Returns `false` if the system has no such fence; then all streams are kept.
    fn forget_last(&self) -> bool {
        self.last.store(std::ptr::null_mut(), Ordering::Relaxed);
        fences::heavy()
    }

    /// Returns the recorded streams.
    pub fn all(&self) -> Vec<Arc<CudaStream>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.streams.values().map(|noted| Arc::clone(&noted.held.stream)).collect()
    }

    /// Returns whether no stream is recorded.
    pub fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).streams.is_empty()
    }
}

impl Known {
    /// Removes streams that can get no more work and are idle. `outermost` means that the list has
    /// no outer list.
    fn let_go(&mut self, outermost: bool) -> Vec<Arc<Noted>> {
        // Another handle may enqueue work at any time, in particular between recording and
        // enqueuing. And a nested list must not have a stream that this one lacks.
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

/// Returns whether only the lists have a handle of the stream, apart from the handle that keeps a
/// private stream until it is destroyed.
fn is_ours_alone(stream: &Arc<CudaStream>) -> bool {
    let is_alone = Arc::strong_count(stream) == 1 + usize::from(private::is_left(stream));
    // Makes work enqueued through dropped handles visible to the query that follows.
    fence(Ordering::Acquire);
    is_alone
}

/// Returns whether a stream's work is complete; `false` if the stream cannot be queried.
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
    fn removal_of_streams_makes_readers_reload_the_list() {
        let streams = Streams::new();
        streams.last.store(std::ptr::dangling_mut(), Ordering::Relaxed);
        assert!(streams.forget_last());
        assert!(streams.last.load(Ordering::Relaxed).is_null());
    }
}
