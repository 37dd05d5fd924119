//! An emulated network among the PEs of a job. On the host the network replaces NVSHMEM's device
//! library, by which kernels on GPUs access PEs whose memory is not mapped.
//!
//! The ordering of the network is as weak as NVSHMEM permits. A put can arrive after puts that were
//! issued later, unless a fence or a quiet separates the puts. A put with signal delivers its data
//! before its signal. If the source of an `nbi` put is symmetric memory, the source is read when
//! the put arrives. The seed determines the order of arrivals. So under some seeds a protocol
//! without a required fence or quiet fails.
//!
//! Invariant: all calls are made on one thread of the host, which runs the PEs of the job one at a
//! time. So only one PE accesses memory at a time.

use crate::schedule::{Random, mix};
use peerweave_device::network::call::{Atomic, Call, Signal};
use peerweave_types::SignalOp;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

thread_local! {
    /// The network of the job whose kernels run on this host thread.
    static CURRENT: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

/// The emulated network of a job.
#[derive(Debug)]
pub(crate) struct Network {
    /// Address range of each PE's heap.
    heaps: Vec<Range<u64>>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Messages that have not arrived, in the order in which they were sent.
    pending: Vec<Message>,
    /// Number of fences called by each PE.
    fences: Vec<u64>,
}

/// A network call that has not taken effect. `from` is the number of the sending PE, and `to` the
/// number of the receiving PE.
#[derive(Debug)]
struct Message {
    from: usize,
    to: usize,
    /// Number of fences that the sender called before it sent this message.
    fences: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A put whose data was read when the message was sent. The fields are the target address, the
    /// data, and the change of a signal word.
    Data(u64, Vec<u8>, Option<(u64, Atomic)>),
    /// A put whose data is read when the message arrives. The fields are the target address, the
    /// source address, the length in bytes, and the change of a signal word.
    Copy(u64, u64, usize, Option<(u64, Atomic)>),
    /// An atomic operation on a word. The fields are the address of the word, the size of the word
    /// in bytes, and the operation.
    Change(u64, usize, Atomic),
}

/// The connection of this host thread to a network. The connection ends when this value is dropped.
pub(crate) struct Connected(());

impl Drop for Connected {
    fn drop(&mut self) {
        CURRENT.take();
    }
}

/// Returns the network to which this host thread is connected, if any.
pub(crate) fn current() -> Option<Rc<Network>> {
    CURRENT.with_borrow(Clone::clone)
}

impl Network {
    pub(crate) fn new(heaps: Vec<Range<u64>>, seed: u64) -> Rc<Self> {
        let fences = vec![0; heaps.len()];
        Rc::new(Self { heaps, state: RefCell::new(State { random: Random::new(mix(!seed)), pending: Vec::new(), fences }) })
    }

    /// Connects this host thread to the network, for the kernels that run on this thread.
    pub(crate) fn connect(self: &Rc<Self>) -> Connected {
        CURRENT.set(Some(Rc::clone(self)));
        Connected(())
    }

    /// Delivers all pending messages.
    pub(crate) fn deliver_all(&self) {
        let pending = std::mem::take(&mut self.state.borrow_mut().pending);
        pending.into_iter().for_each(deliver);
    }

    /// Executes a call. Returns the previous value of the word for an atomic operation that
    /// fetches, and 0 for all other calls.
    pub(crate) fn call(&self, call: Call) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let change = |signal: Signal, owner: usize, pe: u32| {
            let operation = match signal.op {
                SignalOp::Set => Atomic::Set(signal.value),
                SignalOp::Add => Atomic::Add(signal.value),
            };
            (self.at(owner, signal.word, 8, pe), operation)
        };
        match call {
            Call::Put { to, from, bytes, pe, nbi, signal } => {
                let owner = self.owner(to, bytes);
                let target = self.at(owner, to, bytes, pe);
                let signal = signal.map(|signal| change(signal, owner, pe));
                // Memory outside the heaps may be freed before the put arrives, so it is read now.
                let late = nbi && self.holds(from, bytes);
                let what =
                    if late { What::Copy(target, from, bytes, signal) } else { What::Data(target, read(from, bytes), signal) };
                state.send(owner, pe, what);
                0
            }
            Call::Get { to, from, bytes, pe, nbi } => {
                let owner = self.owner(from, bytes);
                let source = self.at(owner, from, bytes, pe);
                if nbi && self.holds(to, bytes) {
                    state.send(owner, pe, What::Copy(to, source, bytes, None));
                } else {
                    write(to, &read(source, bytes));
                }
                0
            }
            Call::Atomic { word, bytes, operation, pe } => {
                let owner = self.owner(word, bytes);
                let target = self.at(owner, word, bytes, pe);
                if operation.fetches() {
                    let fences = state.fences[owner];
                    state.deliver(|message| message.from == owner && message.to == pe as usize && message.fences < fences);
                    return apply(target, bytes, operation);
                }
                state.send(owner, pe, What::Change(target, bytes, operation));
                0
            }
            Call::Fence { me } => {
                state.fences[me as usize] += 1;
                0
            }
            Call::Quiet { me } => {
                state.deliver(|message| message.from == me as usize);
                0
            }
        }
    }

    fn find(&self, address: u64, bytes: usize) -> Option<usize> {
        let end = address + bytes as u64;
        self.heaps.iter().position(|heap| heap.start <= address && end <= heap.end)
    }

    /// Returns whether the `bytes` bytes at `address` lie within the heap of one of the PEs.
    fn holds(&self, address: u64, bytes: usize) -> bool {
        self.find(address, bytes).is_some()
    }

    /// Returns the number of the PE whose heap contains the range. That PE is the caller of the
    /// network call, because calls use addresses in the caller's own heap.
    fn owner(&self, address: u64, bytes: usize) -> usize {
        self.find(address, bytes).unwrap_or_else(|| {
            panic!("network call: the {bytes} bytes at {address:#x} lie outside the heaps of all PEs, expected bytes in the heap of the caller")
        })
    }

    /// Returns the address in the heap of `pe` that corresponds to `address` in the heap of
    /// `owner`.
    fn at(&self, owner: usize, address: u64, bytes: usize, pe: u32) -> u64 {
        assert_eq!(
            self.find(address, bytes),
            Some(owner),
            "network call: address {address:#x} lies outside the heap of PE {owner}, which made the call; expected an address in this heap"
        );
        self.heaps[pe as usize].start + (address - self.heaps[owner].start)
    }
}

