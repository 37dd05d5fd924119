//! Calls a collective by its name, with the same arguments for every kind of memory, on the calling
//! thread or on a stream.
//!
//! Module `conformance` decides which calls are made with which arguments.

use crate::data::memory::{Mem, Store};
use crate::data::sample::{Exact, Sample};
use peerweave::{Parts, Rank, Reduction, Result, Stream, Team, Ticket, VectorCounts, none};

/// Every collective that takes memory, in every form: out of place, in place, with parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the calls")]
pub enum Form {
    AllReduce,
    AllReduceInPlace,
    Reduce,
    ReduceInPlace,
    ReduceScatter,
    ReduceScatterInPlace,
    Broadcast,
    BroadcastInPlace,
    AllGather,
    AllGatherInPlace,
    AllToAll,
    AllToAllInPlace,
    AllToAllV,
    AllToAllVInPlace,
    Gather,
    GatherInPlace,
    Scatter,
    ScatterInPlace,
    AllGatherV,
    AllGatherVInPlace,
    GatherV,
    GatherVInPlace,
    ScatterV,
    ScatterVInPlace,
    Scan,
    ScanInPlace,
    ExclusiveScan,
    ExclusiveScanInPlace,
}

impl Form {
    /// The forms that reduce.
    pub const REDUCING: [Self; 10] = [
        Self::AllReduce,
        Self::AllReduceInPlace,
        Self::Reduce,
        Self::ReduceInPlace,
        Self::ReduceScatter,
        Self::ReduceScatterInPlace,
        Self::Scan,
        Self::ScanInPlace,
        Self::ExclusiveScan,
        Self::ExclusiveScanInPlace,
    ];

    /// The forms that only move elements.
    pub const MOVING: [Self; 18] = [
        Self::Broadcast,
        Self::BroadcastInPlace,
        Self::AllGather,
        Self::AllGatherInPlace,
        Self::AllToAll,
        Self::AllToAllInPlace,
        Self::AllToAllV,
        Self::AllToAllVInPlace,
        Self::Gather,
        Self::GatherInPlace,
        Self::Scatter,
        Self::ScatterInPlace,
        Self::AllGatherV,
        Self::AllGatherVInPlace,
        Self::GatherV,
        Self::GatherVInPlace,
        Self::ScatterV,
        Self::ScatterVInPlace,
    ];

    /// Returns whether the form is an inclusive or exclusive scan.
    pub fn is_scan(self) -> bool {
        matches!(self, Self::Scan | Self::ScanInPlace | Self::ExclusiveScan | Self::ExclusiveScanInPlace)
    }

    /// Returns whether the form takes `Parts`, which give each rank a part of its own length.
    pub fn has_parts(self) -> bool {
        use Form::{AllGatherV, AllGatherVInPlace, GatherV, GatherVInPlace, ScatterV, ScatterVInPlace};
        matches!(self, AllGatherV | AllGatherVInPlace | GatherV | GatherVInPlace | ScatterV | ScatterVInPlace)
    }

    /// Returns whether the form has one buffer for the operand and the result.
    pub fn is_in_place(self) -> bool {
        use Form::{
            AllGatherInPlace, AllGatherVInPlace, AllReduceInPlace, AllToAllInPlace, AllToAllVInPlace, BroadcastInPlace,
            GatherInPlace, GatherVInPlace, ReduceInPlace, ReduceScatterInPlace, ScatterInPlace, ScatterVInPlace,
        };
        matches!(
            self,
            AllReduceInPlace
                | ReduceInPlace
                | ReduceScatterInPlace
                | BroadcastInPlace
                | AllGatherInPlace
                | AllToAllInPlace
                | AllToAllVInPlace
                | GatherInPlace
                | ScatterInPlace
                | AllGatherVInPlace
                | GatherVInPlace
                | ScatterVInPlace
                | Self::ScanInPlace
                | Self::ExclusiveScanInPlace
        )
    }

