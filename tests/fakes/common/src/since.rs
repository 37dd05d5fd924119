//! The version that introduced each function.

use std::collections::HashMap;
use std::fmt::Debug;
use std::str::FromStr;

/// Parses a fake's `since.txt`: each line has a function and the version that introduced it; `#`
/// begins a comment.
///
/// # Panics
/// If a line has another form.
pub fn since<V: FromStr<Err: Debug>>(text: &'static str) -> HashMap<&'static str, V> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, since) = line.split_once(' ').expect("a line of since.txt has a function and a version");
            (name, since.parse().expect("the second word of a line of since.txt is a version"))
        })
        .collect()
}
