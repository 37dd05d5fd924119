//! Log lines on standard error, as `PEERWEAVE_LOG` asks for them.

use tracing_subscriber::EnvFilter;

/// The variable that says what is logged: a level (`info`) or directives (`peerweave_host=debug,warn`). Unset: warnings.
pub const VARIABLE: &str = "PEERWEAVE_LOG";

/// What is logged where nobody chose: warnings, but not the rendezvous' own about PEs that went, which the launcher tells better.
const DEFAULT: &str = "warn,peerweave_bootstrap=error";

/// Starts logging.
///
/// # Errors
/// A sentence, where the variable cannot be read as a filter.
pub fn start() -> Result<(), String> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text)
            .map_err(|error| format!("{VARIABLE} is {text:?}: {error}; expected a filter such as info"))?,
        Err(_) => EnvFilter::new(DEFAULT),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true).init();
    Ok(())
}
