//! The operations of a communicator: collectives, sends and receives, one-sided operations, groups.
//!
//! A call passes through `shapes` and `check` (its checks), the lock of `member`, `issue` (the call
//! of NCCL) and `complete` of `comm`.

pub(crate) mod check;
pub(crate) mod collectives;
pub(crate) mod configured;
pub(crate) mod group;
pub(crate) mod holds;
pub(crate) mod issue;
pub(crate) mod one_sided;
pub(crate) mod operation;
pub(crate) mod reduction;
pub(crate) mod shapes;
pub(crate) mod signatures;
