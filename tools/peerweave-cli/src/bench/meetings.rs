//! How PEs with GPUs meet and agree: by the rendezvous, not by the library that is measured. Measures nothing.
//!
//! Invariant: every PE meets in the same order, so that one name belongs to one meeting.

use std::cell::Cell;
use std::time::Duration;

use peerweave_bootstrap::Rendezvous;

use super::nccl::Failure;

/// How long a batch is to take.
const BATCH: Duration = Duration::from_millis(30);
/// So many calls tell how many make a batch, and make one at least.
pub(super) const FEWEST_CALLS: u64 = 3;

/// The meetings of one PE.
pub(super) struct Meetings<'a> {
    rendezvous: &'a Rendezvous,
    so_far: Cell<u64>,
}

impl<'a> Meetings<'a> {
    pub(super) fn new(rendezvous: &'a Rendezvous) -> Self {
        Self { rendezvous, so_far: Cell::new(0) }
    }

    /// Which PE this is.
    pub(super) fn pe(&self) -> usize {
        self.rendezvous.pe().index()
    }

    fn next(&self) -> String {
        self.so_far.set(self.so_far.get() + 1);
        format!("bench/{}", self.so_far.get())
    }

    /// All PEs come here before any goes on.
    pub(super) fn meet(&self) -> Result<(), Failure> {
        Ok(self.rendezvous.barrier(&self.next())?)
    }

    /// The largest of what the PEs say.
    pub(super) fn largest(&self, mine: u64) -> Result<u64, Failure> {
        let all = self.rendezvous.exchange(&self.next(), &mine.to_le_bytes())?;
        let all = all.iter().map(|blob| blob.as_slice().try_into().map(u64::from_le_bytes)).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().fold(0, u64::max))
    }

    /// As many calls as take about [`BATCH`], where [`FEWEST_CALLS`] took this PE so many nanoseconds; the same number on every PE.
    pub(super) fn calls_per_batch(&self, mine_ns: u64) -> Result<u64, Failure> {
        let slowest = self.largest(mine_ns)?.max(1);
        // The first few are slower than the rest, and a few more calls cost little.
        Ok((BATCH.as_nanos() as u64 * FEWEST_CALLS / slowest).clamp(FEWEST_CALLS, 100_000))
    }
}
