//! Teams whose kernels synchronise and make collective calls. The PEs of a split create the teams
//! together. Each team has a number, which is its index in the team table that kernels read.
//!
//! Invariant: a new team gets a number that is free on every PE. So no kernel of an older team uses
//! the synchronisation lines and the epochs of this number. The members set these lines and epochs
//! to zero before the split returns on any PE.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_driver::{deadline_after, wait};
use peerweave_nvshmem::TeamId;
use peerweave_types::{KernelTeam, Pe, Rank, TeamEntry, TeamShape};

use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::gpu::teams::{Members, Number};

/// An ordered set of PEs that contains the calling PE. The kernels of the members synchronise and
/// make collective calls together.
///
/// [`Gpu::split`] creates teams. Pass the [`kernel_team`](Self::kernel_team) of a team to kernels.
/// The team of all PEs is [`KernelTeam::WORLD`]. Each team has a number. If a team is dropped, its
/// number stays in use. [`destroy`](Self::destroy) frees the number.
pub struct Team {
    gpu: Gpu,
    number: u32,
    members: Arc<Members>,
}

/// The data that each PE sends to all PEs that take part in a split.
struct Part {
    free: u64,
    color: Option<u64>,
    key: i64,
    /// An id that this PE suggests for a new team of NVSHMEM. The new team uses the suggestion of
    /// its first member.
    id: u64,
    /// The call of this PE as text, with the arguments that must be the same on all PEs.
    call: String,
}

impl Part {
    fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.free, u64::from(self.color.is_some()), self.color.unwrap_or(0), self.key.cast_unsigned(), self.id];
        numbers.iter().flat_map(|number| number.to_le_bytes()).chain(self.call.bytes()).collect()
    }

    /// Parses bytes that [`Self::to_bytes`] has created on another PE. Returns `None` if the bytes
    /// are too short.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, call) = bytes.split_at_checked(40)?;
        let number = |index: usize| u64::from_le_bytes(numbers[8 * index..][..8].try_into().expect("eight bytes fit the array"));
        Some(Self {
            free: number(0),
            color: (number(1) != 0).then(|| number(2)),
            key: number(3).cast_signed(),
            id: number(4),
            call: String::from_utf8_lossy(call).into_owned(),
        })
    }
}

/// A function that exchanges bytes among the PEs of a split. It takes a name that identifies the
/// exchange, and the bytes of this PE. It returns the bytes of all PEs.
pub(crate) type Exchange<'a> = dyn Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, CudaError> + 'a;

/// The PEs that take part in a split, and the function by which these PEs exchange bytes.
pub(crate) struct Parent<'a> {
    /// The PEs that take part in the split, in the order of their ranks.
    pub(crate) pes: &'a [Pe],
    /// Exchanges bytes among the PEs, and returns the bytes of each PE in the order of `pes`. A
    /// split calls this function several times, each time with a different name.
    pub(crate) exchange: &'a Exchange<'a>,
}

