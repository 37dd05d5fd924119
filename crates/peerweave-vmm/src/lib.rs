//! GPU memory shared between PEs: CUDA's virtual memory made safe, a symmetric heap over NVLink, multicast objects.
#![doc = include_str!("../README.md")]

mod access;
mod agree;
mod allocator;
mod buffer;
mod chunk;
mod descriptor;
mod error;
mod heap;
mod identity;
mod ipc;
mod mapping;
pub mod multicast;
mod pads;
pub mod peer;
mod physical;
pub mod probe;
mod raw;
mod reservation;
mod share;
mod streams;
mod symmetric;
mod view;

pub use access::Rights;
pub use buffer::{copy, read, write, zero};
pub use chunk::Way;
pub use descriptor::Descriptor;
pub use error::{Misuse, PeerCause, VmmError};
pub use heap::{Growth, HeapOptions, Leak, LeakReport, Sharing, SymmetricHeap};
pub use ipc::{IpcHandle, IpcMemory, IpcPeerMemory};
pub use mapping::{MappedMemory, Mapping};
pub use pads::SignalPad;
pub use peer::PeerMatrix;
pub use peerweave_driver::{MulticastDisabled, multicast_switch};
pub use physical::{Exportable, Granularity, PhysicalMemory};
pub use reservation::Reservation;
pub use share::{FabricHandle, SharedMemory};
pub use symmetric::{PeerMemory, SymmetricMemory};
pub use view::SymmetricView;

/// What threads share: checked when the crate is compiled.
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
