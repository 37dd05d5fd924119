//! Sends and receives.

use super::Place;
use crate::backend::TeamId;
use peerweave_types::{DType, Rank};

/// One send or receive. Sends and receives between two ranks of a team match in the order of their
/// calls.
#[derive(Clone, Debug)]
pub struct PointToPoint {
    /// Whether this PE sends or receives.
    pub direction: Direction,
    /// The team in which `peer` is a rank.
    pub team: TeamId,
    /// The other rank; inside a group it may be this rank itself.
    pub peer: Rank,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub count: usize,
    /// The memory that is sent or received.
    pub at: Place,
}

/// Whether a [`PointToPoint`] sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Direction {
    Send,
    Receive,
}
