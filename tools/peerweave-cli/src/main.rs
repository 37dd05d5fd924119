//! Entry point of the `peerweave` command. The code is in the library of this package, where tests
//! can use it.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    peerweave_cli::main()
}

/// The entry point on systems other than Linux: prints an error and returns an exit code. The
/// command starts PEs as processes, which Peerweave supports only on Linux.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("peerweave: this command needs Linux; on other systems, call `on_threads` in your program to run PEs as threads");
    ExitCode::from(125)
}
