//! What a kernel calls. See [`Context`].

mod context;
mod failed;

pub use context::Context;
pub use failed::Failed;
