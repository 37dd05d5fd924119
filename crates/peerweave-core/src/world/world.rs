//! The job as one PE sees it: its PEs, memory, streams, and its end. Operations that move data are
//! methods of teams.

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

/// A job, as one of its PEs sees it.
///
/// Teams, buffers and streams stay usable after the world is dropped, and their memory stays
/// mapped. [`World::finalize`] ends the job normally. Without it, peers are notified that this PE
/// has left when its last handle is dropped.
#[derive(Debug)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
    team: Team,
    pub(crate) local_team: Mutex<Option<Team>>,
    /// The number of each PE in the world that this one has replaced.
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

    /// Creates a world whose PEs had the numbers `former` in another world.
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

    /// Returns the backend itself if it is a `B`, for functions that only that backend has.
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
    /// When the call returns, every PE has called, and the memory of every PE may be accessed. The
    /// call is no barrier: it completes no puts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Misuse`](crate::Misuse) after finalize
    /// or for a count that exceeds the address space; [`Error::Mismatch`](crate::Error::Mismatch)
    /// if PEs disagree about the type, the count, the alignment or zeroing.
    #[track_caller]
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc", &self.shared, count, DEFAULT_ALIGN, false, Location::caller())
    }

    /// Like [`World::alloc`], with all elements of every PE set to zero before this returns.
    ///
    /// # Errors
    /// As for [`World::alloc`].
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_zeroed", &self.shared, count, DEFAULT_ALIGN, true, Location::caller())
    }

    /// Like [`World::alloc`], with an offset, and an address on every PE, that are multiples of
    /// `align_bytes`, a power of two.
    ///
    /// # Errors
    /// As for [`World::alloc`]; [`Misuse`](crate::Misuse) if `align_bytes` is not a power of two or
    /// exceeds [`Caps::max_align_bytes`].
    #[track_caller]
    pub fn alloc_aligned<T: Element>(&self, count: usize, align_bytes: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_aligned", &self.shared, count, align_bytes, false, Location::caller())
    }

    /// Returns a handle to `len` elements at `offset` of the heap, within an allocation that was
    /// not released: the inverse of [`Symmetric::offset`], for programs that keep or exchange
    /// offsets. It needs no call of another PE.
    ///
    /// [`Symmetric::release`] accepts a handle to the whole allocation. If every other handle was
    /// dropped, a new one can be made in this way to release it.
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

    /// Like [`World::symmetric_at`], for an address of this PE's heap, such as
    /// [`Symmetric::as_ptr`] and [`Symmetric::device_address`] return. Any value may be passed,
    /// because the address is only compared.
    ///
    /// # Errors
    /// As for [`World::symmetric_at`].
    pub fn symmetric_of<T: Element>(&self, address: *const T, len: usize) -> Result<Symmetric<T>> {
        const CALL: &str = "symmetric_of";
        self.shared.usable(CALL)?;
        // The heap is contiguous, so any allocation tells where it begins.
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

    /// Creates a handle to a stream of the backend, for example to one that wraps a stream of the
    /// device's own library.
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

    /// Ends the whole job at once, whatever its PEs do, with the exit code `code`. Any PE may call
    /// it alone. If several do, the first call counts, on all PEs. This is `MPI_Abort` and
    /// `shmem_global_exit`.
    ///
    /// **PEs as processes:** does not return. Every process of the job exits with the status
    /// `code`, also one that computes, and one that has not yet returned from `World::from_env`.
    /// `peerweave run` returns that code. Other launchers end the job because a process exits with
    /// a status other than 0; their own status is their choice. Destructors do not run on any PE:
    /// neither of Rust values, nor functions registered with `atexit`. Buffered data of Rust's
    /// standard output is written before; the program's own buffered writers and the streams of C
    /// are not flushed. The operating system frees shared memory, sockets and GPU contexts. A
    /// process that has dropped its world no longer belongs to the job, and continues.
    ///
    /// **PEs as threads** (`on_threads`): the process continues. Calls of all PEs fail within
    /// milliseconds with [`Error::Aborted`], waits included, and so does `on_threads` itself when
    /// all PEs have returned. The caller gets the error too, to return it from its program:
    /// destructors run as usual.
    ///
    /// A process that has no world, because it is not part of a job yet, uses
    /// [`std::process::exit`] with a status other than 0, for which launchers end the job.
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

    /// Makes a world of the PEs that are left after a failure, and ends this one. The PEs keep
    /// their order, and are numbered from 0 again; [`World::former_pes`] returns the old numbers.
    /// The new world has a symmetric heap, teams and streams of its own, and the deadline and the
    /// settings of this one. This is `MPIX_Comm_shrink` of MPI's fault tolerance.
    ///
    /// PEs that have died or left are not members, and neither is a PE that dies during this call.
    /// A PE that dies when the members have agreed is still a member: operations of the new world
    /// then fail with an error that names it, and the new world can be shrunk again. If no PE has
    /// failed, the new world has the same PEs.
    ///
    /// # Collective
    /// All PEs that have neither died nor left, in any state of their other calls. When a PE has
    /// called, the others can no longer rely on it in this world: operations between PEs that wait
    /// for it fail soon, with an error that names the PE that died, or [`PeerCause::Shrinks`]. So a
    /// PE that waits for another one does not miss that it must call too. If the call succeeds on
    /// one PE, it succeeds on all members that continue.
    ///
    /// # This world afterwards
    /// If the call succeeds, this world has ended, as after [`World::finalize`], and its calls fail
    /// with [`MisuseKind::Shrunk`](crate::MisuseKind::Shrunk). One kind of call remains: the
    /// methods of [`Symmetric`] that access the memory of this PE (`to_vec`, `copy_to`, `load`,
    /// `store`, `as_slice`, …), so that a PE can carry its data over. After a failure in the midst
    /// of an operation, the memory that this operation writes has unspecified values. The memory of
    /// this world is freed when its last handle is dropped: world, teams, streams and buffers.
    /// Operations of its streams that are pending fail by themselves; this call does not wait for
    /// them.
    ///
    /// If the call fails, this world has not ended, but its teams have failed on this PE: its
    /// collectives, sends and receives fail. The call can be made again, by all.
    ///
    /// # Errors
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline of the world names the PEs that
    ///   have neither called nor ended, or were stopped during the call. After the PEs have agreed,
    ///   making the new world may take up to 3 s longer.
    /// - [`Error::Peer`](crate::Error::Peer) if other PEs have made a new world without this one.
    /// - [`Misuse`](crate::Misuse) if this world has ended.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) on a backend without this call.
    /// - Errors of the backend if the new memory cannot be made.
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
        // Another thread that shrinks this world does so by its deadline; the world has ended then.
        let _shrinking = self.shared.shrinking.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.usable(CALL)?;
        let Shrunk { backend, former } = self.shared.backend.shrink()?;
        self.shared.shrink(CALL)?;
        tracing::debug!(pe = self.my_pe().get(), ?former, "world shrunk");
        Ok(Self::formerly(backend, former))
    }

    /// Returns the number that each PE of this world had in the world that was shrunk to this one,
    /// ascending. In a world that was not made by [`World::shrink`] these are the PEs themselves.
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
    /// The world is borrowed, so threads can share it, or a `static` can hold it, without a lock:
    /// one thread finalizes it, and the others get that error from their next call.
    ///
    /// # Collective
    /// All PEs must call, after their other collective calls. Waits for pending operations of
    /// streams.
    ///
    /// # Threads
    /// Calls that other threads have begun when this call begins stay defined: their memory stays
    /// mapped, and each completes, or fails with the error of a finalized world or of a PE that has
    /// left. A wait for a signal ends soon after the other PEs have finalized. It is unspecified
    /// whether a put that races with this call arrives.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if this world was finalized before, by any thread. The first
    /// failure of a stream-ordered operation that neither its ticket nor its stream has
    /// returned; errors of the backend, such as a peer that died or a deadline. The world has ended
    /// nevertheless. If operations are still pending at the deadline, this is
    /// [`Error::Timeout`](crate::Error::Timeout), which names the call that runs
    /// ([`Timeout::running`](crate::Timeout::running)).
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
