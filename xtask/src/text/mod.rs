//! Checks of text: comments, documents, messages, and names of tests.
//!
//! - `draw.rs`: prints a random sample of texts, for a reader to judge
//! - `facts.rs`: checks that cited files, tests and CI steps exist
//! - `style.rs`: checks the width of comments, the length of test names, and idioms
//! - `words.rs`: checks for words that no tracked file may have
//! - `prose.rs`: extracts comments, documents, messages and names of tests from a file

pub(crate) mod draw;
pub(crate) mod facts;
mod prose;
pub(crate) mod style;
pub(crate) mod words;
