//! Entry point of the `peerweave` command. The code is in the library of this package, where tests
//! can use it.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    peerweave_cli::main()
}

/// Fails with a message: the command starts PEs as processes, which is supported only on Linux.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("peerweave: the command needs Linux; elsewhere, run PEs as threads of a program with `on_threads`");
    ExitCode::from(125)
}
