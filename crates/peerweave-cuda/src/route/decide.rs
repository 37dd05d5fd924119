//! Decides how a collective call is carried out: by Peerweave's kernels with an algorithm, or by a
//! library.
//!
//! A decision depends only on values that are the same on all ranks: operation, type, reduction,
//! number of elements, members of the team, staging memory of the team, the route table, and
//! choices of the caller. Ranks may differ in the memory of their operands, and in whether a call
//! is captured. So a decision does not depend on these properties.

use peerweave_core::backend::CollectiveKind;
use peerweave_types::{DType, ReduceOp};

use super::table::OwnRow;
use super::{Limits, Method, Route, RouteTable, Routes, banks_hold_parts, by_lines, is_combined, parts, ring};

/// The provider of the kernels that carry out a collective call: Peerweave, NCCL, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// Peerweave's kernels carry out the call.
    Own,
    /// NCCL carries out the call.
    Nccl,
    /// The ranks are on several hosts. Peerweave's kernels carry out the call within each host, and
    /// NCCL sends messages between hosts.
    Hosts,
}

impl Provider {
    /// Returns the name of this provider in settings and in route tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Nccl => "nccl",
            Self::Hosts => "hosts",
        }
    }
}

/// The operations that can be carried out by more than one method.
pub(super) const ROUTED: [CollectiveKind; 8] = [
    CollectiveKind::AllReduce,
    CollectiveKind::Reduce,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllGather,
    CollectiveKind::AllToAll,
    CollectiveKind::Broadcast,
    CollectiveKind::Gather,
    CollectiveKind::Scatter,
];

/// Returns the operation that is called `name` in a route-table row for a library. Returns `None`
/// if no library can carry out an operation with this name.
pub(super) fn library_kind(name: &str) -> Option<CollectiveKind> {
    ROUTED.into_iter().find(|kind| kind.name() == name)
}

/// The properties of a call that determine its route. These properties are the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Query {
    /// The collective operation.
    pub kind: CollectiveKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction. `Sum` for operations that do not reduce.
    pub op: ReduceOp,
    /// The number of elements. For all_gather, all_to_all, reduce_scatter, gather and scatter: the
    /// number of elements in one part.
    pub count: u64,
}

impl Query {
    /// Creates the description of a call. The reduction is `Sum`, unless
    /// [`reduction`](Self::reduction) sets another one.
    pub const fn new(kind: CollectiveKind, dtype: DType, count: u64) -> Self {
        Self { kind, dtype, op: ReduceOp::Sum, count }
    }

    /// Sets the reduction.
    #[must_use]
    pub const fn reduction(self, op: ReduceOp) -> Self {
        Self { op, ..self }
    }

    /// Returns the size of `count` elements in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Returns the size in bytes of a rank's operand or result, whichever is larger. The sizes in
    /// route-table rows are compared with this value.
    pub(super) fn size_bytes(&self, ranks: u32) -> u64 {
        use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let parts = if matches!(self.kind, AllGather | AllToAll | Gather | ReduceScatter | Scatter) { ranks } else { 1 };
        self.bytes().saturating_mul(parts.into())
    }
}

/// A method by which Peerweave's kernels carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnPath {
    /// The call has no elements, so no kernel runs.
    Nothing,
    /// The team has one rank, so the result is a copy of the operand.
    Copy,
    /// The call is a barrier or a sync. The barrier kernel carries out both.
    Barrier,
    /// A kernel of all_reduce carries out the reduction, by the algorithm of the route.
    Reduction(Route),
    /// Each rank pushes its parts as 16-byte lines. A long call is divided into several launches.
    Lines { route: Route, launches: u64 },
    /// The ranks send each other messages: short messages as 16-byte lines, and long messages
    /// through rings.
    Messages(Route),
    /// A broadcast in which the root sends a different part to each rank, and each rank sends its
    /// part to the other ranks.
    Scattered(Route),
    /// The kernel of an all_reduce with RMSNorm carries out the call. This value contains no route,
    /// because the route depends on the number and the length of the rows.
    Norm,
    /// Peerweave has no kernels for the call.
    Unsupported,
}

