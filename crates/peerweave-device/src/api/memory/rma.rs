//! Puts and gets (remote memory access) of one element, of contiguous elements, and of elements at
//! strides.
//!
//! All puts have one implementation, and all gets have one. Both are generic over the scope. The
//! public methods select the scope. A mapped peer is accessed by vector loads and stores. If the
//! kernel has lent shared memory to its context and the copy is long enough, bulk copies (TMA) are
//! used instead.

use super::copy::{self, Far};
use crate::api::context::Reach;
use crate::api::report::Report;
use crate::api::scope::{Block, Kind, Scope, Thread, Warp};
use crate::api::value::{self, Generic, Global, Strong};
use crate::api::views::{Source, Target, address};
use crate::api::{Context, Failed, network};
use crate::gpu::bulk;
use peerweave_types::{FailureKind, KernelOp, Plain, SymSlice};

/// Returns whether a bulk copy (TMA) of `bytes` bytes is faster than a copy by the threads of the
/// scope. The minimum lengths were measured on H200. Every thread executes this function in each
/// put and get, so the cheap comparison of the length precedes the read of the block size.
#[inline(always)]
fn bulk_pays<S: Scope>(far: Far, bytes: usize) -> bool {
    match (S::KIND, far) {
        (Kind::Thread, _) => bytes >= 128,
        (Kind::Warp, Far::To) => bytes >= 8192,
        (Kind::Warp, Far::From) => bytes >= 2048,
        (Kind::Block, Far::To) => bytes >= 8192 && S::size() <= 32,
        (Kind::Block, Far::From) => bytes >= 2048 && (bytes >= 16384 || S::size() <= 32),
    }
}

/// Returns whether the first thread of the scope can start a bulk copy (TMA): the value that this
/// thread passes as `can`. All threads of the scope call this function.
///
/// If the result is true and the scope has several threads, earlier accesses of all these threads
/// are ordered before the copy. In a scope of one thread, the function that starts the copy orders
/// the accesses.
#[inline(always)]
fn agree_on_bulk<S: Scope, const GLOBAL: bool>(can: bool) -> bool {
    if S::ALONE {
        return can;
    }
    // The fences follow the vote, so that without lent memory a copy only pays for the vote. The
    // caller checks `can` again on the first thread. With that check the compiler omits the bulk
    // copy from kernels that lend no memory.
    let agreed = S::any(S::rank() == 0 && can);
    if agreed {
        if !GLOBAL {
            bulk::fence_shared();
        }
        bulk::fence_global();
        S::sync();
    }
    agreed
}

impl Context {
    /// Copies `bytes` bytes to a mapped peer. If `nbi` is true and the source is shared memory, the
    /// copy unit (TMA) may still read the source after the call.
    ///
    /// # Safety
    /// `from` is readable for `bytes` bytes, and is global memory if `GLOBAL` is true. `to` points
    /// to `bytes` bytes in the heap of a mapped peer.
    #[inline(always)]
    pub(crate) unsafe fn copy_to_peer<S: Scope, const GLOBAL: bool>(
        &self,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
        nbi: bool,
    ) {
        if bulk::AVAILABLE && bulk_pays::<S>(Far::To, bytes) {
            let can = GLOBAL && self.can_bulk(to, from, bytes);
            if GLOBAL && agree_on_bulk::<S, GLOBAL>(can) {
                if S::rank() == 0 && can {
                    // SAFETY: `can` was checked, and both sides are global memory. A failure is
                    // written to the status, and the next wait of this PE fails.
                    let _ = unsafe { self.bulk_copy(to, from, bytes) };
                    self.leave_put::<S, GLOBAL>(nbi);
                }
                return;
            }
            let aligned = (to as usize | from as usize | bytes).is_multiple_of(bulk::ALIGN);
            if !GLOBAL && agree_on_bulk::<S, GLOBAL>(aligned && bulk::is_shared(from)) {
                if S::rank() == 0 {
                    // SAFETY: bulk copies are available, all is aligned, and `from` is shared
                    // memory.
                    unsafe { self.bulk_from_shared(to, from, bytes) };
                    self.leave_put::<S, GLOBAL>(nbi);
                }
                return;
            }
        }
        // SAFETY: the caller promises both ranges and their memory spaces.
        unsafe {
            if GLOBAL {
                copy::copy::<S, Global, Global>(to, from, bytes, Far::To);
            } else {
                copy::copy::<S, Generic, Global>(to, from, bytes, Far::To);
            }
        }
    }

