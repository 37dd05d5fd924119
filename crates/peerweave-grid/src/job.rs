//! A job with several PEs in one process, for tests of kernels. The kernels of all PEs run on one
//! schedule.
//!
//! The seed determines the whole execution, including the outcome of races between PEs. The host
//! backend runs the same kernels in several processes.

use crate::context::{ContextMemory, Epochs, Report, TeamTable};
use crate::error::GridError;
use crate::network::Network;
use crate::options::{Launch, Options, Shape};
use crate::run_together;
use peerweave_device::launch::Kernel;
use peerweave_types::{ArgVisitor, Dim3, KernelArgs, Pe, Plain, SymOffset, SymSlice, TeamEntry};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Number of blocks of a kernel that can synchronise with other PEs. These are the blocks with an
/// index less than this number.
const SLOTS: u32 = 64;

/// Time by which the deadline of a run is later than the deadline of the waits in its kernels. In
/// this time, threads whose waits have failed report the failure and return. On a busy machine,
/// these threads may need seconds.
const GRACE: Duration = Duration::from_secs(5);

/// The error that a launch on the PEs of a [`Job`] returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The run of the grids has failed.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// An operation in a kernel has failed.
    #[error("{kernel} on {pe}: {report}")]
    Failed {
        /// Name of the kernel.
        kernel: &'static str,
        /// The PE that reported the failure.
        pe: Pe,
        /// The report of the failure.
        report: Report,
    },
    /// An argument refers to bytes of the heap that [`Job::alloc`] has not allocated.
    #[error("{kernel}: an argument refers to bytes {start}..{end} of the heap, expected bytes that Job::alloc has allocated")]
    Argument {
        /// Name of the kernel.
        kernel: &'static str,
        /// Offset, in the heap, of the first byte to which the argument refers.
        start: u64,
        /// Offset, in the heap, of the byte after the last byte to which the argument refers.
        end: u64,
    },
}

/// A job for tests of kernels: several PEs with symmetric heaps in ordinary memory of this process.
///
/// ```
/// use peerweave_device::prelude::*;
/// use peerweave_grid::{Job, JobError, explore};
///
/// /// Puts this PE's elements to the next PE.
/// #[kernel]
/// pub fn shift(ctx: &Context, to: SymSlice<i32>, from: SymSlice<i32>) -> Result<(), Failed> {
///     ctx.put_block(to, from, (ctx.my_pe() + 1) % ctx.n_pes());
///     ctx.barrier_all_block()
/// }
///
/// # fn main() {
/// explore(20, |seed| {
///     let mut job = Job::new(2).seed(seed);
///     let (to, from) = (job.alloc::<i32>(4), job.alloc::<i32>(4));
///     job.write(1, from, &[1, 2, 3, 4]);
///     job.launch(&shift::KERNEL, 1, 32, (to, from))?;
///     assert_eq!(job.read(0, to), [1, 2, 3, 4]);
///     Ok::<(), JobError>(())
/// });
/// # }
/// ```
#[derive(Debug)]
pub struct Job {
    heaps: Vec<Heap>,
    epochs: Vec<Epochs>,
    /// Number of allocated bytes of each heap, including the synchronisation words of the team.
    taken: u64,
    options: Options<'static>,
    /// Number of PEs per emulated machine; the number of all PEs if there is only one machine.
    machine: u32,
}

impl Job {
    /// Size of each heap that [`Job::new`] creates, in bytes.
    pub const HEAP_BYTES: usize = 16 << 20;

    /// Creates a job of `n_pes` PEs, each with a heap of [`Self::HEAP_BYTES`] bytes.
    ///
    /// # Panics
    /// If `n_pes` is 0.
    pub fn new(n_pes: u32) -> Self {
        Self::with_heap(n_pes, Self::HEAP_BYTES)
    }

