//! The context of a kernel that runs in this process: the tables of PEs and teams, the status and
//! the abort word.
//!
//! Invariant: a table is written before a kernel uses it. Tables are never moved, so their
//! addresses stay valid.

use peerweave_types::{FailureKind, KernelContext, KernelOp, KernelStatus, Pe, PeerEntry, SymOffset, TeamEntry};
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Epochs of a team on one PE. The epoch at index `b` counts the synchronisations that block `b`
/// has completed. The epochs persist across launches.
pub type Epochs = Box<[AtomicU64]>;

/// The description of a team, as an argument of [`ContextMemory::new`].
#[derive(Clone, Copy, Debug)]
pub struct TeamTable<'a> {
    /// Numbers of the PEs of the team, ordered by rank; empty if the team number is unused.
    pub members: &'a [u32],
    /// Offset of the team's synchronisation words in every heap. The words have
    /// [`TeamEntry::sync_bytes`] bytes, which are initially zero.
    pub sync: SymOffset,
    /// Epochs of the team on this PE ([`Epochs`]): one for each block that can synchronise. All
    /// epochs are zero before the first launch.
    pub epochs: &'a [AtomicU64],
}

/// The context of a launch on one PE, and the tables to which the context points. The heaps and the
/// epochs belong to the caller.
#[derive(Debug)]
pub struct ContextMemory {
    /// The context whose address the kernels get. The context and the tables below are boxed, so
    /// their addresses do not change when this struct is moved.
    context: Box<KernelContext>,
    words: Box<Words>,
    peers: Box<[PeerEntry]>,
    members: Vec<Box<[u32]>>,
    teams: Box<[TeamEntry]>,
    /// PEs that have left the job. Word 0 contains the number of these PEs, and the following words
    /// have one bit for each PE of the job.
    gone: Box<[AtomicU64]>,
}

/// Words by which the kernel and the host communicate: the status and the abort word.
struct Words {
    status: UnsafeCell<KernelStatus>,
    abort: AtomicU32,
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("abort", &self.abort).finish_non_exhaustive()
    }
}