    /// Waits at the end of a put that has started bulk copies (TMA), unless `nbi` is true. In a
    /// scope of one thread, waits until the source can be reused. In a warp or a block, only the
    /// first thread calls this method, and it waits until all data has been written. This longer
    /// wait is needed because another thread of the scope may fence or signal next.
    #[inline(always)]
    fn leave_put<S: Scope, const GLOBAL: bool>(&self, nbi: bool) {
        if nbi {
        } else if !S::ALONE {
            self.finish_bulk();
        } else if !GLOBAL {
            self.flush_bulk();
        }
    }

    /// Copies `bytes` bytes from a mapped peer. When the call returns, the data that this thread
    /// copied has arrived.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes, and is global memory if `GLOBAL` is true. `from` points
    /// to `bytes` bytes in the heap of a mapped peer.
    #[inline(always)]
    pub(crate) unsafe fn copy_from_peer<S: Scope, const GLOBAL: bool>(&self, to: *mut u8, from: *const u8, bytes: usize) {
        if bulk::AVAILABLE && bulk_pays::<S>(Far::From, bytes) {
            let shared = !GLOBAL && bulk::is_shared(to);
            let can = self.can_bulk(to, from, bytes);
            if (GLOBAL || shared) && agree_on_bulk::<S, GLOBAL>(can) {
                if S::rank() == 0 && can {
                    // SAFETY: `can` was checked, and each arm has the memory space that it needs. A
                    // failure is written to the status.
                    let _ =
                        unsafe { if shared { self.bulk_to_shared(to, from, bytes) } else { self.bulk_copy(to, from, bytes) } };
                    self.finish_bulk();
                }
                return;
            }
        }
        // SAFETY: the caller promises both ranges and their memory spaces.
        unsafe {
            if GLOBAL {
                copy::copy::<S, Strong, Global>(to, from, bytes, Far::From);
            } else {
                copy::copy::<S, Strong, Generic>(to, from, bytes, Far::From);
            }
        }
    }

    /// Puts contiguous elements: as many elements of `from` as fit in `to`. Returns their number.
    /// All put methods of every scope call this function.
    #[inline(always)]
    fn put_any<T: Plain, S: Scope, X: Source<T>>(&self, to: SymSlice<T>, from: &X, pe: u32, nbi: bool) -> usize {
        let count = to.len().min(from.count());
        let (bytes, source) = (count * size_of::<T>(), from.start(self).cast::<u8>());
        match self.reach(KernelOp::Put, pe) {
            Ok(Reach::Mapped(base)) => {
                let target = address::<u8>(base + to.offset().0);
                // SAFETY: `SymSlice` and `Source` promise `count` elements, and the peer is mapped.
                unsafe {
                    if X::GLOBAL {
                        self.copy_to_peer::<S, true>(target, source, bytes, nbi);
                    } else {
                        self.copy_to_peer::<S, false>(target, source, bytes, nbi);
                    }
                }
            }
            Ok(Reach::Network) => {
                let symmetric = self.my_base() + to.offset().0;
                network::put::<S>(symmetric, source as u64, bytes, pe, nbi);
            }
            Err(_) => {}
        }
        S::sync();
        count
    }

    /// Gets contiguous elements: as many elements of `from` as fit in `to`. Returns their number.
    /// All get methods of every scope call this function.
    #[inline(always)]
    fn get_any<T: Plain, S: Scope, X: Target<T>>(&self, to: &mut X, from: SymSlice<T>, pe: u32, nbi: bool) -> usize {
        let count = from.len().min(to.count());
        let (bytes, target) = (count * size_of::<T>(), to.start_mut(self).cast::<u8>());
        match self.reach(KernelOp::Get, pe) {
            Ok(Reach::Mapped(base)) => {
                let source = address::<u8>(base + from.offset().0);
                // SAFETY: `SymSlice` and `Target` promise `count` elements, and the peer is mapped.
                unsafe {
                    if X::GLOBAL {
                        self.copy_from_peer::<S, true>(target, source, bytes);
                    } else {
                        self.copy_from_peer::<S, false>(target, source, bytes);
                    }
                }
            }
            Ok(Reach::Network) => {
                let symmetric = self.my_base() + from.offset().0;
                network::get::<S>(target as u64, symmetric, bytes, pe, nbi);
            }
            Err(_) => {}
        }
        S::sync();
        count
    }

