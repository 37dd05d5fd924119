//! Entry point of the `peerweave` command. The code is in the library of this package, where tests
//! can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_cli::main()
}