    /// Creates a job of `n_pes` PEs, each with a heap of `heap_bytes` bytes. The synchronisation
    /// words of the team are allocated in addition.
    ///
    /// # Panics
    /// If `n_pes` is 0, or if a heap is larger than `isize::MAX` bytes.
    pub fn with_heap(n_pes: u32, heap_bytes: usize) -> Self {
        assert!(n_pes > 0, "Job: n_pes is 0, expected at least 1 PE");
        let first = TeamEntry::sync_bytes(n_pes, SLOTS);
        let bytes = heap_bytes.next_multiple_of(Heap::ALIGN) + first as usize;
        Self {
            heaps: (0..n_pes).map(|_| Heap::new(bytes)).collect(),
            epochs: (0..n_pes).map(|_| (0..SLOTS).map(|_| AtomicU64::new(0)).collect()).collect(),
            taken: first,
            options: Options::default().deadline(Duration::from_secs(10)),
            machine: n_pes,
        }
    }

    /// Sets the options with which launches run. A wait in a kernel fails if it takes longer than
    /// the deadline of the options. A whole launch may take five seconds longer than this
    /// deadline, so that its threads can detect the failure of a wait and return. By default, the
    /// deadline is 10 s and the seed is 0.
    #[must_use]
    pub fn options(mut self, options: Options<'static>) -> Self {
        self.options = options;
        self
    }