/// The reason for a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// Only one method can carry out the call.
    Only,
    /// A row of the route table determined the choice. The row is for Peerweave's own kernels. The
    /// field is a copy of the row.
    Row(OwnRow),
    /// A threshold of the route table determined the choice. The first field is the threshold's
    /// index in [`Thresholds::NAMES`](super::table::Thresholds::NAMES). The second field is the
    /// threshold's value in bytes.
    Threshold(usize, u64),
    /// The size of a bank (a buffer in the team's staging memory) determined the choice: whether
    /// one part of every rank fits into a bank.
    Staging,
    /// The parts do not fit into a bank. They cannot be sent through rings either, because the
    /// length of a part is not a multiple of 16 bytes.
    PartialLines,
    /// A row of the route table determined the choice. The row is for a library. The field is the
    /// row's index among the rows for libraries.
    Library(usize),
    /// The caller chose the method.
    Forced(Method),
}

/// The reason why NCCL, or a method that the caller requested, is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// NCCL is not enabled.
    Off,
    /// NCCL is enabled but cannot be used. The backend stores the reason.
    Unavailable,
    /// NCCL has no communicator for the team.
    Team,
    /// NCCL's result could have other bits than the result of Peerweave's kernels.
    Bits,
    /// The call needs more staging memory than the team has.
    NoRoom,
    /// The route table has no row for the method and the number of ranks.
    NoRow,
    /// The length of a part is not a multiple of 16 bytes.
    PartialLines,
}

/// The libraries that can carry out collectives instead of Peerweave's kernels. Each field is `Ok`
/// if a team can use the library, otherwise the reason why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Libraries {
    pub(crate) nccl: Result<(), Unfit>,
}

/// The provider and the method that carry out a call, and the reason for this choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) provider: Provider,
    /// The method by which Peerweave's kernels carry out the call, or would carry it out if
    /// `provider` is a library.
    pub(crate) own: OwnPath,
    pub(crate) because: Because,
    /// The request for a method that cannot be used; `None` if there is none. The first value is
    /// the source of the request: a row of the route table, or the caller. The second value is the
    /// reason why the method cannot be used.
    pub(crate) refused: Option<(Because, Unfit)>,
}

impl Routes {
    /// Decides how a call of a team is carried out.
    pub(crate) fn decide(&self, query: &Query, limits: &Limits, libraries: &Libraries) -> Decision {
        let (own, because, refused) = self.own(query, limits);
        let decision = Decision { provider: Provider::Own, own, because, refused };
        let forced = self.forced.get(query.kind);
        if query.count == 0 || limits.ranks < 2 || !ROUTED.contains(&query.kind) {
            return decision;
        }
        let size = query.size_bytes(limits.ranks);
        let asked = match forced {
            Some(Method::Nccl) => Because::Forced(Method::Nccl),
            Some(_) => return decision,
            None => match self.table.library_row(query.kind, limits.ranks, size) {
                Some(at) => Because::Library(at),
                None => return decision,
            },
        };
        match libraries.nccl.and_then(|()| same_bits(query, limits.ranks)) {
            Ok(()) => Decision { provider: Provider::Nccl, because: asked, refused: None, ..decision },
            Err(unfit) => Decision { refused: Some((asked, unfit)), ..decision },
        }
    }

