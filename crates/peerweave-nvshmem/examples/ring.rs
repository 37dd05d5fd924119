//! The classic first program: every PE puts its numbers to the next one, all wait for each other,
//! and everybody looks at what came.
//!
//! Start it on one machine with `peerweave run -n 2 -- ring`, or by `mpirun`, `srun`, `torchrun`;
//! alone it is a job of one PE. It prints, for two PEs:
//!
//! ```text
//! PE 0 of 2: from PE 1 came 1024 times 1
//! PE 1 of 2: from PE 0 came 1024 times 0
//! ```
//!
//! The same through the portable API of `peerweave` is `examples/09-put-to-next`, which runs on the
//! host backend: there is no `World` over NVSHMEM.

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

    // Symmetric: every PE has both, and this PE's handle of `target` names the next PE's in the put
    // below.
    let source = nvshmem.alloc::<f32>(COUNT)?;
    let target = nvshmem.alloc::<f32>(COUNT)?;
    let stream = nvshmem.stream();
    source.copy_from(stream, &[pe as f32; COUNT])?;

    nvshmem.put(&target, &source, next, stream)?;
    nvshmem.world().barrier(stream)?;

    let came = target.to_vec(stream)?;
    assert_eq!(came, [previous.get() as f32; COUNT], "what the previous PE put");
    println!("{} of {n_pes}: from {previous} came {COUNT} times {}", nvshmem.pe(), came[0]);

    nvshmem.free(source)?;
    nvshmem.free(target)?;
    nvshmem.finalize()?;
    Arc::into_inner(rendezvous).expect("NVSHMEM has given it up").leave()?;
    Ok(())
}
