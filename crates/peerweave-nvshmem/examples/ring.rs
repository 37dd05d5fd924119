//! A first program: every PE puts its number to the next PE, all PEs synchronise, and each PE
//! checks the data that it received.
//!
//! Start the program on one machine with `peerweave run -n 2 -- ring`, or with `mpirun`, `srun` or
//! `torchrun`. Without a launcher, the job has one PE. The output with two PEs is:
//!
//! ```text
//! PE 0 of 2: received 1024 times 1 from PE 1
//! PE 1 of 2: received 1024 times 0 from PE 0
//! ```
//!
//! `examples/09-put-to-next` is the same program with the portable API of `peerweave`. That program
//! runs on the host backend, because NVSHMEM is not a backend of `World`.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_nvshmem::{Context, Settings};
use peerweave_types::Pe;

const COUNT: usize = 1024;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    let device = peerweave_driver::context(job.local_pe as usize)?;
    let nvshmem = Context::from_rendezvous(&rendezvous, &device, Settings::default())?;
    let (pe, n_pes) = (nvshmem.pe().get(), nvshmem.n_pes());
    let (next, previous) = (Pe::new((pe + 1) % n_pes), Pe::new((pe + n_pes - 1) % n_pes));

    // Symmetric memory: every PE has both buffers. In the put below, this PE's handle of `target`
    // represents the memory of the next PE.
    let source = nvshmem.alloc::<f32>(COUNT)?;
    let target = nvshmem.alloc::<f32>(COUNT)?;
    let stream = nvshmem.stream();
    source.copy_from(stream, &[pe as f32; COUNT])?;

    nvshmem.put(&target, &source, next, stream)?;
    nvshmem.world().barrier(stream)?;

    let received = target.to_vec(stream)?;
    assert_eq!(received, [previous.get() as f32; COUNT], "the received data is not that of the previous PE");
    println!("{} of {n_pes}: received {COUNT} times {} from {previous}", nvshmem.pe(), received[0]);

    nvshmem.free(source)?;
    nvshmem.free(target)?;
    nvshmem.finalize()?;
    Arc::into_inner(rendezvous).expect("the context has released the rendezvous").leave()?;
    Ok(())
}
