//! Runs the kernels of the program on CPU threads. The kernels access the symmetric heap of this
//! job.
//!
//! This file creates the context of a launch and the error of a failed launch. `peerweave-grid`
//! runs the threads.

use crate::memory::layout::{KERNEL_SLOTS, MAX_TEAMS};
use crate::ops::shared::{COMPLETION_GRACE, Shared};
use peerweave_core::backend::{Launch, Outcome, TeamId};
use peerweave_core::{Error, KernelFailure, PeerCause, TeamName};
use peerweave_grid::{ContextMemory, Epochs, GridError, Options, Report, Shape, TeamTable};
use peerweave_types::{KernelOp, Pe};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Grace time for a grid after the deadline of a wait in its kernel. During this time, the threads
/// of the grid detect the failure and return. A grid that continues longer is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// Interval at which a waiting kernel checks that the other PEs are alive.
const LIVENESS_PERIOD: Duration = Duration::from_millis(5);

/// The state that the launches of a PE share.
#[derive(Debug)]
pub(crate) struct Kernels {
    seed: u64,
    launched: AtomicU64,
    /// The synchronization counters of each team slot. A slot has one counter for each thread block
    /// ([`Epochs`]). The counter is the number of synchronizations that the block has completed in
    /// the team of the slot.
    epochs: Box<[Epochs]>,
    /// Start times of the kernels that streams are running.
    on_streams: Mutex<Vec<Instant>>,
}

/// Marks a kernel as running on a stream. The stream drops this value after it has completed the
/// ticket of the kernel.
#[derive(Debug)]
pub(crate) struct OnStream<'a> {
    kernels: &'a Kernels,
    started: Instant,
}

impl Drop for OnStream<'_> {
    fn drop(&mut self) {
        let mut all = self.kernels.on_streams();
        if let Some(at) = all.iter().position(|started| *started == self.started) {
            all.swap_remove(at);
        }
    }
}

impl Kernels {
    /// Creates the state of a PE that has launched no kernel yet. `seed` is the value of
    /// `HostOptions::kernel_seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let slots = || (0..KERNEL_SLOTS).map(|_| AtomicU64::new(0)).collect::<Epochs>();
        let epochs = (0..MAX_TEAMS).map(|_| slots()).collect();
        Self { seed, launched: AtomicU64::new(0), epochs, on_streams: Mutex::default() }
    }

    fn on_streams(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.on_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a stream runs a kernel from now on. The kernel counts as running until the
    /// returned value is dropped.
    pub(crate) fn start_on_stream(&self) -> OnStream<'_> {
        let started = Instant::now();
        self.on_streams().push(started);
        OnStream { kernels: self, started }
    }

    /// Returns whether a stream is running a kernel that has started at or before the time `before`
    /// and has not exceeded its time limit. The result of such a kernel is expected soon.
    pub(crate) fn will_report(&self, before: Instant, deadline: Duration) -> bool {
        let longest = deadline.saturating_add(GRACE + COMPLETION_GRACE);
        self.on_streams().iter().any(|started| *started <= before && started.elapsed() < longest)
    }

    /// Sets the counters of a team slot to 0 (see [`Kernels::epochs`]). Called when a new team gets
    /// the slot.
    pub(crate) fn reset(&self, slot: usize) {
        self.epochs[slot].iter().for_each(|epoch| epoch.store(0, Ordering::Relaxed));
    }

    /// Returns the seed of the next launch on PE `me`. If the seed in the options is 0, the result
    /// is 0. Otherwise, each launch has a different seed.
    fn next_seed(&self, me: usize) -> u64 {
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        if self.seed == 0 { 0 } else { self.seed.wrapping_add((me as u64) << 32).wrapping_add(number).max(1) }
    }
}

