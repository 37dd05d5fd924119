//! Windows.
use crate::comm::Comm;
use crate::mailbox::Slot;

#[derive(Clone, Debug)]
pub(crate) struct OneSided;

pub(crate) fn apply(_slot: Slot, _bytes: &[u8]) {}
pub(crate) fn run(_comm: &Comm, _work: &OneSided) -> Option<()> { Some(()) }
pub(crate) fn count() -> i64 { 0 }
