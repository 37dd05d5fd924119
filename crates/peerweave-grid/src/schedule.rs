//! The schedule of a run: selects the next thread and its number of steps, as determined by a seed.
//!
//! The engine resumes the threads. Invariant: the choices depend only on the seed and on the
//! sequence of calls.

use std::collections::VecDeque;

/// A pseudo-random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5bf0_3635_dcd1_d867)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a pseudo-random number less than `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Returns a hash of a word (the finaliser of SplitMix64).
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The rule by which a schedule selects the next thread among the runnable threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preference {
    /// Threads run in the order in which they became runnable.
    InOrder,
    /// The newest runnable thread runs next. A thread that was just preempted is usually the
    /// newest, so one thread runs as long as possible.
    Newest,
    /// Each thread has the same probability to run next.
    Uniform,
    /// Some threads, which the seed selects, run rarely.
    Starving,
}

/// The runnable threads of a run, by their numbers. [`Self::take`] selects the thread that runs
/// next.
#[derive(Debug)]
pub(crate) struct Schedule {
    random: Random,
    seed: u64,
    preference: Preference,
    /// Average number of steps between two preemptions. A step is, for example, one memory access
    /// or one fence.
    quantum: usize,
    ready: VecDeque<u32>,
    /// Threads that wait for a change of memory. They run if no other thread can run, and also
    /// occasionally while other threads can run.
    spinning: VecDeque<u32>,
}

impl Schedule {
    /// Returns the schedule of a seed. The schedule of seed 0 runs threads in order and rarely
    /// preempts threads. The schedules of other seeds differ in [`Preference`], and in the average
    /// number of steps between two preemptions.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (preference, quantum) = if seed == 0 {
            (Preference::InOrder, 64)
        } else {
            let preferences = [Preference::InOrder, Preference::Newest, Preference::Uniform, Preference::Starving];
            let quanta = [1, 2, 8, 64, 1024];
            (preferences[random.below(preferences.len())], quanta[random.below(quanta.len())])
        };
        Self { random, seed, preference, quantum, ready: VecDeque::new(), spinning: VecDeque::new() }
    }

    /// Adds a thread that can run.
    pub(crate) fn add(&mut self, thread: u32) {
        self.ready.push_back(thread);
    }

    /// Adds a thread that waits until another thread changes memory.
    pub(crate) fn add_spinning(&mut self, thread: u32) {
        self.spinning.push_back(thread);
    }

    /// Returns the number of runnable threads, including threads that wait for a change of memory.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.spinning.len()
    }

    /// Removes and returns the thread that runs next; `None` if no thread is runnable.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let spinner_first = !self.spinning.is_empty() && (self.ready.is_empty() || self.random.below(8) == 0);
        let (from, preference) =
            if spinner_first { (&mut self.spinning, self.preference) } else { (&mut self.ready, self.preference) };
        if from.is_empty() {
            return None;
        }
        match preference {
            Preference::InOrder => from.pop_front(),
            // Waiting threads are excluded here. Otherwise the newest of them would poll repeatedly
            // without success, while a thread that waits longer could continue.
            Preference::Newest if !spinner_first => from.pop_back(),
            Preference::Newest | Preference::Uniform => {
                let index = self.random.below(from.len());
                from.swap_remove_back(index)
            }
            Preference::Starving => {
                let mut index = self.random.below(from.len());
                for _ in 0..8 {
                    let slow = mix(self.seed ^ u64::from(from[index])) & 3 == 0;
                    if !slow || self.random.below(16) == 0 {
                        break;
                    }
                    index = self.random.below(from.len());
                }
                from.swap_remove_back(index)
            }
        }
    }

    /// Returns the number of steps that the next thread may run before it is preempted.
    pub(crate) fn quantum(&mut self) -> u32 {
        self.random.below(2 * self.quantum) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<(u32, u32)> {
        let mut schedule = Schedule::new(seed);
        (0..16).for_each(|thread| schedule.add(thread));
        let mut order = Vec::new();
        for turn in 0..64 {
            let thread = schedule.take().unwrap();
            order.push((thread, schedule.quantum()));
            if turn % 3 == 0 { schedule.add_spinning(thread) } else { schedule.add(thread) }
        }
        order
    }

    #[test]
    fn schedule_with_the_same_seed_repeats_the_order() {
        for seed in 0..32 {
            assert_eq!(order(seed), order(seed));
        }
    }

    #[test]
    fn schedules_with_different_seeds_have_different_orders() {
        let orders: std::collections::BTreeSet<_> = (0..32).map(order).collect();
        assert!(orders.len() >= 30, "32 seeds gave {} different orders, expected at least 30", orders.len());
    }

    #[test]
    fn schedule_runs_every_thread_under_any_seed() {
        for seed in 0..64 {
            let mut schedule = Schedule::new(seed);
            (0..8).for_each(|thread| schedule.add(thread));
            let mut turns = [0; 8];
            for _ in 0..4000 {
                let thread = schedule.take().unwrap();
                turns[thread as usize] += 1;
                schedule.add_spinning(thread);
            }
            assert!(turns.iter().all(|&turns| turns > 0), "seed {seed}: {turns:?}");
        }
    }
}
