//! Prints the number of every PE, then its rank in a team of half of the PEs.
#![forbid(unsafe_code)]

use peerweave::{Error, ReduceOp, World};

fn main() -> Result<(), Error> {
    // Joins the job started by `peerweave run`, torchrun, mpirun or srun. Without a launcher, the
    // job has one PE.
    let world = World::from_env()?;
    let me = world.my_pe();
    println!("{me} of {}, on the {} backend", world.n_pes(), world.backend_name());

    // Ranks that pass the same color form a team. Splitting is collective: every rank of the parent
    // calls it.
    let color = u64::from(me.get() % 2);
    let half = world.team().split(Some(color), 0)?.expect("a rank that passes a color gets a team");
    let name = if color == 0 { "even" } else { "odd" };
    println!("{me} is {} of {} in the {name} team", half.my_rank(), half.size());

    // A collective involves only its team: each half adds up its own PEs.
    let mut sum = [0];
    half.all_reduce_blocking(&[me.get()], &mut sum, ReduceOp::Sum)?;
    assert_eq!(sum[0], half.members().iter().map(|pe| pe.get()).sum());
    println!("{me}: the sum of the PEs of the {name} team is {}", sum[0]);

    // Destroying a team and finalizing the job are collective, like creating them.
    half.destroy()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
