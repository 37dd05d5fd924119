//! The data that kernels of a GPU access in addition to their arguments: the context with its
//! tables, the status block, and the abort word.

pub(crate) mod report;
pub(crate) mod tables;
