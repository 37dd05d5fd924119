//! Lists of the streams that use an allocation of memory.
//! A list frees nothing. The owner of the memory passes [`Streams::all`] to
//! [`retire`](crate::retire), or calls [`Streams::wait_for_all`]. A list for a part of the memory
//! can be nested in the outer list for the whole memory ([`Streams::within`]). Invariants: a stream
//! is recorded before work that uses the memory is enqueued on the stream. A stream is removed only
//! when no more work can be enqueued on the stream and its work is complete. Every stream in a
//! nested list is also in the outer list.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::{fences, private, relaxed, wait, wait_past_capture};
use crate::DriverError;
use crate::cudarc::driver::CudaStream;
use crate::library::with_context_kept;

/// The highest of the stream handles that are valid in every context. The handles 0 and 1 refer to
/// the default stream, and 2 to the per-thread stream.
const LAST_OF_EVERY_CONTEXT: usize = 2;
const PER_THREAD: usize = 2;

/// Returns whether this stream is the default stream or the per-thread stream. The handles of these
/// streams are constants that are valid in every context. Such a handle refers to a stream of the
/// thread's current context.
pub(crate) fn is_of_every_context(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() <= LAST_OF_EVERY_CONTEXT
}

/// Returns whether the stream is the per-thread stream, `CudaContext::per_thread_stream`.
#[inline]
pub fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// Returns an error if the stream is the per-thread stream. Another thread later frees the memory
/// that work on the stream uses. That thread cannot wait for this work, because the stream's handle
/// refers to a different stream on each thread.
///
/// # Errors
/// [`DriverError::PerThreadStream`] for the per-thread stream.
#[inline]
pub fn refuse_per_thread(call: &'static str, stream: &CudaStream) -> Result<(), DriverError> {
    if is_per_thread(stream) { Err(DriverError::PerThreadStream { call }) } else { Ok(()) }
}

/// The list of the streams that use a particular allocation of memory.
///
/// When the list is long, it drops the streams that are idle and to which no other code has a
/// handle. So long-lived memory can be used on any number of streams.
#[derive(Default)]
pub struct Streams {
    /// The list for a larger range of memory. That range contains the memory of this list. A stream
    /// is recorded in the outer list first, then in this list. `None` for an outermost list.
    outer: Option<Arc<Streams>>,
    known: Mutex<Known>,
    /// Address of the last recorded stream. The address is only compared, never dereferenced.
    last: AtomicPtr<CudaStream>,
}

#[derive(Default)]
struct Known {
    streams: BTreeMap<Key, Arc<Noted>>,
    /// Minimum length of `streams` at which the list removes unused streams before it adds a new
    /// stream. A value below [`Streams::MANY`] has the same effect as [`Streams::MANY`].
    look_at: usize,
}

/// A stream that is recorded in a list. A nested list shares this value with its outer list. So the
/// outer list finds out by the reference count whether a nested list contains the stream.
struct Noted {
    held: Arc<Held>,
}

/// A stream, as lists store it. All lists share one `Held` for a created stream ([`Key::Made`]), so
/// all lists together own one handle to the stream. If a created stream has more than one handle,
/// other code has a handle too.
struct Held {
    stream: Arc<CudaStream>,
}

/// The shared handles of all created streams ([`Key::Made`]) in all lists. The key is the address
/// of cudarc's `CudaStream`. When the last reference to a [`Held`] is dropped, its entry is
/// removed.
static HELD: Mutex<BTreeMap<usize, Weak<Held>>> = Mutex::new(BTreeMap::new());

impl Held {
    fn of(key: Key, stream: &Arc<CudaStream>) -> Arc<Self> {
        let new = || Arc::new(Self { stream: Arc::clone(stream) });
        // A stream of `Key::OfContext` is never removed, so its handles need not be counted. Each
        // list finds the stream fastest by the value with which the stream was recorded.
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
        // Another thread may have recorded the stream again since the last handle was dropped.
        if all.get(&value).is_some_and(|held| held.strong_count() == 0) {
            all.remove(&value);
        }
    }
}

/// Key by which a list of streams identifies a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A stream other than the default and per-thread streams, identified by the address of
    /// cudarc's `CudaStream`. Two `CudaStream` values with the same driver handle are recorded
    /// separately, because work may be enqueued through one value after the other value is dropped.
    Made(usize),
    /// A default or per-thread stream, identified by its context and its handle. The address of a
    /// `CudaStream` cannot identify such a stream, because cudarc returns a new `CudaStream` each
    /// time.
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

impl Drop for Streams {
    fn drop(&mut self) {
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        let streams = std::mem::take(&mut known.streams);
        // The list may have the last handle of a stream. cudarc makes the context of a stream
        // current to destroy the stream.
        if !streams.is_empty() {
            with_context_kept(|| relaxed(|| drop(streams)));
        }
    }
}

