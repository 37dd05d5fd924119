//! Creates a route table from measured times.

use peerweave_collectives::Algorithm;
use peerweave_core::backend::CollectiveKind;

use super::table::{LibraryRow, OwnRow, RouteTable, Thresholds};
use super::{Method, Provider};

/// One measurement: the time that a method takes for a call of one operation and one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The collective operation that was measured.
    pub kind: CollectiveKind,
    /// The method that carried out the call.
    pub method: Method,
    /// Size in bytes of a rank's operand or result, whichever is larger.
    pub size_bytes: u64,
    /// Time of one call, in microseconds.
    pub us: f64,
}

/// A tuned table chooses NCCL if NCCL takes at most this fraction of the time of Peerweave's
/// kernels. The fraction is below 1 because measurements have noise, and because calls of NCCL cost
/// more time on the host.
const FASTER: f64 = 0.97;

impl RouteTable {
    /// Returns a copy of this table for GPUs of architecture `arch`, in which the rows for teams of
    /// `ranks` ranks are derived from measured times. The copy keeps the rows for other numbers of
    /// ranks, and the rows of operations that were not measured. If the methods [`Method::Lines`]
    /// and [`Method::Messages`] were measured, the copy has a new threshold between these methods.
    /// All other thresholds are unchanged.
    ///
    /// For each measured size of an all_reduce, the copy has the fastest algorithm, with the launch
    /// shape of this table. For each measured operation, the copy chooses NCCL for the sizes at
    /// which NCCL takes at most 0.97 of the shortest time of Peerweave's kernels.
    ///
    /// ```
    /// use peerweave_cuda::{CollectiveKind, Method, RouteTable, Timing};
    ///
    /// let kind = CollectiveKind::AllReduce;
    /// let timing = |method, size_bytes, us| Timing { kind, method, size_bytes, us };
    /// let timings = [timing(Method::OneShot, 1024, 2.0), timing(Method::TwoShot, 1024, 3.0), timing(Method::Nccl, 1024, 6.0)];
    /// let table = RouteTable::builtin("sm_90").tuned("sm_90", 2, &timings);
    /// assert!(table.to_string().contains("own all_reduce 2 1K one_shot"));
    /// ```
    #[must_use]
    pub fn tuned(&self, arch: &str, ranks: u32, timings: &[Timing]) -> Self {
        let mut table = Self { arch: arch.to_owned(), ..self.clone() };
        if let Some(rows) = self.own_rows(ranks, timings) {
            table.own = self.own.iter().flat_map(|row| without(row.ranks, ranks).map(|ranks| OwnRow { ranks, ..*row })).collect();
            table.own.extend(rows);
        }
        let kinds = |method: Method| timings.iter().filter(move |timing| timing.method == method).map(|timing| timing.kind);
        let is_measured = |kind| kinds(Method::Nccl).any(|one| one == kind);
        table.libraries = Vec::new();
        for row in &self.libraries {
            let kept = if is_measured(row.kind) { without(row.ranks, ranks).collect() } else { vec![row.ranks] };
            table.libraries.extend(kept.into_iter().map(|ranks| LibraryRow { ranks, ..*row }));
        }
        for kind in CollectiveKind::ALL.into_iter().filter(|kind| is_measured(*kind)) {
            table.libraries.extend(library_rows(kind, ranks, timings));
        }
        if let Some(up_to) = lines_up_to(timings) {
            table.thresholds = Thresholds { parts_by_lines_up_to: up_to, ..self.thresholds };
        }
        table.check().unwrap_or_else(|error| panic!("peerweave-cuda bug: a tuned table is invalid: {error}"));
        table
    }

    /// Returns the rows of all_reduce for teams of `ranks` ranks, derived from `timings`. Returns
    /// `None` if all_reduce was not measured.
    fn own_rows(&self, ranks: u32, timings: &[Timing]) -> Option<Vec<OwnRow>> {
        let algorithm_of = |timing: &Timing| timing.method.algorithm().filter(|_| timing.kind == CollectiveKind::AllReduce);
        let mut rows: Vec<OwnRow> = Vec::new();
        for size in sizes(timings.iter().filter(|timing| algorithm_of(timing).is_some())) {
            let of_size = timings.iter().filter(|timing| timing.size_bytes == size && algorithm_of(timing).is_some());
            let best = of_size.min_by(|a, b| a.us.total_cmp(&b.us)).and_then(algorithm_of)?;
            let shape = self.shape(ranks, size, best)?;
            match rows.last_mut() {
                Some(last) if last.algorithm == best && (last.blocks, last.threads) == (shape.blocks, shape.threads) => {
                    last.up_to = size;
                }
                _ => rows.push(OwnRow { ranks: (ranks, ranks), up_to: size, ..shape }),
            }
        }
        let last = rows.last()?;
        if last.algorithm == Algorithm::Chunked {
            rows.last_mut()?.up_to = u64::MAX;
        } else {
            // The last row uses the chunked algorithm, the only algorithm that supports every size.
            let shape = self.shape(ranks, u64::MAX, Algorithm::Chunked)?;
            rows.push(OwnRow { ranks: (ranks, ranks), up_to: u64::MAX, ..shape });
        }
        Some(rows)
    }

