//! Methods by which a kernel waits until peers have changed elements of this PE's own symmetric
//! memory. A kernel can wait for one element, or for any, all or some of several elements.
//!
//! The methods use the loops of [`crate::put_signal`]. A wait has acquire order: writes that the
//! writer of the element has released are visible after the wait. A wait fails at the context's
//! deadline.

use crate::api::bits::{KernelAtomic, KernelInteger};
use crate::api::report::Report;
use crate::api::views::address;
use crate::api::{Context, Failed};
use crate::gpu::{Access, Sys};
use crate::pause::until;
use crate::put_signal::Watch;
use peerweave_types::{Compare, KernelOp, KernelStatus, SymSlice};

/// A value for the parameter `exclude` of waits and tests: no element is excluded.
pub const EXCLUDE_NONE: fn(usize) -> bool = |_| false;

impl Context {
    /// Reads an element of this PE's own symmetric memory, with acquire order.
    #[inline(always)]
    fn look<T: KernelInteger>(&self, of: SymSlice<T>, index: usize) -> T {
        assert!(index < of.len(), "the index lies outside the slice of the wait or test");
        let element = address::<T>(self.my_base() + of.offset().0).wrapping_add(index);
        // SAFETY: the index is below the length, and `SymSlice` promises that many aligned elements
        // in this PE's heap. PEs access awaited elements only atomically.
        T::from_bits(unsafe { <<T as KernelAtomic>::Bits as Access<Sys>>::load_acquire(element.cast_const().cast()) })
    }

    /// Returns a [`Watch`], whose methods test the elements of `of` or wait for them. `value` and
    /// `exclude` are functions of an element's index. `value` returns the value with which the
    /// element is compared. If `exclude` returns `true`, the element is ignored.
    #[inline(always)]
    fn watch<'a, T: KernelInteger, V: Fn(usize) -> T + 'a, X: Fn(usize) -> bool>(
        &'a self,
        of: SymSlice<T>,
        compare: Compare,
        value: V,
        exclude: X,
    ) -> Watch<impl Fn(usize) -> Option<T> + 'a, X> {
        let look = move |index| {
            let seen = self.look(of, index);
            T::holds(compare, seen, value(index)).then_some(seen)
        };
        Watch { len: of.len(), look, exclude }
    }

    /// Reports a failed wait. The report contains the element at `index`, and the value with which
    /// the element was compared.
    #[cold]
    #[inline]
    fn fail_wait<T: KernelInteger>(
        &self,
        kind: peerweave_types::FailureKind,
        operation: KernelOp,
        of: SymSlice<T>,
        index: usize,
        expected: T,
    ) -> Failed {
        let found = if index < of.len() { self.look(of, index).report() } else { 0 };
        let report = Report { expected: expected.report(), found, pe: KernelStatus::NONE, ..Report::of(operation) };
        self.fail(kind, report)
    }

    /// Compares `of[0]` with `value` by `compare`, and waits until the comparison is true.
    ///
    /// # Ordering
    /// Acquire: writes that the element's writer has released are visible after the wait.
    ///
    /// # Errors
    /// [`FailureKind::Deadline`](peerweave_types::FailureKind) if the wait times out;
    /// [`FailureKind::Aborted`](peerweave_types::FailureKind) if another wait on this PE fails.
    ///
    /// # Panics
    /// If the slice `of` is empty.
    #[inline(always)]
    pub fn wait_until<T: KernelInteger>(&self, of: SymSlice<T>, compare: Compare, value: T) -> Result<(), Failed> {
        let look = || T::holds(compare, self.look(of, 0), value).then_some(());
        until(&mut self.spin(), look).map_err(|kind| self.fail_wait(kind, KernelOp::WaitUntil, of, 0, value))
    }

    /// Reads `of[0]` once, and compares the element with `value` by `compare`. Returns whether the
    /// comparison is true.
    ///
    /// # Ordering
    /// Acquire, if the result is true.
    ///
    /// # Panics
    /// If the slice `of` is empty.
    #[inline(always)]
    pub fn test<T: KernelInteger>(&self, of: SymSlice<T>, compare: Compare, value: T) -> bool {
        T::holds(compare, self.look(of, 0), value)
    }
}