    /// Returns the method by which Peerweave's kernels would carry out a call, and the reason for
    /// this method. The third value is `Some` if a method was requested that cannot be used (see
    /// [`Decision::refused`]).
    fn own(&self, query: &Query, limits: &Limits) -> (OwnPath, Because, Option<(Because, Unfit)>) {
        use CollectiveKind::{
            AllGather, AllGatherV, AllReduce, AllReduceRmsNorm, AllToAll, AllToAllV, Barrier, Broadcast, Gather, GatherV, Reduce,
            ReduceScatter, Scatter, ScatterV, Sync,
        };
        let bytes = query.bytes();
        let only = |path| (path, Because::Only, None);
        match query.kind {
            Barrier | Sync => only(OwnPath::Barrier),
            AllReduceRmsNorm => only(OwnPath::Norm),
            _ if limits.ranks < 2 => only(OwnPath::Copy),
            // Ranks have parts of different lengths.
            AllToAllV | AllGatherV | GatherV | ScatterV => only(OwnPath::Messages(ring(limits, is_combined(limits, false)))),
            _ if query.count == 0 => only(OwnPath::Nothing),
            AllReduce | Reduce => {
                let (route, because, refused) = self.reduction(query.kind, bytes, limits);
                (OwnPath::Reduction(route), because, refused)
            }
            ReduceScatter => self.reduce_scatter(query.dtype, bytes, limits),
            AllGather | AllToAll => self.exchange(query.kind, bytes, limits),
            Broadcast => {
                let (is_scattered, from) = self.is_scattered(bytes, limits);
                let path = if is_scattered { OwnPath::Scattered } else { OwnPath::Messages };
                (path(message(bytes, limits)), Because::Threshold(2, from), None)
            }
            Gather | Scatter => only(OwnPath::Messages(message(bytes, limits))),
            _ => only(OwnPath::Unsupported),
        }
    }

    /// Returns the route for an all_reduce or a reduce of `bytes` bytes, and the reason for this
    /// route. If the caller requested a method that cannot be used, also returns this method and
    /// the reason (see [`Decision::refused`]).
    pub(crate) fn reduction(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        limits: &Limits,
    ) -> (Route, Because, Option<(Because, Unfit)>) {
        let method = self.forced.get(kind);
        let mut refused = None;
        if let Some(method) = method
            && let Some(algorithm) = method.algorithm()
        {
            match self.table.own_row(bytes, limits, Some(algorithm)) {
                Some(row) => return (RouteTable::route(row, bytes, limits), Because::Forced(method), None),
                None => {
                    let unfit = if self.table.has_row(algorithm, limits.ranks) { Unfit::NoRoom } else { Unfit::NoRow };
                    refused = Some((Because::Forced(method), unfit));
                }
            }
        }
        let row = self.table.own_row(bytes, limits, None);
        let row = row.unwrap_or_else(|| panic!("peerweave-cuda bug: {} has no all_reduce row for {limits:?}", self.table.name()));
        (RouteTable::route(row, bytes, limits), Because::Row(*row), refused)
    }

    /// Returns the method for a reduce_scatter, and the reason for this method. A part has `bytes`
    /// bytes. If the caller requested a method that cannot be used, also returns that method and
    /// the reason (see [`Decision::refused`]).
    pub(crate) fn reduce_scatter(
        &self,
        dtype: DType,
        bytes: u64,
        limits: &Limits,
    ) -> (OwnPath, Because, Option<(Because, Unfit)>) {
        use peerweave_collectives::{Algorithm, LINE_BYTES};
        // The kernel with rings divides its input into the same parts as the call only if parts are
        // whole lines.
        let is_whole = bytes.is_multiple_of(LINE_BYTES as u64);
        let is_short = banks_hold_parts(bytes, limits);
        let size = dtype.size_bytes() as u64;
        let because = if is_short || is_whole { Because::Staging } else { Because::PartialLines };
        let (by_ring, because, refused) = match self.forced.get(CollectiveKind::ReduceScatter) {
            Some(Method::Chunked) if is_whole => (true, Because::Forced(Method::Chunked), None),
            Some(Method::Chunked) => (false, because, Some((Because::Forced(Method::Chunked), Unfit::PartialLines))),
            Some(Method::Lines) => (false, Because::Forced(Method::Lines), None),
            _ => (!is_short && is_whole, because, None),
        };
        if by_ring {
            let all = bytes.saturating_mul(limits.ranks.into());
            let row = self.table.own_row(all, limits, Some(Algorithm::Chunked));
            let row =
                row.unwrap_or_else(|| panic!("peerweave-cuda bug: {} has no chunked row for {limits:?}", self.table.name()));
            return (OwnPath::Reduction(RouteTable::route(row, all, limits)), because, refused);
        }
        let launches = bytes.div_ceil((most_part_bytes(limits) / size * size).max(size)).max(1);
        (OwnPath::Lines { route: parts(bytes.min(most_part_bytes(limits)), limits), launches }, because, refused)
    }