impl ContextMemory {
    /// Creates the context of a launch on `my_pe`. The heaps of all PEs are mapped: `bases`
    /// contains their addresses in this process. Each heap has `heap_bytes` bytes. `teams[0]` must
    /// be the team of all PEs.
    ///
    /// # Safety
    /// While a kernel uses the context, the heaps stay mapped, and the `epochs` of the teams stay
    /// allocated.
    pub unsafe fn new(my_pe: Pe, heap_bytes: u64, bases: &[u64], teams: &[TeamTable<'_>], deadline: Duration) -> Self {
        let peers: Box<[PeerEntry]> =
            (0..).zip(bases).map(|(node_pe, &base)| PeerEntry { base, node_pe, transport: PeerEntry::MAPPED }).collect();
        let members: Vec<Box<[u32]>> = teams.iter().map(|team| team.members.into()).collect();
        let entries: Box<[TeamEntry]> = teams.iter().zip(&members).map(|(team, members)| entry(team, members, my_pe)).collect();
        let gone: Box<[AtomicU64]> = (0..1 + bases.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let words = Box::new(Words { status: UnsafeCell::new(KernelStatus::default()), abort: AtomicU32::new(0) });
        let context = Box::new(KernelContext {
            version: KernelContext::VERSION,
            my_pe: my_pe.get(),
            n_pes: bases.len() as u32,
            node_pe: my_pe.get(),
            node_n_pes: bases.len() as u32,
            n_teams: entries.len() as u32,
            capabilities: 0,
            reserved: 0,
            heap_bytes,
            peers: peers.as_ptr().expose_provenance() as u64,
            teams: entries.as_ptr().expose_provenance() as u64,
            status: words.status.get().expose_provenance() as u64,
            abort: words.abort.as_ptr().expose_provenance() as u64,
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            multicast: 0,
            gone: gone.as_ptr().expose_provenance() as u64,
        });
        Self { context, words, peers, members, teams: entries, gone }
    }

    /// Divides the PEs into emulated machines of `size` PEs each. The PEs on this PE's machine stay
    /// mapped. This PE reaches all other PEs over the network. Must be called before a kernel uses
    /// the context.
    pub(crate) fn map_machine(&mut self, size: u32) {
        let first = self.context.my_pe - self.context.my_pe % size;
        let machine = first..(first + size).min(self.context.n_pes);
        for (pe, entry) in (0..).zip(&mut self.peers) {
            entry.node_pe = pe % size;
            if !machine.contains(&pe) {
                (entry.base, entry.transport) = (0, PeerEntry::NETWORK);
            }
        }
        for (entry, members) in self.teams.iter_mut().zip(&self.members) {
            entry.all_mapped = u32::from(members.iter().all(|pe| machine.contains(pe)));
        }
        self.context.node_pe = self.context.my_pe - machine.start;
        self.context.node_n_pes = machine.end - machine.start;
        self.context.capabilities |= KernelContext::CAN_NETWORK;
    }

    /// Returns the address of the context, which is the first argument of the kernel's entry.
    pub fn as_ptr(&self) -> *const KernelContext {
        &raw const *self.context
    }

    /// Makes the launch's pending and later waits fail with [`FailureKind::Aborted`].
    pub fn abort(&self) {
        self.words.abort.store(1, Ordering::Release);
    }

    /// Records that `pe` has left the job. After this call, waits for `pe` fail with
    /// [`FailureKind::Aborted`]. Call this method only after the last write of `pe`, so that waits
    /// for data that `pe` has written still succeed.
    pub fn mark_gone(&self, pe: Pe) {
        let bit = 1 << (pe.index() % 64);
        if self.gone[1 + pe.index() / 64].fetch_or(bit, Ordering::Release) & bit == 0 {
            self.gone[0].fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether [`mark_gone`](Self::mark_gone) has been called for `pe`.
    pub fn is_gone(&self, pe: Pe) -> bool {
        self.gone.get(1 + pe.index() / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (pe.index() % 64) & 1 != 0)
    }

    /// Returns the failure that a thread of the launch has reported, if any.
    ///
    /// The read is not atomic, so no thread of the launch may run during the call. Therefore this
    /// method takes `&mut self`.
    pub fn report(&mut self) -> Option<Report> {
        let status = *self.words.status.get_mut();
        (status.kind != 0).then_some(Report(status))
    }
}

fn entry(team: &TeamTable<'_>, members: &[u32], my_pe: Pe) -> TeamEntry {
    let rank = members.iter().position(|&pe| pe == my_pe.get());
    TeamEntry {
        my_rank: rank.map_or(TeamEntry::NOT_A_MEMBER, |rank| rank as u32),
        size: members.len() as u32,
        members: members.as_ptr().expose_provenance() as u64,
        sync: team.sync,
        epochs: team.epochs.as_ptr().expose_provenance() as u64,
        slots: team.epochs.len() as u32,
        nvshmem_team: TeamEntry::NO_HANDLE,
        all_mapped: 1,
        reserved: 0,
    }
}

/// The report of the first failure in a launch. The field is the status that the failed thread
/// wrote.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Report(pub KernelStatus);

/// Prints the message of [`Display`](fmt::Display) in parentheses. A failed `unwrap` prints its
/// error by `Debug`, so the output of a failed test contains this message.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Report({self})")
    }
}

impl Report {
    /// Returns the PE that is missing or unreachable, if the report names a PE.
    pub fn missing_pe(&self) -> Option<Pe> {
        self.0.missing_pe()
    }

    /// Returns the code that the kernel passed to `Context::exit`; `None` if the kernel failed for
    /// another reason.
    pub fn exit_code(&self) -> Option<u64> {
        (self.kind() == Some(FailureKind::Exit)).then_some(self.0.found)
    }

    /// Returns the kind of failure; `None` if the number in the status is not the number of a kind.
    pub fn kind(&self) -> Option<FailureKind> {
        FailureKind::from_number(self.0.kind)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.0;
        match KernelOp::from_number(status.operation) {
            Some(operation) => write!(f, "{operation}: ")?,
            None => write!(f, "operation {}: ", status.operation)?,
        }
        match self.kind() {
            Some(kind) => write!(f, "{kind}")?,
            None => write!(f, "failure {}", status.kind)?,
        }
        if let Some(pe) = self.missing_pe() {
            write!(f, "; {pe}")?;
        }
        if status.team != KernelStatus::NONE {
            write!(f, "; team {}", status.team)?;
        }
        match self.kind() {
            Some(FailureKind::Exit) => write!(f, ", code {}", status.found)?,
            Some(FailureKind::NoSuchPeer) if self.missing_pe().is_some() => {
                write!(f, ", expected a PE below {}", status.expected)?
            }
            _ if status.expected != status.found => write!(f, "; found {}, expected {}", status.found, status.expected)?,
            _ => {}
        }
        write!(f, " (block {}, thread {})", status.block, status.thread)
    }
}
