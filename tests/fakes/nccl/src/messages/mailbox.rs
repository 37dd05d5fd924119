//! Messages between ranks: every exchange of the library is a message of one rank in the mailbox of
//! another.
//!
//! Module `wire` sends messages to other processes. Invariant: messages of one slot are received in
//! the order in which they were delivered, and every waiting thread wakes at every delivery and
//! every interruption.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A message's content, shared by its receivers in one process.
pub(crate) type Bytes = Arc<[u8]>;

/// Purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Channel {
    /// A contribution to a collective; the tag is the number of the collective in the communicator.
    Collective = 0,
    /// A send's data.
    PointToPoint = 1,
    /// The acknowledgement of a received send.
    Acknowledge = 2,
    /// An exchange of the library itself; the tag is its number in the communicator.
    Control = 3,
    /// A request of a rank to join a communicator, to the process that serves its id.
    Join = 4,
    /// The reply to a join request: the table of members.
    Table = 5,
    /// One-sided: data and signal for a window of the receiver.
    OneSided = 6,
    /// A notification that a rank has reached its first collective, in which NCCL connects ranks.
    Connect = 7,
}

impl Channel {
    /// Returns the channel with a number in a message.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        use Channel::*;
        let all = [Collective, PointToPoint, Acknowledge, Control, Join, Table, OneSided, Connect];
        all.get(usize::from(number)).copied()
    }
}

/// Address of a message in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    /// The communicator's id.
    pub(crate) comm: u128,
    /// The rank that receives the message.
    pub(crate) to: i32,
    /// The rank that sent the message.
    pub(crate) from: i32,
    pub(crate) channel: Channel,
    pub(crate) tag: u64,
}

static BOXES: LazyLock<Mutex<HashMap<Slot, VecDeque<Bytes>>>> = LazyLock::new(Mutex::default);
static NEWS: Condvar = Condvar::new();

fn boxes() -> MutexGuard<'static, HashMap<Slot, VecDeque<Bytes>>> {
    BOXES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a message into a mailbox of this process.
pub(super) fn deliver(slot: Slot, bytes: Bytes) {
    boxes().entry(slot).or_default().push_back(bytes);
    NEWS.notify_all();
}

/// Wakes all waiting threads, so that they check for a reason to stop.
pub(crate) fn interrupt() {
    drop(boxes());
    NEWS.notify_all();
}

/// Waits for a message; `None` when `stop` returns true.
pub(crate) fn take(slot: Slot, stop: &dyn Fn() -> bool) -> Option<Bytes> {
    let mut guard = boxes();
    loop {
        if stop() {
            return None;
        }
        if let Some(queue) = guard.get_mut(&slot) {
            let message = queue.pop_front();
            if queue.is_empty() {
                guard.remove(&slot);
            }
            if message.is_some() {
                return message;
            }
        }
        guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits until a condition over the library's state holds; the thread that changes the state calls
/// [`interrupt`]. Returns false after the time limit.
pub(crate) fn wait_until(condition: &dyn Fn() -> bool, limit: Option<Duration>) -> bool {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut guard = boxes();
    while !condition() {
        guard = match end {
            None => NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(end) => {
                let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                    return false;
                };
                NEWS.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
    true
}

/// Discards all messages in the mailboxes of one rank.
pub(crate) fn purge(comm: u128, rank: i32) {
    boxes().retain(|slot, _| slot.comm != comm || slot.to != rank);
}
