//! Checks for words that no tracked file may have: placeholders, skipped tests, absolute paths of a
//! machine.
//!
//! This file splits each word into halves, so that the file passes its own check.

use crate::fault::Fault;

/// A forbidden word, and the places where it is forbidden.
struct Word {
    text: &'static str,
    /// The places where the word is forbidden. An occurrence at the end of a longer word or path
    /// does not count.
    place: Place,
    why: &'static str,
}

enum Place {
    /// Forbidden in Rust sources, except as the end of a longer identifier.
    Rust,
    /// Forbidden in any file, except as the end of a longer path: `a/work/` is a relative
    /// directory.
    Anywhere,
}

const UNFINISHED: &str = "finish the code, or remove it and document what is missing";
const SOMEBODYS: &str = "this path exists only on one machine; use a relative path or a variable";

const WORDS: &[Word] = &[
    Word { text: concat!("to", "do!"), place: Place::Rust, why: UNFINISHED },
    Word { text: concat!("unimple", "mented!"), place: Place::Rust, why: UNFINISHED },
    Word { text: concat!("#[ig", "nore"), place: Place::Rust, why: "a skipped test tests nothing; repair or remove the test" },
    Word { text: concat!("d", "bg!("), place: Place::Rust, why: "debugging output" },
    Word { text: concat!("/wo", "rk/"), place: Place::Anywhere, why: SOMEBODYS },
    Word { text: concat!("/ro", "ot/"), place: Place::Anywhere, why: SOMEBODYS },
    Word { text: concat!("/ho", "me/"), place: Place::Anywhere, why: SOMEBODYS },
    Word { text: concat!("/tmp/", "target"), place: Place::Anywhere, why: SOMEBODYS },
    Word { text: concat!("/tmp/", "brief"), place: Place::Anywhere, why: SOMEBODYS },
];

/// Returns the forbidden words of one file.
pub(crate) fn faults(path: &str, text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in WORDS {
            if word.is_in(path, line) {
                let what = format!("`{}`: {}", word.text, word.why);
                faults.push(Fault { path: path.to_owned(), line: index + 1, what });
            }
        }
    }
    faults
}

impl Word {
    fn is_in(&self, path: &str, line: &str) -> bool {
        let continues: fn(char) -> bool = match self.place {
            Place::Rust if !path.ends_with(".rs") => return false,
            Place::Rust => |before| before.is_alphanumeric() || before == '_',
            Place::Anywhere => |before| before.is_alphanumeric() || "_-.~}>)/".contains(before),
        };
        line.match_indices(self.text).any(|(at, _)| !line[..at].ends_with(continues))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_forbidden_word_is_reported_with_the_line_number() {
        for word in WORDS {
            let text = format!("fine\n    {}rest", word.text);
            let found = faults("src/a.rs", &text);
            assert_eq!(found.len(), 1, "{}", word.text);
            assert_eq!(found[0].line, 2);
            assert!(found[0].to_string().starts_with("src/a.rs:2: `"));
        }
    }

    #[test]
    fn forbidden_macro_is_reported_only_in_rust_files() {
        let path = concat!("see `/wo", "rk/out`");
        assert_eq!(faults("notes.md", path).len(), 1);
        let unfinished = concat!("to", "do!()");
        assert_eq!(faults("notes.md", unfinished), []);
        assert_eq!(faults("notes.rs", unfinished).len(), 1);
    }

    #[test]
    fn forbidden_word_inside_a_longer_word_or_path_is_allowed() {
        assert_eq!(faults("a.rs", concat!("my_to", "do!()")), []);
        assert_eq!(faults("a.md", concat!("https://host/wo", "rk/")), []);
        assert_eq!(faults("a.md", concat!("target/wo", "rk/x")), []);
        assert_eq!(faults("a.sh", concat!("$", "{ROOT}/wo", "rk/x")), []);
        assert_eq!(faults("a.md", concat!("net", "/wo", "rk")), []);
    }
}
