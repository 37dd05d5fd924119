//! The handle of one PE to its job: PEs, memory, streams, and the end of the job. Operations that
//! move data are methods of teams.

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

/// The handle of one PE to its job.
///
/// Teams, buffers and streams stay usable after the world is dropped, and their memory stays
/// mapped. [`World::finalize`] ends the job normally. Without that call, peers are notified that
/// this PE has left when the last handle of the world is dropped.
#[derive(Debug)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
    team: Team,
    pub(crate) local_team: Mutex<Option<Team>>,
    /// The number that each PE had in the world that was shrunk to this one.
    former: Vec<Pe>,
}

/// The default alignment of allocations, in bytes.
const DEFAULT_ALIGN: usize = 64;

impl World {
    /// Creates a world from a backend that has joined its job. A backend serves one world.
    ///
    /// # Errors
    /// None at present; a backend reports its errors when it is created.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        let former = (0..backend.job().n_pes as u32).map(Pe::new).collect();
        Ok(Self::formerly(backend, former))
    }

    /// Creates a world whose PEs had the numbers `former` in the previous world.
    fn formerly(backend: Arc<dyn Backend>, former: Vec<Pe>) -> Self {
        let shared = Arc::new(Shared::new(backend));
        let members = (0..shared.n_pes as u32).map(Pe::new).collect();
        let team = Team::new(&shared, TeamRecord { id: TeamId::WORLD, members }, true);
        tracing::debug!(backend = shared.backend.name(), pe = shared.my_pe.get(), n_pes = shared.n_pes, "world made");
        Self { shared, team, local_team: Mutex::new(None), former }
    }

    /// Returns this PE.
    #[inline]
    pub fn my_pe(&self) -> Pe {
        self.shared.my_pe
    }

    /// Returns the number of PEs of the job.
    #[inline]
    pub fn n_pes(&self) -> usize {
        self.shared.n_pes
    }

    /// Returns the index of this PE among the PEs of its machine, counted from 0, for example to
    /// choose a GPU or core.
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

    /// Returns the name of the backend: `host`, `cuda`, `noop`.
    pub fn backend_name(&self) -> &'static str {
        self.shared.backend.name()
    }

    /// Returns the capabilities of the backend.
    pub fn caps(&self) -> &Caps {
        self.shared.backend.caps()
    }

    /// Returns how the symmetric heap is mapped in this process; `None` if the segments of PEs are
    /// not at equal distances in memory, for example on several machines.
    pub fn geometry(&self) -> Option<HeapGeometry> {
        self.shared.backend.geometry()
    }

    /// Returns the backend itself if its type is `B`, to call functions that only this backend has.
    pub fn backend<B: Backend>(&self) -> Option<&B> {
        let backend: &dyn Any = &*self.shared.backend;
        backend.downcast_ref()
    }

    /// Returns a description of pending operations and of the PEs that they wait for.
    pub fn describe(&self) -> String {
        if self.shared.is_forked() {
            return format!(
                "this process is a forked child of {} (of {}), and does not belong to the job",
                self.my_pe(),
                Count(self.n_pes(), "PE")
            );
        }
        self.shared.backend.describe()
    }

    /// Returns the team of all PEs: rank `r` is PE `r`.
    #[inline]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Allocates `count` elements of symmetric memory with unspecified values.
    ///
    /// # Collective
    /// All PEs must call, with the same type and count, in the same order as other allocations and
    /// releases.
    ///
    /// # Ordering
    /// When the call returns, every PE has made the call, and the memory of every PE may be
    /// accessed. The call is not a barrier: it does not complete puts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Misuse`](crate::Misuse) after finalize
    /// or for a count that exceeds the address space; [`Error::Mismatch`](crate::Error::Mismatch)
    /// if PEs disagree about the type, the count, the alignment or zeroing.
    #[track_caller]
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc", &self.shared, count, DEFAULT_ALIGN, false, Location::caller())
    }

    /// Like [`World::alloc`]. All elements of every PE are set to zero before the call returns.
    ///
    /// # Errors
    /// As for [`World::alloc`].
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_zeroed", &self.shared, count, DEFAULT_ALIGN, true, Location::caller())
    }

    /// Like [`World::alloc`], with an alignment: the offset, and the address on every PE, are
    /// multiples of `align_bytes`, which must be a power of two.
    ///
    /// # Errors
    /// As for [`World::alloc`]; [`Misuse`](crate::Misuse) if `align_bytes` is not a power of two or
    /// exceeds [`Caps::max_align_bytes`].
    #[track_caller]
    pub fn alloc_aligned<T: Element>(&self, count: usize, align_bytes: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_aligned", &self.shared, count, align_bytes, false, Location::caller())
    }

    /// Returns a handle to `len` elements at `offset` of the heap. The elements must lie within an
    /// allocation that was not released. This is the inverse of [`Symmetric::offset`], for programs
    /// that store or exchange offsets. The call is not collective.
    ///
    /// If all handles to an allocation were dropped, this call can create a new handle to the whole
    /// allocation, which [`Symmetric::release`] accepts.
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
    /// [`Misuse`](crate::Misuse) if the elements do not lie in one live allocation, for an offset
    /// that is not aligned to the elements, and after finalize.
    pub fn symmetric_at<T: Element>(&self, offset: SymOffset, len: usize) -> Result<Symmetric<T>> {
        Symmetric::find("symmetric_at", &self.shared, offset, len)
    }

    /// Like [`World::symmetric_at`], for an address in this PE's heap, as returned by
    /// [`Symmetric::as_ptr`] and [`Symmetric::device_address`]. Any value may be passed, because
    /// the address is only compared.
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
            _ => Err(bounds::wrong_value(CALL, "address", format_args!("{address:p}"), "an address of this PE's symmetric heap")),
        }
    }

    /// Creates a stream: an ordered queue of operations of this PE.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn stream(&self) -> Result<Stream> {
        self.shared.usable("stream")?;
        Ok(Stream { shared: self.shared.clone(), inner: self.shared.backend.stream()? })
    }

    /// Creates a handle to an existing stream of the backend, for example a stream that wraps a
    /// native stream of the device.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for a stream of another backend, and after finalize.
    pub fn adopt_stream(&self, stream: Arc<dyn StreamBackend>) -> Result<Stream> {
        const CALL: &str = "adopt_stream";
        self.shared.usable(CALL)?;
        if !self.shared.backend.owns(&*stream) {
            return Err(misuse(CALL, MisuseKind::ForeignQueue { what: "stream" }));
        }
        Ok(Stream { shared: self.shared.clone(), inner: stream })
    }

    /// Ends the whole job immediately with the exit code `code`, whatever the other PEs are doing.
    /// The call is not collective. If several PEs call, the first call determines the code on all
    /// PEs. The call corresponds to `MPI_Abort` and `shmem_global_exit`.
    ///
    /// **PEs as processes:** the call does not return. Every process of the job exits with the
    /// status `code`, including processes that are computing, and processes that have not yet
    /// returned from `World::from_env`. `peerweave run` exits with that code. Other launchers end
    /// the job because a process exits with a status other than 0; the exit status of the launcher
    /// itself depends on the launcher.
    ///
    /// No PE runs destructors of Rust values or functions registered with `atexit`. The buffer of
    /// Rust's standard output is flushed before the exit. Other buffered writers and the streams of
    /// C are not flushed. The operating system frees shared memory, sockets and GPU contexts. A
    /// process that has dropped its world no longer belongs to the job, and continues.
    ///
    /// **PEs as threads** (`on_threads`): the process continues. All calls of all PEs, including
    /// waits, fail within milliseconds with [`Error::Aborted`]. This call returns the same error,
    /// so that the caller can return it from its program; destructors run as usual. When all PEs
    /// have returned, `on_threads` returns the error too.
    ///
    /// A process that has not joined a job yet has no world. Instead of this method it calls
    /// [`std::process::exit`] with a status other than 0, and the launcher ends the job.
    ///
    /// # Errors
    /// Returns an error instead of ending the process: [`Error::Aborted`] if PEs are threads;
    /// [`Misuse`](crate::Misuse) after finalize, and in a forked child.
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
    #[must_use = "if PEs are threads, the program must return"]
    pub fn abort(&self, code: u8) -> Error {
        match self.shared.usable("abort") {
            Ok(()) => self.shared.backend.abort(code),
            Err(error) => error,
        }
    }

    /// Creates a world of the PEs that remain after a failure, and ends this world. The PEs keep
    /// their order, and are numbered from 0 again; [`World::former_pes`] returns the old numbers.
    /// The new world has its own symmetric heap, teams and streams, and the deadline and the
    /// settings of this world. The call corresponds to `MPIX_Comm_shrink` of MPI's fault tolerance
    /// (ULFM).
    ///
    /// PEs that have died or left are not members, and neither is a PE that dies during this call.
    /// A PE that dies after the members have agreed is still a member. Operations of the new world
    /// then fail with an error that names that PE, and the new world can be shrunk again. If no PE
    /// has failed, the new world has the same PEs.
    ///
    /// # Collective
    /// All PEs that have neither died nor left must call, whatever the state of their other calls.
    /// Once a PE has called, operations of this world that wait for that PE soon fail. The error
    /// names the PE that died, or has the cause [`PeerCause::Shrinks`]. A PE that waits for another
    /// PE thus learns that it must call too. If the call succeeds on one PE, it succeeds on all
    /// members that stay alive.
    ///
    /// # This world afterwards
    /// If the call succeeds, this world has ended, as after [`World::finalize`], and its calls fail
    /// with [`MisuseKind::Shrunk`](crate::MisuseKind::Shrunk). Only the methods of [`Symmetric`]
    /// that access the memory of this PE (`to_vec`, `copy_to`, `load`, `store`, `as_slice`, …)
    /// still work, so that a PE can copy its data to the new world. If an operation failed before
    /// it was complete, the memory that it writes has unspecified values.
    ///
    /// The memory of this world is freed when its last handle (world, team, stream or buffer) is
    /// dropped. This call does not wait for pending operations of its streams; these operations
    /// fail.
    ///
    /// If the call fails, this world has not ended, but its teams have failed on this PE: later
    /// collectives, sends and receives fail. All PEs can make the call again.
    ///
    /// # Errors
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline of the world. The error names
    ///   the PEs that have neither called nor ended, or that were stopped during the call. After
    ///   the PEs have agreed, creating the new world may take up to 3 s longer.
    /// - [`Error::Peer`](crate::Error::Peer) if other PEs have created a new world without this PE.
    /// - [`Misuse`](crate::Misuse) if this world has ended.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) on a backend without this call.
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
        tracing::debug!(pe = self.my_pe().get(), ?former, "world shrunk");
        Ok(Self::formerly(backend, former))
    }

    /// Returns the number that each PE of this world had in the world that was shrunk to this one,
    /// ascending. In a world that [`World::shrink`] did not create, these are the PEs themselves.
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

    /// Ends the job on this PE, and reports the buffers that were not released. Later calls on any
    /// handle of this world fail with [`MisuseKind::Finalized`](crate::MisuseKind::Finalized).
    ///
    /// The method takes `&self`, so threads can share the world, or a `static` can hold it, without
    /// a lock. One thread finalizes the world. The next call of each other thread then fails with
    /// [`MisuseKind::Finalized`](crate::MisuseKind::Finalized).
    ///
    /// # Collective
    /// All PEs must call, after their other collective calls. Waits for pending operations of
    /// streams.
    ///
    /// # Threads
    /// Calls that other threads have begun before this call stay defined, because their memory
    /// stays mapped. Each of them completes, or fails because the world was finalized or a PE has
    /// left. A wait for a signal ends soon after the other PEs have finalized. It is unspecified
    /// whether the data of a put that races with this call arrives.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if this world was finalized before, by any thread.
    /// - The first failure of a stream-ordered operation that neither its ticket nor its stream has
    ///   returned.
    /// - Errors of the backend, such as a peer that died or an expired deadline. If operations are
    ///   still pending at the deadline, the error is [`Error::Timeout`](crate::Error::Timeout), and
    ///   names the call that is still running ([`Timeout::running`](crate::Timeout::running)).
    ///
    /// The world has ended even if this call fails.
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
