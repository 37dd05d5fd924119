//! Checks that the ranks of one communicator in a group agree. The ranks must issue the same
//! collectives in the same order, with the same lengths, types, roots and reductions. Each receive
//! must have the length of the matching send.
//!
//! NCCL makes none of these checks. Ranks that disagree deadlock, or write beyond a buffer. Ranks
//! of other threads and processes are not checked.
//!
//! Invariant: only calls that NCCL matches with each other are compared. Each rank numbers its
//! collectives, and collectives with the same number match. Sends and receives between two ranks
//! match in the order of issue. The order is unknown after a rank has issued a send or receive
//! without the matching call in the same group. From then on, the sends and receives of this rank
//! are not compared.

use std::fmt;
use std::sync::Arc;

use peerweave_types::{DType, Rank};

use crate::Call;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::ops::issue::Request;
use crate::ops::operation::{Kind, Operation, Operations};
use crate::sys::{ncclDataType_t, ncclRedOp_t};

/// A recorded call and its communicator.
pub(crate) type Recorded<'a, 'env> = (&'a Arc<Inner>, &'a Request<'env>);

/// Compares the calls that different ranks of one communicator issue in this group. Fails if the
/// calls do not match. The caller holds the locks of all communicators.
///
/// # Errors
/// [`MisuseKind::Disagreement`].
pub(crate) fn check<'a, 'env: 'a>(calls: impl Iterator<Item = Recorded<'a, 'env>> + Clone) -> Result<(), NcclError> {
    // Most groups have calls of only one rank, so there is nothing to compare.
    let mut inners = calls.clone().map(|(inner, _)| inner);
    let Some(first) = inners.next() else { return Ok(()) };
    if inners.all(|inner| Arc::ptr_eq(inner, first)) {
        return Ok(());
    }
    let mut ranks: Vec<Member<'a>> = Vec::new();
    for (inner, _) in calls.clone() {
        if !ranks.iter().any(|rank| Arc::ptr_eq(rank.inner, inner)) {
            ranks.push(Member { inner, collectives: inner.collectives(), paired: 0 });
        }
    }
    let has_sibling = |rank: &Member<'_>| {
        ranks.iter().any(|other| other.inner.identity == rank.inner.identity && !Arc::ptr_eq(other.inner, rank.inner))
    };
    if !ranks.iter().any(has_sibling) {
        return Ok(());
    }
    collectives(calls.clone(), &mut ranks)?;
    transfers(calls, &mut ranks)?;
    ranks.iter().for_each(|rank| rank.inner.count_paired(rank.paired));
    Ok(())
}

/// A rank that issues calls in the group: its communicator, and two counts that the checks of the
/// group update.
struct Member<'a> {
    inner: &'a Arc<Inner>,
    /// Number of this rank's collectives so far: those that the rank issued before this group, and
    /// those of this group to which the check has given a number.
    collectives: u64,
    /// Number of paired sends and receives of this rank in the group. For a paired send or receive,
    /// the matching call is in the same group.
    paired: u64,
}

/// Compares collectives between the ranks of a communicator. Each rank numbers its own collectives.
/// Fails unless collectives with the same number match.
fn collectives<'a, 'env: 'a>(calls: impl Iterator<Item = Recorded<'a, 'env>>, ranks: &mut [Member<'a>]) -> Result<(), NcclError> {
    let mut numbered: Vec<(u64, u64, Recorded<'a, 'env>)> = Vec::new();
    for (inner, request) in calls.filter(|(_, request)| request.call.is_collective()) {
        let Some(rank) = ranks.iter_mut().find(|rank| Arc::ptr_eq(rank.inner, inner)) else { continue };
        rank.collectives += 1;
        numbered.push((inner.identity, rank.collectives, (inner, request)));
    }
    // The sort is stable, so an error names the ranks in the order of their calls.
    numbered.sort_by_key(|(identity, number, _)| (*identity, *number));
    for part in numbered.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
        let first = part[0].2;
        for (_, _, other) in &part[1..] {
            agree(first, *other)?;
        }
    }
    Ok(())
}