impl Shared {
    /// Runs a kernel on the calling thread until it ends.
    pub(crate) fn launch(&self, launch: &Launch) -> Result<Outcome, Error> {
        let kernel = &*launch.kernel;
        let layout = self.peers.segments.layout();
        let bases: Vec<u64> = (0..self.n_pes()).map(|pe| self.peers.segments.segment(pe).expose_provenance() as u64).collect();
        let members = self.teams.members_by_slot();
        let teams: Vec<TeamTable<'_>> = (0..)
            .zip(&members)
            .map(|(slot, members)| TeamTable { members, sync: layout.kernel_lines(slot), epochs: &self.kernels.epochs[slot] })
            .collect();
        let me = Pe::new(self.peers.me as u32);
        // SAFETY: segments and epochs belong to `self`. Offsets count from the start of a segment.
        // No view covers the control words of a segment.
        let mut context = unsafe { ContextMemory::new(me, layout.segment_bytes(), &bases, &teams, self.peers.deadline) };
        let lost = RefCell::new(None);
        let outcome = {
            let address = context.as_ptr();
            // SAFETY: the context lives until the grid has ended. The core has checked the memory
            // of the arguments, and the queue keeps it alive.
            let body = || unsafe { kernel.run_thread(address) };
            let asked = Cell::new(Instant::now());
            let on_idle = || {
                if lost.borrow().is_none() && asked.get().elapsed() >= LIVENESS_PERIOD {
                    asked.set(Instant::now());
                    for pe in (0..self.n_pes()).filter(|&pe| self.peers.liveness.gone(pe) == Some(PeerCause::Left)) {
                        context.mark_gone(Pe::new(pe as u32));
                    }
                    if let Err(error) = self.peers.check_signallers(kernel.name()) {
                        *lost.borrow_mut() = Some(error);
                        context.abort();
                    }
                }
            };
            let shape = Shape::new(launch.grid, launch.block).shared_bytes(launch.shared_bytes).cooperative(launch.cooperative);
            let grid = peerweave_grid::Launch::shaped(kernel.name(), shape, &body);
            let seed = self.kernels.next_seed(self.peers.me);
            let options = Options::default().seed(seed).deadline(self.peers.deadline.saturating_add(GRACE)).on_idle(&on_idle);
            peerweave_grid::run(&grid, &options)
        };
        let report = context.report();
        if report.is_none() && outcome.is_ok() {
            return Ok(Outcome::Done);
        }
        let error = match lost.into_inner() {
            // A lost PE is the cause, whatever the kernel reported.
            Some(error) => error,
            None => match report.and_then(|report| report.missing_pe()).filter(|pe| context.is_gone(*pe)) {
                Some(pe) => {
                    let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
                    self.peers.peer_error(kernel.name(), team, pe.index(), PeerCause::Left, 0)
                }
                None => failure(kernel.name(), report, outcome.err(), self.kernels.seed),
            },
        };
        self.peers.record_failure(&error);
        Err(error)
    }
}

/// Returns the error of a failed kernel. If the kernel has written a failure report, the error
/// describes the operation that `report` names. Otherwise, the error contains the text of the grid
/// error `grid`. If `seed` is not 0, the message contains the seed, so that a user can repeat the
/// failure.
fn failure(kernel: &'static str, report: Option<Report>, grid: Option<GridError>, seed: u64) -> Error {
    let mut failure = match (report, grid) {
        (Some(report), _) => KernelFailure {
            kernel,
            kind: report.kind(),
            operation: KernelOp::from_number(report.0.operation),
            missing: report.missing_pe(),
            exit_code: report.exit_code(),
            message: report.to_string(),
        },
        (None, grid) => {
            let text = grid.map_or_else(|| "the kernel failed, but reported no reason".to_string(), |error| error.to_string());
            let message = text.strip_prefix(kernel).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text).to_string();
            KernelFailure { kernel, kind: None, operation: None, missing: None, exit_code: None, message }
        }
    };
    if seed != 0 {
        failure.message.push_str(&format!("; to repeat this order of the threads, set PEERWEAVE_KERNEL_SEED={seed}"));
    }
    Error::Kernel(Box::new(failure))
}