    /// Returns the row of `self` that fits an algorithm, a number of ranks and a size best. The
    /// new, tuned table copies the launch shape of this row. Returns `None` if `self` has no row
    /// with the algorithm.
    fn shape(&self, ranks: u32, size: u64, algorithm: Algorithm) -> Option<OwnRow> {
        let is_in = |row: &&OwnRow| row.algorithm == algorithm && (row.ranks.0..=row.ranks.1).contains(&ranks);
        let rows = || self.own.iter().filter(is_in);
        // If this table has no row with the algorithm for this number of ranks, a row for another
        // number of ranks is used.
        let of_others = || self.own.iter().filter(|row| row.algorithm == algorithm);
        let first = |row: &&OwnRow| size <= row.up_to;
        rows()
            .find(first)
            .or_else(|| rows().next_back())
            .or_else(|| of_others().find(first))
            .or_else(|| of_others().next_back())
            .copied()
    }
}

/// Returns the ranges that remain if `number` is removed from the range `first` to `last`: up to
/// two ranges.
fn without((first, last): (u32, u32), number: u32) -> impl Iterator<Item = (u32, u32)> {
    let is_in = (first..=last).contains(&number);
    let below = is_in.then(|| (first, number - 1));
    let above = is_in.then(|| (number + 1, last));
    let whole = (!is_in).then_some((first, last));
    [below, above, whole].into_iter().flatten().filter(|(first, last)| first <= last)
}

