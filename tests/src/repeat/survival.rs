//! Runs the mixture of operations, and continues with the survivors after each failure.

use crate::repeat::workload::Workload;
use crate::run::job::named_by;
use peerweave::{PeerCause, Result, World};

/// The world of the survivors, and the failures before it.
#[derive(Debug)]
pub struct Survival {
    /// The newest world.
    pub world: World,
    /// For each PE of the newest world, its number in the first world.
    pub first: Vec<u32>,
    /// The failures of this PE, each with the PEs that the error names, by their numbers in the
    /// first world, and with the message.
    pub failures: Vec<(Vec<u32>, String)>,
}

impl Survival {
    /// Starts in a world in which nothing has failed.
    pub fn new(world: World) -> Self {
        let first = (0..world.n_pes() as u32).collect();
        Self { world, first, failures: Vec::new() }
    }

    /// Records the failure `because`, and shrinks the world to the survivors.
    ///
    /// # Errors
    /// As for [`World::shrink`].
    pub fn shrink(&mut self, because: &peerweave::Error) -> Result<()> {
        let shrinks = matches!(because, peerweave::Error::Peer { cause: PeerCause::Shrinks, .. });
        let named = if shrinks { Vec::new() } else { named_by(because) };
        self.failures.push((named.iter().map(|pe| self.first[pe.index()]).collect(), because.to_string()));
        let smaller = self.world.shrink()?;
        self.first = smaller.former_pes().iter().map(|pe| self.first[pe.index()]).collect();
        self.world = smaller;
        Ok(())
    }

    /// Runs the mixture, and shrinks the world after each failure, until `left` PEs remain. These
    /// then run `rounds` rounds. Calls `before_shrink` before each shrink.
    ///
    /// # Errors
    /// Errors of [`World::shrink`], and errors of the last `rounds` rounds.
    ///
    /// # Panics
    /// If a result is wrong.
    pub fn run(&mut self, seed: u64, left: usize, rounds: u64, mut before_shrink: impl FnMut()) -> Result<()> {
        while self.world.n_pes() > left {
            let mut mixture = Workload::seeded(&self.world, seed);
            let failure = loop {
                if let Err(error) = mixture.step() {
                    break error;
                }
            };
            drop(mixture);
            before_shrink();
            self.shrink(&failure)?;
        }
        let mut mixture = Workload::seeded(&self.world, seed);
        (0..rounds).try_for_each(|_| mixture.step())
    }
}
