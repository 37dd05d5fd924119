//! Signals: 64-bit words that notify a PE of data. This module has signal operations, puts with
//! signal, and waits for signals, for each scope.
//! The module [`crate::put_signal`] defines the protocol: the memory order between data, signals
//! and waits.

use crate::api::context::Reach;
use crate::api::network::{self, Signal};
use crate::api::report::Report;
use crate::api::scope::{Block, Scope, Thread, Warp};
use crate::api::views::{Source, address};
use crate::api::{Context, Failed};
use crate::gpu::Word64;
use crate::put_signal;
use crate::word::Word;
use peerweave_types::{Compare, FailureKind, KernelOp, KernelStatus, Plain, SignalOp, SymSlice};

impl Context {
    /// Returns a reference to this PE's own signal word: the first element of `signal`.
    #[inline(always)]
    fn signal_word(&self, signal: SymSlice<u64>) -> &Word64 {
        assert!(!signal.is_empty(), "the slice of a signal is empty, expected at least one word");
        // SAFETY: `SymSlice` promises an aligned word in this PE's heap, which exists until the
        // kernel ends. Only signals and waits access signal words.
        unsafe { Word64::at(self.my_base() + signal.offset().0) }
    }

    /// Changes a signal word, the first element of `signal` on `pe`: sets the word to `value`, or
    /// adds `value` to the word, as `op` states.
    ///
    /// # Ordering
    /// Release: a waiter that acquires the signal sees all earlier puts and writes of this thread,
    /// and all writes that this thread has observed.
    #[inline(always)]
    pub fn signal_op(&self, signal: SymSlice<u64>, value: u64, op: SignalOp, pe: u32) {
        assert!(!signal.is_empty(), "the slice of a signal is empty, expected at least one word");
        match self.reach(KernelOp::SignalOp, pe) {
            // SAFETY: the peer's heap is mapped at `base`, and the slice is not empty.
            Ok(Reach::Mapped(base)) => unsafe { self.signal_mapped(base, signal, value, op) },
            Ok(Reach::Network) => {
                network::fence(self.my_pe());
                network::signal(Signal { word: self.my_base() + signal.offset().0, value, op }, pe);
            }
            Err(_) => {}
        }
    }

    /// Changes the first element of `signal` on a PE whose heap is mapped at the address `base`.
    ///
    /// # Safety
    /// A peer's heap is mapped at `base`, and the slice is not empty.
    #[inline(always)]
    unsafe fn signal_mapped(&self, base: u64, signal: SymSlice<u64>, value: u64, op: SignalOp) {
        self.finish_bulk();
        // SAFETY: `SymSlice` promises an aligned word in the heap of every PE, and the caller
        // promises that this heap is mapped.
        put_signal::signal(unsafe { Word64::at(base + signal.offset().0) }, value, op);
    }

    /// Changes a signal word, the first element of `signal` on `pe`: sets the word to `value`, or
    /// adds `value` to the word, as `op` states. The call orders nothing.
    #[inline(always)]
    pub fn signal_op_relaxed(&self, signal: SymSlice<u64>, value: u64, op: SignalOp, pe: u32) {
        match op {
            SignalOp::Set => self.atomic_set_relaxed(signal, value, pe),
            SignalOp::Add => self.atomic_add_relaxed(signal, value, pe),
        }
    }

    /// Changes a signal word, the first element of `signal`, on each PE of `pes`: sets the word to
    /// `value`, or adds `value` to the word, as `op` states. Uses one fence for all PEs.
    ///
    /// # Ordering
    /// As for [`Self::signal_op`], for each PE.
    #[inline]
    pub fn signal_op_each(&self, signal: SymSlice<u64>, value: u64, op: SignalOp, pes: impl IntoIterator<Item = u32>) {
        self.fence();
        for pe in pes {
            self.signal_op_relaxed(signal, value, op, pe);
        }
    }

    /// Returns the value of this PE's own signal word: the first element of `signal`.
    ///
    /// # Ordering
    /// Acquire: puts that precede the signal are visible after the call.
    #[inline(always)]
    pub fn signal_fetch(&self, signal: SymSlice<u64>) -> u64 {
        self.signal_word(signal).load_acquire()
    }

