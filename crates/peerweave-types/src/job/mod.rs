//! Positions in a job: PEs, ranks, teams, and offsets in the symmetric heap.

mod geometry;
mod ids;
mod strides;
mod team_shape;

pub use geometry::{HeapGeometry, SignalWord, SymOffset};
pub use ids::{Pe, Rank};
pub use strides::Strides;
pub use team_shape::TeamShape;
