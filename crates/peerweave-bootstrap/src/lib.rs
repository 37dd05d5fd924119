//! Who am I and who are the others: launcher environments, a rendezvous, and the exchange of small things at the start of a job.
//!
//! No data of the application moves here, and nothing knows of GPUs. A blob has at most 1 MiB; what the backends move
//! later goes by the memory or the network that was set up with the help of this crate.
//!
//! ```text
//!  Job::from_env()          who am I: peerweave run, torchrun, Open MPI/PMIx, MPICH/PMI-1, Slurm, or nobody
//!       │
//!  Rendezvous::join         everybody meets, by a deadline, or learns who is missing
//!       │
//!       ├─ exchange  barrier  put  get        blobs of up to 1 MiB, ordered by PE
//!       ├─ share_descriptor                   memory of one machine, from one process to the others
//!       └─ leave
//!
//!  Server                   one thread, held by the launcher or by PE 0; trusts nobody who connects
//! ```
//!
//! - **It ends.** Every wait has a deadline, and the error names who did not come. A PE that crashes is noticed
//!   at once, and named to everybody who waits for it.
//! - **It trusts nobody.** Who connects has to know a token; on one machine the kernel vouches for its user. Garbage, silence and
//!   floods cost the connection that they came by.
//! - **It leaves nothing behind.** On one machine it is an abstract Unix socket that goes with its process: no file, whatever dies.
//!
//! ```
//! use peerweave_bootstrap::{Job, Options, Rendezvous};
//!
//! let job = Job::from_env()?;
//! let rendezvous = Rendezvous::join(&job, Options::default())?;
//! let everybody = rendezvous.exchange("hosts", b"my address")?;
//! println!("{} of {}: {} blobs", job.pe, job.n_pes, everybody.len());
//! rendezvous.leave()?;
//! # Ok::<(), peerweave_bootstrap::BootstrapError>(())
//! ```
//!
//! The first process that joins and the last one that leaves may be any; only where PE 0 holds the server does it leave last.

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod agree;
mod board;
mod client;
mod connection;
#[cfg(target_os = "linux")]
mod descriptors;
mod endpoint;
pub mod env;
mod error;
pub mod interface;
mod job;
pub mod proto;
mod server;
#[cfg(target_os = "linux")]
mod siblings;
mod socket;
mod token;

pub use client::{Options, Rendezvous};
pub use endpoint::{Endpoint, MAX_NAME_LEN_BYTES};
pub use error::{BootstrapError, Loss, Refusal};
pub use job::{Job, Launcher, Served};
pub use peerweave_types::Pe;
pub use server::{Server, ServerOptions, ServerState};
pub use token::{TOKEN_LEN_BYTES, Token, warn_of_public_token};
