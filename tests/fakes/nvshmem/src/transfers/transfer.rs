//! Implements puts and gets: immediately, later, or in stream order.
//!
//! Modules `puts` and `values` have the exported functions. Invariant: the remote side is symmetric
//! memory that is live when the bytes are copied.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::signal::{self, Signal};
use crate::call::{self, undefined};
use crate::job::memory::{Memory, Place};
use crate::job::{World, counters, live, on_stream};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Put,
    Get,
}

/// Time of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// Before the call returns.
    Now,
    /// At the latest at the next quiet.
    Later,
}

/// One transfer of rows of equal length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) way: Way,
    pub(super) target: usize,
    pub(super) source: usize,
    /// Number of contiguous bytes.
    pub(super) row: usize,
    pub(super) rows: usize,
    /// Bytes from one row to the next.
    pub(super) target_step: usize,
    pub(super) source_step: usize,
    pub(super) pe: c_int,
    /// Kind of memory of this PE's side.
    pub(super) local: Local,
}

/// Kind of this PE's side of a transfer, by the requirements of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// Memory that must be symmetric or registered.
    Memory,
    /// A value passed in the call.
    Value,
    /// A transfer that NVSHMEM does not implement over the network.
    NotByNetwork,
}

/// Copies bytes; copies aligned words atomically, because other threads may read them as flags.
///
/// # Safety
/// Both sides have this many bytes.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let alike = |size: usize| bytes == size && from.addr().is_multiple_of(size) && to.addr().is_multiple_of(size);
    // SAFETY: the caller guarantees the bytes, and `alike` has checked the alignment.
    unsafe {
        if alike(8) {
            let value = AtomicU64::from_ptr(from.cast_mut().cast()).load(Ordering::Acquire);
            AtomicU64::from_ptr(to.cast()).store(value, Ordering::Release);
        } else if alike(4) {
            let value = AtomicU32::from_ptr(from.cast_mut().cast()).load(Ordering::Acquire);
            AtomicU32::from_ptr(to.cast()).store(value, Ordering::Release);
        } else {
            std::ptr::copy(from, to, bytes);
        }
    }
}

impl Transfer {
    pub(super) fn flat(way: Way, target: *mut c_void, source: *const c_void, bytes: usize, pe: c_int) -> Self {
        let (target, source) = (target.addr(), source.addr());
        Self { way, target, source, row: bytes, rows: 1, target_step: bytes, source_step: bytes, pe, local: Local::Memory }
    }

    pub(super) fn strided(
        way: Way,
        [target, source]: [usize; 2],
        strides: [isize; 2],
        size: usize,
        count: usize,
        pe: c_int,
    ) -> Self {
        let step = |stride: isize| match usize::try_from(stride) {
            Ok(stride) if stride > 0 => stride * size,
            _ => undefined(&format!("{}: invalid stride of {stride} elements", call::function())),
        };
        let (target_step, source_step) = (step(strides[0]), step(strides[1]));
        Self { way, target, source, row: size, rows: count, target_step, source_step, pe, local: Local::NotByNetwork }
    }

    fn span(&self, step: usize) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * step + self.row }
    }

    /// Checks both sides, and makes the transfer if `really` is true.
    fn visit(&self, world: &World, function: &str, really: bool) {
        if self.span(1) == 0 || self.row == 0 {
            return;
        }
        let memory = world.memory();
        let (target_span, source_span) = (self.span(self.target_step), self.span(self.source_step));
        let (from, to) = match self.way {
            Way::Put => {
                memory.local(function, "the source", self.source, source_span);
                let place = memory.symmetric(function, "the target", self.target, target_span);
                self.by_network(&memory, function, place, self.source, source_span);
                (self.source as *const u8, memory.of(self.pe, place))
            }
            Way::Get => {
                memory.local(function, "the target", self.target, target_span);
                let place = memory.symmetric(function, "the source", self.source, source_span);
                self.by_network(&memory, function, place, self.target, target_span);
                (memory.of(self.pe, place).cast_const(), self.target as *mut u8)
            }
        };
        if !really {
            return;
        }
        for row in 0..self.rows {
            // SAFETY: the symmetric side was found live, and stays live while the memory is locked.
            // The caller guarantees the other side.
            unsafe { copy(from.add(row * self.source_step), to.add(row * self.target_step), self.row) };
        }
    }

    /// Ends the process if only the network reaches the PE, and the network cannot make the
    /// transfer or this PE's side is not registered.
    fn by_network(&self, memory: &Memory, function: &str, place: Place, local: usize, bytes: usize) {
        if memory.given(self.pe, place).is_some() || self.local == Local::Value {
            return;
        }
        if self.local == Local::NotByNetwork {
            undefined(&format!("{function}: not implemented for PE {}, which only the network reaches", self.pe));
        }
        if memory.find(local, bytes).is_none() && !memory.is_registered(local, bytes) {
            undefined(&format!("{function}: {bytes} bytes at {local:#x} are not registered with the network"));
        }
    }

    fn run(&self, world: &Arc<World>, function: &'static str, when: When, signal: Option<Signal>) {
        let transfer = *self;
        let all = move |world: &World| {
            transfer.visit(world, function, true);
            if let Some(signal) = signal {
                signal::apply(world, function, signal);
            }
        };
        match when {
            When::Now => all(world),
            When::Later => {
                let later = Arc::clone(world);
                world.pending.add(move || all(&later));
            }
        }
    }

    fn checked(&self, signal: Option<Signal>) -> Arc<World> {
        let world = live();
        world.check_pe(self.pe);
        self.visit(&world, call::function(), false);
        if let Some(signal) = signal {
            signal::check(&world, signal);
        }
        counters::TRANSFERS.fetch_add(1, Ordering::Relaxed);
        world
    }

    /// Makes the transfer from the host.
    pub(super) fn on_host(self, when: When) {
        let world = self.checked(None);
        if self.way == Way::Put && matches!(when, When::Now) && self.is_by_network(&world) {
            return self.send(&world, call::function());
        }
        self.run(&world, call::function(), when, None);
    }

    fn is_by_network(&self, world: &World) -> bool {
        let memory = world.memory();
        let place = memory.symmetric(call::function(), "the target", self.target, self.span(self.target_step));
        self.row > 0 && self.rows > 0 && memory.given(self.pe, place).is_none()
    }

    /// Sends a copy of the source, because the program may change the source after the call
    /// returns.
    fn send(self, world: &Arc<World>, function: &'static str) {
        // SAFETY: `checked` has checked the source, and the caller guarantees that it is readable.
        let staged: Box<[u8]> =
            unsafe { std::slice::from_raw_parts(self.source as *const u8, self.span(self.source_step)) }.into();
        let later = Arc::clone(world);
        world.sent.add(move || {
            Self { source: staged.as_ptr().addr(), local: Local::Value, ..self }.visit(&later, function, true);
        });
    }

    /// Enqueues the transfer on a stream.
    pub(super) fn on_stream(self, when: When, signal: Option<Signal>, stream: *mut c_void) {
        let world = self.checked(signal);
        if matches!(when, When::Later) {
            world.left.store(true, Ordering::Release);
        }
        call::or_abort(on_stream(stream, move |world, function| self.run(world, function, when, signal)));
    }

    /// Makes the transfer immediately. Work on a stream uses this for single values.
    pub(super) fn now(self, world: &World, function: &'static str) {
        self.visit(world, function, true);
    }

    /// Checks the transfer and counts it; ends the process if the transfer is invalid.
    pub(super) fn check(&self) {
        self.checked(None);
    }
}
