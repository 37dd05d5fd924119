//! The backend of one PE: its set-up, the calls of the portable API, and finalize.
//!
//! ```text
//!  contract.rs    the trait `Backend` of peerweave-core
//!  members.rs     teams made by their members alone      split.rs    teams made from another team
//!  agreement.rs   calls that PEs make together on the host
//!  shrink.rs      a job of the surviving PEs after a failure
//!  set_up.rs      set-up                                 memory.rs   memory of collectives
//!  routes.rs      how collectives are carried out
//!  cuda.rs        the backend, and its streams           options.rs  settings of the backend
//! ```

mod agreement;
mod contract;
mod cuda;
mod members;
mod memory;
mod options;
mod routes;
mod set_up;
mod shrink;
mod split;

pub use cuda::Cuda;
pub use options::{CudaOptions, visible_gpus};
