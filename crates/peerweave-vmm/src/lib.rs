//! GPU memory shared among PEs: safe wrappers around CUDA's virtual memory management, a symmetric
//! heap over NVLink, and multicast objects.
#![doc = include_str!("../README.md")]

mod agree;
mod error;
mod heap;
mod memory;
pub mod multicast;
pub mod peer;
mod raw;
mod share;

pub use error::{Misuse, PeerCause, VmmError};
pub use heap::chunk::HeapTransport;
pub use heap::multicast::HeapMulticast;
pub use heap::pads::SignalPad;
pub use heap::symmetric::{PeerMemory, SymmetricMemory};
pub use heap::view::SymmetricView;
pub use heap::{Growth, HeapOptions, Leak, LeakReport, Sharing, SymmetricHeap};
pub use memory::access::Rights;
pub use memory::buffer::{copy, read, write, zero};
pub use memory::descriptor::Descriptor;
pub use memory::mapping::{MappedMemory, Mapping};
pub use memory::physical::{Exportable, Granularity, PhysicalMemory};
pub use memory::reservation::Reservation;
pub use peer::PeerMatrix;
pub use peerweave_driver::{MulticastDisabled, multicast_switch};
pub use share::ipc::{IpcHandle, IpcMemory, IpcPeerMemory};
pub use share::{FabricHandle, SharedMemory};

/// Compile-time check that the types listed below can be shared between threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<PhysicalMemory>();
    shared::<Reservation>();
    shared::<Mapping>();
    shared::<MappedMemory<f32>>();
    shared::<SymmetricHeap>();
    shared::<SymmetricMemory<f32>>();
    shared::<PeerMemory<f32>>();
    shared::<SignalPad>();
    shared::<IpcMemory>();
    shared::<multicast::Team>();
    shared::<multicast::Bound>();
    shared::<multicast::MulticastMapping>();
};