    /// Checks that the lengths `to` and `from` are equal. If not, writes
    /// [`FailureKind::LengthMismatch`] to the status and returns the error.
    #[inline(always)]
    fn same_length(&self, operation: KernelOp, pe: u32, to: usize, from: usize) -> Result<(), Failed> {
        if to == from {
            return Ok(());
        }
        let report = Report { pe, expected: to as u64, found: from as u64, ..Report::of(operation) };
        Err(self.fail(FailureKind::LengthMismatch, report))
    }

    /// Writes `value` to the first element of `to` on `pe`.
    ///
    /// # Ordering
    /// None. The put is complete at the peer once [`Self::quiet`] has returned.
    #[inline(always)]
    pub fn p<T: Plain>(&self, to: SymSlice<T>, value: T, pe: u32) {
        if to.is_empty() {
            return;
        }
        match self.reach(KernelOp::P, pe) {
            // SAFETY: `SymSlice` promises an element in the heap of every PE, and the peer is
            // mapped.
            Ok(Reach::Mapped(base)) => unsafe { value::store::<T, Strong>(address(base + to.offset().0), value) },
            Ok(Reach::Network) => network::p(self.my_base() + to.offset().0, value, pe),
            Err(_) => {}
        }
    }

    /// Returns the first element of `from` on `pe`. If `pe` is unreachable, the failure is written
    /// to the status, and all bits of the result are zero.
    ///
    /// # Ordering
    /// None. To order the read with other accesses, use [`Self::fence`].
    ///
    /// # Panics
    /// If `from` is empty. On a GPU the kernel traps.
    #[inline(always)]
    pub fn g<T: Plain>(&self, from: SymSlice<T>, pe: u32) -> T {
        assert!(!from.is_empty(), "the slice of a get is empty, expected at least one element");
        match self.reach(KernelOp::G, pe) {
            // SAFETY: `SymSlice` promises an element in the heap of every PE, and the peer is
            // mapped.
            Ok(Reach::Mapped(base)) => unsafe { value::load::<T, Strong>(address(base + from.offset().0)) },
            Ok(Reach::Network) => network::g(self.my_base() + from.offset().0, pe),
            // SAFETY: every bit pattern is a value of a `Plain` type.
            Err(_) => unsafe { core::mem::zeroed() },
        }
    }

    /// Implements all methods that put elements at strides, for every scope.
    #[inline(always)]
    fn iput_any<T: Plain, S: Scope, X: Source<T>>(
        &self,
        to: SymSlice<T>,
        from: &X,
        steps: (usize, usize),
        count: usize,
        pe: u32,
    ) {
        let count = count.min(strided(to.len(), steps.0)).min(strided(from.count(), steps.1));
        let source = from.start(self);
        match self.reach(KernelOp::Iput, pe) {
            Ok(Reach::Mapped(base)) => {
                let target = address::<T>(base + to.offset().0);
                // SAFETY: on each side the last index lies within the elements (`strided`), and the
                // peer is mapped.
                unsafe {
                    if X::GLOBAL {
                        stride::<T, S, Global, Global>(target, source, steps, count);
                    } else {
                        stride::<T, S, Generic, Global>(target, source, steps, count);
                    }
                }
            }
            Ok(Reach::Network) => {
                for index in (S::rank()..count).step_by(S::size()) {
                    // SAFETY: the index lies within the source.
                    let value = unsafe { value::load::<T, Generic>(source.add(index * steps.1)) };
                    network::p(self.my_base() + to.offset().0 + (index * steps.0 * size_of::<T>()) as u64, value, pe);
                }
            }
            Err(_) => {}
        }
        S::sync();
    }