/// Fails unless two ranks issue the same collective with matching arguments. Each parameter of this
/// function has the communicator and the call of one rank.
fn agree((one, expected): Recorded<'_, '_>, (other, found): Recorded<'_, '_>) -> Result<(), NcclError> {
    let agrees = match (&expected.operations, &found.operations) {
        (Operations::One(one), Operations::One(other)) => one.matches(other),
        (Operations::Many(ones), Operations::Many(others)) if expected.call == found.call => match expected.call {
            Call::AllToAllV => transposed(ones, one.rank, others, other.rank) && transposed(others, other.rank, ones, one.rank),
            _ => ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| one.matches(other)),
        },
        _ => false,
    };
    if agrees {
        return Ok(());
    }
    // The error shows the lengths for the other rank: two ranks can disagree about the data that
    // one rank sends to the other.
    let shown = |request: &Request<'_>, peer: Rank| Shown(request.call, &request.operations, peer).to_string().into();
    Err(disagreement(found.call, other, shown(found, one.rank), one, shown(expected, other.rank)))
}

fn disagreement(call: Call, inner: &Inner, found: Box<str>, other: &Inner, expected: Box<str>) -> NcclError {
    NcclError::misuse(call.name(), MisuseKind::Disagreement { rank: inner.rank, found, other: other.rank, expected })
}

/// Returns whether rank `from` sends as many bytes to rank `to` as `to` receives from `from`.
/// `sends` contains the operations of `from`, and `receives` contains the operations of `to`.
fn transposed(sends: &[Operation], from: Rank, receives: &[Operation], to: Rank) -> bool {
    let sent = sends.iter().find(|part| part.kind == Kind::Send(to.get() as i32)).map_or(0, Operation::len_bytes);
    let received = receives.iter().find(|part| part.kind == Kind::Recv(from.get() as i32)).map_or(0, Operation::len_bytes);
    sent == received
}

/// Compares the length of each send in the group with the length of the matching receive. Fails if
/// the two lengths differ.
fn transfers<'a, 'env: 'a>(
    calls: impl Iterator<Item = Recorded<'a, 'env>> + Clone,
    ranks: &mut [Member<'a>],
) -> Result<(), NcclError> {
    let mut pairs: Vec<Pair<'a, 'env>> = Vec::new();
    for (inner, request) in calls {
        let Operations::One(operation) = &request.operations else { continue };
        let (from, to, is_send) = match operation.kind {
            Kind::Send(to) => (inner.rank, Rank::new(to.unsigned_abs()), true),
            Kind::Recv(from) => (Rank::new(from.unsigned_abs()), inner.rank, false),
            _ => continue,
        };
        let key = (inner.identity, from, to);
        let pair = match pairs.iter_mut().find(|pair| pair.key == key) {
            Some(pair) => pair,
            None => {
                pairs.push(Pair { key, sends: Vec::new(), receives: Vec::new() });
                pairs.last_mut().expect("the list is not empty, because a pair was just added")
            }
        };
        if is_send { &mut pair.sends } else { &mut pair.receives }.push((inner, request));
    }
    for Pair { sends, receives, .. } in &pairs {
        let is_aligned = sends.iter().chain(receives).all(|(inner, _)| inner.transfers_are_paired());
        if !is_aligned || sends.len() != receives.len() {
            continue;
        }
        for ((sender, send), (receiver, receive)) in sends.iter().zip(receives) {
            let (Operations::One(sent), Operations::One(received)) = (&send.operations, &receive.operations) else { continue };
            if sent.len_bytes() != received.len_bytes() {
                let shown = |request: &Request<'_>| Shown(request.call, &request.operations, Rank::default()).to_string().into();
                return Err(disagreement(receive.call, receiver, shown(receive), sender, shown(send)));
            }
        }
        for (inner, _) in sends.iter().chain(receives) {
            if let Some(rank) = ranks.iter_mut().find(|rank| Arc::ptr_eq(rank.inner, inner)) {
                rank.paired += 1;
            }
        }
    }
    Ok(())
}

/// The sends and receives from one rank to another rank within the group.
struct Pair<'a, 'env> {
    /// The identity of the communicator, the sending rank, and the receiving rank.
    key: (u64, Rank, Rank),
    sends: Vec<Recorded<'a, 'env>>,
    receives: Vec<Recorded<'a, 'env>>,
}

