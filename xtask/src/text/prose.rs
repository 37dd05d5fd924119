//! Extracts texts from a file: its comments, or the text of a document, outside of code blocks; the
//! messages in its string literals; and the names of its tests.

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

/// Minimum number of spaces in a string literal that counts as a message.
const SPACES: usize = 2;

/// Returns the messages of a library or a command: the string literals of its source that consist
/// of several words, without placeholders. Literals of unit tests, which end a file, are left out.
pub(crate) fn messages(file: &File) -> Vec<Block> {
    let Some(source) = shipped_source(file) else { return Vec::new() };
    let texts =
        literals(source).into_iter().map(|(at, text)| Block { line: line_of(source, at), text: without_placeholders(text) });
    texts.filter(|block| has_several_words(&block.text)).collect()
}

/// Returns the messages of a library or a command with their placeholders, each with the line of
/// code that contains it. A message at the start of its line has the line before it too. Assembly,
/// reasons of lint attributes, and documentation that a macro puts together are left out.
pub(crate) fn messages_in_code(file: &File) -> Vec<Block> {
    let Some(source) = shipped_source(file) else { return Vec::new() };
    let mut found = Vec::new();
    // The start of the statement, and the end of the literal before.
    let (mut statement, mut end) = (0, 0);
    for (at, text) in literals(source) {
        statement = source[end..at].rfind([';', '{', '}']).map_or(statement, |found| end + found + 1);
        end = at + 1 + text.len();
        let before = &source[statement..at];
        let is_message = !["asm!(", "reason =", "doc =", "concat!("].iter().any(|other| before.contains(other));
        if is_message && has_several_words(&without_placeholders(text)) {
            let line = line_of(source, at);
            let code = |line: usize| source.lines().nth(line - 1).unwrap_or_default().trim();
            let code = match code(line) {
                own if own.starts_with('"') && line > 1 => format!("{} {own}", code(line - 1)),
                own => own.to_owned(),
            };
            found.push(Block { line, text: format!("{text}\n    => {code}") });
        }
    }
    found
}

/// Returns the source of a library or a command without its unit tests, or `None` for other files.
fn shipped_source(file: &File) -> Option<&str> {
    is_shipped(file).then(|| file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default())
}

/// Returns the number of the line that contains the byte at `at`, counted from 1.
fn line_of(source: &str, at: usize) -> usize {
    source[..at].matches('\n').count() + 1
}

/// Returns whether a literal without its placeholders consists of several words.
fn has_several_words(text: &str) -> bool {
    text.matches(' ').count() >= SPACES
}

/// Returns whether a file is a source of a library or a command, without its tests.
fn is_shipped(file: &File) -> bool {
    ["crates/", "tools/"].iter().any(|folder| file.path.starts_with(folder))
        && file.path.contains("/src/")
        && !file.path.contains("/tests")
        && file.path.ends_with(".rs")
}

/// Returns the doc comments of a library or a command, each with the first line of code after it. A
/// doc comment includes the lines that a macro adds by an attribute `doc`, as written.
pub(crate) fn doc_comments(file: &File) -> Vec<Block> {
    if !is_shipped(file) {
        return Vec::new();
    }
    let marker = |line: &str| match line.trim_start() {
        line if line.starts_with("//!") => Some("//!"),
        line if line.starts_with("///") || line.starts_with("#[doc = concat!(") => Some("///"),
        _ => None,
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(kind) = marker(lines[at]) else {
            at += 1;
            continue;
        };
        let first = at;
        while at < lines.len() && marker(lines[at]) == Some(kind) {
            at += 1;
        }
        let is_code = |line: &&&str| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '/']);
        let code = lines[at..].iter().find(is_code).map_or("", |line| line.trim());
        let comment = lines[first..at].iter().map(|line| line.trim().trim_start_matches(kind).trim()).collect::<Vec<_>>();
        blocks.push(Block { line: first + 1, text: format!("{}\n    => {code}", comment.join("\n")) });
    }
    blocks
}

/// Returns the names of functions with an attribute `test`.
pub(crate) fn test_names(file: &File) -> Vec<Block> {
    let mut found = Vec::new();
    let mut marked = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[") {
            marked |= line == "#[test]" || line.ends_with("::test]");
            continue;
        }
        if marked && let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            // A macro defines tests of several names by a variable.
            if !name.starts_with('$') {
                found.push(Block { line: index + 1, text: name.to_owned() });
            }
        }
        marked = false;
    }
    found
}

