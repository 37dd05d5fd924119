//! Checks that files, tests and CI steps cited in comments and documents exist.
//!
//! Reads comments of Rust sources and the text of Markdown files, outside of code blocks. Does not
//! check whether a cited test proves the statement of the comment.
//!
//! Invariant: a recognised citation is looked up; other text is ignored.

use super::prose::{Block, prose};
use crate::fault::Fault;
use crate::tree::File;
use std::collections::BTreeSet;

/// Names of tools in comments, each with the function of `.ci/run` that runs the tool.
const TOOLS: [(&str, &str); 5] =
    [("ThreadSanitizer", "sanitizer"), ("miri", "miri"), ("Miri", "miri"), ("loom", "loom"), ("valgrind", "valgrind")];

/// All names that can be cited.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Every tracked path, with a leading `/`.
    paths: BTreeSet<String>,
    functions: BTreeSet<String>,
    checks: Vec<String>,
    /// Name and body of each function of `.ci/run`.
    steps: Vec<(String, String)>,
}

impl Facts {
    /// Collects the names that can be cited from these files. `checks` are the commands of
    /// `cargo xtask`.
    pub(crate) fn of(files: &[File], checks: Vec<String>) -> Self {
        let paths = files.iter().map(|file| format!("/{}", file.path)).collect();
        let mut functions = BTreeSet::new();
        for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
            for (at, _) in file.text.match_indices("fn ") {
                let name: String = file.text[at + 3..].chars().take_while(|&c| is_word(c)).collect();
                functions.insert(name);
            }
            // Names that a macro turns into tests are the only word on their line.
            let lone = file.text.lines().map(|line| line.trim().trim_end_matches([',', ';']));
            functions.extend(lone.filter(|word| word.contains('_') && word.chars().all(is_word)).map(str::to_owned));
        }
        let run = files.iter().find(|file| file.path == ".ci/run").map_or("", |file| &file.text);
        let mut steps: Vec<(String, String)> = Vec::new();
        for line in run.lines() {
            if let Some(name) = line.strip_suffix("() {") {
                steps.push((name.to_owned(), String::new()));
            } else if let Some((_, body)) = steps.last_mut() {
                *body += line;
                body.push('\n');
            }
        }
        Self { paths, functions, checks, steps }
    }

    /// Returns the invalid citations of a file in the crate `package`.
    pub(crate) fn faults(&self, file: &File, package: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        for Block { line, text } in prose(file) {
            let mut fault = |what: String| faults.push(Fault { path: file.path.clone(), line, what });
            for word in cited_files(&text) {
                let inside = word.starts_with(".ci/");
                if !self.paths.iter().any(|path| if inside { path[1..] == *word } else { path.ends_with(&format!("/{word}")) }) {
                    fault(format!("cites the file {word}, which does not exist"));
                }
            }
            for name in cited_tests(&text) {
                if !self.functions.contains(&name) {
                    fault(format!("cites the test {name}, which does not exist"));
                }
            }
            for check in cited_checks(&text) {
                if !self.checks.contains(&check) {
                    fault(format!("cites `cargo xtask {check}`, which does not exist"));
                }
            }
            for (tool, step) in TOOLS {
                if !has_word(&text, tool) {
                    continue;
                }
                match self.steps.iter().find(|(name, _)| name == step) {
                    None => fault(format!("cites {tool}, but .ci/run has no step {step}")),
                    Some((_, body)) if file.path.ends_with(".rs") && !has_package(body, package) => {
                        fault(format!("cites {tool}, but the step {step} of .ci/run does not run {package}"));
                    }
                    Some(_) => {}
                }
            }
        }
        faults
    }
}

