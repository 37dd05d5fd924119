//! The operations of a communicator: collectives, sends and receives, one-sided operations, groups.
//!
//! `shapes` and `check` check a call. The call then acquires the communicator's lock, which is in
//! `member`. `issue` calls NCCL. `complete`, a module of `comm`, waits until NCCL has finished on
//! the host.

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