/// Returns the contents of all string literals of a Rust source, each with its place. Escapes are
/// kept.
fn literals(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = source[at..].find(['"', '/', '\'']).map(|next| at + next) {
        let rest = &source[next..];
        at = next
            + if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if let Some(text) = rest.strip_prefix('\'') {
                // Skips a character; a lifetime has no second quote after one character.
                let mut inner = text.char_indices();
                match inner.next().map(|(_, first)| first) {
                    Some('\\') => text[1..].find('\'').map_or(1, |end| 3 + end),
                    Some(first) if text[first.len_utf8()..].starts_with('\'') => 2 + first.len_utf8(),
                    _ => 1,
                }
            } else if let Some(text) = rest.strip_prefix('"') {
                let hashes = source[..next].chars().rev().take_while(|&c| c == '#').count();
                let is_raw = source[..next - hashes].ends_with('r')
                    && (hashes > 0 || !source[..next - 1].ends_with(char::is_alphanumeric));
                let length = if is_raw { raw_length(text, hashes) } else { length(text) };
                found.push((next, &text[..length]));
                2 + length + if is_raw { hashes } else { 0 }
            } else {
                1
            };
        at = at.min(source.len());
    }
    found
}

/// Returns the length of a string literal up to its closing quote.
fn length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().find(|&(_, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(end, _)| end)
}

/// Like [`length`], for a raw literal that ends with a quote and this number of hashes.
fn raw_length(text: &str, hashes: usize) -> usize {
    text.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(text.len())
}

/// Removes the placeholders of a format string.
fn without_placeholders(text: &str) -> String {
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('}').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        prose(&file).into_iter().map(|Block { line, text }| (line, text)).collect()
    }

    #[test]
    fn comment_lines_are_joined_until_code_or_an_empty_line() {
        let text = "//! One\n//! two.\n//!\n//! Three.\nfn four() {}\n    // Five\n    // six.\n";
        let found = blocks("a.rs", text);
        assert_eq!(found, [(1, "One two.".to_owned()), (4, "Three.".to_owned()), (6, "Five six.".to_owned())]);
    }

    #[test]
    fn string_literals_with_at_least_two_spaces_count_as_messages() {
        let text = concat!(
            "fn f<'a>(x: &'a str) {\n",
            "    // \"not a message at all\"\n",
            "    let (quote, slash) = ('\"', '\\'');\n",
            "    g(\"two words\", \"{x} is \\\"late\\\" by {n} s\");\n",
            "    h(r#\"raw \"text\" of words\"#);\n",
            "}\n",
            "#[cfg(test)]\nmod tests {\n    const TEXT: &str = \"text of a test\";\n}\n",
        );
        let found = |path: &str| -> Vec<(usize, String)> {
            let file = File { path: path.to_owned(), text: text.to_owned() };
            messages(&file).into_iter().map(|Block { line, text }| (line, text)).collect()
        };
        let expected = [(4, " is \\\"late\\\" by  s"), (5, "raw \"text\" of words")];
        assert_eq!(found("crates/a/src/lib.rs"), expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(found("crates/a/tests/lib.rs"), []);
    }

    #[test]
    fn extracted_message_includes_its_line_of_code() {
        let text = concat!(
            "fn f() {\n    g(\"{x} is too late\", x);\n    h(\n        \"{x} is too early\",\n    );\n    asm!(\n        \"add.u32 {a}, {b}, {c};\",\n        \"ld.u32 {c}, [{a}];\",\n    );\n}\n",
            "#[expect(lint, reason = \"not a message\")]\nfn h() {}\n",
            "#[doc = concat!(\"Part of a \", \"doc comment.\")]\nfn i() {}\n",
        );
        let file = File { path: "crates/a/src/lib.rs".to_owned(), text: text.to_owned() };
        let found: Vec<_> = messages_in_code(&file).into_iter().map(|Block { line, text }| (line, text)).collect();
        let expected =
            [(2, "{x} is too late\n    => g(\"{x} is too late\", x);"), (4, "{x} is too early\n    => h( \"{x} is too early\",")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn extracted_doc_comment_includes_the_next_line_of_code() {
        let text = concat!(
            "//! A file.\n\n/// One\n/// two.\n#[inline]\npub fn f() {}\n// Not documentation.\n",
            "#[doc = concat!(\"Returns \", $what, \".\")]\n/// Always.\nfn $g() {}\n",
        );
        let file = File { path: "crates/a/src/lib.rs".to_owned(), text: text.to_owned() };
        let found: Vec<_> = doc_comments(&file).into_iter().map(|Block { line, text }| (line, text)).collect();
        let expected = [
            (1, "A file.\n    => pub fn f() {}"),
            (3, "One\ntwo.\n    => pub fn f() {}"),
            (8, "#[doc = concat!(\"Returns \", $what, \".\")]\nAlways.\n    => fn $g() {}"),
        ];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_blocks_are_not_extracted_as_prose() {
        assert_eq!(blocks("a.rs", "/// ```\n/// code\n/// ```\n/// Text.\n"), [(4, "Text.".to_owned())]);
        assert_eq!(blocks("a.md", "Text.\n```\ncode\n```\n"), [(1, "Text.".to_owned())]);
        assert_eq!(blocks("a.toml", "# text\n"), []);
    }
}
