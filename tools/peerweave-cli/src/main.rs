//! The `peerweave` command. Everything is in the library of the same package, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_cli::main()
}
