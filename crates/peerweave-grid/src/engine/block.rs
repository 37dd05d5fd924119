//! State of a running block: the threads that wait at barriers and in warp operations, and shared
//! memory.
//!
//! The methods do not switch threads. They return whether the calling thread must wait, and which
//! threads can continue. The rules are the strictest interpretation of CUDA. Every thread of a
//! block must reach each barrier, and every lane of a mask must reach each warp operation. No
//! thread may return while other threads wait for that thread. A kernel that follows these rules
//! does not depend on the tolerance of a particular GPU.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::rc::Rc;

/// Number of threads of a warp.
pub(crate) const WARP: u32 = 32;

/// The state of a thread of a running block: running, waiting at a barrier, waiting in a warp
/// operation, or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Running,
    Barrier,
    Warp,
    Returned,
}

/// The outcome when a thread arrives at a barrier or a warp operation. `Waits`: the thread must
/// wait for other threads. `Complete`: all participating threads have arrived. Its value lists
/// these threads, which can continue.
pub(crate) enum Arrival {
    Waits,
    Complete(Vec<u32>),
}

/// A warp operation in progress. Some lanes in `mask` have reached the operation and wait for the
/// other lanes in `mask`.
#[derive(Debug)]
struct Pending {
    mask: u32,
    arrived: u32,
    values: [u64; WARP as usize],
}

/// A running block.
#[derive(Debug)]
pub(crate) struct Block {
    places: Vec<Place>,
    returned: u32,
    arrived: u32,
    any: bool,
    /// Result of the last complete barrier: whether any thread reached it with `true`.
    barrier_result: bool,
    /// Pending warp operations of each warp.
    pending: Vec<Vec<Pending>>,
    /// For each thread: the values that the lanes of its warp passed to the thread's last complete
    /// warp operation, such as a shuffle. There is one value for each lane.
    taken: Vec<Rc<[u64; WARP as usize]>>,
    dynamic: SharedMemory,
    fixed: HashMap<usize, SharedMemory>,
    fill: u8,
}

impl Block {
    /// Creates a block of `threads` threads with `shared_bytes` of dynamic shared memory, filled
    /// with `fill`.
    pub(crate) fn new(threads: u32, shared_bytes: usize, fill: u8) -> Self {
        let n = threads as usize;
        let nothing = Rc::new([0; WARP as usize]);
        Self {
            places: vec![Place::Running; n],
            returned: 0,
            arrived: 0,
            any: false,
            barrier_result: false,
            pending: (0..threads.div_ceil(WARP)).map(|_| Vec::new()).collect(),
            taken: vec![nothing; n],
            dynamic: SharedMemory::new(shared_bytes, 128, fill),
            fixed: HashMap::new(),
            fill,
        }
    }

    fn threads(&self) -> u32 {
        self.places.len() as u32
    }

    /// Returns whether all threads of the block have returned.
    pub(crate) fn is_over(&self) -> bool {
        self.returned == self.threads()
    }

    /// Returns the mask of the lanes of warp `warp` that have a thread. The last warp of a block
    /// may have fewer than 32 threads.
    pub(crate) fn lanes(&self, warp: u32) -> u32 {
        let lanes = (self.threads() - warp * WARP).min(WARP);
        if lanes == WARP { u32::MAX } else { (1 << lanes) - 1 }
    }

    /// Returns a text for messages that contains the number of threads in each state.
    pub(crate) fn summary(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for place in &self.places {
            let text = match place {
                Place::Running => "running or waiting for a change of memory",
                Place::Barrier => "waiting in sync_threads",
                Place::Warp => "waiting in a warp operation",
                Place::Returned => "returned",
            };
            match counts.iter_mut().find(|(known, _)| *known == text) {
                Some((_, count)) => *count += 1,
                None => counts.push((text, 1)),
            }
        }
        let parts: Vec<String> = counts.into_iter().map(|(text, count)| format!("{count} {text}")).collect();
        parts.join(", ")
    }

    /// Records that the thread `thread` has reached the barrier of the block. `value` is the
    /// argument of the thread: the barrier returns whether any thread passed `true`. Fails with a
    /// message if any other thread of the block has already returned, because the barrier could
    /// then never complete.
    pub(crate) fn arrive(&mut self, thread: u32, value: bool) -> Result<Arrival, String> {
        if self.returned > 0 {
            return Err(format!(
                "the thread reached sync_threads after other threads of its block had returned: {}",
                self.summary()
            ));
        }
        self.arrived += 1;
        self.any |= value;
        self.places[thread as usize] = Place::Barrier;
        if self.arrived < self.threads() {
            return Ok(Arrival::Waits);
        }
        self.barrier_result = self.any;
        self.arrived = 0;
        self.any = false;
        self.places.fill(Place::Running);
        Ok(Arrival::Complete((0..self.threads()).collect()))
    }

    /// Returns the result of the last complete barrier: whether any thread reached it with `true`.
    pub(crate) fn barrier_result(&self) -> bool {
        self.barrier_result
    }

