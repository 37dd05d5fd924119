//! Kernels of users: their threads run on the stream's thread, over the heap of this job.
//!
//! This module holds the context of a launch and the meaning of its failure; `peerweave-grid` runs the threads.

use crate::memory::layout::{KERNEL_SLOTS, MAX_TEAMS};
use crate::ops::shared::Shared;
use peerweave_core::backend::{Launch, Outcome, TeamId};
use peerweave_core::{Error, KernelFailure, TeamName};
use peerweave_grid::{ContextMemory, Epochs, GridError, Options, Report, TeamTable};
use peerweave_types::{KernelOp, Pe};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a grid may go on after the deadline of its waits: its threads see the failure and return.
const GRACE: Duration = Duration::from_millis(500);

/// How often a kernel that waits asks whether the other PEs still live.
const LIVENESS_PERIOD: Duration = Duration::from_millis(5);

/// What the launches of a PE share.
#[derive(Debug)]
pub(crate) struct Kernels {
    seed: u64,
    launched: AtomicU64,
    /// By team slot.
    epochs: Box<[Epochs]>,
}

impl Kernels {
    /// Nothing launched yet. `seed` is that of the options.
    pub(crate) fn new(seed: u64) -> Self {
        let slots = || (0..KERNEL_SLOTS).map(|_| AtomicU64::new(0)).collect::<Epochs>();
        Self { seed, launched: AtomicU64::new(0), epochs: (0..MAX_TEAMS).map(|_| slots()).collect() }
    }

    /// A new team uses the slot: its kernels count from the start.
    pub(crate) fn reset(&self, slot: usize) {
        self.epochs[slot].iter().for_each(|epoch| epoch.store(0, Ordering::Relaxed));
    }

    /// The seed of the next launch on PE `me`: another one for each, but for seed 0.
    fn next_seed(&self, me: usize) -> u64 {
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        if self.seed == 0 { 0 } else { self.seed.wrapping_add((me as u64) << 32).wrapping_add(number).max(1) }
    }
}

impl Shared {
    /// Runs a kernel to its end on this thread.
    pub(crate) fn launch(&self, launch: &Launch) -> Result<Outcome, Error> {
        let kernel = &*launch.kernel;
        let layout = self.segments.layout();
        let bases: Vec<u64> = (0..self.n_pes()).map(|pe| self.segments.segment(pe).expose_provenance() as u64).collect();
        let members = self.teams.members_by_slot();
        let teams: Vec<TeamTable<'_>> = (0..)
            .zip(&members)
            .map(|(slot, members)| TeamTable { members, sync: layout.kernel_lines(slot), epochs: &self.kernels.epochs[slot] })
            .collect();
        let me = Pe::new(self.me as u32);
        // SAFETY: segments and epochs belong to `self`. Offsets count from the start of a segment, whose control words no view covers.
        let mut context = unsafe { ContextMemory::new(me, layout.segment_bytes(), &bases, &teams, self.deadline) };
        let gone = RefCell::new(None);
        let outcome = {
            let address = context.as_ptr();
            // SAFETY: the context lives until the grid is over; the core has checked the arguments' memory, and the queue holds it.
            let body = || unsafe { kernel.run_thread(address) };
            let asked = Cell::new(Instant::now());
            let on_idle = || {
                if gone.borrow().is_none() && asked.get().elapsed() >= LIVENESS_PERIOD {
                    asked.set(Instant::now());
                    let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
                    if let Err(error) = self.nobody_can_signal(kernel.name(), team) {
                        *gone.borrow_mut() = Some(error);
                        context.abort();
                    }
                }
            };
            let grid = peerweave_grid::Launch::new(kernel.name(), launch.grid, launch.block, &body)
                .shared_bytes(launch.shared_bytes)
                .cooperative(launch.cooperative);
            let seed = self.kernels.next_seed(self.me);
            let options = Options::default().seed(seed).deadline(self.deadline.saturating_add(GRACE)).on_idle(&on_idle);
            peerweave_grid::run(&grid, &options)
        };
        let report = context.report();
        if report.is_none() && outcome.is_ok() {
            return Ok(Outcome::Done);
        }
        let error = match gone.into_inner() {
            // A lost PE is the reason, whatever the kernel made of it.
            Some(gone) => gone,
            None => failure(kernel.name(), report, outcome.err()),
        };
        self.leave_word(&error);
        Err(error)
    }
}

/// The error of a kernel: what its operation reported, or else how its grid ended.
fn failure(kernel: &'static str, report: Option<Report>, grid: Option<GridError>) -> Error {
    let failure = match (report, grid) {
        (Some(report), _) => KernelFailure {
            kernel,
            kind: report.kind(),
            operation: KernelOp::from_number(report.0.operation),
            missing: report.missing_pe(),
            message: report.to_string(),
        },
        (None, grid) => {
            let text = grid.map_or_else(|| "failed".to_string(), |error| error.to_string());
            let message = text.strip_prefix(kernel).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text).to_string();
            KernelFailure { kernel, kind: None, operation: None, missing: None, message }
        }
    };
    Error::Kernel(Box::new(failure))
}
