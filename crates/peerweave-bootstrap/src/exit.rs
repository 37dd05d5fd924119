//! Ends the process immediately.

use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit for writing the buffered data of standard output. The limit is needed because another
/// thread may hold the lock of standard output.
const FLUSH: Duration = Duration::from_millis(100);

/// Ends this process within about 100 ms, with the exit status `code`. Any thread may call this
/// function.
///
/// Runs no destructors of Rust values or C++ objects, and no functions that have been registered
/// with `atexit`. Such code could wait for threads that are still running. Writes the data that
/// Rust's standard output has buffered. Data that C streams or the program's own writers have
/// buffered is lost. The operating system frees memory, descriptors and GPU contexts. On Windows,
/// this function ends the process by [`std::process::exit`].
pub fn end_process(code: u8) -> ! {
    let (done, flushed) = mpsc::channel();
    let flush = move || {
        // The process ends even if the data cannot be written.
        let _ = std::io::stdout().flush();
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(flush).is_ok() {
        let _ = flushed.recv_timeout(FLUSH);
    }
    exit_now(code)
}

#[cfg(unix)]
fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` takes an integer and does not return. It accesses no memory of this process.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(not(unix))]
fn exit_now(code: u8) -> ! {
    std::process::exit(code.into())
}