impl Streams {
    /// Minimum length at which a list removes unused streams. A shorter list keeps all its streams.
    const MANY: usize = 32;

    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list for a part of a larger range of memory. `outer` is the list of the
    /// larger range. Streams that are recorded in the new list are also recorded in `outer`.
    pub fn within(outer: &Arc<Self>) -> Self {
        let mut streams = Self::default();
        streams.outer = Some(Arc::clone(outer));
        streams
    }

    /// Records that the caller is about to enqueue work on `stream` that uses the memory.
    ///
    /// The stream may be a per-thread stream. But if the list contains such a stream,
    /// [`retire`](crate::retire) leaks the memory. This call does not change the thread's current
    /// context.
    #[inline]
    pub fn note(&self, stream: &Arc<CudaStream>) {
        // The list keeps recorded streams alive, so a recorded address belongs to no other stream.
        // Either the thread that removes streams sees the caller's handle, or the caller sees that
        // `last` was cleared. See `forget_last`.
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
        // A stream that every context has is never removed. The list keeps only the first of its
        // values alive.
        if matches!(key, Key::Made(_)) || Arc::ptr_eq(&noted.held.stream, stream) {
            self.last.store(Arc::as_ptr(stream).cast_mut(), Ordering::Relaxed);
        }
        drop(known);
        // Destroys the streams after the lock is released, because destroying takes time in the
        // driver. It must not change the caller's current context.
        if !idle.is_empty() {
            with_context_kept(|| relaxed(|| drop(idle)));
        }
        noted
    }

    /// Prepares the removal of streams: clears the field `last`, then executes the heavy fence of
    /// [`fences`]. The caller may then count the handles of each stream, to find the streams that
    /// can be removed.
    ///
    /// Another thread may call [`note`](Self::note) for its stream at the same time. The fences
    /// guarantee that at least one of the two threads notices the other. Either the caller of this
    /// function counts the other thread's handle, and does not remove the stream. Or the other
    /// thread finds `last` cleared. It then waits for the lock of the list, and searches the list
    /// for its stream.
    ///
    /// Returns `false` if the operating system has no heavy fence. The caller must then remove no
    /// stream.
    fn forget_last(&self) -> bool {
        self.last.store(std::ptr::null_mut(), Ordering::Relaxed);
        fences::heavy()
    }

    /// Returns all recorded streams.
    pub fn all(&self) -> Vec<Arc<CudaStream>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.streams.values().map(|noted| Arc::clone(&noted.held.stream)).collect()
    }

    /// Waits until all work that is now enqueued on the recorded streams is complete. Returns
    /// `None` if all this work is complete. Otherwise returns a stream whose work is not complete
    /// by the deadline. While a stream is being captured, its work counts as incomplete.
    ///
    /// # Errors
    /// The error of work that failed on a stream. [`DriverError::PerThreadStream`] for a per-thread
    /// stream, because its work on other threads is unknown.
    pub fn wait_for_all(&self, call: &'static str, deadline: Instant) -> Result<Option<Arc<CudaStream>>, DriverError> {
        for stream in self.all() {
            refuse_per_thread(call, &stream)?;
            if !wait_past_capture(&stream, deadline)? {
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }

    /// Returns whether the list contains no stream.
    pub fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).streams.is_empty()
    }
}

impl Known {
    /// Removes the streams whose work is complete and on which no more work can be enqueued.
    /// Returns the removed streams. `outermost` is `true` if this list was not created inside
    /// another list (see [`Streams::within`]).
    fn let_go(&mut self, outermost: bool) -> Vec<Arc<Noted>> {
        // Another handle may enqueue work at any time, in particular between recording and
        // enqueuing. In addition, a stream must stay in this list while a nested list contains it.
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

/// Returns whether only lists have handles to the stream. Ignores the handle that `private.rs`
/// keeps to a dropped private stream until the stream is destroyed.
fn is_ours_alone(stream: &Arc<CudaStream>) -> bool {
    let is_alone = Arc::strong_count(stream) == 1 + usize::from(private::is_left(stream));
    // Makes work that was enqueued through dropped handles visible to the next query.
    fence(Ordering::Acquire);
    is_alone
}

/// Returns whether a stream's work is complete. Returns `false` if the stream cannot be queried.
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
    fn stream_list_forgets_the_pointer_of_the_last_used_stream() {
        let streams = Streams::new();
        streams.last.store(std::ptr::dangling_mut(), Ordering::Relaxed);
        assert!(streams.forget_last());
        assert!(streams.last.load(Ordering::Relaxed).is_null());
    }
}
