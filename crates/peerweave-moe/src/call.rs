//! The argument of every kernel, and the places of its memory.

use crate::line::Lines;
use peerweave_device::gpu::{self, Fence, Sys};
use peerweave_device::prelude::*;

/// Maximum number of ranks: the ranks of a token are bits of a word.
pub const MAX_RANKS: usize = 64;

/// Maximum number of experts of a token: they are bits of a word.
pub const MAX_TOP_K: usize = 32;

/// Maximum number of experts of a rank.
pub const MAX_LOCAL_EXPERTS: usize = 512;

/// The value of an entry or of a place that names nothing.
pub const NOTHING: u32 = u32::MAX;

/// The numbers of an exchange.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Layout {
    /// Number of ranks.
    pub ranks: u32,
    /// Rank of this PE in the team.
    pub rank: u32,
    /// Number of experts of each rank.
    pub local_experts: u32,
    /// Number of experts of a token.
    pub top_k: u32,
    /// Maximum number of tokens of a rank.
    pub max_tokens: u32,
    /// Number of lines of a token.
    pub token_lines: u32,
    /// Number of lines of the scales of a token.
    pub scale_lines: u32,
    /// Number of lines of a result.
    pub result_lines: u32,
}

/// The memory and the numbers of a dispatch and of its combination.
///
/// All memory is symmetric, though ranks access only [`inbox`](Self::inbox) and
/// [`returns`](Self::returns) of other ranks. The entries of a rank are those of all its tokens:
/// `max_tokens * top_k`.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Exchange {
    /// Two banks of arriving tokens, each with a table and rows of each rank.
    pub inbox: SymSlice<u128>,
    /// Arriving results, rows of each rank.
    pub returns: SymSlice<u128>,
    /// For each rank, its entries: the index of the expert on this rank or [`NOTHING`], and in the
    /// upper half the bits of the weight.
    pub entries: SymSlice<u64>,
    /// For each rank and entry, the row of the token for that expert, or [`NOTHING`].
    pub places: SymSlice<u32>,
    /// For each entry of this rank, the rank of the expert, or [`NOTHING`].
    pub routes: SymSlice<u32>,
    /// For each rank, the number of its tokens.
    pub counts: SymSlice<u32>,
    /// One word: the number of dispatches that this rank has received.
    pub counter: SymSlice<u64>,
    /// The content of a line that has not arrived.
    pub sentinel: u128,
    /// The numbers.
    pub layout: Layout,
}

impl core::ops::Deref for Exchange {
    type Target = Layout;

    #[inline(always)]
    fn deref(&self) -> &Layout {
        &self.layout
    }
}

/// Returns the number of lines of a table with this number of entries: the number of tokens, then
/// two entries in each line.
pub const fn table_lines(entries: u64) -> u64 {
    1 + entries.div_ceil(2)
}

impl Layout {
    /// Returns the number of entries of a rank.
    #[inline(always)]
    pub fn entries_per_rank(&self) -> u64 {
        u64::from(self.max_tokens) * u64::from(self.top_k)
    }

    /// Returns the number of lines of the row of a token: the token, then its scales.
    #[inline(always)]
    pub fn row_lines(&self) -> u64 {
        u64::from(self.token_lines) + u64::from(self.scale_lines)
    }

    /// Returns the number of lines of one rank in a bank.
    #[inline(always)]
    fn lines_per_rank(&self) -> u64 {
        table_lines(self.entries_per_rank()) + u64::from(self.max_tokens) * self.row_lines()
    }

    /// Returns the number of lines of the inbox.
    pub fn inbox_lines(&self) -> u64 {
        2 * u64::from(self.ranks) * self.lines_per_rank()
    }

    /// Returns the number of lines of the returns.
    pub fn returns_lines(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.max_tokens) * u64::from(self.result_lines)
    }

    /// Returns the index in the inbox of the table of a rank.
    #[inline(always)]
    pub(crate) fn table(&self, bank: u64, rank: u32) -> u64 {
        ((bank & 1) * u64::from(self.ranks) + u64::from(rank)) * self.lines_per_rank()
    }

    /// Returns the index in the inbox of the row of a token of a rank.
    #[inline(always)]
    pub(crate) fn row(&self, bank: u64, rank: u32, token: u64) -> u64 {
        self.table(bank, rank) + table_lines(self.entries_per_rank()) + token * self.row_lines()
    }

    /// Returns the index in the returns of the row that a rank sends for a token.
    #[inline(always)]
    pub(crate) fn result(&self, rank: u32, token: u64) -> u64 {
        (u64::from(rank) * u64::from(self.max_tokens) + token) * u64::from(self.result_lines)
    }

    /// Returns the index of the first entry of a token of a rank.
    #[inline(always)]
    pub(crate) fn entry(&self, rank: u32, token: u64) -> usize {
        (u64::from(rank) * self.entries_per_rank() + token * u64::from(self.top_k)) as usize
    }
}

impl Exchange {
    /// Returns the lines of this rank's inbox, or of its returns.
    #[inline(always)]
    pub(crate) fn own(&self, ctx: &Context, of: SymSlice<u128>) -> Lines {
        // SAFETY: symmetric memory of this PE, which only kernels of this crate access, by lines.
        unsafe { Lines::at(ctx.local(of).address()) }
    }
}

/// Returns the PE of a rank. Fails the kernel if the team does not have the rank.
#[inline(always)]
pub(crate) fn pe_of(ctx: &Context, team: KernelTeam, rank: u32) -> u32 {
    ctx.team_pe(team, rank).unwrap_or(u32::MAX)
}

/// The addresses at which this block reaches symmetric memory of all ranks, in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Peers(SharedSlice<u64>);

impl Peers {
    /// Looks up the addresses. All threads of the block call it.
    ///
    /// # Errors
    /// If the memory of a rank is not mapped here; on all threads.
    #[inline(always)]
    pub(crate) fn find(ctx: &Context, exchange: &Exchange, team: KernelTeam, of: SymSlice<u128>) -> Result<Self, Failed> {
        let addresses = peerweave_device::shared_array!(PEERS: [u64; MAX_RANKS]);
        let mut failed = false;
        let mut rank = gpu::thread_rank();
        while rank < exchange.ranks {
            let mapped = ctx.get_peer_array(of, pe_of(ctx, team, rank));
            failed |= mapped.is_none();
            addresses.write(rank as usize, mapped.map_or(0, DeviceSlice::address));
            rank += gpu::block_threads();
        }
        if gpu::sync_threads_or(failed) { Err(ctx.exit(NOT_MAPPED)) } else { Ok(Self(addresses)) }
    }

    /// Returns the lines of a rank.
    #[inline(always)]
    pub(crate) fn lines(self, rank: u32) -> Lines {
        // SAFETY: the same symmetric memory on another PE, whose address `find` looked up.
        unsafe { Lines::at(self.0.read(rank as usize)) }
    }
}

/// Code of a failure: the memory of a rank is not mapped.
pub const NOT_MAPPED: u64 = 1 << 32;

/// Code of a failure, plus the bits of the number: an expert of a token does not exist.
pub const NO_SUCH_EXPERT: u64 = 2 << 32;

/// Code of a failure, plus the number: an expert occurs twice in one token.
pub const REPEATED_EXPERT: u64 = 3 << 32;

/// Orders the accesses of one kernel before those of the next one on another rank that has received
/// a line of this rank. On GPUs the start of a kernel does.
#[inline(always)]
pub(crate) fn order() {
    if !cfg!(target_arch = "nvptx64") {
        <Sys as Fence>::acq_rel();
    }
}
