//! Extracts prose from a file: its comments, or the text of a document, outside of code blocks.

use crate::tree::File;

/// Consecutive lines of prose, joined.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Number of the first line, counted from 1.
    pub(crate) line: usize,
    /// The joined text, without comment markers.
    pub(crate) text: String,
}

/// One line of prose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Number of the line, counted from 1.
    pub(crate) number: usize,
    /// The whole line, with indentation and comment marker.
    pub(crate) whole: &'a str,
    /// The text of the line, without comment marker; empty between paragraphs.
    pub(crate) words: &'a str,
}

/// Returns the blocks of prose of a Rust source or a Markdown document. Returns no blocks for other
/// files.
pub(crate) fn prose(file: &File) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut next = 0;
    for Line { number, words, .. } in lines(file) {
        match blocks.last_mut() {
            Some(block) if number == next && !words.is_empty() => {
                block.text.push(' ');
                block.text += words;
            }
            _ if words.is_empty() => continue,
            _ => blocks.push(Block { line: number, text: words.to_owned() }),
        }
        next = number + 1;
    }
    blocks
}

/// Returns the lines of prose of a Rust source or a Markdown document, without code blocks.
pub(crate) fn lines(file: &File) -> Vec<Line<'_>> {
    let rust = file.path.ends_with(".rs");
    if !rust && !file.path.ends_with(".md") {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let mut code = false;
    for (index, whole) in file.text.lines().enumerate() {
        let text = whole.trim_start();
        let words = match rust {
            true => text.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!'])),
            false => Some(text),
        };
        let Some(words) = words.map(str::trim) else { continue };
        if words.starts_with("```") {
            code = !code;
        } else if !code {
            lines.push(Line { number: index + 1, whole, words });
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        prose(&file).into_iter().map(|Block { line, text }| (line, text)).collect()
    }

    #[test]
    fn comments_are_joined_until_code_or_an_empty_line() {
        let text = "//! One\n//! two.\n//!\n//! Three.\nfn four() {}\n    // Five\n    // six.\n";
        let found = blocks("a.rs", text);
        assert_eq!(found, [(1, "One two.".to_owned()), (4, "Three.".to_owned()), (6, "Five six.".to_owned())]);
    }

    #[test]
    fn code_blocks_are_not_prose() {
        assert_eq!(blocks("a.rs", "/// ```\n/// code\n/// ```\n/// Text.\n"), [(4, "Text.".to_owned())]);
        assert_eq!(blocks("a.md", "Text.\n```\ncode\n```\n"), [(1, "Text.".to_owned())]);
        assert_eq!(blocks("a.toml", "# text\n"), []);
    }
}
