//! The interfaces of this library and of the CUDA driver: NCCL's structs, codes and versions,
//! pointers to memory of the program, and the driver's errors.
//!
//! Contains no behaviour of NCCL. Invariant: nothing here is from the crate under test.

mod codes;
pub(crate) mod driver;
mod pointers;
mod structs;
pub(crate) mod version;

pub(crate) use codes::{Code, Fail, Result, fail, in_progress, invalid, misuse};
pub(crate) use pointers::{Out, not_null, read, text, write};
pub(crate) use structs::{
    CollConfig, ConfigStruct, EncryptionConfig, Header, MAGIC, SIM_MAGIC, SimInfo, Stream, Team, UNDEFINED, UniqueId,
    WaitSignalDesc,
};
