//! Prints facts about the NVSHMEM library of this machine: path, version, missing functions, and
//! whether the library can create an id. The program needs no GPU.
//!
//! Output with the wheel of 3.8.0:
//!
//! ```text
//! NVSHMEM 3.8.0 (.../nvidia/nvshmem/lib/libnvshmem_host.so.3)
//! name NVSHMEM v3.8.0, OpenSHMEM 1.3, NotInitialized
//! lacks nothing
//! created an id: UniqueId(#1b8d03f6)
//! ```

use peerweave_nvshmem::{Context, Nvshmem, NvshmemError, Settings};

fn main() -> Result<(), NvshmemError> {
    let nvshmem = Nvshmem::load()?;
    let (major, minor) = nvshmem.specification()?;
    println!("{nvshmem:?}");
    println!("name {}, OpenSHMEM {major}.{minor}, {:?}", nvshmem.name()?, nvshmem.status()?);
    let missing: Vec<_> = nvshmem.missing().iter().map(|symbol| format!("{} ({})", symbol.name, symbol.since)).collect();
    println!("lacks {}", if missing.is_empty() { "nothing".to_owned() } else { missing.join(", ") });
    println!("created an id: {:?}", Context::unique_id(&Settings::default())?);
    Ok(())
}
