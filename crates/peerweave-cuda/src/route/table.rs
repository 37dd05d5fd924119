//! The route table. Its rows select an algorithm or a library for a collective by the size of the
//! call. Its thresholds are sizes for other choices, such as the size from which a broadcast is
//! scattered.

use std::fmt;

use peerweave_collectives::{Algorithm, LINE_BYTES, MAX_RANKS};
use peerweave_core::backend::CollectiveKind;

use super::{Limits, Provider, Route, holds, lines_of};

/// A route-table row that describes Peerweave's kernels: the algorithm and the launch shape for
/// calls up to a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnRow {
    /// The numbers of ranks to which the row applies: the smallest and the largest.
    pub(super) ranks: (u32, u32),
    /// The largest call to which the row applies, in bytes. If no row applies to a call, the last
    /// row for the number of ranks is used.
    pub(super) up_to: u64,
    pub(super) algorithm: Algorithm,
    pub(super) blocks: u32,
    pub(super) threads: u32,
}

/// A route-table row that chooses a library: the sizes of calls for which the library is faster
/// than Peerweave's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LibraryRow {
    pub(super) library: Provider,
    pub(super) kind: CollectiveKind,
    pub(super) ranks: (u32, u32),
    /// The sizes of calls to which the row applies, in bytes: the smallest and the largest.
    pub(super) bytes: (u64, u64),
}

/// The thresholds of a route table, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    /// Maximum size of a call whose kernel may begin before the previous kernel in the stream has
    /// ended. The blocks of a larger call would occupy SMs that blocks of the previous kernel still
    /// need.
    pub(super) programmatic_up_to: u64,
    /// Maximum size of an all_gather or all_to_all that sends its parts as 16-byte lines. Larger
    /// calls send their parts as messages, and so do calls whose parts do not fit into a bank (a
    /// buffer in which a rank receives data). The size is the total size of all parts.
    pub(super) parts_by_lines_up_to: u64,
    /// Minimum size of a broadcast that is scattered: the root sends a different part to each rank,
    /// and each rank sends its part to the other ranks. A broadcast in a team of two ranks is never
    /// scattered.
    pub(super) broadcast_scattered_from: u64,
}

impl Thresholds {
    /// The names of the thresholds in the text of a route table, in the order of [`Self::values`].
    pub(super) const NAMES: [&str; 3] = ["programmatic_up_to", "parts_by_lines_up_to", "broadcast_scattered_from"];

    pub(super) fn values(&self) -> [u64; 3] {
        [self.programmatic_up_to, self.parts_by_lines_up_to, self.broadcast_scattered_from]
    }

    pub(super) fn of([programmatic_up_to, parts_by_lines_up_to, broadcast_scattered_from]: [u64; 3]) -> Self {
        Self { programmatic_up_to, parts_by_lines_up_to, broadcast_scattered_from }
    }
}

/// The route table for GPUs of one architecture, with the fastest algorithm or library for each
/// call.
///
/// [`builtin`](Self::builtin) returns the built-in tables, which are in the folder `routes` of this
/// crate. `peerweave tune` measures a table on the GPUs of a machine and writes the table to a
/// file. [`read`](Self::read) reads such a file, and `Display` writes a table as the text of such a
/// file.
///
/// ```
/// use peerweave_cuda::RouteTable;
///
/// let table = RouteTable::builtin("sm_90");
/// let again = RouteTable::parse("copy", &table.to_string())?;
/// assert_eq!((again.arch(), again.name()), ("sm_90", "copy"));
/// assert_eq!(again.digest(), table.digest(), "the same rows and thresholds");
/// # Ok::<(), peerweave_cuda::RoutesError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RouteTable {
    /// The path of the table's file, or the name of a built-in table.
    pub(super) name: String,
    pub(super) arch: String,
    pub(super) thresholds: Thresholds,
    pub(super) own: Vec<OwnRow>,
    pub(super) libraries: Vec<LibraryRow>,
}

/// The text of the default built-in table. [`RouteTable::builtin`] uses this table for every
/// architecture that has no built-in table of its own.
const ANY: &str = include_str!("../../routes/any.routes");
const SM_90: &str = include_str!("../../routes/sm_90.routes");

impl RouteTable {
    /// Returns the built-in table for an architecture, such as `sm_90`. If the architecture has no
    /// table of its own, returns the default built-in table, whose architecture is `any`.
    pub fn builtin(arch: &str) -> Self {
        let (name, text) = match arch {
            "sm_90" => ("the built-in table sm_90", SM_90),
            _ => ("the built-in table for any architecture", ANY),
        };
        Self::parse(name, text).unwrap_or_else(|error| panic!("peerweave-cuda bug: {error}"))
    }

    /// Returns the path of the table's file, or the name of the built-in table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the architecture of the GPUs to which the table applies, such as `sm_90`, or `any`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Returns the rows and thresholds as text, so that PEs can compare their tables.
    pub fn digest(&self) -> String {
        self.to_string()
    }

    /// Returns the first row for Peerweave's kernels that is valid for calls of `bytes` bytes and
    /// fits the staging memory. If there is no such row, returns the last row, if it fits the
    /// staging memory. If `algorithm` is not `None`, considers only rows with this algorithm.
    pub(super) fn own_row(&self, bytes: u64, limits: &Limits, algorithm: Option<Algorithm>) -> Option<&OwnRow> {
        let fits = |row: &OwnRow| holds(row.algorithm, lines_of(bytes), limits);
        let rows = || self.rows_for(limits.ranks, algorithm);
        rows().find(|row| bytes <= row.up_to && fits(row)).or_else(|| rows().next_back().filter(|row| fits(row)))
    }