    /// Implements all methods that get elements at strides, for every scope.
    #[inline(always)]
    fn iget_any<T: Plain, S: Scope, X: Target<T>>(
        &self,
        to: &mut X,
        from: SymSlice<T>,
        steps: (usize, usize),
        count: usize,
        pe: u32,
    ) {
        let count = count.min(strided(to.count(), steps.0)).min(strided(from.len(), steps.1));
        let target = to.start_mut(self);
        match self.reach(KernelOp::Iget, pe) {
            Ok(Reach::Mapped(base)) => {
                let source = address::<T>(base + from.offset().0);
                // SAFETY: on each side the last index lies within the elements (`strided`), and the
                // peer is mapped.
                unsafe {
                    if X::GLOBAL {
                        stride::<T, S, Strong, Global>(target, source, steps, count);
                    } else {
                        stride::<T, S, Strong, Generic>(target, source, steps, count);
                    }
                }
            }
            Ok(Reach::Network) => {
                for index in (S::rank()..count).step_by(S::size()) {
                    let at = self.my_base() + from.offset().0 + (index * steps.1 * size_of::<T>()) as u64;
                    let value = network::g::<T>(at, pe);
                    // SAFETY: the index lies within the target.
                    unsafe { value::store::<T, Generic>(target.add(index * steps.0), value) };
                }
            }
            Err(_) => {}
        }
        S::sync();
    }
}

/// Returns the number of elements at stride `step` in a view of `len` elements; 0 if `step` is 0.
#[inline(always)]
fn strided(len: usize, step: usize) -> usize {
    if step == 0 { 0 } else { len.div_ceil(step) }
}

/// Copies `count` elements at strides. `steps` contains the stride of the target, and then the
/// stride of the source. Each thread has up to eight loads in flight.
///
/// # Safety
/// For every `index` below `count`, this thread can write element `index * steps.0` of `to`, and
/// can read element `index * steps.1` of `from`.
#[inline(always)]
unsafe fn stride<T: Plain, S: Scope, A: value::Side, B: value::Side>(
    to: *mut T,
    from: *const T,
    steps: (usize, usize),
    count: usize,
) {
    let size = S::size();
    let mut at = S::rank();
    // SAFETY: every index is below `count`.
    unsafe {
        while at + 7 * size < count {
            let held: [T; 8] = core::array::from_fn(|k| value::load::<T, A>(from.add((at + k * size) * steps.1)));
            for (k, value) in held.into_iter().enumerate() {
                value::store::<T, B>(to.add((at + k * size) * steps.0), value);
            }
            at += 8 * size;
        }
        while at < count {
            value::store::<T, B>(to.add(at * steps.0), value::load::<T, A>(from.add(at * steps.1)));
            at += size;
        }
    }
}

