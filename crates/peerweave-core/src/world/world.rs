//! The job as one PE sees it: who takes part, memory, streams, the end. What moves data is a method of a team.

use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::{Backend, Caps, TeamId, TeamRecord};
use crate::shared::{FinalizeReport, Shared};
use crate::world::stream::Stream;
use crate::world::team::Team;
use peerweave_types::{Element, HeapGeometry, Pe};
use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// This PE's part in a job.
///
/// Teams, buffers and streams made from it keep what they need alive: they work on when it is dropped, and memory they name stays mapped.
/// [`World::finalize`] ends the job in order; without it, peers learn that this PE left when its last handle is dropped.
#[derive(Debug)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
    team: Team,
    pub(crate) local_team: Mutex<Option<Team>>,
}

/// What is given where no alignment is asked for.
const DEFAULT_ALIGN: usize = 64;

impl World {
    /// Starts from a backend that has joined its job. One backend serves one world.
    ///
    /// # Errors
    /// None today; backends report theirs when they are made.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        let shared = Arc::new(Shared::new(backend));
        let members = (0..shared.n_pes as u32).map(Pe::new).collect();
        let team = Team::new(&shared, TeamRecord { id: TeamId::WORLD, members }, true);
        tracing::debug!(backend = shared.backend.name(), pe = shared.my_pe.get(), n_pes = shared.n_pes, "world made");
        Ok(Self { shared, team, local_team: Mutex::new(None) })
    }

    /// This PE.
    #[inline]
    pub fn my_pe(&self) -> Pe {
        self.shared.my_pe
    }

    /// Number of PEs of the job.
    #[inline]
    pub fn n_pes(&self) -> usize {
        self.shared.n_pes
    }

    /// The index of this PE among those of its machine, counted from 0: which GPU or core to take.
    pub fn local_index(&self) -> usize {
        self.local_pes().iter().position(|&pe| pe == self.my_pe()).expect("backend bug: this PE is not of its own machine")
    }

    /// The PEs of this machine, ascending.
    pub fn local_pes(&self) -> &[Pe] {
        &self.shared.backend.job().local
    }

    /// The name of what moves the data: `host`, `cuda`, `noop`.
    pub fn backend_name(&self) -> &'static str {
        self.shared.backend.name()
    }

    /// What the backend does, and how.
    pub fn caps(&self) -> &Caps {
        self.shared.backend.caps()
    }

    /// How the symmetric heap is mapped in this process.
    pub fn geometry(&self) -> HeapGeometry {
        self.shared.backend.geometry()
    }

    /// The backend itself, where it is a `B`: for what only that one offers.
    pub fn backend<B: Backend>(&self) -> Option<&B> {
        let backend: &dyn Any = &*self.shared.backend;
        backend.downcast_ref()
    }

    /// What is under way or waited for, in words, for people.
    pub fn describe(&self) -> String {
        if self.shared.is_forked() {
            return format!("a forked child of {} of {}, which has no part in the job", self.my_pe(), self.n_pes());
        }
        self.shared.backend.describe()
    }

    /// The team of all PEs: rank `r` is PE `r`.
    #[inline]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Allocates `count` elements of symmetric memory. Their values are any.
    ///
    /// # Collective
    /// All PEs, with the same type and count, in the same order as their other allocations and releases.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Misuse`](crate::Misuse) after finalize or for a count that fits no address space;
    /// [`Error::Mismatch`](crate::Error::Mismatch) where PEs disagree.
    #[track_caller]
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc", &self.shared, count, DEFAULT_ALIGN, false, Location::caller())
    }

    /// As [`World::alloc`], with all elements zero on every PE when this returns.
    ///
    /// # Errors
    /// As [`World::alloc`].
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_zeroed", &self.shared, count, DEFAULT_ALIGN, true, Location::caller())
    }

    /// As [`World::alloc`], at an offset and, on every PE, at an address that are multiples of `align_bytes`, which is a power of two.
    ///
    /// # Errors
    /// As [`World::alloc`]; [`Misuse`](crate::Misuse) where `align_bytes` is no power of two, or more than
    /// [`Caps::max_align_bytes`].
    #[track_caller]
    pub fn alloc_aligned<T: Element>(&self, count: usize, align_bytes: usize) -> Result<Symmetric<T>> {
        Symmetric::allocate("alloc_aligned", &self.shared, count, align_bytes, false, Location::caller())
    }

    /// A new ordered queue of operations of this PE.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; what the backend reports.
    pub fn stream(&self) -> Result<Stream> {
        self.shared.usable("stream")?;
        Ok(Stream { shared: self.shared.clone(), inner: self.shared.backend.stream()? })
    }

    /// Ends this PE's part in the job and tells what was not released. Every handle that is still alive fails from now on.
    ///
    /// # Collective
    /// All PEs, after their other calls. Waits for what is under way.
    ///
    /// # Errors
    /// What the backend reports, a peer that died or a deadline among it: the world has ended nevertheless.
    pub fn finalize(self) -> Result<FinalizeReport> {
        self.shared.usable("finalize")?;
        let report = self.shared.report();
        for buffer in &report.leaked {
            tracing::warn!(pe = self.shared.my_pe.get(), "symmetric buffer not released: {buffer}");
        }
        self.shared.end();
        self.shared.backend.finalize()?;
        Ok(report)
    }
}