    /// Records that a thread has reached a warp operation of the lanes in `mask`. Fails with a
    /// message if the mask is invalid, differs from the mask of a pending operation, or includes a
    /// lane that has returned.
    pub(crate) fn arrive_warp(&mut self, thread: u32, mask: u32, value: u64) -> Result<Arrival, String> {
        let (warp, lane) = (thread / WARP, thread % WARP);
        let mask = mask & self.lanes(warp);
        if mask & 1 << lane == 0 {
            return Err(format!(
                "the thread called a warp operation with mask {mask:#010x}, expected a mask that includes the thread's own lane, {lane}"
            ));
        }
        if let Some(gone) = lanes_of(mask).find(|other| self.places[(warp * WARP + other) as usize] == Place::Returned) {
            return Err(format!("the thread reached a warp operation with mask {mask:#010x} after lane {gone} had returned"));
        }
        let pending = &mut self.pending[warp as usize];
        let index = match pending.iter().position(|open| open.mask & mask != 0) {
            Some(index) => index,
            None => {
                pending.push(Pending { mask, arrived: 0, values: [0; WARP as usize] });
                pending.len() - 1
            }
        };
        let open = &mut pending[index];
        if open.mask != mask {
            let theirs = open.mask;
            return Err(format!(
                "the thread called a warp operation with mask {mask:#010x} while other lanes wait in a warp operation with mask {theirs:#010x}"
            ));
        }
        open.arrived |= 1 << lane;
        open.values[lane as usize] = value;
        self.places[thread as usize] = Place::Warp;
        if open.arrived != mask {
            return Ok(Arrival::Waits);
        }
        let values = Rc::new(pending.swap_remove(index).values);
        let released: Vec<u32> = lanes_of(mask).map(|lane| warp * WARP + lane).collect();
        for &thread in &released {
            self.places[thread as usize] = Place::Running;
            self.taken[thread as usize] = values.clone();
        }
        Ok(Arrival::Complete(released))
    }

    /// Returns the values of the last warp operation that the thread has completed. Each lane of
    /// the operation has passed one value.
    pub(crate) fn taken(&self, thread: u32) -> [u64; WARP as usize] {
        *self.taken[thread as usize]
    }

    /// Records that the thread `thread` has returned. Fails with a message if other threads wait
    /// for it at the block's barrier or in a warp operation.
    pub(crate) fn leave(&mut self, thread: u32) -> Result<(), String> {
        self.places[thread as usize] = Place::Returned;
        self.returned += 1;
        if self.arrived > 0 {
            return Err(format!("the thread returned while other threads of its block wait in sync_threads: {}", self.summary()));
        }
        let lane = 1 << (thread % WARP);
        if let Some(open) = self.pending[(thread / WARP) as usize].iter().find(|open| open.mask & lane != 0) {
            return Err(format!(
                "the thread returned while other lanes wait for the thread in a warp operation with mask {:#010x}",
                open.mask
            ));
        }
        Ok(())
    }

    /// If the block is deadlocked, returns a waiting thread and a message. Returns `None` if a
    /// thread of the block can continue, or if all threads have returned.
    pub(crate) fn stuck(&self) -> Option<(u32, String)> {
        let waits = |place: &Place| matches!(place, Place::Barrier | Place::Warp);
        if self.is_over() || self.places.contains(&Place::Running) {
            return None;
        }
        let thread = self.places.iter().position(waits)? as u32;
        Some((thread, format!("the block is deadlocked, because its remaining threads wait for each other: {}", self.summary())))
    }

    /// Returns the address and the size in bytes of the dynamic shared memory.
    pub(crate) fn dynamic(&self) -> (*mut u8, usize) {
        (self.dynamic.at.as_ptr(), self.dynamic.layout.size())
    }

    /// Returns the address of the shared memory that a declaration of the kernel requests. `key`
    /// identifies the declaration. All threads of the block get the same address.
    pub(crate) fn fixed(&mut self, key: usize, bytes: usize, align: usize) -> *mut u8 {
        let fill = self.fill;
        let memory = self.fixed.entry(key).or_insert_with(|| SharedMemory::new(bytes, align, fill));
        assert_eq!(memory.layout.size(), bytes, "the kernel requested the same shared array with two different sizes");
        memory.at.as_ptr()
    }
}

fn lanes_of(mask: u32) -> impl Iterator<Item = u32> {
    (0..WARP).filter(move |lane| mask & 1 << lane != 0)
}

/// An allocation of shared memory of a block.
#[derive(Debug)]
struct SharedMemory {
    at: NonNull<u8>,
    layout: Layout,
}

impl SharedMemory {
    fn new(bytes: usize, align: usize, fill: u8) -> Self {
        let layout = Layout::from_size_align(bytes, align)
            .expect("shared memory has the layout of a Rust type, or a size that was checked before the launch");
        if bytes == 0 {
            // An aligned address that is never accessed.
            return Self { at: NonNull::new(std::ptr::without_provenance_mut(align)).expect("an alignment is never 0"), layout };
        }
        // SAFETY: the layout has a size that is not 0.
        let at = unsafe { std::alloc::alloc(layout) };
        let Some(at) = NonNull::new(at) else { std::alloc::handle_alloc_error(layout) };
        // SAFETY: `bytes` bytes were allocated just now. The content depends on the seed, so that
        // kernels that rely on it fail.
        unsafe { at.as_ptr().write_bytes(fill, bytes) };
        Self { at, layout }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: `new` allocated the memory with this layout, and it is freed once. The engine
            // drops a block after its threads, so no thread uses the memory.
            unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
        }
    }
}
