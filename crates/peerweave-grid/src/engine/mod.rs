//! Runs the threads of grids as coroutines, one at a time, on the calling thread.
//!
//! Invariants:
//!
//! **\[G1\]** All coroutines of a run are resumed and dropped on the thread that called `run`, so
//! the state of a coroutine never moves to another thread.
//!
//! **\[G2\]** When `run` returns, no coroutine of the run exists. So everything that the body of a
//! launch borrows stays alive while a coroutine uses it.
//!
//! **\[G3\]** No `RefCell` of the run is borrowed while a coroutine is resumed or suspended.

mod block;
mod fiber;

use crate::error::{GridError, ThreadId};
use crate::options::{Launch, Options};
use crate::schedule::{Random, Schedule, mix};
use block::{Arrival, Block, WARP};
use fiber::{Fiber, Stacks, Step, Suspend};
use peerweave_types::Dim3;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

thread_local! {
    /// The kernel thread that is running on this host thread; null outside of kernels.
    static CURRENT: Cell<*const Current> = const { Cell::new(std::ptr::null()) };
}

/// The state of a kernel thread: its indices, its handle for suspension, and a pointer to its run.
pub(crate) struct Current {
    pub(crate) thread_idx: Dim3,
    pub(crate) block_idx: Dim3,
    pub(crate) block_dim: Dim3,
    pub(crate) grid_dim: Dim3,
    /// Index of the thread in its block.
    linear: u32,
    slot: usize,
    run: *const Run,
    /// Handle that suspends the thread; set when the thread starts.
    pub(crate) suspend: Cell<*const Suspend>,
    /// Number of steps that this thread may still run before it is preempted. A step is, for
    /// example, one memory access or one fence.
    budget: Cell<u32>,
}

/// The part of a run's state that the kernel threads access.
struct Run {
    slots: RefCell<Vec<Slot>>,
    schedule: RefCell<Schedule>,
    /// Message of the first divergence, if any. A thread diverges if it misses a barrier or a warp
    /// operation that other threads of its block reach, or calls it wrongly.
    divergence: RefCell<Option<String>>,
    started: Instant,
}

/// A running block, its launch, and its threads.
struct Slot {
    block: Block,
    launch: usize,
    index: Dim3,
    block_dim: Dim3,
    fibers: Vec<Option<Fiber>>,
}

/// The reason why a thread stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspendReason {
    /// The thread was preempted, and can continue.
    Switch,
    /// The thread waits for a change of memory.
    Pause,
    /// The thread waits at a barrier or in a warp operation. The last thread that reaches the
    /// barrier or the operation makes the waiting threads runnable.
    Block,
    /// The thread has diverged, so the run fails. The engine does not resume this thread.
    Fail,
}

/// Returns the kernel thread that is running on this host thread; `None` outside of kernels.
#[inline]
pub(crate) fn current() -> Option<&'static Current> {
    let current = CURRENT.get();
    // SAFETY: the pointer is not null only while the coroutine that owns the `Current` runs on this
    // thread ([G1]). The callers in this crate use the reference only during one call from that
    // coroutine, and the coroutine owns the `Current` longer than the call.
    unsafe { current.as_ref() }
}

impl Current {
    fn run(&self) -> &Run {
        // SAFETY: the run outlives its coroutines ([G2]).
        unsafe { &*self.run }
    }

    fn suspend(&self, why: SuspendReason) {
        // During unwinding the thread must not be suspended, because it is not resumed.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the handle belongs to this coroutine, and exists as long as the coroutine's first
        // frame.
        let suspend = unsafe { &*self.suspend.get() };
        suspend.suspend(why);
    }

    /// Counts one step of the thread. If no steps remain before the next preemption, suspends the
    /// thread.
    #[inline]
    pub(crate) fn step(&self) {
        match self.budget.get() {
            0 => self.suspend(SuspendReason::Switch),
            left => self.budget.set(left - 1),
        }
    }

    /// Suspends the thread after an unsuccessful poll of memory. Other threads run before this
    /// thread polls again.
    pub(crate) fn pause(&self) {
        self.suspend(SuspendReason::Pause);
    }

    fn diverge(&self, what: String) -> ! {
        self.run().divergence.borrow_mut().get_or_insert(what);
        // The engine does not resume this thread, but unwinds its frames.
        self.suspend(SuspendReason::Fail);
        unreachable!("the engine resumed a thread that has failed")
    }

    /// Passes the state of this thread's block to the closure `with`, and returns the closure's
    /// result.
    pub(crate) fn block<R>(&self, with: impl FnOnce(&mut Block) -> R) -> R {
        with(&mut self.run().slots.borrow_mut()[self.slot].block)
    }

