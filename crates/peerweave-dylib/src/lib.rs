//! Loads shared libraries at run time. Each function of a library is resolved at its first call.
//!
//! The crate is independent of vendors: a [`Search`] finds a library, and [`bindings!`] declares
//! the functions of the library. A library is never unloaded, because communication libraries start
//! threads.
#![doc = include_str!("../README.md")]

mod bindings;
mod error;
mod library;
mod mapped;
mod python;
mod registry;
mod search;
mod version;

pub use bindings::{Symbol, SymbolInfo};
pub use error::{Attempt, LoadError, MissingSymbol, SearchScope, Unsupported};
pub use library::{Library, Visibility};
pub use mapped::mapped;
pub use registry::{Loaded, Registry};
pub use search::Search;
pub use version::{ParseVersionError, Version};