    /// Returns the lengths of the send and the receive buffer of a rank, for `count` elements among
    /// `n` ranks. For an in-place form, both lengths are those of its only buffer.
    pub fn lens(self, count: usize, n: usize, is_root: bool) -> (usize, usize) {
        match self {
            Self::AllReduce | Self::AllReduceInPlace | Self::Reduce | Self::ReduceInPlace => (count, count),
            Self::Broadcast | Self::BroadcastInPlace => (count, count),
            form if form.is_scan() => (count, count),
            Self::AllGather | Self::Gather | Self::AllGatherV | Self::GatherV => (count, count * n),
            Self::ReduceScatter | Self::Scatter | Self::ScatterV => (count * n, count),
            Self::GatherInPlace | Self::ScatterInPlace | Self::GatherVInPlace | Self::ScatterVInPlace if !is_root => {
                (count, count)
            }
            _ => (count * n, count * n),
        }
    }
}

/// The root of a call, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// The rank of the root.
    pub rank: Rank,
    /// Whether ranks other than the root pass no buffer for arguments that only the root uses.
    pub others_pass_none: bool,
}

/// The thread or stream on which a call runs.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    /// On the calling thread.
    Caller,
    /// On a stream; the caller waits for the ticket.
    Stream(&'a Stream),
}

/// Expands to `$any` with `$s` as symmetric memory or a shared buffer, and to `$slice` with `$s` as
/// a slice.
macro_rules! source {
    ($mem:expr, $s:ident => $any:expr, slice: $slice:expr) => {{
        match &$mem.store {
            Store::Symmetric { inner: $s, .. } => $any,
            Store::Buffer { inner: $s, .. } => $any,
            Store::Slice { .. } => {
                let $s = $mem.store.slice($mem.len());
                let _ = &$s;
                $slice
            }
        }
    }};
}

/// Like `source`, for a destination `$d`.
macro_rules! dest {
    ($mem:expr, $d:ident => $any:expr, slice: $slice:expr) => {{
        let len = $mem.len();
        match &mut $mem.store {
            Store::Symmetric { inner, .. } => {
                let $d = &*inner;
                $any
            }
            Store::Buffer { inner, .. } => {
                let $d = &*inner;
                $any
            }
            store @ Store::Slice { .. } => {
                let $d = store.slice_mut(len);
                let _ = &$d;
                $slice
            }
        }
    }};
}

/// Expands to the blocking call with sources of every kind, or to the stream-ordered call with the
/// kinds that it accepts.
macro_rules! two {
    ($on:expr, $send:expr, $recv:expr, |$s:ident, $d:ident| $blocking:expr, |$stream:ident| $queued:expr) => {
        match $on {
            On::Caller => source!($send, $s => dest!($recv, $d => $blocking, slice: $blocking), slice: dest!($recv, $d => $blocking, slice: $blocking)),
            On::Stream($stream) => ended(source!($send, $s => dest!($recv, $d => $queued, slice: no_slice()), slice: no_slice())),
        }
    };
}

/// Like `two`, for calls with one buffer.
macro_rules! one {
    ($on:expr, $mem:expr, |$d:ident| $blocking:expr, |$stream:ident| $queued:expr) => {
        match $on {
            On::Caller => dest!($mem, $d => $blocking, slice: $blocking),
            On::Stream($stream) => ended(dest!($mem, $d => $queued, slice: no_slice())),
        }
    };
}

fn no_slice<R>() -> Result<Ticket<R>> {
    panic!("calls on a stream take no slices")
}

/// Waits for an enqueued call.
///
/// # Errors
/// As for the call and the ticket.
pub fn ended<R>(submitted: Result<Ticket<R>>) -> Result<R> {
    submitted?.wait()
}

