//! Device memory: traits for buffers, owned memory, and copies from and to the host.

mod buffer;
mod copy;
mod device_memory;

pub use buffer::{Access, DeviceBuffer, DeviceBufferMut, Raw};
pub use copy::{check_copy, copy_from_host, copy_to_host};
pub use device_memory::{DEADLINE, DeviceMemory};
