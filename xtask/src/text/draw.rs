//! Draws a random sample of doc comments, messages and names of tests, for a reader who does not
//! know the project. The same seed draws the same sample from the same sources.

use super::prose::{self, Block};
use crate::tree::File;
use std::fmt::Write as _;

/// Number of doc comments, messages and names of tests in a sample.
const SIZES: [usize; 3] = [40, 30, 30];

/// Returns a sample as text: each doc comment with the line of code after it, each message with the
/// line of code that contains it, and each name of a test, with their places.
pub(crate) fn sample(files: &[File], seed: u64) -> String {
    let all = |texts: fn(&File) -> Vec<Block>| -> Vec<(&str, Block)> {
        files.iter().flat_map(|file| texts(file).into_iter().map(|block| (file.path.as_str(), block))).collect()
    };
    let kinds = [
        ("doc comments", all(prose::doc_comments)),
        ("messages", all(prose::messages_in_code)),
        ("names of tests", all(prose::test_names)),
    ];
    let mut random = Random(seed);
    let mut text = String::new();
    for ((kind, mut blocks), size) in kinds.into_iter().zip(SIZES) {
        let of = blocks.len();
        _ = writeln!(text, "{} of {of} {kind}, seed {seed}", size.min(of));
        for number in 1..=size.min(of) {
            let (path, Block { line, text: drawn }) = blocks.swap_remove(random.below(blocks.len()));
            _ = writeln!(text, "\n[{number}] {path}:{line}\n{drawn}");
        }
        text.push('\n');
    }
    text
}

/// A generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    /// Returns a number below `limit`, which must not be 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let text: String = (0..100).map(|n| format!("/// Text {n}.\nfn f{n}() {{}}\n#[test]\nfn t{n}() {{}}\n")).collect();
        File { path: "crates/a/src/lib.rs".to_owned(), text }
    }

    #[test]
    fn same_seed_draws_the_same_sample_of_texts() {
        let files = [file()];
        assert_eq!(sample(&files, 1), sample(&files, 1));
        assert_ne!(sample(&files, 1), sample(&files, 2));
    }

    #[test]
    fn sample_has_the_expected_number_of_different_texts() {
        let text = sample(&[file()], 3);
        let mut drawn: Vec<&str> = text.lines().filter(|line| line.starts_with("Text ")).collect();
        assert_eq!(drawn.len(), 40);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 40);
        assert!(text.starts_with("40 of 100 doc comments, seed 3\n"));
        assert!(text.contains("\n0 of 0 messages, seed 3\n"));
        assert!(text.contains("\n30 of 100 names of tests, seed 3\n"));
    }
}