/// Declares the waits and tests for several elements. One form compares all elements with the same
/// value. The other form compares each element with a separate value.
macro_rules! several {
    ($value:ty, |$index:ident, $values:ident| $each:expr, $plural:literal:
        $wait_any:ident, $wait_all:ident, $wait_some:ident, $test_any:ident, $test_all:ident, $test_some:ident) => {
        impl Context {
            #[doc = concat!("Waits until an element that is not excluded satisfies `compare` with ", $plural, ".")]
            /// Returns the lowest index of an element that satisfies the comparison. Returns `None`
            /// immediately if all elements are excluded.
            ///
            /// # Ordering
            /// Acquire, for the element at the returned index.
            ///
            /// # Errors
            /// As for [`Self::wait_until`].
            #[inline(always)]
            pub fn $wait_any<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> Result<Option<usize>, Failed> {
                let watch = self.watch(of, compare, |$index| $each, exclude);
                watch.wait_any(&mut self.spin()).map_err(|kind| {
                    let $index = 0;
                    self.fail_wait(kind, KernelOp::WaitUntilAny, of, $index, $each)
                })
            }

            #[doc = concat!("Waits until every element that is not excluded has satisfied `compare` with ", $plural, ". The elements need not satisfy the comparison at the same time.")]
            ///
            /// # Ordering
            /// Acquire, for each element.
            ///
            /// # Errors
            /// As for [`Self::wait_until`]. The report contains the first element that does not
            /// satisfy the comparison.
            #[inline(always)]
            pub fn $wait_all<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> Result<(), Failed> {
                let watch = self.watch(of, compare, |$index| $each, &exclude);
                watch.wait_all(&mut self.spin()).map(drop).map_err(|kind| {
                    let missing = |$index: &usize| !exclude(*$index) && {
                        let $index = *$index;
                        !T::holds(compare, self.look(of, $index), $each)
                    };
                    let $index = (0..of.len()).find(missing).unwrap_or(0);
                    self.fail_wait(kind, KernelOp::WaitUntilAll, of, $index, $each)
                })
            }

            #[doc = concat!("Waits until at least one element that is not excluded satisfies `compare` with ", $plural, ".")]
            /// Writes the indices of all elements that satisfy the comparison to `indices`, in
            /// ascending order, and returns the number of these indices. Indices that do not fit
            /// are counted but not written. Ignores elements for which `exclude` returns `true`.
            /// Returns 0 immediately if all elements are ignored.
            ///
            /// # Ordering
            /// Acquire, for each element that satisfies the comparison.
            ///
            /// # Errors
            /// As for [`Self::wait_until`].
            #[inline(always)]
            pub fn $wait_some<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                indices: &mut [usize],
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> Result<usize, Failed> {
                let watch = self.watch(of, compare, |$index| $each, exclude);
                let mut count = 0;
                let outcome = watch.wait_some(&mut self.spin(), |index, _| {
                    if let Some(place) = indices.get_mut(count) {
                        *place = index;
                    }
                    count += 1;
                });
                outcome.map_err(|kind| {
                    let $index = 0;
                    self.fail_wait(kind, KernelOp::WaitUntilSome, of, $index, $each)
                })
            }

            #[doc = concat!("Returns the lowest index of an element that is not excluded and satisfies `compare` with ", $plural, ". Reads each element at most once.")]
            ///
            /// # Ordering
            /// Acquire, for the element at the returned index.
            #[inline(always)]
            pub fn $test_any<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> Option<usize> {
                self.watch(of, compare, |$index| $each, exclude).test_any()
            }

            #[doc = concat!("Returns whether every element that is not excluded satisfies `compare` with ", $plural, ". Reads each element at most once.")]
            ///
            /// # Ordering
            /// Acquire, if the result is true.
            #[inline(always)]
            pub fn $test_all<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> bool {
                self.watch(of, compare, |$index| $each, exclude).test_all()
            }

            #[doc = concat!("Finds all elements that are not excluded and satisfy `compare` with ", $plural, ".")]
            /// Writes the indices of all elements that satisfy the comparison to `indices`, in
            /// ascending order, and returns the number of these indices. Indices that do not fit
            /// are counted but not written. Reads each element once.
            ///
            /// # Ordering
            /// Acquire, for each element that satisfies the comparison.
            #[inline(always)]
            pub fn $test_some<T: KernelInteger>(
                &self,
                of: SymSlice<T>,
                indices: &mut [usize],
                exclude: impl Fn(usize) -> bool,
                compare: Compare,
                $values: $value,
            ) -> usize {
                let mut count = 0;
                self.watch(of, compare, |$index| $each, exclude).test_some(|index, _| {
                    if let Some(place) = indices.get_mut(count) {
                        *place = index;
                    }
                    count += 1;
                })
            }
        }
    };
}

several!(T, |_index, value| value, "`value`":
    wait_until_any, wait_until_all, wait_until_some, test_any, test_all, test_some);
several!(&[T], |index, values| values[index], "`values[i]`, where `i` is the index of the element":
    wait_until_any_vector, wait_until_all_vector, wait_until_some_vector, test_any_vector, test_all_vector, test_some_vector);
