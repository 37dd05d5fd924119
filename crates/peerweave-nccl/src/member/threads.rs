//! Numbers that identify the threads of this process. The numbers are never reused, unlike the
//! thread IDs of the system.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of the calling thread. No other thread of the process ever has the same
/// number.
#[inline]
pub(crate) fn this_thread() -> u64 {
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    #[cold]
    fn next() -> u64 {
        static THREADS: AtomicU64 = AtomicU64::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) + 1
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(next());
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_numbers_are_unique() {
        let here = this_thread();
        assert_eq!(this_thread(), here);
        let others: Vec<_> = (0..8).map(|_| std::thread::spawn(this_thread).join().expect("the thread does not panic")).collect();
        assert!(!others.contains(&here) && others.windows(2).all(|pair| pair[0] != pair[1]), "{others:?}");
    }
}