    fn meet(&self, arrival: Result<Arrival, String>) {
        match arrival {
            Err(what) => self.diverge(what),
            Ok(Arrival::Waits) => self.suspend(SuspendReason::Block),
            Ok(Arrival::Complete(released)) => {
                let mut schedule = self.run().schedule.borrow_mut();
                for thread in released.into_iter().filter(|&thread| thread != self.linear) {
                    schedule.add(number(self.slot, thread));
                }
                drop(schedule);
                // The schedule selects which of the released threads continues first.
                self.suspend(SuspendReason::Switch);
            }
        }
    }

    /// Waits at the barrier of the block. Returns whether `value` was `true` in any thread of the
    /// block.
    pub(crate) fn sync_threads_or(&self, value: bool) -> bool {
        if std::thread::panicking() {
            return value;
        }
        let arrival = self.block(|block| block.arrive(self.linear, value));
        self.meet(arrival);
        self.block(|block| block.barrier_result())
    }

    /// Passes a value to the lanes in `mask`, and waits for these lanes. Returns the values that
    /// these lanes have passed, indexed by lane.
    pub(crate) fn exchange(&self, mask: u32, value: u64) -> [u64; WARP as usize] {
        if std::thread::panicking() {
            return [value; WARP as usize];
        }
        let arrival = self.block(|block| block.arrive_warp(self.linear, mask, value));
        self.meet(arrival);
        self.block(|block| block.taken(self.linear))
    }
}

/// Returns the number of a thread. No other thread of a running block has this number. `slot` is
/// the index of the block in [`Run::slots`], and `thread` is the index of the thread in the block.
/// A block has at most 1024 threads, so the low 10 bits of the number are `thread`.
fn number(slot: usize, thread: u32) -> u32 {
    (slot as u32) << 10 | thread
}

fn slot_of(number: u32) -> (usize, u32) {
    ((number >> 10) as usize, number & 1023)
}

/// The blocks that have not started yet, for each launch of a run.
struct Waiting {
    /// For each launch: the index of the next block to start, and the total number of blocks.
    next: Vec<(u64, u64)>,
    turn: usize,
}

impl Waiting {
    /// Selects the next block to start, and removes it from the waiting blocks. Returns the index
    /// of the block's launch, and the index of the block in the grid. Successive calls alternate
    /// among launches.
    fn take(&mut self) -> Option<(usize, u64)> {
        for _ in 0..self.next.len() {
            let launch = self.turn;
            self.turn = (self.turn + 1) % self.next.len();
            if let Some(block) = self.take_of(launch) {
                return Some((launch, block));
            }
        }
        None
    }

    /// Selects the next block of a launch, and removes it from the waiting blocks. Returns the
    /// index of the block in the grid; `None` if all blocks of the launch have started.
    fn take_of(&mut self, launch: usize) -> Option<u64> {
        let (next, count) = &mut self.next[launch];
        if next == count {
            return None;
        }
        *next += 1;
        Some(*next - 1)
    }
}

/// The state of one run of one or several grids, with the methods that start blocks and resume
/// threads.
struct Engine<'a> {
    launches: &'a [Launch<'a>],
    options: &'a Options<'a>,
    run: &'a Run,
    stacks: Stacks,
    waiting: Waiting,
    free_slots: Vec<usize>,
    live_threads: usize,
    /// For each block that has ended since the last call of [`Self::admit`], the index of the
    /// block's launch.
    ended: Vec<usize>,
    /// Number of consecutive unsuccessful polls of memory by the threads of the run. Set to 0 when
    /// a thread makes progress, and by [`Self::rest`].
    idle: usize,
    /// Number of pauses ([`Self::rest`]) of the whole run since a thread last made progress.
    rests: u32,
    turns: u64,
    fills: Random,
}