/// Returns the sizes of the timed calls in ascending order, without duplicates.
fn sizes<'a>(timings: impl Iterator<Item = &'a Timing>) -> Vec<u64> {
    let mut sizes: Vec<u64> = timings.map(|timing| timing.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the shortest measured time for an operation and a size, in microseconds. Considers only
/// the methods that `of` accepts. Returns `None` if there is no such timing.
fn least(kind: CollectiveKind, size: u64, timings: &[Timing], of: impl Fn(Method) -> bool) -> Option<f64> {
    let times = timings.iter().filter(|timing| timing.kind == kind && timing.size_bytes == size && of(timing.method));
    times.map(|timing| timing.us).min_by(f64::total_cmp)
}

/// Returns the rows that choose NCCL for an operation. If NCCL is faster at several consecutive
/// measured sizes, one row covers all of them.
fn library_rows(kind: CollectiveKind, ranks: u32, timings: &[Timing]) -> Vec<LibraryRow> {
    let all = sizes(timings.iter().filter(|timing| timing.kind == kind));
    let is_faster = |size: &u64| {
        let own = least(kind, *size, timings, |method| method != Method::Nccl);
        let nccl = least(kind, *size, timings, |method| method == Method::Nccl);
        own.zip(nccl).is_some_and(|(own, nccl)| nccl <= FASTER * own)
    };
    let flags: Vec<(u64, bool)> = all.iter().map(|size| (*size, is_faster(size))).collect();
    let runs = flags.chunk_by(|a, b| a.1 == b.1).filter(|run| run[0].1);
    let row = |run: &[(u64, bool)]| {
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        let up_to = if Some(&last) == all.last() { u64::MAX } else { last };
        LibraryRow { library: Provider::Nccl, kind, ranks: (ranks, ranks), bytes: (first, up_to) }
    };
    runs.map(row).collect()
}

/// Returns the largest measured size up to which [`Method::Lines`] is at least as fast as
/// [`Method::Messages`]. If [`Method::Lines`] is slower at the smallest measured size, returns one
/// byte less than this size. The result applies to all_gather and all_to_all together. A size is
/// the total size of all parts in bytes. Returns `None` if these methods were not measured.
fn lines_up_to(timings: &[Timing]) -> Option<u64> {
    let kinds = [CollectiveKind::AllGather, CollectiveKind::AllToAll];
    let both = |kind, size| {
        let of = |method| least(kind, size, timings, |one| one == method);
        of(Method::Lines).zip(of(Method::Messages))
    };
    let measured =
        sizes(timings.iter().filter(|timing| kinds.contains(&timing.kind) && both(timing.kind, timing.size_bytes).is_some()));
    // The function adds the logarithms of the time ratios of the two operations, so both operations
    // have the same weight.
    let ratio = |size: u64| -> f64 {
        kinds.iter().filter_map(|kind| both(*kind, size)).map(|(lines, messages)| (lines / messages).ln()).sum()
    };
    let first = *measured.first()?;
    let shorter = measured.iter().take_while(|size| ratio(**size) <= 0.0).last();
    Some(shorter.copied().unwrap_or(first - 1))
}

#[cfg(test)]
mod tests {
    use super::super::{Libraries, Limits, OwnPath, Query, Routes, Unfit};
    use super::*;
    use peerweave_types::DType;

    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;

    fn timing(kind: CollectiveKind, method: Method, size_bytes: u64, us: f64) -> Timing {
        Timing { kind, method, size_bytes, us }
    }

    /// Returns timings of all_reduce. The fastest of Peerweave's algorithms is one-shot up to 16
    /// KiB, two-shot at 64 KiB, and the ring at larger sizes. NCCL is clearly faster only at 256
    /// KiB.
    fn timings() -> Vec<Timing> {
        let kind = CollectiveKind::AllReduce;
        let mut all = Vec::new();
        for (size, one, two, ring, nccl) in [
            (KIB, 2.0, 4.0, 9.0, 6.0),
            (16 * KIB, 3.0, 4.0, 9.0, 6.0),
            (64 * KIB, 7.0, 5.0, 9.0, 6.0),
            (256 * KIB, 20.0, 15.0, 12.0, 10.0),
            (MIB, 80.0, 50.0, 30.0, 29.9),
        ] {
            for (method, us) in [(Method::OneShot, one), (Method::TwoShot, two), (Method::Chunked, ring), (Method::Nccl, nccl)] {
                all.push(timing(kind, method, size, us));
            }
        }
        all
    }

    #[test]
    fn tuned_table_has_the_fastest_algorithm_for_each_size() {
        let table = RouteTable::builtin("sm_90").tuned("sm_90", 2, &timings());
        let routes = Routes::new(table);
        let limits = |ranks| Limits { ranks, bank_bytes: 32 * MIB, channel_bytes: MIB, max_blocks: 256 };
        let algorithm = |bytes: u64, ranks| {
            let libraries = Libraries { nccl: Err(Unfit::Off) };
            let decision = routes.decide(&Query::new(CollectiveKind::AllReduce, DType::U8, bytes), &limits(ranks), &libraries);
            let OwnPath::Reduction(route) = decision.own else { panic!("{decision:?}, expected a reduction") };
            route.algorithm
        };
        for (bytes, expected) in [
            (100, Algorithm::OneShot),
            (16 * KIB, Algorithm::OneShot),
            (64 * KIB, Algorithm::TwoShot),
            (256 * KIB, Algorithm::Chunked),
            (64 * MIB, Algorithm::Chunked),
        ] {
            assert_eq!(algorithm(bytes, 2), expected, "{bytes}");
        }
        // The rows for other numbers of ranks are unchanged.
        let before = Routes::new(RouteTable::builtin("sm_90"));
        for ranks in [1, 3, 4, 8] {
            for bytes in [KIB, 64 * KIB, MIB, 64 * MIB] {
                let of = |routes: &Routes| routes.reduction(CollectiveKind::AllReduce, bytes, &limits(ranks)).0;
                assert_eq!(of(&routes), of(&before), "{ranks} ranks, {bytes}");
            }
        }
    }

    #[test]
    fn tuned_table_uses_nccl_if_nccl_is_clearly_faster() {
        let table = RouteTable::builtin("sm_90").tuned("sm_90", 2, &timings());
        let rows: Vec<String> = table.libraries.iter().map(ToString::to_string).collect();
        // The rows of other operations are unchanged. At 1 MiB NCCL takes more than 0.97 of the
        // shortest time.
        assert_eq!(rows, ["nccl reduce 2 48M rest", "nccl scatter 2 128M rest", "nccl all_reduce 2 256K 256K"]);
        let kind = CollectiveKind::AllToAll;
        let own = |size, us| timing(kind, Method::Own, size, us);
        let nccl = |size, us| timing(kind, Method::Nccl, size, us);
        let slow = [own(MIB, 5.0), nccl(MIB, 6.0), own(2 * MIB, 9.0), nccl(2 * MIB, 8.0)];
        let again = table.tuned("sm_90", 2, &slow);
        let rows: Vec<String> = again.libraries.iter().map(ToString::to_string).collect();
        assert_eq!(
            rows,
            ["nccl reduce 2 48M rest", "nccl scatter 2 128M rest", "nccl all_reduce 2 256K 256K", "nccl all_to_all 2 2M rest"]
        );
        let again = again.tuned("sm_90", 4, &slow);
        assert!(again.to_string().contains("nccl all_to_all 2 2M rest\nnccl all_to_all 4 2M rest"), "{again}");
    }

    #[test]
    fn tuned_table_uses_16_byte_lines_if_messages_are_slower() {
        let mut all = Vec::new();
        for (kind, factor) in [(CollectiveKind::AllGather, 1.0), (CollectiveKind::AllToAll, 0.8)] {
            for (size, lines, messages) in [(MIB, 4.0, 6.0), (4 * MIB, 9.0, 10.0), (16 * MIB, 40.0, 30.0)] {
                all.extend([timing(kind, Method::Lines, size, lines * factor), timing(kind, Method::Messages, size, messages)]);
            }
        }
        let table = RouteTable::builtin("any").tuned("sm_100", 2, &all);
        assert_eq!((table.thresholds.parts_by_lines_up_to, table.arch()), (4 * MIB, "sm_100"));
        assert_eq!(table.own, RouteTable::builtin("any").own, "all_reduce was not measured");
        let again = RouteTable::parse("file", &table.to_string()).unwrap();
        assert_eq!(again.digest(), table.digest());
    }
}
