//! Barriers among PEs with GPUs, and agreement of these PEs on numbers. Both use the rendezvous,
//! not the library under test.
//!
//! Invariant: every PE makes the same sequence of calls. Each PE numbers its calls, and the
//! rendezvous matches calls of the PEs by these numbers.

use std::cell::Cell;

use peerweave_bootstrap::Rendezvous;

use super::Failure;

/// Lets one PE synchronise with the other PEs of the measurement, and exchange numbers and error
/// messages with them. Uses the rendezvous.
pub(crate) struct Agreement<'a> {
    rendezvous: &'a Rendezvous,
    so_far: Cell<u64>,
}

impl<'a> Agreement<'a> {
    pub(crate) fn new(rendezvous: &'a Rendezvous) -> Self {
        Self { rendezvous, so_far: Cell::new(0) }
    }

    /// Returns the index of this PE.
    pub(crate) fn pe(&self) -> usize {
        self.rendezvous.pe().index()
    }

    fn next(&self) -> String {
        self.so_far.set(self.so_far.get() + 1);
        format!("bench/{}", self.so_far.get())
    }

    /// Waits until all PEs have called this function.
    pub(crate) fn barrier(&self) -> Result<(), Failure> {
        Ok(self.rendezvous.barrier(&self.next())?)
    }

    /// Every PE passes a value. Returns the largest of these values on every PE.
    pub(crate) fn largest(&self, mine: u64) -> Result<u64, Failure> {
        let all = self.rendezvous.exchange(&self.next(), &mine.to_le_bytes())?;
        let all = all.iter().map(|blob| blob.as_slice().try_into().map(u64::from_le_bytes)).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().fold(0, u64::max))
    }

    /// Exchanges an optional error message of each PE. Returns a text with the number and the
    /// message of the lowest-numbered PE that has an error. Returns `None` if no PE has an error.
    /// Every PE gets the same result.
    pub(crate) fn first_error(&self, mine: Option<&str>) -> Result<Option<String>, Failure> {
        let all = self.rendezvous.exchange(&self.next(), mine.unwrap_or("").as_bytes())?;
        let found = all.iter().enumerate().find(|(_, text)| !text.is_empty());
        Ok(found.map(|(pe, text)| format!("PE {pe}: {}", String::from_utf8_lossy(text))))
    }

    /// Compares the bytes `mine` among all PEs. Returns whether at least two PEs have equal bytes.
    /// If the bytes identify a PE's GPU, the result tells whether PEs share a GPU.
    pub(crate) fn is_shared(&self, mine: &[u8]) -> Result<bool, Failure> {
        let all = self.rendezvous.exchange(&self.next(), mine)?;
        Ok(all.iter().enumerate().any(|(at, one)| all[..at].contains(one)))
    }

    /// Returns the number of calls for a batch of about `batch_ms` milliseconds, which is the same
    /// on every PE. Each PE passes the time of a trial run of `calls` calls, `mine_ns`, in
    /// nanoseconds. The slowest PE determines the result, which is between `calls` and 100000.
    pub(crate) fn calls_per_batch(&self, mine_ns: u64, calls: u64, batch_ms: u32) -> Result<u64, Failure> {
        let slowest = self.largest(mine_ns)?.max(1);
        // The first calls are slower than later calls, so this number tends to be too small.
        Ok((u64::from(batch_ms) * 1_000_000 * calls / slowest).clamp(calls, 100_000))
    }
}
