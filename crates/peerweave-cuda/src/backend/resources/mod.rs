//! Resources that operations borrow: temporary memory, words in which kernels store outcomes,
//! events, and loaded kernels.

mod event;
mod kernels;
mod pools;
mod slots;
mod staging;

pub(crate) use event::Recorded;
pub(crate) use kernels::{Combiners, Kernels, note};
pub(crate) use pools::{Few, Pieces, class_of};
pub(crate) use slots::{Pool, Slot};
pub(crate) use staging::{Copier, Pinned, Staged, call_in_order};