/// Runs the grids on one schedule until all grids have ended. The caller has checked the shapes of
/// the grids.
pub(crate) fn run(launches: &[Launch<'_>], options: &Options<'_>) -> Result<(), GridError> {
    if !CURRENT.get().is_null() {
        panic!("run: called from inside a kernel, expected a call from outside of kernels");
    }
    let run = Run {
        slots: RefCell::default(),
        schedule: RefCell::new(Schedule::new(options.seed)),
        divergence: RefCell::default(),
        started: Instant::now(),
    };
    let mut engine = Engine {
        launches,
        options,
        run: &run,
        stacks: Stacks::new(options.stack_bytes),
        waiting: Waiting { next: launches.iter().map(|launch| (0, launch.shape.grid.count())).collect(), turn: 0 },
        free_slots: Vec::new(),
        live_threads: 0,
        ended: Vec::new(),
        idle: 0,
        rests: 0,
        turns: 0,
        fills: Random::new(mix(options.seed)),
    };
    let outcome = engine.drive();
    // [G2]: the remaining threads are unwound here, after a success or a failure. Their destructors
    // may call the executor, so the slots must still exist.
    engine.unwind();
    outcome
}

impl Engine<'_> {
    fn drive(&mut self) -> Result<(), GridError> {
        self.begin_first()?;
        loop {
            self.admit()?;
            let next = self.run.schedule.borrow_mut().take();
            let Some(number) = next else { return Ok(()) };
            self.turn(number)?;
            self.turns += 1;
            if self.turns.is_multiple_of(256) {
                self.check_deadline()?;
            }
        }
    }

    /// Starts the first blocks of the run: all blocks of each cooperative grid, and one block of
    /// each other grid.
    fn begin_first(&mut self) -> Result<(), GridError> {
        for (index, launch) in self.launches.iter().enumerate() {
            let first = if launch.shape.cooperative { launch.shape.grid.count() } else { 1 };
            self.waiting.next[index].0 = first;
            (0..first).try_for_each(|block| self.begin(index, block))?;
        }
        Ok(())
    }

    /// Starts waiting blocks. First, each block that has ended is replaced by the next block of the
    /// same launch, so that every grid always has a running block. Then further blocks start until
    /// the limit of resident threads is reached.
    fn admit(&mut self) -> Result<(), GridError> {
        for launch in std::mem::take(&mut self.ended) {
            if let Some(block) = self.waiting.take_of(launch) {
                self.begin(launch, block)?;
            }
        }
        while self.live_threads < self.options.resident_threads {
            let Some((launch, block)) = self.waiting.take() else { return Ok(()) };
            self.begin(launch, block)?;
        }
        Ok(())
    }

    fn begin(&mut self, launch: usize, linear: u64) -> Result<(), GridError> {
        let Launch { name, shape, body } = self.launches[launch];
        let threads = shape.block.count() as u32;
        let grid = shape.grid;
        let index = Dim3 {
            x: (linear % u64::from(grid.x)) as u32,
            y: (linear / u64::from(grid.x) % u64::from(grid.y)) as u32,
            z: (linear / u64::from(grid.x) / u64::from(grid.y)) as u32,
        };
        let slot = self.free_slots.pop().unwrap_or_else(|| self.run.slots.borrow().len());
        let mut fibers = Vec::with_capacity(threads as usize);
        for thread in 0..threads {
            let current = Current {
                thread_idx: shape.block.index(thread),
                block_idx: index,
                block_dim: shape.block,
                grid_dim: grid,
                linear: thread,
                slot,
                run: self.run,
                suspend: Cell::new(std::ptr::null()),
                budget: Cell::new(0),
            };
            // SAFETY: [G2]: the engine drops the fiber, which borrows the body, before `run`
            // returns.
            let fiber = unsafe { Fiber::new(&mut self.stacks, body, current) };
            fibers.push(Some(fiber.map_err(|cause| GridError::Stack {
                kernel: name.to_string(),
                at: ThreadId { block: index, thread: shape.block.index(thread) },
                cause: cause.to_string(),
            })?));
        }
        let block = Block::new(threads, shape.shared_bytes, self.fills.next() as u8);
        let entry = Slot { block, launch, index, block_dim: shape.block, fibers };
        let mut slots = self.run.slots.borrow_mut();
        if slot == slots.len() {
            slots.push(entry)
        } else {
            slots[slot] = entry
        }
        let mut schedule = self.run.schedule.borrow_mut();
        (0..threads).for_each(|thread| schedule.add(number(slot, thread)));
        self.live_threads += threads as usize;
        Ok(())
    }

    /// Runs one thread until it is suspended, returns or panics.
    fn turn(&mut self, number: u32) -> Result<(), GridError> {
        let (slot, thread) = slot_of(number);
        let fiber = self.run.slots.borrow_mut()[slot].fibers[thread as usize].take();
        let mut fiber = fiber.expect("the schedule contains only threads that have not returned");
        fiber.current().budget.set(self.run.schedule.borrow_mut().quantum());
        let step = fiber.resume(&CURRENT);
        let divergence = self.run.divergence.borrow_mut().take();
        let outcome = match step {
            Step::Suspended(why) => {
                self.run.slots.borrow_mut()[slot].fibers[thread as usize] = Some(fiber);
                self.suspended(number, why)
            }
            Step::Returned => {
                self.stacks.give(fiber);
                self.returned(slot, thread)
            }
            Step::Panicked(message) => {
                self.stacks.give(fiber);
                // The other threads of the block are not resumed, because the run has failed.
                Err(GridError::Panicked { kernel: self.name(slot), at: self.id(slot, thread), message, seed: self.options.seed })
            }
        };
        match divergence {
            Some(what) => Err(self.divergent(slot, thread, what)),
            None => outcome,
        }
    }

    fn suspended(&mut self, number: u32, why: SuspendReason) -> Result<(), GridError> {
        let (slot, _) = slot_of(number);
        match why {
            SuspendReason::Pause => {
                let mut schedule = self.run.schedule.borrow_mut();
                schedule.add_spinning(number);
                let waiting = schedule.len();
                drop(schedule);
                self.idle += 1;
                // On average every runnable thread has polled twice without success, so another PE
                // must make progress first.
                if self.idle > 2 * waiting {
                    self.rest()?;
                }
                return Ok(());
            }
            SuspendReason::Switch => self.run.schedule.borrow_mut().add(number),
            SuspendReason::Block => {
                let stuck = self.run.slots.borrow()[slot].block.stuck();
                if let Some((thread, what)) = stuck {
                    return Err(self.divergent(slot, thread, what));
                }
            }
            SuspendReason::Fail => {}
        }
        self.idle = 0;
        self.rests = 0;
        Ok(())
    }

    fn returned(&mut self, slot: usize, thread: u32) -> Result<(), GridError> {
        self.idle = 0;
        self.live_threads -= 1;
        let mut slots = self.run.slots.borrow_mut();
        let left = slots[slot].block.leave(thread);
        let over = slots[slot].block.is_over();
        if over {
            self.ended.push(slots[slot].launch);
            self.free_slots.push(slot);
        }
        drop(slots);
        left.map_err(|what| self.divergent(slot, thread, what))
    }

    /// Calls [`Options::on_idle`], then yields the processor or sleeps briefly. The engine calls
    /// this method when every thread of the run waits for memory to change.
    ///
    /// # Errors
    /// [`GridError::Deadline`] if the deadline has passed.
    fn rest(&mut self) -> Result<(), GridError> {
        self.idle = 0;
        self.rests += 1;
        if let Some(on_idle) = self.options.on_idle {
            on_idle();
        }
        // At first the other PE is probably running, so a yield is sufficient. Later a sleep leaves
        // the processor to the other PE.
        if self.rests < 64 {
            std::thread::yield_now()
        } else {
            std::thread::sleep(Duration::from_micros(50))
        }
        self.check_deadline()
    }

    fn check_deadline(&self) -> Result<(), GridError> {
        let waited = self.run.started.elapsed();
        if waited < self.options.deadline {
            return Ok(());
        }
        let slots = self.run.slots.borrow();
        let under_way: Vec<&Slot> = slots.iter().filter(|slot| !slot.block.is_over()).collect();
        let Some(first) = under_way.first() else { return Ok(()) };
        let block = first.index;
        let more = if under_way.len() > 1 { format!("; {} more running blocks", under_way.len() - 1) } else { String::new() };
        Err(GridError::Deadline {
            kernel: self.launches[first.launch].name.to_string(),
            waited,
            state: format!("block {block}: {}{more}", first.block.summary()),
            seed: self.options.seed,
        })
    }

    fn name(&self, slot: usize) -> String {
        self.launches[self.run.slots.borrow()[slot].launch].name.to_string()
    }

    fn id(&self, slot: usize, thread: u32) -> ThreadId {
        let slots = self.run.slots.borrow();
        ThreadId { block: slots[slot].index, thread: slots[slot].block_dim.index(thread) }
    }

    fn divergent(&self, slot: usize, thread: u32, what: String) -> GridError {
        GridError::Divergent { kernel: self.name(slot), at: self.id(slot, thread), what, seed: self.options.seed }
    }

    /// Unwinds the frames of all remaining threads.
    fn unwind(&mut self) {
        let slots = self.run.slots.borrow().len();
        for slot in 0..slots {
            let threads = self.run.slots.borrow()[slot].fibers.len();
            for thread in 0..threads {
                let fiber = self.run.slots.borrow_mut()[slot].fibers[thread].take();
                if let Some(fiber) = fiber {
                    fiber.end(&CURRENT);
                }
            }
        }
    }
}
