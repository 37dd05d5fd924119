//! Collectives: exchanges of data and reductions, barriers; from the host and in stream order.
//!
//! Invariant: a call on a team begins after all earlier calls on it are complete.

mod barriers;
mod begin;
mod collective;
mod typed;
