//! The argument that all kernels take, [`Exchange`]. It describes the memory of an exchange and the
//! layout of that memory. This module also has the limits and the exit codes of the kernels.

use peerweave_device::prelude::*;

/// Maximum number of ranks. Kernels use a 64-bit word for each token, with one bit for each rank.
pub const MAX_RANKS: usize = 64;

/// Maximum number of experts for each token. Kernels use a 32-bit word for each token, with one bit
/// for each of the token's experts.
pub const MAX_TOP_K: usize = 32;

/// Maximum number of experts on each rank.
pub const MAX_LOCAL_EXPERTS: usize = 512;

/// The value that stands for no expert, no rank or no row.
pub const NOTHING: u32 = u32::MAX;

/// Parameters of an exchange of tokens between ranks: the numbers of ranks, experts and tokens, and
/// sizes in 16-byte lines.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Layout {
    /// Number of ranks.
    pub ranks: u32,
    /// Rank of this PE in the team.
    pub rank: u32,
    /// Number of experts on each rank.
    pub local_experts: u32,
    /// Number of experts for each token.
    pub top_k: u32,
    /// Maximum number of tokens that a rank sends in one dispatch.
    pub max_tokens: u32,
    /// Number of 16-byte lines in a token.
    pub token_lines: u32,
    /// Number of 16-byte lines that the scales of a token occupy.
    pub scale_lines: u32,
    /// Number of 16-byte lines that the result for a token occupies.
    pub result_lines: u32,
}

/// The memory and the sizes that a dispatch and the following combination use.
///
/// All memory is symmetric. A rank writes to the [`inbox`](Self::inbox) and to the
/// [`returns`](Self::returns) of other ranks. A rank accesses the other fields only in its own
/// memory.
///
/// An *entry* stands for one of the experts of one token. For each rank there are
/// `max_tokens * top_k` entries.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Exchange {
    /// Memory for tokens that arrive from other ranks. The memory has two banks, and dispatches use
    /// the two banks alternately. In each bank, every sending rank has a routing table and
    /// `max_tokens` rows.
    pub inbox: SymSlice<u128>,
    /// Memory for results that arrive from other ranks. For each sending rank there are
    /// `max_tokens` rows.
    pub returns: SymSlice<u128>,
    /// The entries of all ranks: one for each expert of each token. The lower half of an entry is
    /// the index of the expert among the experts of this rank, or [`NOTHING`]. The upper half holds
    /// the bits of the weight.
    pub entries: SymSlice<u64>,
    /// For each element of [`Self::entries`]: the index of a row on this rank, or [`NOTHING`] if
    /// the expert of the entry is not on this rank. The token of the entry is stored in this row.
    pub places: SymSlice<u32>,
    /// For each expert of each token that this rank sends: the rank that has the expert, or
    /// [`NOTHING`] if there is no expert.
    pub routes: SymSlice<u32>,
    /// For each rank, the number of tokens that it sent in one dispatch: the last dispatch that
    /// this rank has received.
    pub counts: SymSlice<u32>,
    /// One word: the number of dispatches that this rank has received.
    pub counter: SymSlice<u64>,
    /// The content of a line of [`Self::inbox`] or [`Self::returns`] whose data has not arrived.
    pub sentinel: u128,
    /// Number of ranks, experts and tokens in the exchange. Also contains the sizes of a token and
    /// of its result, in 16-byte lines.
    pub layout: Layout,
}

impl core::ops::Deref for Exchange {
    type Target = Layout;

    #[inline(always)]
    fn deref(&self) -> &Layout {
        &self.layout
    }
}

/// Returns the number of 16-byte lines in a routing table with `entries` entries. The first line
/// holds the number of tokens, and each of the other lines holds two entries.
pub const fn table_lines(entries: u64) -> u64 {
    1 + entries.div_ceil(2)
}

impl Layout {
    /// Returns the number of entries for the tokens of one rank: `top_k` for each of `max_tokens`
    /// tokens.
    #[inline(always)]
    pub fn entries_per_rank(&self) -> u64 {
        u64::from(self.max_tokens) * u64::from(self.top_k)
    }

    /// Returns the number of 16-byte lines in a token's row, which holds the token and then the
    /// token's scales.
    #[inline(always)]
    pub fn row_lines(&self) -> u64 {
        u64::from(self.token_lines) + u64::from(self.scale_lines)
    }

    /// Returns the number of 16-byte lines for each sending rank in one of the two banks of the
    /// inbox.
    #[inline(always)]
    fn lines_per_rank(&self) -> u64 {
        table_lines(self.entries_per_rank()) + u64::from(self.max_tokens) * self.row_lines()
    }

    /// Returns the number of 16-byte lines in [`Exchange::inbox`].
    pub fn inbox_lines(&self) -> u64 {
        2 * u64::from(self.ranks) * self.lines_per_rank()
    }

    /// Returns the number of 16-byte lines in [`Exchange::returns`].
    pub fn returns_lines(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.max_tokens) * u64::from(self.result_lines)
    }

    /// Returns the number of the line in [`Exchange::inbox`] at which the routing table from rank
    /// `rank` starts. The inbox has two banks, which consecutive dispatches use alternately.
    /// Callers pass the number of the dispatch as `bank`: the lowest bit selects the bank.
    #[inline(always)]
    pub(crate) fn table(&self, bank: u64, rank: u32) -> u64 {
        ((bank & 1) * u64::from(self.ranks) + u64::from(rank)) * self.lines_per_rank()
    }

    /// Returns the number of the line in [`Exchange::inbox`] at which the row for token `token`
    /// from rank `rank` starts. The lowest bit of `bank` selects a bank of the inbox, as in
    /// [`Self::table`].
    #[inline(always)]
    pub(crate) fn row(&self, bank: u64, rank: u32, token: u64) -> u64 {
        self.table(bank, rank) + table_lines(self.entries_per_rank()) + token * self.row_lines()
    }

    /// Returns the number of the line in [`Exchange::returns`] at which a result from rank `rank`
    /// starts. The result belongs to token `token` among the tokens of the receiving rank.
    #[inline(always)]
    pub(crate) fn result(&self, rank: u32, token: u64) -> u64 {
        (u64::from(rank) * u64::from(self.max_tokens) + token) * u64::from(self.result_lines)
    }

    /// Returns the index in [`Exchange::entries`] at which the entries of token `token` from rank
    /// `rank` start.
    #[inline(always)]
    pub(crate) fn entry(&self, rank: u32, token: u64) -> usize {
        (u64::from(rank) * self.entries_per_rank() + token * u64::from(self.top_k)) as usize
    }
}

/// Exit code of a kernel: this PE does not map the memory of a rank.
pub const NOT_MAPPED: u64 = 1 << 32;

/// Exit code of a kernel: a token names an expert that does not exist. The low 32 bits of the exit
/// code are the number of this expert.
pub const NO_SUCH_EXPERT: u64 = 2 << 32;

/// Exit code of a kernel: a token names an expert twice. The low 32 bits of the exit code are the
/// number of this expert.
pub const REPEATED_EXPERT: u64 = 3 << 32;
