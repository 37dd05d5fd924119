//! One thread at a time inside NVSHMEM, and a deadline for calls that have none.
//!
//! NVSHMEM is serialised: threads may call it, one after the other. Calls that wait for other PEs
//! run on a thread of their own, so that the caller can give up; the gate then stays shut, since
//! that thread is still inside.
//!
//! Invariant: whoever calls NVSHMEM holds an [`Inside`] or a [`Sent`], and gives it up only when
//! the call has come back.

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lets one thread in.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: Option<&'static str>,
    /// Threads that want in. Waking nobody would cost every call one of the system.
    waiting: usize,
}

/// A thread that is inside. Given up when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// The same, which can go to another thread.
#[derive(Debug)]
pub(crate) struct Sent(Arc<Gate>);

impl Gate {
    /// Goes in for a call, or says which call was inside all the time.
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

    /// Goes in if nobody is.
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
    /// To be given up by whichever thread has it then. `gate` is the one that was entered.
    pub(crate) fn send(self, gate: &Arc<Gate>) -> Sent {
        debug_assert!(std::ptr::eq(self.0, Arc::as_ptr(gate)), "this gate was entered");
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

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The deadline has passed; the call goes on.
    Late(Duration),
    /// The call panicked.
    Panicked,
}

impl Worker {
    /// Starts the thread. It ends when this is dropped, after the call that it is in.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        std::thread::Builder::new().name("peerweave-nvshmem".into()).spawn(move || {
            // Whatever NVSHMEM asks of the driver here, no other thread's capture is spoilt by it,
            // nor refuses it.
            peerweave_driver::relaxed(|| {
                for job in todo {
                    // The caller sees the panic as a missing answer.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            });
        })?;
        Ok(Self { jobs: Mutex::new(jobs) })
    }

    /// Runs a call and waits for its answer, at most so long. `inside`, which calls of NVSHMEM
    /// need, comes back with the answer; it is given up when the call comes back where nobody waits
    /// any more.
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
    fn one_thread_at_a_time() {
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
    fn call_in_progress_keeps_the_gate_closed() {
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
    fn panic_inside_a_call_is_no_endless_wait() {
        let gate = Arc::new(Gate::default());
        let worker = Worker::start().expect("threads are possible");
        let inside = gate.enter("first", LONG).expect("nobody is inside").send(&gate);
        let panicked = worker.run::<(), _>(inside, LONG, || panic!("on purpose")).map(drop);
        assert_eq!(panicked, Err(NoAnswer::Panicked));
        let inside = gate.enter("second", LONG).expect("the first gave it up").send(&gate);
        assert_eq!(worker.run(inside, LONG, || 7).map(|(answer, _)| answer), Ok(7));
    }
}
