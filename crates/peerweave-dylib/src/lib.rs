//! Loads shared libraries at run time and resolves their functions one by one, at their first call.
//!
//! Knows no vendor: what to look for is a [`Search`], what to call is declared with [`bindings!`].
//! Nothing is ever unloaded, since libraries of this kind start threads of their own.
#![doc = include_str!("../README.md")]

mod bindings;
mod error;
mod library;
mod mapped;
mod python;
mod search;
mod version;

pub use bindings::{Symbol, SymbolInfo};
pub use error::{Attempt, LoadError, MissingSymbol, Unsupported};
pub use library::{Library, Visibility};
pub use mapped::mapped;
pub use search::Search;
pub use version::{ParseVersionError, Version};
