//! Collectives: exchanges of data and reductions, barriers; from the host and in stream order.
//!
//! Invariant: a collective of a team begins after all earlier collectives of that team are
//! complete.

mod barriers;
mod begin;
mod collective;
mod typed;