impl Gpu {
    /// Splits all PEs into teams. The PEs that pass the same color form a team. In a team, ranks
    /// are ordered by key, and by PE number if keys are equal. Returns `None` if this PE passes no
    /// color.
    ///
    /// ```no_run
    /// # fn f(gpu: &peerweave_cuda::Gpu) -> Result<(), peerweave_cuda::CudaError> {
    /// let me = gpu.pe().get();
    /// let pair = gpu.split(Some(u64::from(me / 2)), 0)?.expect("a color was given");
    /// println!("{}: {:?}", gpu.pe(), pair.members());
    /// pair.destroy()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Collective
    /// All PEs. Colors and keys may differ.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if there is no team number that is free on every PE (see
    /// [`GpuOptions::teams`](crate::GpuOptions::teams)), or if PEs make different calls.
    /// [`CudaError::PeFailed`] if the call failed on another PE. Errors of NVSHMEM if the heap is
    /// NVSHMEM's.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Team>, CudaError> {
        self.split_all("Gpu::split", String::new(), color, key)
    }

    /// Creates a team with the PEs of `shape`, in the order of `shape`. Returns `None` on PEs that
    /// are not in `shape`.
    ///
    /// # Collective
    /// All PEs, with the same shape.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for a shape that is empty, contains a PE twice, or contains a PE that
    /// does not exist. The errors of [`split`](Self::split).
    pub fn split_strided(&self, shape: TeamShape) -> Result<Option<Team>, CudaError> {
        const CALL: &str = "Gpu::split_strided";
        if !shape.fits(self.n_pes()) {
            return Err(misuse(
                CALL,
                "the shape",
                format!("{shape:?}"),
                &format!("a shape that contains only the {} PEs of the job, each at most once", self.n_pes()),
            ));
        }
        let index = (0..shape.size).find(|index| shape.member(*index) == Some(self.pe().get()));
        self.split_all(CALL, format!("{shape:?}"), index.map(|_| 0), index.map_or(0, i64::from))
    }

    fn split_all(&self, call: &'static str, arguments: String, color: Option<u64>, key: i64) -> Result<Option<Team>, CudaError> {
        let inner = &*self.0;
        let mut splits = inner.teams.splits.lock().unwrap_or_else(PoisonError::into_inner);
        let label = format!("peerweave-cuda/split/{splits}");
        *splits += 1;
        let pes: Vec<Pe> = (0..self.n_pes()).map(Pe::new).collect();
        let exchange = |step: &str, blob: &[u8]| Ok(inner.rendezvous.exchange(&format!("{label}{step}"), blob)?);
        self.split_among(&Parent { pes: &pes, exchange: &exchange }, call, &arguments, color, key)
    }

    /// Splits the PEs of `parent` into teams. All these PEs must call this function, and this PE
    /// must be one of them.
    ///
    /// # Errors
    /// The errors of [`split`](Self::split).
    pub(crate) fn split_among(
        &self,
        parent: &Parent<'_>,
        call: &'static str,
        arguments: &str,
        color: Option<u64>,
        key: i64,
    ) -> Result<Option<Team>, CudaError> {
        let inner = &*self.0;
        // All PEs take part in both exchanges, even if a PE fails between the exchanges.
        let id = inner.heap.nvshmem().map(|nvshmem| nvshmem.team_id()).transpose();
        let own = Part {
            free: inner.teams.free(),
            color,
            key,
            id: id.as_ref().map_or(0, |id| id.map_or(0, TeamId::to_u64)),
            call: format!("{call} {arguments}"),
        };
        let all = (parent.exchange)("", &own.to_bytes())?;
        let parts = all.iter().map(|bytes| Part::from_bytes(bytes)).collect::<Option<Vec<Part>>>();
        let parts = parts.ok_or_else(|| {
            misuse(
                call,
                "the data that another PE sent for this call",
                "in an unknown format",
                "data from the same version of Peerweave",
            )
        })?;
        if let Some(pe) = parts.iter().position(|part| part.call != own.call) {
            return Err(misuse(
                call,
                "the call of this PE",
                &own.call,
                &format!("the call of {}: {}", parent.pes[pe], parts[pe].call),
            ));
        }
        let free = parts.iter().fold(u64::MAX, |bits, part| bits & part.free);
        if free == 0 {
            let most = inner.teams.numbers().len() - 1;
            let expected = format!(
                "at most {most} (GpuOptions::teams) that exist on any PE of this call; destroy a team first (Team::destroy)"
            );
            return Err(misuse(call, "the number of teams", most + 1, &expected));
        }
        let number = free.trailing_zeros();
        let made = id.map_err(CudaError::from).and_then(|_| match color {
            Some(color) => self.make(number, color, parent.pes, &parts).map(Some),
            None => Ok(None),
        });
        let text = made.as_ref().err().map(CudaError::to_string).unwrap_or_default();
        let outcomes = (parent.exchange)("/made", text.as_bytes())?;
        let made = made?;
        if let Some(pe) = outcomes.iter().position(|text| !text.is_empty()) {
            let message = String::from_utf8_lossy(&outcomes[pe]).into_owned();
            return Err(CudaError::PeFailed { call, pe: parent.pes[pe], message });
        }
        Ok(made.map(|members| {
            inner.teams.set(number, Number::Live(Arc::clone(&members)));
            Team { gpu: self.clone(), number, members }
        }))
    }

    /// Sets up a new team on this PE. Sets the team's synchronisation lines to zero: members write
    /// to these lines to synchronise. Then writes the team's entry to the team table.
    fn make(&self, number: u32, color: u64, parents: &[Pe], parts: &[Part]) -> Result<Arc<Members>, CudaError> {
        let inner = &*self.0;
        let mut ranks: Vec<usize> = (0..parts.len()).filter(|rank| parts[*rank].color == Some(color)).collect();
        ranks.sort_by_key(|rank| (parts[*rank].key, *rank));
        let members: Vec<Pe> = ranks.iter().map(|rank| parents[*rank]).collect();
        let pes: Vec<u32> = members.iter().map(|pe| pe.get()).collect();
        let rank = members.iter().position(|pe| *pe == self.pe()).expect("the PEs with the color of this PE include this PE");
        let nvshmem = match inner.heap.nvshmem() {
            Some(nvshmem) => {
                let id = TeamId::from_u64(parts[ranks[0]].id);
                Some(nvshmem.team_of(id, &members, peerweave_nvshmem::TeamConfig::default())?)
            }
            None => None,
        };
        let handle = nvshmem.as_ref().map_or(TeamEntry::NO_HANDLE, peerweave_nvshmem::Team::raw);
        let mut tables = inner.tables.lock().unwrap_or_else(PoisonError::into_inner);
        inner.sync.zero_range(&inner.stream, tables.lines_of(number))?;
        // `write_team` waits for its copies. The zeros are written before these copies on the same
        // stream, so the zeros are complete too.
        tables.write_team(&inner.stream, number, &pes, handle)?;
        Ok(Arc::new(Members {
            pes: members,
            rank: Rank::new(rank as u32),
            nvshmem: Mutex::new(nvshmem),
            streams: Mutex::default(),
        }))
    }
}

