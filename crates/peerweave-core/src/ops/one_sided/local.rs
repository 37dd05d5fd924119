//! Stream-ordered copies and fills of memory of this PE. They are the stream-ordered forms of
//! `Symmetric::copy_from`, `Symmetric::copy_to` and `Symmetric::fill`.

use crate::arguments::buffer::{Buffer, element_bits, is_word};
use crate::arguments::span::{StreamDest, StreamSource};
use crate::world::stream::Stream;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::Element;

/// Copies and fills of memory of this PE.
///
/// # Example
/// ```
/// use peerweave::{Buffer, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (stream, x) = (world.stream()?, world.alloc::<f32>(4)?);
/// let (mine, back) = (Buffer::from(vec![1.0, 2.0]), Buffer::zeroed(4));
/// stream.fill(&x, 7.0)?;
/// stream.copy(&mine, &x.slice(..2)?)?;
/// stream.copy(&x, &back)?.wait()?;
/// assert_eq!(back.to_vec(), [1.0, 2.0, 7.0, 7.0]);
/// x.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Stream {
    /// Copies `source` to `dest`. `source` and `dest` are memory of this PE.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each.
    ///
    /// # Ordering
    /// The copy runs after earlier operations of the stream.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the lengths differ, if `source` and `dest` overlap, or if a
    /// handle belongs to another world or is no longer valid.
    pub fn copy<T: Element>(&self, mut source: impl StreamSource<T>, mut dest: impl StreamDest<T>) -> Result<Ticket> {
        let prepared = check::copy("copy", &self.shared, source.span(), dest.span())?;
        call::submit_on(self, &prepared, decode::nothing)
    }

    /// Sets all elements of `dest`, which is memory of this PE, to `value`.
    ///
    /// # Ordering
    /// As for [`Stream::copy`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the handle belongs to another world or is no longer valid.
    pub fn fill<T: Element>(&self, mut dest: impl StreamDest<T>, value: T) -> Result<Ticket> {
        const CALL: &str = "fill";
        let dest = dest.span();
        if !is_word::<T>() {
            let values = Buffer::from(vec![value; dest.len]);
            let prepared = check::copy(CALL, &self.shared, values.span(), dest)?;
            return call::submit_on(self, &prepared, decode::nothing);
        }
        let prepared = check::fill(CALL, &self.shared, dest, element_bits(value))?;
        call::submit_on(self, &prepared, decode::nothing)
    }
}