    /// Returns the method for an all_gather or an all_to_all, and the reason for this method. A
    /// part has `bytes` bytes. If the caller requested a method that cannot be used, also returns
    /// that method and the reason (see [`Decision::refused`]).
    pub(crate) fn exchange(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        limits: &Limits,
    ) -> (OwnPath, Because, Option<(Because, Unfit)>) {
        let up_to = self.table.thresholds.parts_by_lines_up_to;
        let fits = banks_hold_parts(bytes, limits);
        let threshold = Because::Threshold(1, up_to);
        let is_short = bytes.saturating_mul(limits.ranks.into()) <= up_to;
        let (by_lines, because, refused) = match self.forced.get(kind) {
            Some(Method::Lines) if fits => (true, Because::Forced(Method::Lines), None),
            Some(Method::Lines) => (false, Because::Staging, Some((Because::Forced(Method::Lines), Unfit::NoRoom))),
            Some(Method::Messages) => (false, Because::Forced(Method::Messages), None),
            _ if is_short && !fits => (false, Because::Staging, None),
            _ => (is_short, threshold, None),
        };
        let path = match by_lines {
            true => OwnPath::Lines { route: parts(bytes, limits), launches: 1 },
            false => OwnPath::Messages(message(bytes, limits)),
        };
        (path, because, refused)
    }

    /// Returns whether a broadcast of `bytes` bytes is scattered: the root sends a different part
    /// to each rank, and each rank forwards its part. Also returns the smallest size of a scattered
    /// broadcast, in bytes.
    pub(crate) fn is_scattered(&self, bytes: u64, limits: &Limits) -> (bool, u64) {
        let from = self.table.thresholds.broadcast_scattered_from;
        (limits.ranks > 2 && bytes >= from, from)
    }

    /// Returns whether the kernel of a call may begin before the previous kernel in the stream has
    /// ended. The call has `bytes` bytes.
    pub(crate) fn is_programmatic(&self, bytes: u64) -> bool {
        bytes <= self.table.thresholds.programmatic_up_to
    }
}

/// Returns the maximum length of a part in bytes: a multiple of 16 bytes with which one part of
/// every rank fits into a bank.
pub(crate) fn most_part_bytes(limits: &Limits) -> u64 {
    use peerweave_collectives::LINE_BYTES;
    limits.bank_bytes / u64::from(limits.ranks) / LINE_BYTES as u64 * LINE_BYTES as u64
}

/// Returns the route for messages of `bytes` bytes: as 16-byte lines if the messages are short
/// enough, otherwise through rings.
fn message(bytes: u64, limits: &Limits) -> Route {
    if by_lines(bytes, limits) { parts(bytes, limits) } else { ring(limits, is_combined(limits, false)) }
}

