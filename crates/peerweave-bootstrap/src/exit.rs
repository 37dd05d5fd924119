//! Ends the process at once.

use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time to write what standard output has buffered. Another thread may hold its lock.
const FLUSH: Duration = Duration::from_millis(100);

/// Ends this process with the exit status `code`, from any thread, within a tenth of a second.
///
/// No destructor runs: neither of Rust values, nor of C++ objects, nor functions registered with
/// `atexit`, because they could wait for threads that still run. Buffered data of Rust's standard
/// output is written before; that of C streams, and of the program's own writers, is lost. The
/// operating system frees memory, descriptors and GPU contexts. On Windows this is
/// [`std::process::exit`].
pub fn end_process(code: u8) -> ! {
    let (done, flushed) = mpsc::channel();
    let flush = move || {
        // The process ends in either case.
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
    // SAFETY: takes an integer and does not return; it accesses no memory of this process.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(not(unix))]
fn exit_now(code: u8) -> ! {
    std::process::exit(code.into())
}
