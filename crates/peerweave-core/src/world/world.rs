//! The handle of one PE to its job. Through this handle, a PE gets its number, allocates memory,
//! creates streams and ends the job. Operations that move data are methods of teams.

use crate::arguments::symmetric::Symmetric;
use crate::backend::error::{Count, Error, MisuseKind, misuse};
use crate::backend::{Backend, Caps, LocalAddress, Shrunk, StreamBackend, TeamId, TeamRecord};
use crate::shared::{FinalizeReport, Shared};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::{Result, bounds};
use peerweave_types::{Element, HeapGeometry, Pe, SymOffset};
use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

/// A PE's handle to its job.
///
/// Teams, buffers and streams stay usable after the `World` has been dropped, and their memory
/// stays mapped. [`World::finalize`] ends the job normally. If `finalize` is not called, this PE
/// leaves the job when the last handle (world, team, stream or buffer) is dropped. Peers are then
/// notified.
#[derive(Debug)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
    team: Team,
    pub(crate) local_team: Mutex<Option<Team>>,
    /// The number that each PE of this world had before [`World::shrink`] created this world. If
    /// [`World::shrink`] did not create this world, the number that the PE has now.
    former: Vec<Pe>,
}

/// The default alignment of allocations, in bytes.
const DEFAULT_ALIGN: usize = 64;