/// Calls a collective that reduces. The buffer of an in-place form is `recv`.
///
/// # Errors
/// As for the call.
pub fn reduction<T: Exact>(
    form: Form,
    team: &Team,
    on: On<'_>,
    send: &Mem<T>,
    recv: &mut Mem<T>,
    op: Reduction<T>,
    root: Root,
) -> Result<()> {
    let (absent, root) = (root.others_pass_none && team.my_rank() != root.rank, root.rank);
    match form {
        Form::AllReduce => two!(on, send, recv, |s, d| team.all_reduce_blocking(s, d, op), |q| team.all_reduce(q, s, d, op)),
        Form::AllReduceInPlace => {
            one!(on, recv, |d| team.all_reduce_in_place_blocking(d, op), |q| team.all_reduce_in_place(q, d, op))
        }
        Form::Reduce if absent => match on {
            On::Caller => {
                source!(send, s => team.reduce_blocking(s, none(), op, root), slice: team.reduce_blocking(s, none(), op, root))
            }
            On::Stream(q) => ended(source!(send, s => team.reduce(q, s, none(), op, root), slice: no_slice())),
        },
        Form::Reduce => two!(on, send, recv, |s, d| team.reduce_blocking(s, d, op, root), |q| team.reduce(q, s, d, op, root)),
        Form::ReduceInPlace => {
            one!(on, recv, |d| team.reduce_in_place_blocking(d, op, root), |q| team.reduce_in_place(q, d, op, root))
        }
        Form::ReduceScatter => {
            two!(on, send, recv, |s, d| team.reduce_scatter_blocking(s, d, op), |q| team.reduce_scatter(q, s, d, op))
        }
        Form::ReduceScatterInPlace => {
            one!(on, recv, |d| team.reduce_scatter_in_place_blocking(d, op), |q| team.reduce_scatter_in_place(q, d, op))
        }
        Form::Scan => two!(on, send, recv, |s, d| team.scan_blocking(s, d, op), |q| team.scan(q, s, d, op)),
        Form::ScanInPlace => one!(on, recv, |d| team.scan_in_place_blocking(d, op), |q| team.scan_in_place(q, d, op)),
        Form::ExclusiveScan => {
            two!(on, send, recv, |s, d| team.exclusive_scan_blocking(s, d, op), |q| team.exclusive_scan(q, s, d, op))
        }
        Form::ExclusiveScanInPlace => {
            one!(on, recv, |d| team.exclusive_scan_in_place_blocking(d, op), |q| team.exclusive_scan_in_place(q, d, op))
        }
        other => panic!("{other:?} is not a form that reduces"),
    }
}

/// Calls a collective that only moves elements, like [`reduction`].
///
/// # Errors
/// As for the call.
pub fn movement<T: Sample>(form: Form, team: &Team, on: On<'_>, send: &Mem<T>, recv: &mut Mem<T>, root: Root) -> Result<()> {
    let (absent, root) = (root.others_pass_none && team.my_rank() != root.rank, root.rank);
    match form {
        Form::Broadcast if absent => {
            one!(on, recv, |d| team.broadcast_blocking(none(), d, root), |q| team.broadcast(q, none(), d, root))
        }
        Form::Broadcast => {
            two!(on, send, recv, |s, d| team.broadcast_blocking(s, d, root), |q| team.broadcast(q, s, d, root))
        }
        Form::BroadcastInPlace => {
            one!(on, recv, |d| team.broadcast_in_place_blocking(d, root), |q| team.broadcast_in_place(q, d, root))
        }
        Form::AllGather => two!(on, send, recv, |s, d| team.all_gather_blocking(s, d), |q| team.all_gather(q, s, d)),
        Form::AllGatherInPlace => one!(on, recv, |d| team.all_gather_in_place_blocking(d), |q| team.all_gather_in_place(q, d)),
        Form::AllToAll => two!(on, send, recv, |s, d| team.all_to_all_blocking(s, d), |q| team.all_to_all(q, s, d)),
        Form::AllToAllInPlace => one!(on, recv, |d| team.all_to_all_in_place_blocking(d), |q| team.all_to_all_in_place(q, d)),
        Form::Gather if absent => match on {
            On::Caller => source!(send, s => team.gather_blocking(s, none(), root), slice: team.gather_blocking(s, none(), root)),
            On::Stream(q) => ended(source!(send, s => team.gather(q, s, none(), root), slice: no_slice())),
        },
        Form::Gather => two!(on, send, recv, |s, d| team.gather_blocking(s, d, root), |q| team.gather(q, s, d, root)),
        Form::GatherInPlace => {
            one!(on, recv, |d| team.gather_in_place_blocking(d, root), |q| team.gather_in_place(q, d, root))
        }
        Form::Scatter if absent => {
            one!(on, recv, |d| team.scatter_blocking(none(), d, root), |q| team.scatter(q, none(), d, root))
        }
        Form::Scatter => two!(on, send, recv, |s, d| team.scatter_blocking(s, d, root), |q| team.scatter(q, s, d, root)),
        Form::ScatterInPlace => {
            one!(on, recv, |d| team.scatter_in_place_blocking(d, root), |q| team.scatter_in_place(q, d, root))
        }
        other => panic!("{other:?} is not a form that only moves elements"),
    }
}

