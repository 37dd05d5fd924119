//! `Communicator`: the user's handle of a communicator, with queries.
//!
//! `membership.rs` has the state shared by clones. `init.rs` and `split.rs` create communicators,
//! and `lifecycle.rs` ends communicators. `wait.rs` waits for enqueued work. The operations are in
//! `collectives.rs` and `one_sided.rs`.
//!
//! Invariant: queries call NCCL while they hold the communicator's lock, or return values stored at
//! creation.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peerweave_driver::{CudaContext, Driver};

use crate::comm::abort::abort_handles;
use crate::comm::teardown::no_thread_error;
use crate::comm::watchdog;
use crate::library::error::{CommunicatorName, NcclError, ResultCode};
use crate::member::membership::{Inner, PROBE_TIMEOUT, Parts};
use crate::member::state::Allowed;
use crate::sys::{ncclCommMemStat_t, ncclResult_t};
use crate::{CommProperties, Nccl, Rank};

/// One rank's membership in an ordered set of ranks that communicate.
///
/// Clones are handles to the same membership. The membership ends once the last handle has been
/// dropped and no graph, window or reduction uses the communicator any more. This happens in the
/// background, without waiting for other ranks. In contrast, [`finalize`](Self::finalize) waits for
/// issued work and for the other ranks.
///
/// # Threads
/// Any thread may use a communicator. NCCL requires the calls on a communicator to be ordered. So
/// each call acquires the communicator's own lock, and waits at most [`deadline`](Self::deadline)
/// for this lock. The lock makes calls from several threads memory-safe. The program must still
/// ensure that the order of calls is the same on every rank. [`abort`](Self::abort) needs no lock.
/// [`async_error`](Self::async_error) and [`wait`](Self::wait) wait only briefly for the lock. So
/// neither method waits until a blocked call of another thread returns.
///
/// # Blocking
/// By default communicators block, as in NCCL. When a call returns, NCCL's work on the host is
/// complete, such as bootstrapping, connecting ranks at first use, and splitting. Each process has
/// one watchdog thread, which ends calls that take longer than [`deadline`](Self::deadline). For
/// such a call, the watchdog finds the ranks that are lost or have not issued the call, and aborts
/// the communicator. The call then returns an error that names these ranks. The watchdog adds no
/// overhead to calls.
///
/// With [`Config::blocking`](crate::Config::blocking) off, NCCL's functions return immediately.
/// This crate then waits until the work on the host is complete, with the same deadline. A
/// non-blocking communicator has two disadvantages. First, NCCL 2.23.4 and later start a thread for
/// each call or group. On H200 the thread takes 60 to 110 microseconds, while a blocking call takes
/// 5 microseconds. Second, an error that NCCL returns for one call stays with the communicator:
/// each later call returns [`NcclError::Dead`].
///
/// ```
/// use std::time::Duration;
/// use peerweave_nccl::{DeviceMemory, context};
/// use peerweave_nccl::{Communicator, Config, Nccl, NcclError, ReduceOp};
///
/// fn sum_over_all_gpus(nccl: Nccl) -> Result<(), NcclError> {
///     let deadline = Duration::from_secs(20);
///     let contexts = (0..peerweave_nccl::driver::Driver::get()?.device_count()?).map(context).collect::<Result<Vec<_>, _>>()?;
///     let communicators = Communicator::builder().nccl(nccl).deadline(deadline).init_all(&contexts)?;
///     let streams: Vec<_> = contexts.iter().map(|context| context.default_stream()).collect();
///     let mut values = Vec::new();
///     for stream in &streams {
///         values.push(DeviceMemory::from_slice(stream, &[1.0f32; 1024])?);
///     }
///     // One thread drives several ranks, so their calls go into a group.
///     nccl.group(|group| {
///         for ((communicator, stream), values) in communicators.iter().zip(&streams).zip(&mut values) {
///             group.all_reduce_in_place(communicator, stream, values, ReduceOp::Sum)?;
///         }
///         Ok(())
///     })?;
///     for (communicator, stream) in communicators.iter().zip(&streams) {
///         communicator.wait(stream, deadline)?;
///     }
///     Ok(())
/// }
/// # match Nccl::load() { Ok(nccl) => drop(sum_over_all_gpus(nccl)), Err(error) => println!("{error}") }
/// ```
#[derive(Clone)]
pub struct Communicator {
    pub(crate) inner: Arc<Inner>,
}