impl Team {
    /// Returns the argument that identifies this team in a kernel.
    pub fn kernel_team(&self) -> KernelTeam {
        KernelTeam::new(self.number)
    }

    /// Returns the rank of this PE in the team.
    pub fn rank(&self) -> Rank {
        self.members.rank
    }

    /// Returns the number of members of the team.
    pub fn size(&self) -> usize {
        self.members.pes.len()
    }

    /// Returns the PEs of the team in the order of ranks.
    pub fn members(&self) -> &[Pe] {
        &self.members.pes
    }

    /// Waits until the streams of this PE have completed the kernels that were launched with the
    /// team, and then destroys the team. After all members have destroyed the team, a new team can
    /// get its number.
    ///
    /// # Collective
    /// All members.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if a graph uses the team, or while another thread launches a kernel
    /// with the team. [`CudaError::Stuck`] if kernels do not end by the deadline. In both cases,
    /// the number of the team stays in use. Errors of NVSHMEM if the heap is NVSHMEM's.
    pub fn destroy(self) -> Result<(), CudaError> {
        const CALL: &str = "Team::destroy";
        let Self { gpu, number, members } = self;
        let inner = &*gpu.0;
        if !inner.teams.end(number, &members) {
            return Err(misuse(CALL, "the team", "in use", "a team that no graph and no concurrent launch uses"));
        }
        let deadline = deadline_after(inner.deadline);
        let streams = std::mem::take(&mut *members.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in &streams {
            if !wait(stream, deadline)? {
                return Err(CudaError::Stuck { call: CALL, waited: inner.deadline });
            }
        }
        if let Some(nvshmem) = members.nvshmem.lock().unwrap_or_else(PoisonError::into_inner).take() {
            nvshmem.destroy()?;
        }
        inner.teams.set(number, Number::Free);
        Ok(())
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, pes) = (self.members.rank, &self.members.pes);
        write!(f, "Team({}, {rank} of {pes:?})", self.number)
    }
}
