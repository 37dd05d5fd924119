//! What kernels of one GPU read and write beside their arguments: the context with its tables, and
//! the status block.

pub(crate) mod report;
pub(crate) mod tables;