impl Communicator {
    /// Creates a communicator from an initialized handle of NCCL. Queries NCCL for the rank and the
    /// number of ranks. After a failure, aborts the handle.
    pub(crate) fn adopt(parts: Parts) -> Result<Self, NcclError> {
        let (nccl, handle) = (parts.nccl, parts.handle);
        let (mut rank, mut n_ranks) = (0, 0);
        let asked = (|| {
            // SAFETY: the handle is ready, no other thread has it, and the pointer is to a live
            // integer.
            nccl.call("ncclCommCount", |api| unsafe { api.ncclCommCount(handle.get(), &raw mut n_ranks) })?;
            // SAFETY: as above.
            nccl.call("ncclCommUserRank", |api| unsafe { api.ncclCommUserRank(handle.get(), &raw mut rank) })?;
            Ok::<_, NcclError>(Driver::get()?)
        })();
        let driver = match asked {
            Ok(driver) => driver,
            Err(error) => {
                abort_handles(nccl, vec![(handle, Arc::clone(&parts.context))], Duration::from_secs(1));
                return Err(error);
            }
        };
        let (rank, n_ranks) = (Rank::new(rank.unsigned_abs()), n_ranks.unsigned_abs() as usize);
        let inner = Inner::new(parts, driver, rank, n_ranks);
        if !watchdog::watch() {
            // Without the watchdog calls have no deadline. So `inner` is dropped here, which ends
            // the communicator.
            return Err(no_thread_error("init"));
        }
        // Logged without holding the lock, because a subscriber may enumerate the communicators.
        tracing::debug!(communicator = %inner.name, device = inner.device(), "created a communicator");
        Ok(Self { inner })
    }

    /// Returns the NCCL library that created the communicator.
    pub fn nccl(&self) -> Nccl {
        self.inner.nccl
    }