    /// Compares this PE's own signal word with `value` by `compare`, and waits until the comparison
    /// is true. The signal word is the first element of `signal`. Returns the value of the word.
    ///
    /// # Ordering
    /// Acquire: puts that precede the signal are visible after the call.
    ///
    /// # Errors
    /// [`FailureKind::Deadline`] if the wait times out; [`FailureKind::Aborted`] if another wait of
    /// this PE has failed. The report names no PE. For a report that names the missing PE, use
    /// [`Self::signal_wait_until_from`].
    #[inline(always)]
    pub fn signal_wait_until(&self, signal: SymSlice<u64>, compare: Compare, value: u64) -> Result<u64, Failed> {
        self.signal_wait_until_from(signal, compare, value, KernelStatus::NONE)
    }

    /// Like [`Self::signal_wait_until`], but the caller states that `pe` sends the signal. If the
    /// wait fails, the report names `pe`.
    ///
    /// # Errors
    /// As for [`Self::signal_wait_until`].
    #[inline(always)]
    pub fn signal_wait_until_from(&self, signal: SymSlice<u64>, compare: Compare, value: u64, pe: u32) -> Result<u64, Failed> {
        let word = self.signal_word(signal);
        put_signal::wait_until(word, compare, value, &mut self.spin()).map_err(|kind| {
            let report = Report { pe, expected: value, found: word.load_relaxed(), ..Report::of(KernelOp::SignalWaitUntil) };
            self.fail(kind, report)
        })
    }

    /// Reads this PE's own signal word once, and compares the word with `value` by `compare`.
    /// Returns the word if the comparison is true; `None` otherwise.
    ///
    /// # Ordering
    /// Acquire, if the result is not `None`.
    #[inline(always)]
    pub fn signal_test(&self, signal: SymSlice<u64>, compare: Compare, value: u64) -> Option<u64> {
        put_signal::test(self.signal_word(signal), compare, value)
    }

    /// Waits for a signal in a call that all threads of a scope make. The first thread of the scope
    /// waits for the signal, and the other threads wait for the first thread. If the wait fails,
    /// the call fails on all threads of the scope.
    #[inline(always)]
    fn signal_wait_by<S: Scope>(&self, signal: SymSlice<u64>, compare: Compare, value: u64, pe: u32) -> Result<(), Failed> {
        let mut outcome = Ok(());
        if S::rank() == 0 {
            outcome = self.signal_wait_until_from(signal, compare, value, pe).map(drop);
        }
        let failed = S::any(outcome.is_err());
        if failed && outcome.is_ok() { Err(Failed::new(FailureKind::Aborted)) } else { outcome }
    }

    /// Implements all methods that put elements with a signal, for every scope. Returns the number
    /// of copied elements.
    #[inline(always)]
    fn put_signal_any<T: Plain, S: Scope, X: Source<T>>(
        &self,
        to: SymSlice<T>,
        from: &X,
        signal: (SymSlice<u64>, u64, SignalOp),
        pe: u32,
        nbi: bool,
    ) -> usize {
        let (word, value, op) = signal;
        assert!(!word.is_empty(), "the slice of a signal is empty, expected at least one word");
        let count = to.len().min(from.count());
        let (bytes, source) = (count * size_of::<T>(), from.start(self).cast::<u8>());
        match self.reach(KernelOp::PutSignal, pe) {
            Ok(Reach::Mapped(base)) => {
                let target = address::<u8>(base + to.offset().0);
                // SAFETY: `SymSlice` and `Source` promise at least `count` elements, and the peer
                // is mapped.
                unsafe {
                    if X::GLOBAL {
                        self.copy_to_peer::<S, true>(target, source, bytes, true);
                    } else {
                        self.copy_to_peer::<S, false>(target, source, bytes, true);
                    }
                }
                if !nbi && !X::GLOBAL && S::rank() == 0 {
                    // Any thread of the scope may write to the source when the call returns.
                    self.flush_bulk();
                }
                S::sync();
                if S::rank() == 0 {
                    // SAFETY: the peer's heap is mapped at `base`, and the slice is not empty.
                    unsafe { self.signal_mapped(base, word, value, op) };
                }
            }
            Ok(Reach::Network) => {
                let base = self.my_base();
                let signal = Signal { word: base + word.offset().0, value, op };
                if !nbi {
                    // The signal also releases the earlier writes of all threads of the scope.
                    network::fence(self.my_pe());
                    S::sync();
                }
                network::put_signal::<S>(base + to.offset().0, source as u64, bytes, signal, pe, nbi);
            }
            Err(_) => S::sync(),
        }
        count
    }
}

