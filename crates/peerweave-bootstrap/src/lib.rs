//! Start-up of a job: reads launchers' environments, connects the PEs, and exchanges small data
//! among them.
//!
//! This crate does not depend on GPUs. It does not transfer the application's data: a blob has at
//! most 1 MiB. Backends use this crate to set up shared memory or network connections, through
//! which they transfer the application's data.
//!
//! ```text
//!  Job::from_env()          reads the variables of peerweave run, torchrun, PMIx, PMI-1 or Slurm
//!       │
//!  Rendezvous::join         waits for all PEs; at the deadline, an error names the missing PEs
//!       │
//!       ├─ exchange  barrier  put  get        blobs and values of up to 1 MiB
//!       ├─ share_descriptor                   memory of one machine, from one process to the others
//!       └─ leave
//!
//!  Server                   one thread of the launcher or of PE 0; does not trust connections
//! ```
//!
//! - **Waits end.** Every wait has a deadline. If the deadline passes, the error names the missing
//!   PEs. A crashed PE is detected immediately, and every PE that waits for the crashed PE gets an
//!   error that names the crashed PE.
//! - **Connections are authenticated.** A client must know a token. On one machine, the operating
//!   system also confirms which user runs the client. A connection that sends invalid data, floods
//!   the server, or sends no data does not affect other connections.
//! - **Nothing remains after the job.** On one machine, the server uses an abstract Unix socket.
//!   This socket has no file and is freed when the process that runs the server ends.
//!
//! ```
//! use peerweave_bootstrap::{Job, Options, Rendezvous};
//!
//! let job = Job::from_env()?;
//! let rendezvous = Rendezvous::join(&job, Options::default())?;
//! let addresses = rendezvous.exchange("hosts", b"my address")?;
//! println!("{} of {}: {} blobs", job.pe, job.n_pes, addresses.len());
//! rendezvous.leave()?;
//! # Ok::<(), peerweave_bootstrap::BootstrapError>(())
//! ```
//!
//! PEs can join and leave in any order. The only exception: if PE 0 runs the server, PE 0 must
//! leave last.

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod agree;
#[cfg(target_os = "linux")]
mod descriptors;
mod error;
mod exit;
pub mod first_fit;
mod job;
mod limits;
#[cfg(target_os = "linux")]
pub mod process;
mod rendezvous;
mod server;
pub mod survivors;
mod wire;

pub use error::{BootstrapError, Loss, Refusal};
pub use exit::end_process;
pub use job::endpoint::{Endpoint, MAX_NAME_LEN_BYTES};
pub use job::env::warn_of_public_token;
pub use job::host::{Host, Hosts};
pub use job::token::{TOKEN_LEN_BYTES, Token, fill_random};
pub use job::{Job, Launcher, Served, env, interface};
pub use peerweave_types::Pe;
pub use rendezvous::{Aborted, Options, Rendezvous};
pub use server::{Server, ServerOptions, ServerState};
pub use wire::proto;