/// Calls all-to-all-v, in place if `form` is in place.
///
/// # Errors
/// As for the call.
pub fn vector<T: Sample>(
    form: Form,
    team: &Team,
    on: On<'_>,
    send: &Mem<T>,
    recv: &mut Mem<T>,
    counts: VectorCounts,
) -> Result<()> {
    match form {
        Form::AllToAllV => {
            two!(on, send, recv, |s, d| team.all_to_all_v_blocking(s, d, counts), |q| team.all_to_all_v(q, s, d, counts))
        }
        _ => one!(on, recv, |d| team.all_to_all_v_in_place_blocking(d, counts), |q| team.all_to_all_v_in_place(q, d, counts)),
    }
}

/// Calls a collective whose parts differ in length among ranks, like [`movement`].
///
/// # Errors
/// As for the call.
pub fn ragged<T: Sample>(
    form: Form,
    team: &Team,
    on: On<'_>,
    send: &Mem<T>,
    recv: &mut Mem<T>,
    parts: Parts,
    root: Root,
) -> Result<()> {
    let (absent, root) = (root.others_pass_none && team.my_rank() != root.rank, root.rank);
    let p = if absent && !matches!(form, Form::AllGatherV | Form::AllGatherVInPlace) { Parts::default() } else { parts };
    match form {
        Form::AllGatherV => two!(on, send, recv, |s, d| team.all_gather_v_blocking(s, d, p), |q| team.all_gather_v(q, s, d, p)),
        Form::AllGatherVInPlace => {
            one!(on, recv, |d| team.all_gather_v_in_place_blocking(d, p), |q| team.all_gather_v_in_place(q, d, p))
        }
        Form::GatherV if absent => match on {
            On::Caller => {
                source!(send, s => team.gather_v_blocking(s, none(), p, root), slice: team.gather_v_blocking(s, none(), p, root))
            }
            On::Stream(q) => ended(source!(send, s => team.gather_v(q, s, none(), p, root), slice: no_slice())),
        },
        Form::GatherV => {
            two!(on, send, recv, |s, d| team.gather_v_blocking(s, d, p, root), |q| team.gather_v(q, s, d, p, root))
        }
        Form::GatherVInPlace => {
            one!(on, recv, |d| team.gather_v_in_place_blocking(d, p, root), |q| team.gather_v_in_place(q, d, p, root))
        }
        Form::ScatterV if absent => {
            one!(on, recv, |d| team.scatter_v_blocking(none(), d, p, root), |q| team.scatter_v(q, none(), d, p, root))
        }
        Form::ScatterV => {
            two!(on, send, recv, |s, d| team.scatter_v_blocking(s, d, p, root), |q| team.scatter_v(q, s, d, p, root))
        }
        Form::ScatterVInPlace => {
            one!(on, recv, |d| team.scatter_v_in_place_blocking(d, p, root), |q| team.scatter_v_in_place(q, d, p, root))
        }
        other => panic!("{other:?} is not a form with parts"),
    }
}