/// Declares the public methods that put elements with a signal, for one scope.
macro_rules! scoped {
    ($scope:ident, $words:literal: $put_signal:ident, $put_signal_nbi:ident) => {
        impl Context {
            #[doc = concat!("Copies the elements of `from` to `to` on `pe`, then changes the first element of `signal` on `pe`. Called by ", $words, ".")]
            /// Copies as many elements as the shorter of `to` and `from` has, and returns this
            /// number. The source can be reused when the call returns.
            ///
            /// # Ordering
            /// Release: a thread that acquires the signal sees the copied elements. The thread also
            /// sees all writes that the calling threads made before this call.
            #[inline(always)]
            pub fn $put_signal<T: Plain>(
                &self,
                to: SymSlice<T>,
                from: impl Source<T>,
                signal: SymSlice<u64>,
                value: u64,
                op: SignalOp,
                pe: u32,
            ) -> usize {
                self.put_signal_any::<T, $scope, _>(to, &from, (signal, value, op), pe, false)
            }

            #[doc = concat!("Starts to copy the elements of `from` to `to` on `pe`. Changes the first element of `signal` on `pe` after the copy. Called by ", $words, ".")]
            /// Copies as many elements as the shorter of `to` and `from` has, and returns this
            /// number. The source can be reused once the first thread of the scope has called
            /// [`Self::flush`] or [`Self::quiet`]. The other threads of the scope need not call
            /// these methods.
            ///
            /// # Ordering
            /// A thread that acquires the signal sees the copied elements.
            #[inline(always)]
            pub fn $put_signal_nbi<T: Plain>(
                &self,
                to: SymSlice<T>,
                from: impl Source<T>,
                signal: SymSlice<u64>,
                value: u64,
                op: SignalOp,
                pe: u32,
            ) -> usize {
                self.put_signal_any::<T, $scope, _>(to, &from, (signal, value, op), pe, true)
            }
        }
    };
}

scoped!(Thread, "this thread": put_signal, put_signal_nbi);
scoped!(Warp, "all threads of the warp": put_signal_warp, put_signal_nbi_warp);
scoped!(Block, "all threads of the block": put_signal_block, put_signal_nbi_block);

/// Declares the methods by which all threads of a warp or of a block wait for a signal.
macro_rules! waits {
    ($scope:ident, $words:literal: $wait:ident, $wait_from:ident) => {
        impl Context {
            #[doc = concat!("Like [`Self::signal_wait_until`], but called by ", $words, ". The first thread waits, and all threads return when the wait of the first thread has ended.")]
            /// All these threads pass the same arguments.
            ///
            /// # Errors
            /// As for [`Self::signal_wait_until`]. If the wait fails, all threads return an error.
            #[inline(always)]
            pub fn $wait(&self, signal: SymSlice<u64>, compare: Compare, value: u64) -> Result<(), Failed> {
                self.signal_wait_by::<$scope>(signal, compare, value, KernelStatus::NONE)
            }

            #[doc = concat!("Like [`Self::signal_wait_until_from`], but called by ", $words, ". The first thread waits, and all threads return when the wait of the first thread has ended.")]
            /// All these threads pass the same arguments.
            ///
            /// # Errors
            /// As for [`Self::signal_wait_until`]. If the wait fails, all threads return an error.
            #[inline(always)]
            pub fn $wait_from(&self, signal: SymSlice<u64>, compare: Compare, value: u64, pe: u32) -> Result<(), Failed> {
                self.signal_wait_by::<$scope>(signal, compare, value, pe)
            }
        }
    };
}

waits!(Warp, "all threads of the warp": signal_wait_until_warp, signal_wait_until_from_warp);
waits!(Block, "all threads of the block": signal_wait_until_block, signal_wait_until_from_block);
