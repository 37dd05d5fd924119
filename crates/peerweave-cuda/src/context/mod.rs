//! The data that kernels of a GPU access in addition to their arguments: the context with its
//! tables, and the status block.

pub(crate) mod report;
pub(crate) mod tables;
