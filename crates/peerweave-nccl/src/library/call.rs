//! Names of the calls on a communicator, encoded in one byte. A communicator stores its last call
//! in this encoding.
//!
//! Invariant: each name is the name of a public method.

macro_rules! calls {
    ($($Call:ident $name:literal),* $(,)?) => {
        /// A call that increases the sequence number of its communicator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Call {
            $($Call),*
        }

        impl Call {
            const NAMES: &'static [&'static str] = &[$($name),*];
        }
    };
}

calls! {
    AllReduce "all_reduce", Broadcast "broadcast", Reduce "reduce", AllGather "all_gather", ReduceScatter "reduce_scatter",
    AllToAll "all_to_all", Gather "gather", Scatter "scatter", Send "send", Recv "recv", AllToAllV "all_to_all_v",
    AllGatherV "all_gather_v", AllReduceInPlace "all_reduce_in_place", BroadcastInPlace "broadcast_in_place",
    ReduceInPlace "reduce_in_place", AllGatherInPlace "all_gather_in_place", ReduceScatterInPlace "reduce_scatter_in_place",
    GatherInPlace "gather_in_place", ScatterInPlace "scatter_in_place", PutSignal "put_signal", Signal "signal",
    WaitSignal "wait_signal", Split "split", Shrink "shrink", Grow "grow",
}

impl Call {
    /// Number of bits that an encoded call occupies in a 64-bit integer.
    pub(crate) const BITS: u32 = 8;

    /// Returns whether the call is a collective that transfers data, such as an all-reduce. Every
    /// rank must make such calls in the same order.
    #[inline]
    pub(crate) const fn is_collective(self) -> bool {
        use Call::*;
        !self.is_transfer() && !matches!(self, PutSignal | Signal | WaitSignal | Split | Shrink | Grow)
    }

    /// Returns whether the call is a send or a receive.
    #[inline]
    pub(crate) const fn is_transfer(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    #[inline]
    pub(crate) const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the name of the call that the low 8 bits of `word` encode, or an empty text if these
    /// bits encode no call.
    pub(crate) fn name_of(word: u64) -> &'static str {
        Self::NAMES.get((word & 0xff) as usize).copied().unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_name_is_decoded_from_the_low_8_bits_of_a_word() {
        assert_eq!(Call::AllReduce.name(), "all_reduce");
        assert_eq!(Call::Grow.name(), "grow");
        assert_eq!(Call::name_of(7 << Call::BITS | Call::Recv as u64), "recv");
        assert_eq!(Call::name_of(255), "");
    }

    #[test]
    fn calls_are_classified_as_collectives_and_transfers() {
        let collective = [Call::AllReduce, Call::AllToAllV, Call::AllGatherV, Call::GatherInPlace, Call::ScatterInPlace];
        assert!(collective.into_iter().all(|call| call.is_collective() && !call.is_transfer()));
        let others = [Call::Send, Call::Recv, Call::PutSignal, Call::Signal, Call::WaitSignal, Call::Split, Call::Grow];
        assert!(others.into_iter().all(|call| !call.is_collective()));
        assert!(Call::Send.is_transfer() && Call::Recv.is_transfer() && !Call::Signal.is_transfer());
    }
}
