//! A random mixture of operations, the same on every PE, that runs until an operation fails. Tests
//! of random kills use it.

use crate::data::sample::hash;
use peerweave::{Buffer, Compare, Rank, ReduceOp, Result, Team, World};

/// The state of a PE.
#[derive(Debug)]
pub struct Workload<'a> {
    world: &'a World,
    teams: Vec<Team>,
    round: u64,
    seed: u64,
}

impl<'a> Workload<'a> {
    /// Returns the state before the first round.
    pub fn new(world: &'a World) -> Self {
        Self::seeded(world, 4711)
    }

    /// Returns the state before the first round of the mixture with this seed. All PEs must pass
    /// the same seed.
    pub fn seeded(world: &'a World, seed: u64) -> Self {
        Self { world, teams: vec![world.team().clone()], round: 0, seed }
    }

    /// Makes one operation or a few related ones. Collective over the world.
    ///
    /// # Errors
    /// As for the operation.
    ///
    /// # Panics
    /// If a result is wrong.
    pub fn step(&mut self) -> Result<()> {
        let (world, round) = (self.world, self.round);
        self.round += 1;
        let random = hash(&[round, self.seed]);
        let team = self.teams[(random >> 8) as usize % self.teams.len()].clone();
        let (n, me) = (team.size(), team.my_rank().index());
        let len = [1, 3, 100, 1000, 20_000, 150_000][(random >> 16) as usize % 6];
        let root = Rank::new(((random >> 24) % n as u64) as u32);
        let sum = round * n as u64 + (n * (n - 1) / 2) as u64;
        let mine = round + me as u64;
        match random % 11 {
            0 => team.barrier_blocking(),
            1 => {
                let mut total = vec![mine; len];
                team.all_reduce_in_place_blocking(&mut total, ReduceOp::Sum)?;
                assert!(total.iter().all(|&x| x == sum));
                Ok(())
            }
            2 => {
                let buffer = world.alloc::<u64>(len)?;
                buffer.fill(mine)?;
                team.all_reduce_in_place_blocking(&buffer, ReduceOp::Max)?;
                assert_eq!(buffer.load(len - 1)?, round + n as u64 - 1);
                // `team` may not have all PEs. `release` synchronises all of them before it frees
                // the memory.
                buffer.release()
            }
            3 => {
                let mut buffer = vec![if me == root.index() { round } else { 0 }; len];
                team.broadcast_in_place_blocking(&mut buffer, root)?;
                assert!(buffer.iter().all(|&x| x == round));
                Ok(())
            }
            4 => {
                let (send, mut recv) = (vec![mine; len], vec![0; len * n]);
                team.all_gather_blocking(&send, &mut recv)?;
                assert!(recv.iter().enumerate().all(|(i, &x)| x == round + (i / len) as u64));
                Ok(())
            }
            5 => {
                let stream = world.stream()?;
                let buffer = Buffer::from(vec![mine; len]);
                let first = team.all_reduce_in_place(&stream, &buffer, ReduceOp::Sum)?;
                team.barrier(&stream)?.wait()?;
                assert!(first.is_complete());
                assert_eq!(buffer.to_vec()[0], sum);
                stream.synchronize()
            }
            6 => {
                let (right, left) = (Rank::new(((me + 1) % n) as u32), Rank::new(((me + n - 1) % n) as u32));
                let (send, mut recv) = (vec![mine; len], vec![0; len]);
                team.group_blocking(|group| {
                    group.send(&send, right)?;
                    group.recv(&mut recv, left)
                })?;
                assert!(recv.iter().all(|&x| x == round + u64::from(left.get())));
                Ok(())
            }
            7 => {
                let words = world.alloc_zeroed::<u64>(1)?;
                let data = world.alloc::<u64>(len)?;
                let word = words.signal(0)?;
                let right = Rank::new(((me + 1) % n) as u32);
                team.put_signal_blocking(&vec![mine; len], &data, word.set(1), right)?;
                team.wait_until_blocking(&word, Compare::Eq, 1)?;
                assert_eq!(data.load(len - 1)?, round + ((me + n - 1) % n) as u64);
                data.release()?;
                words.release()
            }
            8 if self.teams.len() < 5 => {
                let color = u64::from(world.my_pe().get()) % 2;
                let made = world.team().split(Some(color), 0)?;
                self.teams.extend(made);
                Ok(())
            }
            8 | 9 if self.teams.len() > 2 => self.teams.pop().map_or(Ok(()), Team::destroy),
            _ => {
                let (send, mut recv) = (vec![mine; len * n], vec![0; len * n]);
                team.all_to_all_blocking(&send, &mut recv)?;
                assert!(recv.iter().enumerate().all(|(i, &x)| x == round + (i / len) as u64));
                Ok(())
            }
        }
    }
}