    /// Sets the seed of the schedule (see [`Options::seed`]).
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        let options = self.options.seed(seed);
        self.options(options)
    }

    /// Sets the deadline of each wait in a kernel (see [`Self::options`]).
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let options = self.options.deadline(deadline);
        self.options(options)
    }

    /// Divides the PEs into emulated machines of `pes` PEs each. PEs of one machine access each
    /// other's mapped memory. PEs of different machines communicate over an emulated network. On
    /// the network puts may arrive late and out of order, as determined by the seed. Only fences,
    /// quiets and signals order the puts.
    ///
    /// # Panics
    /// If `pes` is 0.
    #[must_use]
    pub fn machines_of(mut self, pes: u32) -> Self {
        assert!(pes > 0, "Job::machines_of: pes is 0, expected at least 1 PE");
        self.machine = pes;
        self
    }

    /// Returns the number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.heaps.len() as u32
    }

    /// Allocates `len` elements on every PE, and fills the elements with zeros. The memory is freed
    /// when the job is dropped.
    ///
    /// # Panics
    /// If the heap has too little free memory.
    #[track_caller]
    pub fn alloc<T: Plain>(&mut self, len: usize) -> SymSlice<T> {
        let start = self.taken.next_multiple_of(128);
        let end = (size_of::<T>() as u64).checked_mul(len as u64).and_then(|bytes| start.checked_add(bytes));
        let room = self.heaps[0].layout.size() as u64;
        match end.filter(|&end| end <= room) {
            Some(end) => self.taken = end,
            None => panic!(
                "Job::alloc: {len} elements of {} bytes do not fit: the heap has {} free bytes",
                size_of::<T>(),
                room - self.taken
            ),
        }
        // SAFETY: the elements lie in the heap of every PE, which exists as long as the job.
        // Launches borrow the job.
        unsafe { SymSlice::from_raw(SymOffset(start), len) }
    }

    /// Writes the elements of `from` to `to` in the heap of `pe`. If the lengths of `from` and `to`
    /// differ, the shorter length is used.
    ///
    /// # Panics
    /// If `pe` does not exist, or if `to` is not aligned or lies outside the allocated part of the
    /// heap.
    #[track_caller]
    pub fn write<T: Plain>(&mut self, pe: u32, to: SymSlice<T>, from: &[T]) {
        let at = self.at(pe, to);
        // SAFETY: `at` has checked that the elements of `to` lie in the heap. No kernel runs,
        // because the job is borrowed mutably.
        unsafe { at.copy_from_nonoverlapping(from.as_ptr(), from.len().min(to.len())) };
    }

    /// Returns the elements of `from` in the heap of `pe`.
    ///
    /// # Panics
    /// If `pe` does not exist, or if `from` is not aligned or lies outside the allocated part of
    /// the heap.
    #[track_caller]
    pub fn read<T: Plain>(&self, pe: u32, from: SymSlice<T>) -> Vec<T> {
        let at = self.at(pe, from);
        // SAFETY: as in `write`. Every bit pattern is a valid value, and heaps are initialised with
        // zeros.
        (0..from.len()).map(|index| unsafe { at.add(index).read() }).collect()
    }

    /// Returns the address of the elements of `of` in the heap of `pe`, for kernels that take
    /// addresses. The address is valid as long as the job exists.
    ///
    /// # Panics
    /// If `pe` does not exist, or if `of` is not aligned or lies outside the allocated part of the
    /// heap.
    #[track_caller]
    pub fn address<T: Plain>(&self, pe: u32, of: SymSlice<T>) -> u64 {
        self.at(pe, of).expose_provenance() as u64
    }

    #[track_caller]
    fn at<T: Plain>(&self, pe: u32, view: SymSlice<T>) -> *mut T {
        let heap = self.heaps.get(pe as usize);
        let heap = heap.unwrap_or_else(|| panic!("Job: pe is {pe}, expected a PE below {}", self.heaps.len()));
        let (start, bytes) = (view.offset().0, view.size_bytes());
        assert!(
            self.is_allocated(start, bytes),
            "Job: {view:?} lies outside the allocated part of the heap, expected bytes from {} to {}",
            self.first(),
            self.taken
        );
        let at = heap.at.as_ptr().wrapping_add(view.offset().0 as usize).cast::<T>();
        assert!(at.is_aligned(), "Job: {view:?} is not aligned, expected alignment {}", align_of::<T>());
        at
    }

    /// Runs a kernel on all PEs, with the same arguments on each PE. Returns when the kernel has
    /// ended on all PEs.
    ///
    /// # Errors
    /// [`JobError::Argument`] if an argument refers to memory that [`Job::alloc`] has not
    /// allocated; in this case no thread has run. [`JobError::Failed`] if PEs have reported
    /// failures; the error contains the report of the lowest-numbered of these PEs.
    /// [`JobError::Grid`] if the run has failed and no PE has reported a failure.
    pub fn launch<A: KernelArgs>(
        &mut self,
        kernel: &Kernel<A>,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: A,
    ) -> Result<(), JobError> {
        self.launch_each(kernel, Shape::new(grid, block), |_| Some(args))
    }

    /// Runs a kernel on the PEs for which `args` returns arguments. Returns when the kernel has
    /// ended on all these PEs.
    ///
    /// # Errors
    /// [`JobError::Argument`] if an argument refers to memory that [`Job::alloc`] has not
    /// allocated; in this case no thread has run. [`JobError::Failed`] if PEs have reported
    /// failures; the error contains the report of the lowest-numbered of these PEs.
    /// [`JobError::Grid`] if the run has failed and no PE has reported a failure.
    pub fn launch_each<A: KernelArgs>(
        &mut self,
        kernel: &Kernel<A>,
        shape: Shape,
        args: impl Fn(u32) -> Option<A>,
    ) -> Result<(), JobError> {
        let members: Vec<u32> = (0..self.n_pes()).collect();
        let bases: Vec<u64> = self.heaps.iter().map(|heap| heap.at.as_ptr().expose_provenance() as u64).collect();
        let mut parts = Vec::new();
        for pe in 0..self.n_pes() {
            let Some(args) = args(pe) else { continue };
            self.check(kernel.name(), &args)?;
            let world = TeamTable { members: &members, sync: SymOffset(0), epochs: &self.epochs[pe as usize] };
            let heap_bytes = self.heaps[0].layout.size() as u64;
            // SAFETY: the heaps and the epochs belong to the job, which is borrowed until the
            // launch ends.
            let mut context = unsafe { ContextMemory::new(Pe::new(pe), heap_bytes, &bases, &[world], self.options.deadline) };
            if self.machine < self.n_pes() {
                context.map_machine(self.machine);
            }
            parts.push((context, args));
        }
        let bodies: Vec<Box<dyn Fn()>> = parts
            .iter()
            .map(|(context, args)| {
                let (entry, context, args) = (kernel.host(), context.as_ptr(), *args);
                // SAFETY: the context stays in `parts` until the run ends, and `check` has checked
                // the memory of the arguments.
                Box::new(move || unsafe { entry(context, args) }) as Box<dyn Fn()>
            })
            .collect();
        let name = |pe: Pe| if self.n_pes() > 1 { format!("{} on {pe}", kernel.name()) } else { kernel.name().to_owned() };
        let names: Vec<String> = parts.iter().map(|(context, _)| name(Pe::new(context_pe(context)))).collect();
        let launches: Vec<Launch<'_>> =
            std::iter::zip(&bodies, &names).map(|(body, name)| Launch::shaped(name, shape, body)).collect();
        let heaps = bases.iter().map(|base| *base..base + self.heaps[0].layout.size() as u64).collect();
        let network = (self.machine < self.n_pes()).then(|| Network::new(heaps, self.options.seed));
        let on_idle = || {
            network.iter().for_each(|network| network.deliver_all());
            self.options.on_idle.iter().for_each(|on_idle| on_idle());
        };
        let options = self.options.deadline(self.options.deadline.saturating_add(GRACE)).on_idle(&on_idle);
        let connected = network.as_ref().map(Network::connect);
        let outcome = run_together(&launches, &options);
        drop(connected);
        // Messages that are in flight when the kernel ends are delivered afterwards.
        network.iter().for_each(|network| network.deliver_all());
        drop(launches);
        drop(bodies);
        // If a thread has failed, other threads may wait for it at a barrier, so the run fails too.
        // The report contains the first failure, and is returned instead of the error of the run.
        for (context, _) in &mut parts {
            if let Some(report) = context.report() {
                let pe = Pe::new(context_pe(context));
                return Err(JobError::Failed { kernel: kernel.name(), pe, report });
            }
        }
        Ok(outcome?)
    }

    /// Returns the offset, in the heap, of the first byte that [`Self::alloc`] can allocate. The
    /// synchronisation words of the team lie before that byte, and arguments of kernels may not
    /// refer to these words.
    fn first(&self) -> u64 {
        TeamEntry::sync_bytes(self.n_pes(), SLOTS)
    }

    /// Returns whether [`Self::alloc`] has allocated all bytes of a range of the heap. For an empty
    /// range, returns whether the range lies before the end of the allocated memory.
    fn is_allocated(&self, start: u64, bytes: u64) -> bool {
        (bytes == 0 || start >= self.first()) && start.checked_add(bytes).is_some_and(|end| end <= self.taken)
    }

    /// Fails if an argument refers to bytes of the heap that are not allocated, or to the
    /// synchronisation words of the team.
    fn check<A: KernelArgs>(&self, kernel: &'static str, args: &A) -> Result<(), JobError> {
        struct Outside<'a> {
            job: &'a Job,
            found: Option<(u64, u64)>,
        }
        impl ArgVisitor for Outside<'_> {
            fn symmetric(&mut self, offset: SymOffset, bytes: u64) {
                if !self.job.is_allocated(offset.0, bytes) {
                    self.found.get_or_insert((offset.0, offset.0.saturating_add(bytes)));
                }
            }
            fn device(&mut self, _address: u64, _bytes: u64) {}
        }
        let mut outside = Outside { job: self, found: None };
        args.visit(&mut outside);
        outside.found.map_or(Ok(()), |(start, end)| Err(JobError::Argument { kernel, start, end }))
    }
}

fn context_pe(context: &ContextMemory) -> u32 {
    // SAFETY: the context is alive, and nothing writes to it after its creation.
    unsafe { (*context.as_ptr()).my_pe }
}

/// The heap of one PE.
#[derive(Debug)]
struct Heap {
    at: NonNull<u8>,
    layout: Layout,
}

impl Heap {
    const ALIGN: usize = 4096;

    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, Self::ALIGN).expect("Job: a heap is larger than isize::MAX bytes");
        // SAFETY: the synchronisation words of the team are part of the heap, so the size is not 0.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        Self { at: NonNull::new(at).unwrap_or_else(|| std::alloc::handle_alloc_error(layout)), layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout, and it is freed once. No kernel runs
        // while the job is dropped.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}
