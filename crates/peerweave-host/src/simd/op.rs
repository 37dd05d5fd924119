//! The reductions, as steps on one lane: the first input, each further one, the end.
//!
//! Invariant: a step sees one lane only, and the inputs come in their order; so blocks, tails and threads cannot change a result.

use super::number::Number;

/// A reduction over values of type `V`.
pub(super) trait Op<V: Copy>: Copy {
    /// The state after the first input. `scalar` is that input's own.
    #[inline(always)]
    fn first(self, value: V, scalar: V) -> V {
        let _ = scalar;
        value
    }

    /// The state after a further input.
    fn next(self, state: V, value: V, scalar: V) -> V;

    /// The result.
    fn last(self, state: V) -> V;
}

macro_rules! op {
    ($($(#[$doc:meta])* $name:ident, $step:ident);* $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl<V: Number> Op<V> for $name {
            #[inline(always)]
            fn next(self, state: V, value: V, _scalar: V) -> V {
                state.$step(value)
            }

            #[inline(always)]
            fn last(self, state: V) -> V {
                state.settle()
            }
        }
    )*};
}

op!(
    /// The sum.
    Sum, plus;
    /// The product.
    Prod, times;
    /// The smallest.
    Min, least;
    /// The largest.
    Max, greatest;
);

/// The sum, divided.
#[derive(Clone, Copy)]
pub(super) struct Avg<D>(pub(super) D);

impl<V: Number> Op<V> for Avg<V::Divisor> {
    #[inline(always)]
    fn next(self, state: V, value: V, _scalar: V) -> V {
        state.plus(value)
    }

    #[inline(always)]
    fn last(self, state: V) -> V {
        state.over(self.0).settle()
    }
}

/// The sum of the inputs times their scalars.
#[derive(Clone, Copy)]
pub(super) struct PreMulSum;

impl<V: Number> Op<V> for PreMulSum {
    #[inline(always)]
    fn first(self, value: V, scalar: V) -> V {
        value.times(scalar)
    }

    #[inline(always)]
    fn next(self, state: V, value: V, scalar: V) -> V {
        state.plus(value.times(scalar))
    }

    #[inline(always)]
    fn last(self, state: V) -> V {
        state.settle()
    }
}

macro_rules! bitwise {
    ($($(#[$doc:meta])* $name:ident, $operator:tt);* $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Op<u8> for $name {
            #[inline(always)]
            fn next(self, state: u8, value: u8, _scalar: u8) -> u8 {
                state $operator value
            }

            #[inline(always)]
            fn last(self, state: u8) -> u8 {
                state
            }
        }
    )*};
}

bitwise!(
    /// Bitwise and, of whatever integer, as bytes.
    And, &;
    /// Bitwise or, of whatever integer, as bytes.
    Or, |;
    /// Bitwise exclusive or, of whatever integer, as bytes.
    Xor, ^;
);