    /// Returns the number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.inner.n_ranks
    }

    /// Returns this rank, counted from 0.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Returns the ordinal of this rank's device.
    pub fn cuda_device(&self) -> usize {
        self.inner.device()
    }

    /// Returns the context of this rank's device.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// Returns NCCL's own handle, an `ncclComm_t`. A program can pass the handle to other
    /// libraries, or to NCCL functions for which this crate has no method.
    ///
    /// The rules of NCCL's C API apply to the raw handle. Do not use the raw handle while another
    /// thread makes a call on this communicator. Do not use the raw handle after this communicator
    /// has been aborted or finalized, or after the last clone of this communicator has been
    /// dropped. Never free the raw handle. [`sequence`](Self::sequence) does not count calls on the
    /// raw handle.
    ///
    /// # Errors
    /// [`NcclError::Dead`] if the communicator has been aborted or finalized;
    /// [`NcclError::Forked`].
    pub fn as_raw(&self) -> Result<*mut c_void, NcclError> {
        const CALL: &str = "as_raw";
        self.inner.nccl.not_forked(CALL)?;
        self.inner.check_open(CALL)?;
        Ok(self.inner.handle.get().cast())
    }

    /// Returns the name that identifies the communicator in error messages.
    pub fn name(&self) -> &CommunicatorName {
        &self.inner.name
    }

    /// Returns the number of the last call issued on this communicator, or 0 before the first call.
    /// Calls are numbered from 1.
    ///
    /// If all ranks issue the same calls in the same order, a call has the same number on every
    /// rank.
    pub fn sequence(&self) -> u64 {
        self.inner.last().0
    }

    /// Returns the time limit for the work that a call does on the host, such as acquiring the lock
    /// and connecting ranks at first use. If a call exceeds the limit, the communicator is aborted,
    /// and the call returns [`NcclError::Timeout`] or [`NcclError::PeerLost`].
    pub fn deadline(&self) -> Duration {
        self.inner.deadline()
    }

    /// Sets the [`deadline`](Self::deadline) of this communicator and of its clones. The value is
    /// rounded up to whole milliseconds.
    pub fn set_deadline(&self, deadline: Duration) {
        self.inner.set_deadline(deadline);
        watchdog::watch();
    }

    /// Returns the time limit for enqueued work. The limit applies whether or not a thread waits
    /// for the work. The default is 10 minutes.
    ///
    /// The limit does not apply to calls that a graph replays. The measured time includes other
    /// work that precedes the communicator's work in the same stream. [`wait`](Self::wait) has a
    /// separate deadline.
    pub fn work_deadline(&self) -> Duration {
        self.inner.work_deadline()
    }

    /// Sets the [`work_deadline`](Self::work_deadline) of this communicator and of its clones. The
    /// value is rounded up to whole milliseconds. [`Duration::MAX`] disables the limit.
    ///
    /// The watchdog inspects the work at intervals of at most one eighth of the limit, but at least
    /// 5 ms. So it detects late work with a delay. It then aborts all ranks that the communicator
    /// has in this process. A thread that waits in `CudaStream::synchronize` then returns, and
    /// [`wait`](Self::wait) returns an error that names the ranks that have issued fewer calls.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn f(communicator: &peerweave_nccl::Communicator) {
    /// communicator.set_work_deadline(Duration::from_secs(60));
    /// # }
    /// ```
    pub fn set_work_deadline(&self, deadline: Duration) {
        self.inner.set_work_deadline(deadline);
        watchdog::watch();
    }

    /// Returns the asynchronous error that NCCL reports, such as a failure of a peer or of the
    /// network. Returns `None` if there is no error. Returns [`ResultCode::IN_PROGRESS`] while NCCL
    /// is working or while another thread makes a call on the communicator. Does not wait for a
    /// call in which another thread is blocked.
    ///
    /// # Errors
    /// [`NcclError::Dead`] if the communicator has been aborted or finalized;
    /// [`NcclError::Forked`].
    pub fn async_error(&self) -> Result<Option<ResultCode>, NcclError> {
        match self.inner.async_code("async_error", PROBE_TIMEOUT)? {
            ncclResult_t::ncclSuccess => Ok(None),
            code => Ok(Some(ResultCode::new(code))),
        }
    }

    /// Returns NCCL's message for the last error, or `None` if the message is empty. NCCL stores
    /// one such message for the whole process, so the message may describe an error on another
    /// communicator.
    ///
    /// # Errors
    /// [`NcclError::Dead`] if the communicator has been aborted or finalized;
    /// [`NcclError::Forked`].
    pub fn last_error(&self) -> Result<Option<String>, NcclError> {
        const CALL: &str = "last_error";
        self.inner.nccl.not_forked(CALL)?;
        let _reader = self.inner.gate.enter_shared(Allowed::OPEN).map_err(|refused| self.inner.refused(CALL, refused))?;
        Ok(Some(self.inner.nccl.last_error_text(self.inner.handle.get())).filter(|text| !text.is_empty()))
    }

    /// Returns the capabilities of the communicator, such as the transports between its ranks.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.29.2; [`NcclError::Dead`]; errors that NCCL
    /// returns.
    pub fn properties(&self) -> Result<CommProperties, NcclError> {
        let inner = &self.inner;
        let inside = inner.enter("properties", Allowed::OPEN)?;
        inner.enter_blocking("properties", &inside)?;
        // SAFETY: the handle is live inside the gate [C1].
        unsafe { CommProperties::query(inner.nccl, inner.handle.get(), &inner.name) }
    }

    /// Returns statistics about the device memory that NCCL uses for this rank.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.29.7; [`NcclError::Dead`]; errors that NCCL
    /// returns.
    pub fn mem_stats(&self) -> Result<MemStats, NcclError> {
        let inner = &self.inner;
        let inside = inner.enter("mem_stats", Allowed::OPEN)?;
        inner.enter_blocking("mem_stats", &inside)?;
        let statistic = |which: ncclCommMemStat_t| {
            const CALL: &str = "ncclCommMemStats";
            let mut value = 0u64;
            // SAFETY: the handle is live inside the gate [C1], and the pointer is to a live
            // integer.
            let code = inner.nccl.code(CALL, |api| unsafe { api.ncclCommMemStats(inner.handle.get(), which, &raw mut value) })?;
            inner.check(CALL, code).map(|()| value)
        };
        Ok(MemStats {
            suspendable_bytes: statistic(ncclCommMemStat_t::ncclStatGpuMemSuspend)?,
            is_suspended: statistic(ncclCommMemStat_t::ncclStatGpuMemSuspended)? != 0,
            persistent_bytes: statistic(ncclCommMemStat_t::ncclStatGpuMemPersist)?,
            total_bytes: statistic(ncclCommMemStat_t::ncclStatGpuMemTotal)?,
        })
    }
}

/// Statistics about the device memory that NCCL uses for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemStats {
    /// Number of bytes that [`Communicator::suspend`] releases, or has released if the communicator
    /// is suspended.
    pub suspendable_bytes: u64,
    /// Whether the communicator is suspended, so that the suspendable bytes are currently released.
    pub is_suspended: bool,
    /// Number of bytes that `suspend` does not release.
    pub persistent_bytes: u64,
    /// Total number of bytes that NCCL tracks, including bytes that `suspend` has released.
    pub total_bytes: u64,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, device, state) = (&self.inner.name, self.inner.device(), self.inner.gate.state());
        write!(f, "{name} on device {device} ({state:?})")
    }
}