impl Operation {
    fn len_bytes(&self) -> u64 {
        self.count as u64 * self.element_bytes as u64
    }

    /// Returns whether the operations of two ranks match. Kind, count, element type and root must
    /// be equal. Predefined reductions must also be equal. Two reductions that the program has
    /// created always match, because their numbers differ between ranks.
    fn matches(&self, other: &Self) -> bool {
        let same_data = (self.count, self.data_type) == (other.count, other.data_type);
        let same_reduction = match (self.reduction(), other.reduction()) {
            // The number of a created reduction is valid only for one communicator, so the numbers
            // of two ranks differ.
            (Some(one), Some(other)) => one == other || !is_predefined(one) && !is_predefined(other),
            (None, None) => true,
            _ => false,
        };
        let same_kind = std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind);
        same_data && same_reduction && same_kind && self.root() == other.root()
    }

    fn reduction(&self) -> Option<ncclRedOp_t> {
        match self.kind {
            Kind::AllReduce(op) | Kind::Reduce(op, _) | Kind::ReduceScatter(op) => Some(op),
            _ => None,
        }
    }

    fn root(&self) -> Option<i32> {
        match self.kind {
            Kind::Broadcast(root) | Kind::Reduce(_, root) | Kind::Gather(root) | Kind::Scatter(root) => Some(root),
            _ => None,
        }
    }
}

fn is_predefined(op: ncclRedOp_t) -> bool {
    op.0 <= ncclRedOp_t::ncclAvg.0
}

/// A call, formatted for an error message. The third field is used only for `AllToAllV`. The
/// message then contains the lengths of the transfers between the calling rank and the rank in this
/// field.
struct Shown<'a>(Call, &'a Operations, Rank);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(call, operations, peer) = self;
        write!(f, "{}", call.name())?;
        match operations {
            Operations::One(operation) => {
                write!(f, " of {} {} elements", operation.count, rust_name(operation.data_type))?;
                if let Some(op) = operation.reduction() {
                    write!(f, " by {}", reduction_name(op))?;
                }
                if let Some(root) = operation.root() {
                    write!(f, " with root {root}")?;
                }
            }
            Operations::Many(operations) if *call == Call::AllToAllV => {
                let count = |kind| operations.iter().find(|part| part.kind == kind).map_or(0, |part| part.count);
                let (sent, received) = (count(Kind::Send(peer.get() as i32)), count(Kind::Recv(peer.get() as i32)));
                write!(f, ", which sends {sent} elements to {peer} and receives {received} elements from {peer}")?;
            }
            Operations::Many(operations) => {
                let counts: Vec<_> = operations.iter().filter_map(|part| Some((part.root()?, part.count))).collect();
                write!(f, " with these (rank, number of elements) pairs: {counts:?}")?;
            }
            Operations::Put(_) | Operations::Wait(_) => {}
        }
        Ok(())
    }
}

/// Returns the Rust name of an element type.
fn rust_name(data_type: ncclDataType_t) -> &'static str {
    let dtype = match data_type {
        ncclDataType_t::ncclInt8 => DType::I8,
        ncclDataType_t::ncclUint8 => DType::U8,
        ncclDataType_t::ncclInt32 => DType::I32,
        ncclDataType_t::ncclUint32 => DType::U32,
        ncclDataType_t::ncclInt64 => DType::I64,
        ncclDataType_t::ncclUint64 => DType::U64,
        ncclDataType_t::ncclFloat16 => DType::F16,
        ncclDataType_t::ncclBfloat16 => DType::BF16,
        ncclDataType_t::ncclFloat32 => DType::F32,
        ncclDataType_t::ncclFloat64 => DType::F64,
        ncclDataType_t::ncclFloat8e4m3 => DType::F8E4M3,
        _ => DType::F8E5M2,
    };
    dtype.rust_name()
}

fn reduction_name(op: ncclRedOp_t) -> &'static str {
    match op {
        ncclRedOp_t::ncclSum => "sum",
        ncclRedOp_t::ncclProd => "prod",
        ncclRedOp_t::ncclMin => "min",
        ncclRedOp_t::ncclMax => "max",
        ncclRedOp_t::ncclAvg => "avg",
        _ => "a custom reduction",
    }
}
