//! What NVSHMEM is on this machine, as far as can be told without a GPU: where, which version, what
//! it lacks, and whether PEs could meet by an id.
//!
//! It prints, for the wheel of 3.8.0:
//!
//! ```text
//! NVSHMEM 3.8.0 (.../nvidia/nvshmem/lib/libnvshmem_host.so.3)
//! name NVSHMEM v3.8.0, OpenSHMEM 1.3, NotInitialized
//! lacks nothing
//! an id was made: UniqueId(#1b8d03f6)
//! ```

use peerweave_nvshmem::{Context, Nvshmem, NvshmemError, Settings};

fn main() -> Result<(), NvshmemError> {
    let nvshmem = Nvshmem::load()?;
    let (major, minor) = nvshmem.specification()?;
    println!("{nvshmem:?}");
    println!("name {}, OpenSHMEM {major}.{minor}, {:?}", nvshmem.name()?, nvshmem.status()?);
    let missing: Vec<_> = nvshmem.missing().iter().map(|symbol| format!("{} ({})", symbol.name, symbol.since)).collect();
    println!("lacks {}", if missing.is_empty() { "nothing".to_owned() } else { missing.join(", ") });
    println!("an id was made: {:?}", Context::unique_id(&Settings::default())?);
    Ok(())
}
