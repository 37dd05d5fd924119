//! Input and output that all subcommands share.
//!
//! - `parse.rs`: parses the values of options
//! - `output.rs`: writes lines of a result, messages and files
//! - `exit.rs`: exit codes

pub mod exit;
pub mod output;
pub mod parse;
