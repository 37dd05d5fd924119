//! The death of a PE by SIGKILL. The PE cannot notify the other PEs of its death.

use rustix::process::{Signal, getpid, kill_process};
use std::time::{Duration, Instant};

/// Kills this process.
pub fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("this process can kill itself");
    // The delivery of the signal may take a moment.
    loop {
        std::thread::park();
    }
}

/// Kills this process from another thread after this many microseconds.
pub fn die_in(microseconds: u64) {
    std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_micros(microseconds);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        die()
    });
}
