//! Serialises calls of NVSHMEM, and gives a deadline to calls that have none.
//!
//! Several threads may call NVSHMEM, one at a time. Calls that wait for other PEs run on a separate
//! thread, so that the caller can time out. The gate then stays locked, because that thread is
//! still inside NVSHMEM.
//!
//! Invariant: a thread that calls NVSHMEM holds an [`Inside`] or a [`Sent`], and releases it only
//! after the call has returned.

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A lock that admits one thread.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: Option<&'static str>,
    /// Number of waiting threads. Without this number every call would make a system call, even if
    /// no thread waits.
    waiting: usize,
}

/// The lock held by this thread. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// The held lock in a form that can be sent to another thread.
#[derive(Debug)]
pub(crate) struct Sent(Arc<Gate>);

impl Gate {
    /// Acquires the lock for a call. If the lock is not free within `patience`, returns the name of
    /// the call that holds it.
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

    /// Acquires the lock if it is free.
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
    /// Converts the guard to one that another thread can release. `gate` is the gate that was
    /// acquired.
    pub(crate) fn send(self, gate: &Arc<Gate>) -> Sent {
        debug_assert!(std::ptr::eq(self.0, Arc::as_ptr(gate)), "the guard belongs to this gate");
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

/// The thread for calls that wait.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Mutex<Sender<Job>>,
}

/// The reason why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The deadline has passed, and the call is still running.
    Late(Duration),
    /// The call panicked.
    Panicked,
}

impl Worker {
    /// Starts the thread. It ends after its current call when this value is dropped.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        std::thread::Builder::new().name("peerweave-nvshmem".into()).spawn(move || {
            // Makes calls of the driver by NVSHMEM legal while another thread captures a graph, and
            // keeps them from invalidating that capture.
            peerweave_driver::relaxed(|| {
                for job in todo {
                    // The caller gets the panic as a missing answer.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            });
        })?;
        Ok(Self { jobs: Mutex::new(jobs) })
    }

    /// Runs a call and waits for its result, for at most `patience`. `inside` is returned with the
    /// result; if the caller no longer waits, `inside` is dropped when the call returns.
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

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn gate_admits_one_thread_at_a_time() {
        let (gate, inside) = (Arc::new(Gate::default()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _inside = gate.enter("call", LONG).expect("nobody stays");
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn call_that_has_not_returned_keeps_the_gate_locked() {
        let gate = Arc::new(Gate::default());
        let worker = Worker::start().expect("threads are possible");
        let (release, wait) = channel::<()>();
        let inside = gate.enter("stuck", LONG).expect("nobody is inside").send(&gate);
        let late = worker.run(inside, Duration::from_millis(20), move || wait.recv().is_ok());
        assert!(matches!(late, Err(NoAnswer::Late(_))), "{late:?}");
        assert_eq!(gate.enter("other", Duration::from_millis(5)).map(drop), Err("stuck"));
        release.send(()).expect("it waits");
        assert!(gate.enter("other", LONG).is_ok());
    }

    #[test]
    fn panic_inside_a_call_ends_the_wait() {
        let gate = Arc::new(Gate::default());
        let worker = Worker::start().expect("threads are possible");
        let inside = gate.enter("first", LONG).expect("nobody is inside").send(&gate);
        let panicked = worker.run::<(), _>(inside, LONG, || panic!("on purpose")).map(drop);
        assert_eq!(panicked, Err(NoAnswer::Panicked));
        let inside = gate.enter("second", LONG).expect("the first thread released it").send(&gate);
        assert_eq!(worker.run(inside, LONG, || 7).map(|(answer, _)| answer), Ok(7));
    }
}