/// Fails if NCCL's result could have other bits than the result of Peerweave's kernels, which
/// combine elements in the order of ranks and round 16-bit floats once.
///
/// Sums, products, minima and maxima of integers do not depend on the order. The sum or the product
/// of two floats does not depend on the order either, because both operations are commutative and
/// correctly rounded. This is also true for a 16-bit result that is computed in `f32` and then
/// rounded: the 24 bits of precision of `f32` are at least 2p + 2, where p is the precision of the
/// 16-bit type. Minima and maxima of floats can differ for NaN and for zeros of both signs.
/// Averages depend on the step in which the division happens.
fn same_bits(query: &Query, ranks: u32) -> Result<(), Unfit> {
    let is_float = matches!(query.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let is_integer = matches!(query.dtype, DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::U64);
    let is_same = match query.op {
        _ if !query.kind.reduces() => true,
        ReduceOp::Sum | ReduceOp::Prod => is_integer || (is_float && ranks == 2),
        ReduceOp::Min | ReduceOp::Max => is_integer,
        _ => false,
    };
    if is_same { Ok(()) } else { Err(Unfit::Bits) }
}

#[cfg(test)]
mod tests {
    use super::super::holds;
    use super::super::table::Bytes;
    use super::*;
    use peerweave_collectives::Algorithm;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const NONE: Libraries = Libraries { nccl: Err(Unfit::Off) };
    const BOTH: Libraries = Libraries { nccl: Ok(()) };

    const fn limits(ranks: u32) -> Limits {
        Limits { ranks, bank_bytes: 32 * MIB, channel_bytes: MIB, max_blocks: 128 }
    }

    fn routes() -> Routes {
        Routes::new(RouteTable::builtin("sm_90"))
    }

    fn route(routes: &Routes, dtype: DType, count: u64, limits: &Limits) -> Route {
        let decision = routes.decide(&Query::new(CollectiveKind::AllReduce, dtype, count), limits, &NONE);
        let OwnPath::Reduction(route) = decision.own else { panic!("{decision:?}, expected a reduction") };
        route
    }

    #[test]
    fn every_all_reduce_size_has_a_valid_algorithm_and_launch_shape() {
        let routes = routes();
        for ranks in 2..=8 {
            for shift in 0..34 {
                for count in [1_u64 << shift, (1 << shift) + 1, (3 << shift) - 1] {
                    let (limits, lines) = (limits(ranks), (2 * count).div_ceil(16));
                    let route = route(&routes, DType::BF16, count, &limits);
                    assert!(holds(route.algorithm, lines, &limits), "{count} elements: {route:?}");
                    assert!((1..=128).contains(&route.blocks) && (32..=512).contains(&route.threads), "{route:?}");
                    assert_eq!(route.threads % 32, 0, "{route:?}");
                }
            }
        }
    }

    #[test]
    fn small_all_reduce_uses_one_shot_and_large_uses_a_ring() {
        let routes = routes();
        for ranks in 2..=8 {
            let algorithm = |bytes: u64| route(&routes, DType::U8, bytes, &limits(ranks)).algorithm;
            assert_eq!(algorithm(1), Algorithm::OneShot);
            assert_eq!(algorithm(16 * KIB), Algorithm::OneShot);
            assert_eq!(algorithm(8 * MIB), Algorithm::TwoShot);
            assert_eq!(algorithm(256 * MIB), Algorithm::Chunked);
        }
    }

    #[test]
    fn all_reduce_larger_than_staging_memory_is_chunked() {
        let (small, routes) = (Limits { bank_bytes: 64 * KIB, ..limits(4) }, routes());
        assert_eq!(route(&routes, DType::F32, 4096, &small).algorithm, Algorithm::OneShot);
        assert_eq!(route(&routes, DType::F32, 1 << 20, &small).algorithm, Algorithm::Chunked);
    }

    #[test]
    fn max_blocks_limits_the_blocks_of_every_route() {
        let routes = routes();
        for max_blocks in [1, 4, 32] {
            let limits = Limits { max_blocks, ..limits(4) };
            for kind in ROUTED {
                for bytes in [16, 64 * KIB, MIB, 256 * MIB] {
                    let decision = routes.decide(&Query::new(kind, DType::U8, bytes), &limits, &NONE);
                    let (OwnPath::Reduction(route)
                    | OwnPath::Lines { route, .. }
                    | OwnPath::Messages(route)
                    | OwnPath::Scattered(route)) = decision.own
                    else {
                        panic!("{decision:?}")
                    };
                    assert!(route.blocks <= max_blocks, "{kind:?} of {bytes}: {route:?}");
                }
            }
        }
    }

    /// The built-in table `sm_90` chooses NCCL for the sizes at which Peerweave's kernels take at
    /// least 1.03 times as long as NCCL on 2 H200.
    #[test]
    fn route_table_determines_which_calls_nccl_carries_out() {
        use CollectiveKind::{AllReduce, AllToAll, Reduce, Scatter};
        let routes = routes();
        let provider = |kind, bytes: u64, ranks: u32, libraries| {
            let parts = if matches!(kind, AllToAll | Scatter) { u64::from(ranks) } else { 1 };
            routes.decide(&Query::new(kind, DType::BF16, bytes / 2 / parts), &limits(ranks), libraries).provider
        };
        for (kind, bytes, expected) in [
            (AllToAll, 256 * MIB, Provider::Own),
            (Scatter, 64 * MIB, Provider::Own),
            (Scatter, 256 * MIB, Provider::Nccl),
            (Reduce, 16 * MIB, Provider::Own),
            (Reduce, 64 * MIB, Provider::Nccl),
            (AllReduce, 256 * MIB, Provider::Own),
        ] {
            assert_eq!(provider(kind, bytes, 2, &BOTH), expected, "{kind:?} of {}", Bytes(bytes));
            assert_eq!(provider(kind, bytes, 2, &NONE), Provider::Own, "not enabled");
            assert_eq!(provider(kind, bytes, 4, &BOTH), Provider::Own, "not measured with 4 ranks");
        }
    }

    #[test]
    fn nccl_is_refused_if_the_result_bits_could_differ() {
        let routes = routes();
        routes.forced.set(CollectiveKind::AllReduce, Some(Method::Nccl));
        let decide = |dtype, op, ranks, libraries| {
            let decision =
                routes.decide(&Query::new(CollectiveKind::AllReduce, dtype, 100).reduction(op), &limits(ranks), libraries);
            (decision.provider, decision.refused.map(|(_, unfit)| unfit))
        };
        let (yes, no) = ((Provider::Nccl, None), (Provider::Own, Some(Unfit::Bits)));
        for (dtype, op, ranks, expected) in [
            (DType::BF16, ReduceOp::Sum, 2, yes),
            (DType::BF16, ReduceOp::Sum, 3, no),
            (DType::F64, ReduceOp::Prod, 2, yes),
            (DType::F32, ReduceOp::Max, 2, no),
            (DType::F32, ReduceOp::Avg, 2, no),
            (DType::F32, ReduceOp::PreMulSum, 2, no),
            (DType::U64, ReduceOp::Prod, 8, yes),
            (DType::I8, ReduceOp::Min, 5, yes),
            (DType::I32, ReduceOp::Xor, 2, no),
            (DType::I16, ReduceOp::Sum, 2, no),
        ] {
            assert_eq!(decide(dtype, op, ranks, &BOTH), expected, "{op} of {dtype} by {ranks} ranks");
        }
        let off = decide(DType::BF16, ReduceOp::Sum, 2, &NONE);
        assert_eq!(off, (Provider::Own, Some(Unfit::Off)), "the caller's choice is ignored, with the reason");
        // A call that only moves data gives the same bits with NCCL.
        routes.forced.set(CollectiveKind::Broadcast, Some(Method::Nccl));
        let moved = routes.decide(&Query::new(CollectiveKind::Broadcast, DType::F8E4M3, 100), &limits(8), &BOTH);
        assert_eq!(moved.provider, Provider::Nccl);
    }

    #[test]
    fn forced_method_is_used_if_the_data_fits_in_staging_memory() {
        let routes = routes();
        let kind = CollectiveKind::AllReduce;
        let decide = |bytes| routes.decide(&Query::new(kind, DType::U8, bytes), &limits(4), &BOTH);
        for (method, algorithm) in
            [(Method::OneShot, Algorithm::OneShot), (Method::TwoShot, Algorithm::TwoShot), (Method::Chunked, Algorithm::Chunked)]
        {
            routes.forced.set(kind, Some(method));
            let OwnPath::Reduction(route) = decide(4 * MIB).own else { panic!() };
            assert_eq!((route.algorithm, decide(4 * MIB).because), (algorithm, Because::Forced(method)));
        }
        // The one-shot algorithm needs a bank with room for the inputs of all ranks.
        routes.forced.set(kind, Some(Method::OneShot));
        let large = decide(64 * MIB);
        let OwnPath::Reduction(route) = large.own else { panic!() };
        assert_eq!(
            (route.algorithm, large.refused),
            (Algorithm::Chunked, Some((Because::Forced(Method::OneShot), Unfit::NoRoom)))
        );
        for kind in [CollectiveKind::AllGather, CollectiveKind::AllToAll] {
            routes.forced.set(kind, Some(Method::Messages));
            let decision = routes.decide(&Query::new(kind, DType::U8, 1024), &limits(4), &NONE);
            assert!(matches!(decision.own, OwnPath::Messages(_)), "{decision:?}");
            routes.forced.set(kind, Some(Method::Lines));
            let decision = routes.decide(&Query::new(kind, DType::U8, 7 * MIB), &limits(4), &NONE);
            assert!(matches!(decision.own, OwnPath::Lines { .. }), "{decision:?}");
            let decision = routes.decide(&Query::new(kind, DType::U8, 64 * MIB), &limits(4), &NONE);
            assert!(matches!((decision.own, decision.refused), (OwnPath::Messages(_), Some((_, Unfit::NoRoom)))), "{decision:?}");
        }
    }

    #[test]
    fn reduce_scatter_of_partial_16_byte_lines_is_not_chunked() {
        let routes = routes();
        let kind = CollectiveKind::ReduceScatter;
        let decide = |bytes| {
            let decision = routes.decide(&Query::new(kind, DType::U8, bytes), &limits(4), &NONE);
            assert!(matches!(decision.own, OwnPath::Lines { .. }), "{decision:?}");
            (decision.because, decision.refused)
        };
        assert_eq!(decide(1000), (Because::Staging, None), "the parts fit into a staging buffer");
        assert_eq!(decide(64 * MIB + 8), (Because::PartialLines, None));
        let forced = Because::Forced(Method::Chunked);
        routes.forced.set(kind, Some(Method::Chunked));
        assert_eq!(decide(1000), (Because::Staging, Some((forced, Unfit::PartialLines))));
        assert_eq!(decide(64 * MIB + 8), (Because::PartialLines, Some((forced, Unfit::PartialLines))));
    }

    #[test]
    fn forced_method_that_the_route_table_lacks_is_refused() {
        let text = RouteTable::builtin("sm_90").to_string();
        let chunked: Vec<&str> = text.lines().filter(|line| !line.starts_with("own") || line.contains("chunked")).collect();
        let routes = Routes::new(RouteTable::parse("a table", &chunked.join("\n")).expect("the table is valid"));
        let query = Query::new(CollectiveKind::AllReduce, DType::U8, 16);
        routes.forced.set(query.kind, Some(Method::OneShot));
        assert_eq!(routes.decide(&query, &limits(4), &NONE).refused, Some((Because::Forced(Method::OneShot), Unfit::NoRow)));
    }

    #[test]
    fn nccl_is_not_used_for_empty_calls_or_teams_of_one_rank() {
        let routes = routes();
        for kind in CollectiveKind::ALL {
            routes.forced.set(kind, Some(Method::Nccl));
            let one = routes.decide(&Query::new(kind, DType::F32, 1 << 30), &limits(1), &BOTH);
            let none = routes.decide(&Query::new(kind, DType::F32, 0), &limits(2), &BOTH);
            assert_eq!((one.provider, none.provider), (Provider::Own, Provider::Own), "{kind:?}");
        }
    }
}