impl State {
    /// Adds a message to the pending messages. Then delivers pending messages that the seed
    /// selects.
    fn send(&mut self, from: usize, to: u32, what: What) {
        self.pending.push(Message { from, to: to as usize, fences: self.fences[from], what });
        while self.random.below(3) == 0 && !self.pending.is_empty() {
            let at = self.random.below(self.pending.len());
            let Message { from, to, fences, .. } = self.pending[at];
            // Messages that the sender sent to the same PE before the fence must arrive first.
            self.deliver(|message| message.from == from && message.to == to && message.fences < fences);
            let chosen = |message: &Message| message.from == from && message.to == to && message.fences == fences;
            let matching: Vec<usize> = (0..self.pending.len()).filter(|at| chosen(&self.pending[*at])).collect();
            let at = matching[self.random.below(matching.len())];
            deliver(self.pending.remove(at));
        }
    }

    /// Delivers the messages for which `which` returns true, in the order in which they were sent.
    fn deliver(&mut self, which: impl Fn(&Message) -> bool) {
        let (arriving, pending) = std::mem::take(&mut self.pending).into_iter().partition(|message| which(message));
        self.pending = pending;
        let arriving: Vec<Message> = arriving;
        arriving.into_iter().for_each(deliver);
    }
}

/// Delivers a message: writes its data or changes its word, and then changes its signal word, if
/// any.
fn deliver(message: Message) {
    let signal = match message.what {
        What::Data(to, bytes, signal) => {
            write(to, &bytes);
            signal
        }
        What::Copy(to, from, bytes, signal) => {
            write(to, &read(from, bytes));
            signal
        }
        What::Change(word, bytes, operation) => {
            apply(word, bytes, operation);
            None
        }
    };
    if let Some((word, operation)) = signal {
        apply(word, 8, operation);
    }
}

fn read(from: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: the caller is a kernel, whose views promise readable memory of this length. No other
    // thread of the host accesses the memory during the call.
    unsafe { from.copy_to_nonoverlapping(data.as_mut_ptr(), bytes) };
    data
}

fn write(to: u64, data: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: as in `read`, but the views promise writable memory.
    unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
}

/// Applies an atomic operation to a word of `bytes` bytes (4 or 8). Returns the previous value.
fn apply(word: u64, bytes: usize, operation: Atomic) -> u64 {
    let mut before = [0; 8];
    before[..bytes].copy_from_slice(&read(word, bytes));
    let before = u64::from_le_bytes(before);
    write(word, &operation.apply(before).to_le_bytes()[..bytes]);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a network of two PEs with heaps of 64 bytes each.
    fn two(memory: &mut [[u64; 8]; 2], seed: u64) -> Rc<Network> {
        let heaps = memory.iter_mut().map(|heap| {
            let start = heap.as_mut_ptr().expose_provenance() as u64;
            start..start + 64
        });
        Network::new(heaps.collect(), seed)
    }

    fn word(memory: &[[u64; 8]; 2], pe: usize, index: usize) -> u64 {
        // SAFETY: the element lies within the array. The read is volatile because the network
        // writes the array through pointers.
        unsafe { (&raw const memory[pe][index]).read_volatile() }
    }

    fn put(network: &Network, memory: &[[u64; 8]; 2], index: u64, value: &u64) {
        let (to, from) = (memory[0].as_ptr() as u64 + 8 * index, std::ptr::from_ref(value).expose_provenance() as u64);
        network.call(Call::Put { to, from, bytes: 8, pe: 1, nbi: false, signal: None });
    }

    #[test]
    fn fence_prevents_reordering_of_puts() {
        let mut overtaken = [0; 2];
        for (fenced, overtaken) in overtaken.iter_mut().enumerate() {
            for seed in 0..200 {
                let mut memory = [[0; 8]; 2];
                let network = two(&mut memory, seed);
                put(&network, &memory, 0, &1);
                if fenced == 1 {
                    network.call(Call::Fence { me: 0 });
                }
                put(&network, &memory, 1, &1);
                *overtaken += usize::from(word(&memory, 1, 1) == 1 && word(&memory, 1, 0) == 0);
                network.call(Call::Quiet { me: 0 });
                assert_eq!((word(&memory, 1, 0), word(&memory, 1, 1)), (1, 1), "the quiet did not complete both puts");
            }
        }
        assert!(overtaken[0] > 0, "no put overtook the other put under any of 200 seeds");
        assert_eq!(overtaken[1], 0, "a put overtook a put from before the fence");
    }
}
