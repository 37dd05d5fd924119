//! Exchanges of counts before an all-to-all-v or all-gather-v. Each rank knows only how many
//! elements it sends. The exchange returns the counts of the other ranks.

use crate::arguments::Parts;
use crate::arguments::span::{borrowed, borrowed_mut};
use crate::backend::VectorCounts;
use crate::world::team::Team;
use crate::{Result, call, check};

/// Converts the lengths of parts to `u64` values, because a collective can exchange `u64` values.
fn words(counts: &[usize]) -> Vec<u64> {
    counts.iter().map(|&count| count as u64).collect()
}

fn counts(words: &[u64]) -> Vec<usize> {
    words.iter().map(|&word| usize::try_from(word).unwrap_or(usize::MAX)).collect()
}

/// Calls that exchange the lengths of parts, before a collective whose parts have different
/// lengths. Each rank passes the lengths of the parts that it sends. The calls run on the calling
/// thread.
impl Team {
    /// Exchanges the lengths of the parts of a later all-to-all-v. In the all-to-all-v, this rank
    /// sends `send_counts[r]` elements to rank `r`. Returns the counts of the elements that this
    /// rank sends and receives. The offsets in the result place the parts in rank order, without
    /// gaps.
    ///
    /// The call is collective. It runs an [`all_to_all_blocking`](Team::all_to_all_blocking), in
    /// which every rank sends one element to each rank.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) if the length of `send_counts` is not
    /// the number of ranks.
    ///
    /// # Example
    /// ```
    /// use peerweave::World;
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let me = team.my_rank().index();
    /// let sent = vec![me; team.size()]; // this rank sends `me` elements to each rank
    /// let counts = team.exchange_counts(&sent)?;
    /// let mine = vec![me as u32; counts.send_end()];
    /// let mut all = vec![0; counts.recv_end()];
    /// team.all_to_all_v_blocking(&mine, &mut all, counts)?;
    /// let expected: Vec<u32> = (0..team.size()).flat_map(|rank| vec![rank as u32; rank]).collect();
    /// assert_eq!(all, expected);
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exchange_counts(&self, send_counts: &[usize]) -> Result<VectorCounts> {
        const CALL: &str = "exchange_counts";
        check::for_each_rank(CALL, self, "send_counts", send_counts)?;
        let (sent, mut received) = (words(send_counts), vec![0; self.size()]);
        let prepared = check::all_to_all(CALL, self, borrowed(&sent), borrowed_mut(&mut received))?;
        call::run_unit(&self.inner.shared, prepared)?;
        Ok(VectorCounts::packed(send_counts, counts(&received)))
    }

    /// Exchanges the lengths of the parts of a later all-gather-v, to which this rank contributes
    /// `count` elements. Returns the [`Parts`] to pass to the all-gather-v, with the length and the
    /// offset of each rank's part. The parts follow each other in rank order, without gaps.
    ///
    /// The call is collective. It runs an [`all_gather_blocking`](Team::all_gather_blocking) of one
    /// element from each rank.
    ///
    /// # Errors
    /// As for [`Team::barrier`].
    ///
    /// # Example
    /// ```
    /// use peerweave::World;
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let text = format!("rank {} of {}; ", team.my_rank().get(), team.size());
    /// let parts = team.exchange_parts(text.len())?;
    /// let mut all = vec![0u8; parts.end()];
    /// team.all_gather_v_blocking(text.as_bytes(), &mut all, parts)?;
    /// assert_eq!(String::from_utf8_lossy(&all).split("; ").count(), team.size() + 1);
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exchange_parts(&self, count: usize) -> Result<Parts> {
        const CALL: &str = "exchange_parts";
        let (sent, mut received) = ([count as u64], vec![0; self.size()]);
        let prepared = check::all_gather(CALL, self, borrowed(&sent), borrowed_mut(&mut received))?;
        call::run_unit(&self.inner.shared, prepared)?;
        Ok(Parts::packed(counts(&received)))
    }
}
