//! Arguments of exported functions: their form in the log, and the communicators among them.

use std::fmt::Write as _;

use crate::abi::{Team, UniqueId};
use crate::comm::CommPtr;

/// The form of an argument in the log and for rules that select a rank.
pub(crate) trait Argument {
    /// Adds the argument to a line of the log.
    fn show(&self, line: &mut String);
    /// The communicator, if the argument is one.
    fn comm(&self) -> Option<CommPtr> {
        None
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn show(&self, line: &mut String) {
                let _ = write!(line, "{self}");
            }
        }
    )*};
}
numbers!(i32, u32, u64, usize);

impl<T> Argument for *const T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Argument for *mut T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl Argument for UniqueId {
    fn show(&self, line: &mut String) {
        for byte in &self.bytes[8..24] {
            let _ = write!(line, "{byte:02x}");
        }
    }
}

impl Argument for CommPtr {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.address());
    }

    fn comm(&self) -> Option<CommPtr> {
        Some(*self)
    }
}

impl Argument for Team {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{}/{}/{}", self.rank, self.ranks, self.stride);
    }
}

/// A function's arguments with their names.
pub(crate) type Arguments<'a> = &'a [(&'static str, &'a dyn Argument)];
