//! Memory that is bound to a multicast object, as the table of the object records it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use super::physical::Physical;
use crate::abi::Result;
use crate::os::{ProcessFile, files};
use crate::sync::lock;

/// Number of words of a binding in the table.
pub(super) const BINDING_WORDS: usize = 9;

/// Bound memory of this process, with the number of the multicast object. The memory stays
/// allocated after its handle is released.
static BOUND: Mutex<Vec<(u64, Binding, Arc<Physical>)>> = Mutex::new(Vec::new());

/// One binding in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) device: u64,
    pub(super) at: u64,
    pub(super) size: u64,
    memory: u64,
    pub(super) memory_at: u64,
    file: ProcessFile,
}

impl Binding {
    /// Returns the binding of memory of this process at an offset of an object.
    pub(super) fn of(physical: &Physical, at: u64, memory_at: u64, size: u64) -> Result<Binding> {
        let file = ProcessFile::of_this_process(physical.file.as_raw_fd())?;
        Ok(Binding { device: physical.slot as u64, at, size, memory: physical.number, memory_at, file })
    }

    /// Keeps the memory allocated until [`Binding::forget`].
    pub(super) fn keep(self, object: u64, physical: &Arc<Physical>) {
        lock(&BOUND).push((object, self, Arc::clone(physical)));
    }

    /// Releases the memory of a removed binding, if this process has bound the memory.
    pub(super) fn forget(&self, object: u64) {
        let mut bound = lock(&BOUND);
        let place = bound.iter().position(|(number, binding, _)| *number == object && binding == self);
        let kept = place.map(|place| bound.remove(place));
        drop(bound);
        drop(kept);
    }

    /// Returns the bindings of an object that this process has made.
    pub(super) fn of_this_process(object: u64) -> Vec<Binding> {
        lock(&BOUND).iter().filter(|bound| bound.0 == object).map(|bound| bound.1).collect()
    }

    pub(super) fn to_words(self) -> [u64; BINDING_WORDS] {
        let ProcessFile { pid, start, fd } = self.file;
        [1, self.device, self.at, self.size, self.memory, self.memory_at, u64::from(pid), start, fd as u64]
    }

    pub(super) fn from_words(words: [u64; BINDING_WORDS]) -> Option<Binding> {
        let [used, device, at, size, memory, memory_at, pid, start, fd] = words;
        let file = ProcessFile { pid: pid as u32, start, fd: fd as i32 };
        (used == 1).then_some(Binding { device, at, size, memory, memory_at, file })
    }

    pub(super) fn overlaps(&self, at: u64, size: u64) -> bool {
        self.at < at + size && at < self.at + self.size
    }

    /// Opens the memory's file; `None` if its process has ended.
    pub(super) fn open(&self, object: u64) -> Option<OwnedFd> {
        let mine = lock(&BOUND);
        if let Some((_, _, physical)) = mine.iter().find(|(number, binding, _)| *number == object && binding == self) {
            return files::duplicate(&physical.file).ok();
        }
        drop(mine);
        self.file.open_numbered(self.memory)
    }
}
