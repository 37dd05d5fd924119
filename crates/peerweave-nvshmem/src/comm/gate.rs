//! Serialises calls of NVSHMEM, and adds a deadline to calls that wait.
//!
//! Several threads may call NVSHMEM, but only one at a time. Calls that wait for other PEs run on a
//! separate thread, so that the caller can time out. After a timeout the gate stays locked, because
//! the separate thread is still inside NVSHMEM.
//!
//! Invariant: a thread that calls NVSHMEM owns a guard ([`Inside`] or [`Sent`]), and drops the
//! guard only after the call has returned.

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The lock for calls of NVSHMEM. One thread at a time can hold the lock.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: Option<&'static str>,
    /// Number of threads that wait for the gate. If the number is 0, releasing the gate needs no
    /// system call to wake a thread.
    waiting: usize,
}

/// The guard of the gate. Dropping the guard releases the gate.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// The guard of the gate in a form that can be sent to another thread. Dropping the guard releases
/// the gate.
#[derive(Debug)]
pub(crate) struct Sent(Arc<Gate>);

impl Gate {
    /// Acquires the gate for a call. If the gate is not free within `patience`, returns the name of
    /// the call that holds the gate.
    pub(crate) fn enter(&self, call: &'static str, patience: Duration) -> Result<Inside<'_>, &'static str> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inside.is_some() {
            state.waiting += 1;
            let wait = self.left.wait_timeout_while(state, patience, |state| state.inside.is_some());
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        match state.inside {
            Some(other) => Err(other),
            None => {
                state.inside = Some(call);
                Ok(Inside(self))
            }
        }
    }

    /// Acquires the gate if the gate is free, or returns `None`.
    #[inline]
    pub(crate) fn try_enter(&self, call: &'static str) -> Option<Inside<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inside.is_some() {
            return None;
        }
        state.inside = Some(call);
        Some(Inside(self))
    }

    fn give_up(&self) {
        let waiting = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.inside = None;
            state.waiting
        };
        if waiting > 0 {
            self.left.notify_one();
        }
    }
}

impl Inside<'_> {
    /// Converts the guard to a guard that another thread can drop. `gate` must be the gate that
    /// this guard has locked.
    pub(crate) fn send(self, gate: &Arc<Gate>) -> Sent {
        debug_assert!(std::ptr::eq(self.0, Arc::as_ptr(gate)), "the guard must belong to this gate");
        std::mem::forget(self);
        Sent(Arc::clone(gate))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread for calls of NVSHMEM that wait for other PEs or for the device.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Mutex<Sender<Job>>,
}

/// The reason why [`Worker::run`] returns no result of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The deadline has passed, and the worker thread is still running the call. The field is the
    /// duration of the wait.
    Late(Duration),
    /// The call panicked.
    Panicked,
}

impl Worker {
    /// Starts the worker thread. Dropping the returned value ends the thread, but only after the
    /// current call of the thread has returned.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        std::thread::Builder::new().name("peerweave-nvshmem".into()).spawn(move || {
            // NVSHMEM's driver calls are permitted in this capture mode while another thread
            // captures a graph, and they do not invalidate that capture.
            peerweave_driver::relaxed(|| {
                for job in todo {
                    // The caller detects the panic, because the result is missing.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            });
        })?;
        Ok(Self { jobs: Mutex::new(jobs) })
    }

    /// Runs `call` on the worker thread, and waits for the result for at most `limit`. On success,
    /// returns the result, and gives `inside` back. After a timeout, the worker thread keeps
    /// `inside`, and drops it when `call` returns.
    pub(crate) fn run<R: Send + 'static, I: Send + 'static>(
        &self,
        inside: I,
        limit: Duration,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> Result<(R, I), NoAnswer> {
        let start = Instant::now();
        let (answer, answered) = sync_channel(1);
        let job: Job = Box::new(move || {
            let _ = answer.send((call(), inside));
        });
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job).is_err() {
            return Err(NoAnswer::Panicked);
        }
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        answered.recv_timeout(limit).map_err(|error| match error {
            Timeout => NoAnswer::Late(start.elapsed()),
            Disconnected => NoAnswer::Panicked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lock_is_held_by_one_thread_at_a_time() {
        let (gate, inside) = (Arc::new(Gate::default()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _inside = gate.enter("call", LONG).expect("no thread keeps the gate");
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn lock_stays_held_until_a_call_that_timed_out_returns() {
        let gate = Arc::new(Gate::default());
        let worker = Worker::start().expect("the thread starts");
        let (release, wait) = channel::<()>();
        let inside = gate.enter("stuck", LONG).expect("the gate is free").send(&gate);
        let late = worker.run(inside, Duration::from_millis(20), move || wait.recv().is_ok());
        assert!(matches!(late, Err(NoAnswer::Late(_))), "{late:?}");
        assert_eq!(gate.enter("other", Duration::from_millis(5)).map(drop), Err("stuck"));
        release.send(()).expect("the call waits for the release");
        assert!(gate.enter("other", LONG).is_ok());
    }

    #[test]
    fn panic_in_a_call_is_reported_and_releases_the_lock() {
        let gate = Arc::new(Gate::default());
        let worker = Worker::start().expect("the thread starts");
        let inside = gate.enter("first", LONG).expect("the gate is free").send(&gate);
        let panicked = worker.run::<(), _>(inside, LONG, || panic!("the test panics on purpose")).map(drop);
        assert_eq!(panicked, Err(NoAnswer::Panicked));
        let inside = gate.enter("second", LONG).expect("the first call released the gate").send(&gate);
        assert_eq!(worker.run(inside, LONG, || 7).map(|(answer, _)| answer), Ok(7));
    }
}
