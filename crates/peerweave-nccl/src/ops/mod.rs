//! What a communicator does for its users: collectives, sends and receives, one-sided operations,
//! groups of them.
//!
//! A call goes through `shapes` and `check` (is it right?), the lock of `member`, `issue` (NCCL
//! gets it) and `complete` of `comm`.

pub(crate) mod agreement;
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
pub(crate) mod sim_info;