/// Declares the public methods, one for each scope.
macro_rules! scoped {
    ($scope:ident, $words:literal: $put:ident, $get:ident, $put_nbi:ident, $get_nbi:ident, $put_checked:ident, $get_checked:ident,
        $iput:ident, $iget:ident) => {
        impl Context {
            #[doc = concat!("Copies the elements of `from` to `to` on `pe`. Called by ", $words, ".")]
            /// Copies as many elements as the shorter of `to` and `from` has, and returns this
            /// number. The source can be reused when the call returns.
            ///
            /// # Ordering
            /// Later puts may arrive at the peer before this put. A later signal with release order
            /// arrives after this put. The put is complete at the peer once [`Self::quiet`] has
            /// returned.
            #[inline(always)]
            pub fn $put<T: Plain>(&self, to: SymSlice<T>, from: impl Source<T>, pe: u32) -> usize {
                self.put_any::<T, $scope, _>(to, &from, pe, false)
            }

            #[doc = concat!("Copies the elements of `from` on `pe` to `to`. Called by ", $words, ".")]
            /// Copies as many elements as the shorter of `to` and `from` has, and returns this
            /// number. The elements have arrived when the call returns.
            ///
            /// # Ordering
            /// None. If the peer writes the elements, wait for the peer's signal before the get.
            #[inline(always)]
            pub fn $get<T: Plain>(&self, mut to: impl Target<T>, from: SymSlice<T>, pe: u32) -> usize {
                self.get_any::<T, $scope, _>(&mut to, from, pe, false)
            }

            #[doc = concat!("Starts to copy the elements of `from` to `to` on `pe`. Called by ", $words, ".")]
            /// If the lengths of `to` and `from` differ, copies as many elements as the shorter
            /// length. Returns the number of copied elements. The source can be reused once the
            /// first thread of the scope has called [`Self::flush`] or [`Self::quiet`]. The other
            /// threads of the scope need not call these methods.
            #[inline(always)]
            pub fn $put_nbi<T: Plain>(&self, to: SymSlice<T>, from: impl Source<T>, pe: u32) -> usize {
                self.put_any::<T, $scope, _>(to, &from, pe, true)
            }

            #[doc = concat!("Starts to copy the elements of `from` on `pe` to `to`. Called by ", $words, ".")]
            /// If the lengths of `to` and `from` differ, copies as many elements as the shorter
            /// length. Returns the number of copied elements. The elements have arrived once the
            /// first thread of the scope has called [`Self::quiet`]. The other threads of the scope
            /// need not call this method.
            #[inline(always)]
            pub fn $get_nbi<T: Plain>(&self, mut to: impl Target<T>, from: SymSlice<T>, pe: u32) -> usize {
                self.get_any::<T, $scope, _>(&mut to, from, pe, true)
            }

            #[doc = concat!("Copies like [`Self::", stringify!($put), "`], but fails if the lengths differ.")]
            ///
            /// # Errors
            /// [`FailureKind::LengthMismatch`] if the lengths of `to` and `from` differ. In this
            /// case, the call copies no element.
            #[inline(always)]
            pub fn $put_checked<T: Plain>(&self, to: SymSlice<T>, from: impl Source<T>, pe: u32) -> Result<(), Failed> {
                self.same_length(KernelOp::Put, pe, to.len(), from.count())?;
                self.put_any::<T, $scope, _>(to, &from, pe, false);
                Ok(())
            }

            #[doc = concat!("Copies like [`Self::", stringify!($get), "`], but fails if the lengths differ.")]
            ///
            /// # Errors
            /// [`FailureKind::LengthMismatch`] if the lengths of `to` and `from` differ. In this
            /// case, the call copies no element.
            #[inline(always)]
            pub fn $get_checked<T: Plain>(&self, mut to: impl Target<T>, from: SymSlice<T>, pe: u32) -> Result<(), Failed> {
                self.same_length(KernelOp::Get, pe, to.count(), from.len())?;
                self.get_any::<T, $scope, _>(&mut to, from, pe, false);
                Ok(())
            }

            #[doc = concat!("Copies `count` elements at strides: element `i * from_step` of `from` to element `i * to_step` of `to` on `pe`. Called by ", $words, ".")]
            /// Copies fewer than `count` elements if one of the views ends earlier. Copies nothing
            /// if `to_step` or `from_step` is 0.
            #[inline(always)]
            pub fn $iput<T: Plain>(
                &self,
                to: SymSlice<T>,
                from: impl Source<T>,
                to_step: usize,
                from_step: usize,
                count: usize,
                pe: u32,
            ) {
                self.iput_any::<T, $scope, _>(to, &from, (to_step, from_step), count, pe);
            }

            #[doc = concat!("Copies `count` elements at strides: element `i * from_step` of `from` on `pe` to element `i * to_step` of `to`. Called by ", $words, ".")]
            /// Copies fewer than `count` elements if one of the views ends earlier. Copies nothing
            /// if `to_step` or `from_step` is 0.
            #[inline(always)]
            pub fn $iget<T: Plain>(
                &self,
                mut to: impl Target<T>,
                from: SymSlice<T>,
                to_step: usize,
                from_step: usize,
                count: usize,
                pe: u32,
            ) {
                self.iget_any::<T, $scope, _>(&mut to, from, (to_step, from_step), count, pe);
            }
        }
    };
}

scoped!(Thread, "this thread": put, get, put_nbi, get_nbi, put_checked, get_checked, iput, iget);
scoped!(Warp, "all threads of the warp": put_warp, get_warp, put_nbi_warp, get_nbi_warp, put_checked_warp, get_checked_warp,
    iput_warp, iget_warp);
scoped!(Block, "all threads of the block": put_block, get_block, put_nbi_block, get_nbi_block, put_checked_block, get_checked_block,
    iput_block, iget_block);
