//! Logging to standard error, configured by `PEERWEAVE_LOG`.

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Variable with the log filter: a level (`info`) or directives (`peerweave_host=debug,warn`).
/// Default: warnings.
pub const VARIABLE: &str = "PEERWEAVE_LOG";

/// Default filter: warnings. Excludes the warnings of the rendezvous about lost PEs, because the
/// launcher reports lost PEs in more detail.
const DEFAULT: &str = "warn,peerweave_bootstrap=error";

/// Starts logging to standard error, with the filter of [`VARIABLE`].
///
/// # Errors
/// A message if the variable is not a valid filter.
pub fn start() -> Result<(), String> {
    let text = std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned());
    let filter: Targets = text.parse().map_err(|error: ParseError| {
        format!("{VARIABLE} is {text:?}, expected a filter such as info or peerweave_host=debug: {error}")
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
