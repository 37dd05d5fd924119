//! Sends and receives, as plain data that a backend runs.

use super::Place;
use crate::backend::TeamId;
use peerweave_types::{DType, Rank};

/// A send or a receive. Between two ranks of a team, the first send matches the first receive, the
/// second send matches the second receive, and so on.
#[derive(Clone, Debug)]
pub struct PointToPoint {
    /// Whether this PE sends or receives.
    pub direction: Direction,
    /// The team in which `peer` is a rank.
    pub team: TeamId,
    /// The other rank: the receiver of a send, or the sender of a receive. In a group, `peer` may
    /// be this rank itself.
    pub peer: Rank,
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub count: usize,
    /// The memory of this PE: the data of a send, or the destination of a receive.
    pub at: Place,
}

/// Whether a [`PointToPoint`] sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the variants need no explanation")]
pub enum Direction {
    Send,
    Receive,
}