/// Returns whether the commands of a step name this package.
fn has_package(body: &str, package: &str) -> bool {
    let words: Vec<&str> = body.split_whitespace().collect();
    words.windows(2).any(|pair| pair[0] == "-p" && pair[1] == package)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn has_word(text: &str, word: &str) -> bool {
    let bounded = |c: Option<char>| !c.is_some_and(|c| is_word(c) || c == '-');
    text.match_indices(word)
        .any(|(at, _)| bounded(text[..at].chars().next_back()) && bounded(text[at + word.len()..].chars().next()))
}

/// Returns cited names of Rust sources and CI scripts.
fn cited_files(text: &str) -> Vec<&str> {
    let part = |c: char| is_word(c) || matches!(c, '.' | '/' | '-');
    let words = text.split(|c| !part(c)).map(|word| word.trim_matches(['.', '/'])).filter(|word| !word.is_empty());
    let mut cited: Vec<&str> = words.filter(|word| word.ends_with(".rs") && !word.contains("..") && *word != "docs.rs").collect();
    cited.extend(
        text.split(|c| !part(c)).filter(|word| word.starts_with(".ci/") && word.len() > 4).map(|word| word.trim_end_matches('.')),
    );
    cited
}

/// Returns names in backquotes after "the test", "the tests" or "caught by".
fn cited_tests(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for mark in ["the test `", "the tests `", "caught by `", "caught by: `"] {
        for (at, _) in text.match_indices(mark) {
            let rest = &text[at + mark.len()..];
            let name = rest.split('`').next().unwrap_or_default();
            // Takes the last part of a path; skips files and commands.
            let name = name.rsplit("::").next().unwrap_or_default();
            if name.chars().all(is_word) && name.contains('_') {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// Returns commands of `cargo xtask` in backquotes.
fn cited_checks(text: &str) -> Vec<String> {
    let mut checks = Vec::new();
    for (at, mark) in text.match_indices("`cargo xtask ") {
        let rest = text[at + mark.len()..].split(['`', ' ']).next().unwrap_or_default();
        checks.push(rest.to_owned());
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the invalid citations of `comment` in a small workspace.
    fn faults(comment: &str) -> Vec<String> {
        let files = [
            file("crates/a/src/wait.rs", "fn pause() {}\n"),
            file("crates/a/tests/threads.rs", "#[test]\nfn threads_share_a_word() {}\n"),
            file(".ci/run", "miri() {\n    cargo miri test -p a -p b\n}\nloom() {\n    cargo test -p b\n}\n"),
        ];
        let facts = Facts::of(&files, vec!["layers".to_owned()]);
        facts.faults(&file("crates/a/src/lib.rs", comment), "a").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn existing_file_named_in_a_comment_is_accepted() {
        assert_eq!(faults("// See `wait.rs` and a/tests/threads.rs, which .ci/run runs.\n"), [""; 0]);
        assert_eq!(faults("// Would be caught by the test\n// `threads_share_a_word`, under miri.\n"), [""; 0]);
        assert_eq!(faults("/// `cargo xtask layers` looks.\n"), [""; 0]);
        assert_eq!(faults("let path = \"nothing.rs\"; // in code\n"), [""; 0]);
        assert_eq!(faults("//! ```\n//! // nothing.rs\n//! ```\n"), [""; 0]);
    }

    #[test]
    fn missing_file_named_in_a_comment_is_reported() {
        assert_eq!(
            faults("fn f() {}\n// See `waits.rs`.\n"),
            ["crates/a/src/lib.rs:2: cites the file waits.rs, which does not exist"]
        );
        assert_eq!(faults("// b/tests/threads.rs\n").len(), 1);
        assert_eq!(faults("// .ci/abi\n").len(), 1);
    }

    #[test]
    fn missing_test_named_in_a_comment_of_two_lines_is_reported() {
        let found = faults("// Would be caught by the test\n// `threads_share_two_words`.\n");
        assert_eq!(found, ["crates/a/src/lib.rs:1: cites the test threads_share_two_words, which does not exist"]);
    }

    #[test]
    fn cited_ci_step_that_does_not_run_for_the_crate_is_reported() {
        assert_eq!(
            faults("// (under ThreadSanitizer)\n"),
            ["crates/a/src/lib.rs:1: cites ThreadSanitizer, but .ci/run has no step sanitizer"]
        );
        assert_eq!(
            faults("// loom runs it\n"),
            ["crates/a/src/lib.rs:1: cites loom, but the step loom of .ci/run does not run a"]
        );
    }

    #[test]
    fn missing_xtask_check_named_in_a_comment_is_reported() {
        assert_eq!(faults("/// `cargo xtask colors`\n").len(), 1);
    }
}
