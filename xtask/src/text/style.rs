//! Checks the style: the width of comments, the length of test names, and idioms in comments,
//! documents and messages.

use super::prose::{self, Block};
use crate::fault::Fault;
use crate::tree::File;

/// Maximum width of a comment in columns.
const COMMENT_COLUMNS: usize = 100;

/// Maximum length of a test's name in characters.
const TEST_NAME: usize = 60;

/// Idioms that are hard to understand, each with the standard term.
const IDIOMS: &[(&str, &str)] = &[
    (concat!("for ", "ever"), "forever"),
    (concat!("nobody in ", "particular"), "name the PEs, or say \"unknown\""),
    (concat!("once ", "more"), "again"),
    (concat!("he", "ars"), "is notified, or sees"),
    (concat!("men", "ded"), "fixed"),
    (concat!("men", "ds"), "fixes"),
    (concat!("men", "dings"), "fixes"),
    (concat!("he", "ar"), "is notified, or see"),
    (concat!("he", "ard"), "was notified, or saw"),
    (concat!("to", "ld"), "notified, or described"),
    (concat!("who", "ever"), "the PE that, or the caller that"),
    (concat!("fare", "well"), "end of the connection"),
    (concat!("some", "body"), "name the subject"),
    (concat!("tw", "in"), "counterpart, or copy"),
];

/// Returns the faults of one file.
pub(crate) fn faults(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |line, what| faults.push(Fault { path: file.path.clone(), line, what });
    if file.path.ends_with(".rs") {
        for line in prose::lines(file) {
            let columns = line.whole.chars().count();
            if columns > COMMENT_COLUMNS && can_be_wrapped(line.words) {
                fault(line.number, format!("comment of {columns} columns, expected at most {COMMENT_COLUMNS}"));
            }
        }
        for Block { line, text: name } in prose::test_names(file) {
            if name.len() > TEST_NAME {
                fault(line, format!("test name of {} characters, expected at most {TEST_NAME}: {name}", name.len()));
            }
        }
    }
    for Block { line, text } in prose::prose(file).into_iter().chain(prose::messages(file)) {
        let text = text.to_lowercase();
        for (idiom, instead) in IDIOMS {
            if has_words(&text, idiom) {
                fault(line, format!("`{idiom}`: {instead}"));
            }
        }
    }
    faults
}

/// Returns whether a line of a comment can be wrapped. Rows of tables and single long words cannot
/// be wrapped.
fn can_be_wrapped(words: &str) -> bool {
    !words.starts_with('|') && words.contains(' ')
}

/// Returns whether `text` has `words` as whole words.
fn has_words(text: &str, words: &str) -> bool {
    let bounded = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(words)
        .any(|(at, _)| bounded(text[..at].chars().next_back()) && bounded(text[at + words.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        faults(&file).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_comments_are_limited_in_width() {
        let wide = "word ".repeat(21);
        assert_eq!(found("a.rs", &format!("// {wide}\n")), ["a.rs:1: comment of 108 columns, expected at most 100"]);
        assert_eq!(found("a.rs", &format!("let code = \"{wide}\";\n")), [""; 0]);
        assert_eq!(found("a.rs", &format!("/// | {wide} |\n")), [""; 0]);
        assert_eq!(found("a.rs", &format!("/// ```\n/// {wide}\n/// ```\n")), [""; 0]);
        assert_eq!(found("a.md", &wide), [""; 0]);
    }

    #[test]
    fn only_names_of_tests_are_limited_in_length() {
        let name = "word_".repeat(13);
        assert_eq!(found("a.rs", &format!("#[test]\nfn {name}() {{}}\n")).len(), 1);
        assert_eq!(found("a.rs", &format!("#[test]\n#[cfg(unix)]\nfn {name}() {{}}\n")).len(), 1);
        assert_eq!(found("a.rs", &format!("fn {name}() {{}}\n")), [""; 0]);
    }

    #[test]
    fn forbidden_idiom_is_found_across_lines_but_not_in_a_word() {
        assert_eq!(found("a.rs", concat!("// It waits for\n// ", "ever.\n")), [concat!("a.rs:1: `for ", "ever`: forever")]);
        assert_eq!(found("a.md", concat!("He", "ars it.\n")).len(), 1);
        assert_eq!(found("a.rs", "// It recommends forever.\n"), [""; 0]);
    }

    #[test]
    fn idiom_in_a_message_is_reported() {
        let text = concat!("fn f() {\n    g(\"{told} was to", "ld about it\");\n}\n");
        assert_eq!(found("crates/a/src/lib.rs", text), [concat!("crates/a/src/lib.rs:2: `to", "ld`: notified, or described")]);
        assert_eq!(found("crates/a/tests/a.rs", text), [""; 0]);
    }
}