impl World {
    /// Creates a world from a backend that has joined its job. A backend can serve only one world.
    ///
    /// # Errors
    /// This function currently returns no errors: a backend reports its errors when the backend is
    /// created.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        let former = (0..backend.job().n_pes as u32).map(Pe::new).collect();
        Ok(Self::formerly(backend, former))
    }

    /// Creates a world from `backend`. If a shrink created the backend, `former[i]` is the number
    /// that PE `i` had in the old world. Otherwise, `former[i]` is `i`.
    fn formerly(backend: Arc<dyn Backend>, former: Vec<Pe>) -> Self {
        let shared = Arc::new(Shared::new(backend));
        let members = (0..shared.n_pes as u32).map(Pe::new).collect();
        let team = Team::new(&shared, TeamRecord { id: TeamId::WORLD, members }, true);
        tracing::debug!(backend = shared.backend.name(), pe = shared.my_pe.get(), n_pes = shared.n_pes, "created a world");
        Self { shared, team, local_team: Mutex::new(None), former }
    }

    /// Returns the number of this PE.
    #[inline]
    pub fn my_pe(&self) -> Pe {
        self.shared.my_pe
    }

    /// Returns the number of PEs in the job.
    #[inline]
    pub fn n_pes(&self) -> usize {
        self.shared.n_pes
    }

    /// Returns the index of this PE among the PEs of its machine, counted from 0. The index can be
    /// used to choose a GPU or a core.
    pub fn local_index(&self) -> usize {
        self.local_pes()
            .iter()
            .position(|&pe| pe == self.my_pe())
            .expect("backend bug: the PEs of this machine do not include this PE")
    }

    /// Returns the PEs of this machine, ascending.
    pub fn local_pes(&self) -> &[Pe] {
        &self.shared.backend.job().local
    }

    /// Returns the name of the backend, such as `host`, `cuda` or `noop`.
    pub fn backend_name(&self) -> &'static str {
        self.shared.backend.name()
    }

    /// Returns the capabilities of the backend.
    pub fn caps(&self) -> &Caps {
        self.shared.backend.caps()
    }

    /// Returns the addresses at which the symmetric memory of all PEs is mapped in this process.
    /// Returns `None` if this process cannot access every PE's memory by address, for example if
    /// the job runs on several machines. Also returns `None` if the distance from one PE's memory
    /// to the next PE's memory varies.
    pub fn geometry(&self) -> Option<HeapGeometry> {
        self.shared.backend.geometry()
    }

    /// Returns the backend if its type is `B`; otherwise `None`. Use this method to call functions
    /// that only the backend `B` has.
    pub fn backend<B: Backend>(&self) -> Option<&B> {
        let backend: &dyn Any = &*self.shared.backend;
        backend.downcast_ref()
    }

    /// Returns a text, for logs, that lists the pending operations and the PEs for which they wait.
    pub fn describe(&self) -> String {
        if self.shared.is_forked() {
            let (pe, pes) = (self.my_pe(), Count(self.n_pes(), "PE"));
            return format!("this process is a forked child of {pe}, and does not belong to the job of {pes}");
        }
        self.shared.backend.describe()
    }

    /// Returns the team of all PEs, in which rank `r` is PE `r`.
    #[inline]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Allocates `count` elements of symmetric memory with unspecified values.
    ///
    /// # Collective
    /// All PEs must call this method with the same type and count. All PEs must make all
    /// allocations and releases in the same order.
    ///
    /// # Ordering
    /// When the call returns, every PE has made the call, and the memory of every PE may be
    /// accessed. The call is not a barrier, because it does not complete puts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Misuse`](crate::Misuse) after finalize
    /// or for a count that exceeds the address space; [`Error::Mismatch`](crate::Error::Mismatch)
    /// if the PEs pass different types, counts or alignments, or if only some PEs request zeroed
    /// memory.
    #[track_caller]
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc", &self.shared, count, DEFAULT_ALIGN, false, Location::caller())
    }

    /// Like [`World::alloc`], but sets all elements on every PE to zero before the call returns.
    ///
    /// # Errors
    /// As for [`World::alloc`].
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_zeroed", &self.shared, count, DEFAULT_ALIGN, true, Location::caller())
    }

    /// Like [`World::alloc`], but aligns the memory: its offset, and its address on every PE, are
    /// multiples of `align_bytes`. `align_bytes` must be a power of two.
    ///
    /// # Errors
    /// As for [`World::alloc`]; [`Misuse`](crate::Misuse) if `align_bytes` is not a power of two or
    /// exceeds [`Caps::max_align_bytes`].
    #[track_caller]
    pub fn alloc_aligned<T: Element>(&self, count: usize, align_bytes: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_aligned", &self.shared, count, align_bytes, false, Location::caller())
    }

    /// Returns a handle to `len` elements at `offset`. The elements must lie within an allocation
    /// that has not been released. This method is the inverse of [`Symmetric::offset`], for
    /// programs that store or exchange offsets. The call is not collective.
    ///
    /// If all handles to an allocation have been dropped, this call can create a new handle to the
    /// whole allocation. [`Symmetric::release`] accepts the new handle.
    ///
    /// ```
    /// use peerweave::World;
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let all = world.alloc_zeroed::<u32>(8)?;
    /// let kept = all.slice(4..)?.offset();
    /// let again = world.symmetric_at::<u32>(kept, 4)?;
    /// again.fill(7)?;
    /// assert_eq!(all.to_vec()?, [0, 0, 0, 0, 7, 7, 7, 7]);
    /// assert!(world.symmetric_at::<u32>(kept, 5).is_err(), "it exceeds the allocation");
    /// if world.backend_name() == "host" {
    ///     let second = all.as_ptr()?.wrapping_add(1);
    ///     world.symmetric_of(second, 1)?.store(0, 9)?;
    ///     assert_eq!(all.load(1)?, 9);
    /// }
    /// all.release()?; // collective, like the allocation
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the elements do not lie in one live allocation, if the offset
    /// is not aligned for `T`, and after finalize.
    pub fn symmetric_at<T: Element>(&self, offset: SymOffset, len: usize) -> Result<Symmetric<T>> {
        Symmetric::find("symmetric_at", &self.shared, offset, len)
    }

    /// Like [`World::symmetric_at`], but takes an address in this PE's heap, as returned by
    /// [`Symmetric::as_ptr`] or [`Symmetric::device_address`]. The call never accesses memory at
    /// `address`, so an invalid address only causes an error.
    ///
    /// # Errors
    /// As for [`World::symmetric_at`].
    pub fn symmetric_of<T: Element>(&self, address: *const T, len: usize) -> Result<Symmetric<T>> {
        const CALL: &str = "symmetric_of";
        self.shared.usable(CALL)?;
        // The heap is contiguous, so the address of any allocation gives the start of the heap.
        let offset = self.shared.any_allocation().map(|known| {
            let base = match self.shared.backend.local(known) {
                LocalAddress::Host(at) => at as u64,
                LocalAddress::Device { address, .. } => address,
            };
            SymOffset((address as u64).wrapping_sub(base).wrapping_add(known.0))
        });
        match offset {
            Some(at) if self.shared.is_allocated(at, 0) => Symmetric::find(CALL, &self.shared, at, len),
            _ => Err(bounds::wrong_value(CALL, "address", format_args!("{address:p}"), "an address in this PE's symmetric heap")),
        }
    }

    /// Creates a stream, which is an ordered queue of this PE's operations.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn stream(&self) -> Result<Stream> {
        self.shared.usable("stream")?;
        Ok(Stream { shared: self.shared.clone(), inner: self.shared.backend.stream()? })
    }

    /// Creates a handle to a stream that the backend has already created, for example a stream that
    /// wraps a native device stream.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the stream belongs to another backend, and after finalize.
    pub fn adopt_stream(&self, stream: Arc<dyn StreamBackend>) -> Result<Stream> {
        const CALL: &str = "adopt_stream";
        self.shared.usable(CALL)?;
        if !self.shared.backend.owns(&*stream) {
            return Err(misuse(CALL, MisuseKind::ForeignQueue { what: "stream" }));
        }
        Ok(Stream { shared: self.shared.clone(), inner: stream })
    }

    /// Ends the whole job immediately with the exit code `code`, whatever the other PEs are doing.
    /// The call is not collective. If several PEs make this call, the first call determines the
    /// exit code on all PEs. The call corresponds to `MPI_Abort` and `shmem_global_exit`.
    ///
    /// **PEs as processes:** the call does not return. Every process of the job exits with the
    /// status `code`. This includes processes that are computing, and processes that have not yet
    /// returned from `World::from_env`. `peerweave run` exits with the same status. Other launchers
    /// end the job because a process exits with a status other than 0; the exit status of such a
    /// launcher depends on the launcher.
    ///
    /// No PE runs the destructors of Rust values, or functions that have been registered with
    /// `atexit`. The buffer of Rust's standard output is flushed before the exit. Other buffered
    /// writers and C's `stdio` streams are not flushed. The operating system frees shared memory,
    /// sockets and GPU contexts. A process that has dropped its world no longer belongs to the job,
    /// and continues.
    ///
    /// **PEs as threads** (`on_threads`): the process continues. All calls on all PEs, including
    /// waits, fail within milliseconds with [`Error::Aborted`]. This call returns the same error,
    /// so that the caller can return the error from the PE's closure. Destructors run as usual.
    /// Once all PEs have returned, `on_threads` also returns the error.
    ///
    /// A process that has not joined a job yet has no `World` to call this method on. To end the
    /// job, such a process calls [`std::process::exit`] with a status other than 0. The launcher
    /// then ends the job.
    ///
    /// # Errors
    /// The call returns, and does not end the process, in these cases: [`Error::Aborted`] if PEs
    /// are threads; [`Misuse`](crate::Misuse) after finalize, and in a forked child.
    ///
    /// ```
    /// use peerweave::{Error, World, on_threads};
    ///
    /// fn program(world: &World) -> peerweave::Result<()> {
    ///     let input_is_valid = world.my_pe().get() != 1;
    ///     if !input_is_valid {
    ///         return Err(world.abort(3)); // as processes: all exit with status 3
    ///     }
    ///     world.team().barrier_blocking() // PE 1 never calls it
    /// }
    ///
    /// let ended = on_threads(2, |world| program(&world));
    /// assert!(matches!(ended, Err(Error::Aborted { by, code: 3 }) if by.get() == 1));
    /// ```
    #[must_use = "if the PEs are threads, return this error from the closure that was passed to `on_threads`"]
    pub fn abort(&self, code: u8) -> Error {
        match self.shared.usable("abort") {
            Ok(()) => self.shared.backend.abort(code),
            Err(error) => error,
        }
    }

    /// Creates a new world of the PEs that remain after a failure, and ends this world. The PEs
    /// keep their order, and are numbered from 0 again. [`World::former_pes`] returns their old
    /// numbers. The new world has its own symmetric heap, teams and streams. The new world keeps
    /// the deadline and the settings of this world. The call corresponds to `MPIX_Comm_shrink` in
    /// MPI's fault-tolerance extension (ULFM).
    ///
    /// PEs that have died or left are not members of the new world. A PE that dies before the PEs
    /// have agreed on the members is not a member either. A PE that dies after the agreement is
    /// still a member. Operations in the new world then fail with an error that names the dead PE,
    /// and the new world can be shrunk again. If no PE has failed, the new world has the same PEs
    /// as this world.
    ///
    /// # Collective
    /// All PEs that have neither died nor left must make this call, whatever the state of their
    /// other calls. Once a PE has made the call, operations of this world that wait for the PE soon
    /// fail. Their error names the PE that died, or has the cause [`PeerCause::Shrinks`]. From this
    /// error, a waiting PE learns that it must call `shrink` too. If the call succeeds on one PE,
    /// the call succeeds on all members that stay alive.
    ///
    /// # This world after the call
    /// If the call succeeds, this world has ended, as after [`World::finalize`], and calls on its
    /// handles fail with [`MisuseKind::Shrunk`](crate::MisuseKind::Shrunk). Only the methods of
    /// [`Symmetric`] that access this PE's memory still work, such as `to_vec`, `copy_to`, `load`,
    /// `store` and `as_slice`. With these methods, a PE can copy its data to the new world. If an
    /// operation has failed before it was complete, the memory that the operation writes has
    /// unspecified values.
    ///
    /// The memory of this world is freed when the last handle of this world (world, team, stream or
    /// buffer) is dropped. `shrink` does not wait for operations that are pending on the streams of
    /// this world; these operations fail.
    ///
    /// If the call fails, this world has not ended, but the teams of this world have failed on this
    /// PE: their later collectives, sends and receives fail. All PEs can call `shrink` again.
    ///
    /// # Errors
    /// - [`Error::Timeout`](crate::Error::Timeout) at the world's deadline. The error names the PEs
    ///   that have neither made the call nor ended, or that were stopped during the call. Once the
    ///   PEs have agreed, creating the new world may take longer than the deadline: by up to 3 s on
    ///   the host backend, and by up to 11 s on the CUDA backend.
    /// - [`Error::Peer`](crate::Error::Peer) if other PEs have created a new world without this PE.
    /// - [`Misuse`](crate::Misuse) if this world has ended.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the backend does not support
    ///   `shrink`.
    /// - Errors of the backend if the new memory cannot be allocated.
    ///
    /// [`PeerCause::Shrinks`]: crate::PeerCause::Shrinks
    ///
    /// ```
    /// use peerweave::{ReduceOp, World, on_threads};
    ///
    /// /// Adds up the squares of all PEs until it succeeds.
    /// fn program(mut world: World) -> peerweave::Result<(usize, u32)> {
    ///     if world.my_pe().get() == 1 {
    ///         return Ok((0, 0)); // PE 1 leaves: the others continue without it
    ///     }
    ///     let kept = world.my_pe().get().pow(2);
    ///     let mut sum = [0];
    ///     while let Err(error) = world.team().all_reduce_blocking(&[kept], &mut sum, ReduceOp::Sum) {
    ///         println!("{error}"); // names PE 1
    ///         world = world.shrink()?;
    ///     }
    ///     assert_eq!(world.former_pes().iter().map(|pe| pe.get()).collect::<Vec<_>>(), [0, 2, 3]);
    ///     assert!(world.finalize()?.is_clean());
    ///     Ok((world.n_pes(), sum[0]))
    /// }
    ///
    /// let results = on_threads(4, program)?;
    /// for pe in [0, 2, 3] {
    ///     assert!(matches!(results[pe], Ok((3, 13))), "0 + 4 + 9");
    /// }
    /// # Ok::<(), peerweave::Error>(())
    /// ```
    pub fn shrink(&self) -> Result<Self> {
        const CALL: &str = "shrink";
        self.shared.usable(CALL)?;
        // The lock waits for a thread that is shrinking this world; the deadline bounds the wait.
        // If that thread has succeeded, this world has ended.
        let _shrinking = self.shared.shrinking.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.usable(CALL)?;
        let Shrunk { backend, former } = self.shared.backend.shrink()?;
        self.shared.shrink(CALL)?;
        tracing::debug!(pe = self.my_pe().get(), ?former, "created a world of the PEs that remain after a shrink");
        Ok(Self::formerly(backend, former))
    }

    /// Returns the numbers that this world's PEs had before [`World::shrink`] created this world.
    /// The numbers are ascending. If [`World::shrink`] did not create this world, returns the
    /// numbers that the PEs have now.
    ///
    /// ```
    /// use peerweave::World;
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// assert_eq!(world.former_pes()[world.my_pe().index()], world.my_pe());
    /// let smaller = world.shrink()?; // every PE calls, and none has failed
    /// assert_eq!(smaller.former_pes().len(), world.n_pes());
    /// smaller.finalize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn former_pes(&self) -> &[Pe] {
        &self.former
    }

    /// Ends the job on this PE, and reports the symmetric buffers that have not been released.
    /// Later calls on any handle of this world fail with
    /// [`MisuseKind::Finalized`](crate::MisuseKind::Finalized).
    ///
    /// The method takes `&self`. Threads can therefore share the world, or a `static` can hold the
    /// world, without a lock. One thread finalizes the world. After that, the next call of every
    /// other thread fails with [`MisuseKind::Finalized`](crate::MisuseKind::Finalized).
    ///
    /// # Collective
    /// All PEs must make this call, after their other collective calls. The call waits for the
    /// operations that are pending on streams.
    ///
    /// # Threads
    /// Calls that other threads have begun before this call remain valid, because their memory
    /// stays mapped. Each such call either completes, or fails because the world has been finalized
    /// or a PE has left. A wait for a signal ends soon after the other PEs have finalized. If a put
    /// races with this call, it is unspecified whether the data of the put arrives.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if a thread has already finalized this world.
    /// - The first failure of a stream-ordered operation, if neither its ticket nor its stream has
    ///   returned the failure.
    /// - Errors of the backend, for example because a peer has died or the deadline has passed. If
    ///   operations are still pending at the deadline, the error is
    ///   [`Error::Timeout`](crate::Error::Timeout), which names the call that is still running
    ///   ([`Timeout::running`](crate::Timeout::running)).
    ///
    /// Even if this call fails, the world has ended.
    pub fn finalize(&self) -> Result<FinalizeReport> {
        const CALL: &str = "finalize";
        self.shared.usable(CALL)?;
        self.shared.finalize(CALL)?;
        let report = self.shared.report();
        for buffer in &report.leaked {
            tracing::warn!(pe = self.shared.my_pe.get(), "symmetric buffer not released: {buffer}");
        }
        self.shared.backend.finalize()?;
        Ok(report)
    }
}
