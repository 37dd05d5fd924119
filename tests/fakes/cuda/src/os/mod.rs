//! Memory of the operating system: files without a name, mappings, files of other processes, and
//! the addresses of a device's allocations.

pub(crate) mod arena;
pub(crate) mod files;
pub(crate) mod mapping;
mod process_file;

pub(crate) use process_file::ProcessFile;
