//! Numbers of threads, of which the system gives the same ones again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of this thread: of no other one before or after it. Not the system's, which is given
/// again.
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
    fn threads_have_numbers_of_their_own() {
        let here = this_thread();
        assert_eq!(this_thread(), here);
        let others: Vec<_> = (0..8).map(|_| std::thread::spawn(this_thread).join().expect("it ends")).collect();
        assert!(!others.contains(&here) && others.windows(2).all(|pair| pair[0] != pair[1]), "{others:?}");
    }
}