    /// Returns whether the table has a row for Peerweave's kernels with the algorithm `algorithm`
    /// that applies to `ranks` ranks.
    pub(super) fn has_row(&self, algorithm: Algorithm, ranks: u32) -> bool {
        self.rows_for(ranks, Some(algorithm)).next().is_some()
    }

    /// Returns the rows for Peerweave's kernels that are for `ranks` ranks. If `algorithm` is not
    /// `None`, returns only rows with this algorithm.
    fn rows_for(&self, ranks: u32, algorithm: Option<Algorithm>) -> impl DoubleEndedIterator<Item = &OwnRow> {
        let is_for = move |row: &&OwnRow| (row.ranks.0..=row.ranks.1).contains(&ranks);
        self.own.iter().filter(is_for).filter(move |row| algorithm.is_none_or(|one| row.algorithm == one))
    }

    /// Returns the route that a row gives for a reduction of `bytes` bytes. A short reduction gets
    /// fewer blocks and threads than the row states.
    pub(super) fn route(row: &OwnRow, bytes: u64, limits: &Limits) -> Route {
        let lines = bytes.div_ceil(LINE_BYTES as u64);
        let busy = match row.algorithm {
            Algorithm::OneShot => lines,
            Algorithm::TwoShot | Algorithm::Chunked => lines.div_ceil(u64::from(limits.ranks)),
        };
        // A block has at most as many threads as there are lines, rounded up to whole warps.
        let threads = row.threads.min(u32::try_from(busy.next_multiple_of(32)).unwrap_or(u32::MAX)).max(32);
        let blocks = busy.div_ceil(u64::from(threads)).clamp(1, u64::from(row.blocks.min(limits.max_blocks)));
        Route::new(row.algorithm, blocks as u32, threads)
    }

    /// Returns the index of the first row that chooses a library for an operation, a number of
    /// ranks and a size. Returns `None` if there is no such row.
    pub(super) fn library_row(&self, kind: CollectiveKind, ranks: u32, bytes: u64) -> Option<usize> {
        self.libraries.iter().position(|row| {
            row.kind == kind && (row.ranks.0..=row.ranks.1).contains(&ranks) && (row.bytes.0..=row.bytes.1).contains(&bytes)
        })
    }

    /// Checks the rows for Peerweave's kernels. For each number of ranks, there must be rows in
    /// ascending order of size. The last of them must be valid for every larger call, and must have
    /// the algorithm `chunked`. Fails with a description of the first fault.
    pub(super) fn check(&self) -> Result<(), String> {
        for ranks in 1..=MAX_RANKS as u32 {
            let rows: Vec<&OwnRow> = self.own.iter().filter(|row| (row.ranks.0..=row.ranks.1).contains(&ranks)).collect();
            let Some(last) = rows.last() else { return Err(format!("no \"own all_reduce\" row for teams of size {ranks}")) };
            if last.up_to != u64::MAX || last.algorithm != Algorithm::Chunked {
                return Err(format!("the last \"own all_reduce\" row for teams of size {ranks} is not \"rest chunked\""));
            }
            if !rows.is_sorted_by_key(|row| row.up_to) {
                return Err(format!("the \"own all_reduce\" rows for teams of size {ranks} are not in ascending order of UP-TO"));
            }
        }
        Ok(())
    }
}

/// The names of the algorithms in files with route tables.
pub(super) const ALGORITHMS: [(Algorithm, &str); 3] =
    [(Algorithm::OneShot, "one_shot"), (Algorithm::TwoShot, "two_shot"), (Algorithm::Chunked, "chunked")];

pub(super) fn name_of(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(one, _)| *one == algorithm).map_or("?", |(_, name)| name)
}

/// Prints a number of bytes in the format of route tables and explanations: for example `64K`,
/// `16M` or `100`, and `rest` for the largest number.
#[derive(Clone, Copy)]
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "G"), (20, "M"), (10, "K")];
        match units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift)) {
            _ if self.0 == u64::MAX => f.write_str("rest"),
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The smallest and the largest number of ranks for which a row is valid. Printed in the format of
/// route tables: for example `2` or `3-4`.
pub(super) struct Ranks(pub(super) (u32, u32));

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl fmt::Display for OwnRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, up_to, algorithm) = (Ranks(self.ranks), Bytes(self.up_to), name_of(self.algorithm));
        write!(f, "own all_reduce {ranks} {up_to} {algorithm} {}x{}", self.blocks, self.threads)
    }
}

impl fmt::Display for LibraryRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (Bytes(self.bytes.0), Bytes(self.bytes.1));
        write!(f, "{} {} {} {from} {to}", self.library.name(), self.kind.name(), Ranks(self.ranks))
    }
}

impl fmt::Display for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\narch {}", super::parse::HEAD, self.arch)?;
        for (name, value) in Thresholds::NAMES.into_iter().zip(self.thresholds.values()) {
            writeln!(f, "threshold {name} {}", Bytes(value))?;
        }
        self.own.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.libraries.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}
