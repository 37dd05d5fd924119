//! Log lines on standard error, as `PEERWEAVE_LOG` asks for them.

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that says what is logged: a level (`info`) or directives (`peerweave_host=debug,warn`). Unset: warnings.
pub const VARIABLE: &str = "PEERWEAVE_LOG";

/// What is logged where nobody chose: warnings, but not the rendezvous' own about PEs that went, which the launcher tells better.
const DEFAULT: &str = "warn,peerweave_bootstrap=error";

/// Starts logging.
///
/// # Errors
/// A sentence, where the variable cannot be read as a filter.
pub fn start() -> Result<(), String> {
    let text = std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned());
    let filter: Targets =
        text.parse().map_err(|error: ParseError| format!("{VARIABLE} is {text:?}: {error}; expected a filter such as info"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
