//! Memory of the operating system: files without a name, mappings, files of other processes, and
//! the addresses of a device's allocations. Invariant: a mapping replaces only addresses that this
//! library reserved or that the kernel chose.

pub(crate) mod arena;
pub(crate) mod files;
pub(crate) mod mapping;
mod process_file;

pub(crate) use process_file::ProcessFile;
