//! The memory of a job: the memory file that all PEs map, its layout, the symmetric heap, and the
//! memory of the machine. Only the file `line.rs` contains a protocol between PEs.

pub(crate) mod heap;
pub(crate) mod layout;
pub(crate) mod line;
pub(crate) mod machine;
pub(crate) mod segment;
