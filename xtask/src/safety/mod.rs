//! Checks the arguments for unsafe code. Every `unsafe` block and `unsafe impl` has a `// SAFETY:`
//! comment directly above. Every `unsafe fn`, even if private, has a `# Safety` section in its
//! documentation. The section states the contract, or names the function or trait that has the same
//! contract.
//!
//! This check does not judge whether an argument is right. clippy requires the same of the code
//! that it compiles. This check also reads code for other targets and configurations, and requires
//! more for `Send` and `Sync`. A method in the `impl` of a trait has the trait's contract.
//!
//! Invariant: a comment is "above" if it precedes the statement or item that contains the `unsafe`,
//! and the attributes of that statement or item. A comment between the first line of the statement
//! and the `unsafe` is accepted too. The argument for `Send` or `Sync` names the *shared* data,
//! what *synchronises* the data, and the *test* that would detect a mistake. The word *nothing*
//! replaces *synchronises* if no shared data changes. An argument may instead refer to an earlier
//! argument for the same type by `as above` or `as for`.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// All uses of `unsafe` in the workspace, by crate.
#[derive(Debug, Default)]
pub(crate) struct Report {
    crates: BTreeMap<String, Counts>,
    faults: Vec<Fault>,
}

#[derive(Debug, Default)]
struct Counts {
    blocks: usize,
    impls: usize,
    functions: usize,
    argued: usize,
}

/// A missing or incomplete argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    path: String,
    line: usize,
    what: String,
    lacks: Lacks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lacks {
    Argument,
    Words,
    Shared,
    Synchronised,
    Test,
    Contract,
    Rust,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what, lacks } = self;
        let lacks = match lacks {
            Lacks::Argument => "no `// SAFETY:` comment directly above",
            Lacks::Words => "its `// SAFETY:` comment is empty",
            Lacks::Shared => "its `// SAFETY:` comment does not say what is shared",
            Lacks::Synchronised => "its `// SAFETY:` comment does not say what synchronises the shared data",
            Lacks::Test => "its `// SAFETY:` comment does not name the test that would catch a mistake",
            Lacks::Contract => "its documentation has no `# Safety` section with text",
            Lacks::Rust => "could not be parsed as Rust",
        };
        write!(f, "{path}:{line}: {what}: {lacks}")
    }
}

impl Report {
    /// Reads one file of a crate.
    pub(crate) fn add(&mut self, name: &str, path: &str, source: &str) {
        let counts = self.crates.entry(name.to_owned()).or_default();
        let fault = |line: usize, what: String, lacks: Lacks| Fault { path: path.to_owned(), line, what, lacks };
        let Ok(tokens) = source.parse::<TokenStream>() else {
            self.faults.push(fault(1, String::from("file"), Lacks::Rust));
            return;
        };
        let mut sites = Vec::new();
        collect(tokens, None, false, &mut sites);
        let lines: Vec<&str> = source.lines().collect();
        // The last type that has a complete argument for `Send` or `Sync`.
        let mut argued_type = None;
        for site in sites {
            match &site.kind {
                Kind::Function { .. } => {
                    counts.functions += 1;
                    if site.lacks_contract(&lines) {
                        self.faults.push(fault(site.line, site.kind.to_string(), Lacks::Contract));
                    }
                    continue;
                }
                Kind::Other => continue,
                Kind::Block => counts.blocks += 1,
                Kind::Impl { .. } => counts.impls += 1,
            }
            match site.lacks(&lines, &mut argued_type) {
                None => counts.argued += 1,
                Some(lacks) => self.faults.push(fault(site.line, site.kind.to_string(), lacks)),
            }
        }
    }

    /// Returns the places that lack an argument or a contract, in the order of the files.
    pub(crate) fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns the numbers of unsafe blocks, impls and functions of each crate, as text.
    pub(crate) fn table(&self) -> String {
        let width = self.crates.keys().map(String::len).max().unwrap_or(0).max("crate".len());
        let mut table = format!("{:width$}  blocks  impls  fns  argued\n", "crate");
        let mut total = Counts::default();
        for (name, counts) in &self.crates {
            let _ = writeln!(table, "{name:width$}  {counts}");
            total.blocks += counts.blocks;
            total.impls += counts.impls;
            total.functions += counts.functions;
            total.argued += counts.argued;
        }
        let _ = writeln!(table, "{:width$}  {total}", "all");
        table
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, impls, functions, argued } = self;
        write!(f, "{blocks:6}  {impls:5}  {functions:3}  {argued}/{}", blocks + impls)
    }
}

/// One use of `unsafe` in a file.
struct Site {
    kind: Kind,
    /// Line of the `unsafe`, counted from 1.
    line: usize,
    /// The first line of the statement or item that contains the `unsafe`.
    statement: usize,
}

enum Kind {
    Block,
    Impl {
        of: String,
        on: String,
    },
    Function {
        name: String,
        /// Whether the function is a method in the `impl` of a trait, whose contract applies.
        of_trait: bool,
    },
    /// A function pointer, a trait or an extern block.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => write!(f, "unsafe block"),
            Self::Impl { of, on } => write!(f, "unsafe impl {of} for {on}"),
            Self::Function { name, .. } => write!(f, "unsafe fn {name}"),
            Self::Other => write!(f, "unsafe"),
        }
    }
}

impl Site {
    /// Returns the missing part of the argument, if any, given the lines of the file.
    fn lacks(&self, lines: &[&str], argued_type: &mut Option<String>) -> Option<Lacks> {
        let Some(argument) = self.argument(lines) else {
            return Some(Lacks::Argument);
        };
        let argument = argument.to_lowercase();
        if argument.split_whitespace().count() < 2 {
            return Some(Lacks::Words);
        }
        let Kind::Impl { of, on } = &self.kind else {
            return None;
        };
        if of != "Send" && of != "Sync" {
            return None;
        }
        let refers = argument.contains("as above") || argument.contains("as for");
        if refers && argued_type.as_ref() == Some(on) {
            return None;
        }
        let says = |word: &str| argument.contains(word);
        if !says("shar") {
            return Some(Lacks::Shared);
        }
        // A value that is not shared, or never changes, needs no synchronisation.
        if !says("synchron") && !says("nothing") {
            return Some(Lacks::Synchronised);
        }
        if !says("test") {
            return Some(Lacks::Test);
        }
        *argued_type = Some(on.clone());
        None
    }

    /// Returns whether this is a function without a contract. The documentation of a function ends
    /// on the line before the statement, or inside the statement after attributes.
    fn lacks_contract(&self, lines: &[&str]) -> bool {
        if matches!(self.kind, Kind::Function { of_trait: true, .. }) {
            return false;
        }
        let doc = |index: &usize| lines[*index].trim_start().strip_prefix("///").map(str::trim);
        let mut docs: Vec<&str> = (0..self.statement - 1).rev().map_while(|index| doc(&index)).collect();
        docs.reverse();
        docs.extend((self.statement - 1..self.line - 1).filter_map(|index| doc(&index)));
        let mut section = docs.iter().skip_while(|line| **line != "# Safety").skip(1).take_while(|line| !line.starts_with("# "));
        !section.any(|line| !line.is_empty())
    }

    /// Returns the text after `SAFETY:` in the comment above, over all its lines.
    fn argument(&self, lines: &[&str]) -> Option<String> {
        let comment = |index: &usize| {
            let text = lines[*index].trim_start().strip_prefix("//")?;
            // Documentation is for callers, so it is not an argument for this `unsafe`.
            (!text.starts_with(['/', '!'])).then_some(text)
        };
        let above = (0..self.statement - 1).rev();
        let mut comments: Vec<&str> = above.map_while(|index| comment(&index)).collect();
        comments.reverse();
        comments.extend((self.statement - 1..self.line - 1).filter_map(|index| comment(&index)));
        let text = comments.join(" ");
        text.rsplit_once("SAFETY:").map(|(_, argument)| argument.trim().to_owned())
    }
}

/// Collects every `unsafe` in `tokens`. `outer` is the first line of the surrounding statement, if
/// the tokens are a part of a statement.
fn collect(tokens: TokenStream, outer: Option<usize>, of_trait: bool, sites: &mut Vec<Site>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut statement = None;
    // Whether the last `impl` of this item implements a trait.
    let mut implements = None;
    for (index, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        let start = outer.or(statement).unwrap_or(line);
        statement = Some(start);
        match token {
            TokenTree::Ident(word) if word == "unsafe" => {
                if let Some(kind) = kind(&tokens[index + 1..], of_trait) {
                    sites.push(Site { kind, line, statement: start });
                }
            }
            TokenTree::Ident(word) if word == "impl" && implements.is_none() => {
                implements = Some(matches!(header(&tokens[index + 1..]), Kind::Impl { on, .. } if !on.is_empty()));
            }
            // An `impl` after `fn` belongs to the signature, for example `impl Trait` as return
            // type.
            TokenTree::Ident(word) if word == "fn" => implements = Some(false),
            TokenTree::Group(group) => {
                let whole = group.delimiter() == Delimiter::Brace;
                collect(group.stream(), (!whole).then_some(start), whole && implements == Some(true), sites);
                if whole {
                    implements = None;
                }
                if whole && ends_statement(token, tokens.get(index + 1)) {
                    statement = None;
                }
            }
            TokenTree::Punct(mark) if matches!(mark.as_char(), ';' | ',') => {
                statement = None;
                // A comma can also separate the bounds of an `impl`, so it does not end the `impl`.
                if mark.as_char() == ';' {
                    implements = None;
                }
            }
            _ => {}
        }
    }
}

/// Returns whether a block ends its statement: the next token is on a new line and does not
/// continue the expression.
fn ends_statement(block: &TokenTree, next: Option<&TokenTree>) -> bool {
    let Some(next) = next else {
        return true;
    };
    let goes_on = match next {
        TokenTree::Ident(word) => word == "else" || word == "as",
        TokenTree::Punct(mark) => !matches!(mark.as_char(), '#' | '*' | '&' | '$' | '\''),
        TokenTree::Group(_) | TokenTree::Literal(_) => false,
    };
    let closed = match block {
        TokenTree::Group(group) => group.span_close().end().line,
        _ => block.span().end().line,
    };
    !goes_on && next.span().start().line > closed
}

/// Returns the kind of an `unsafe` followed by `rest`; `None` for an attribute such as
/// `#[unsafe(no_mangle)]`.
fn kind(rest: &[TokenTree], of_trait: bool) -> Option<Kind> {
    match rest.first()? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Kind::Block),
        TokenTree::Ident(word) if word == "impl" => Some(header(&rest[1..])),
        TokenTree::Ident(_) => {
            // `fn` may follow `extern` and an ABI. The type of a function pointer has no name. In a
            // macro, the name may be `$name`.
            let at = rest.iter().take(3).position(|token| matches!(token, TokenTree::Ident(word) if word == "fn"));
            match at.and_then(|at| rest.get(at + 1..)) {
                Some([TokenTree::Ident(name), ..]) => Some(Kind::Function { name: name.to_string(), of_trait }),
                Some([TokenTree::Punct(mark), TokenTree::Ident(name), ..]) if mark.as_char() == '$' => {
                    Some(Kind::Function { name: format!("${name}"), of_trait })
                }
                _ => Some(Kind::Other),
            }
        }
        _ => None,
    }
}

/// Returns the trait and the type of an `unsafe impl`, without their generic parameters.
fn header(rest: &[TokenTree]) -> Kind {
    let (mut of, mut on) = (String::new(), String::new());
    let (mut depth, mut after_for, mut last) = (0_i32, false, ' ');
    for token in rest {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            TokenTree::Punct(mark) => {
                match mark.as_char() {
                    '<' => depth += 1,
                    '>' if last != '-' => depth -= 1,
                    _ => {}
                }
                last = mark.as_char();
                continue;
            }
            TokenTree::Ident(word) if depth == 0 && word == "for" => after_for = true,
            TokenTree::Ident(word) if depth == 0 && word == "where" => break,
            // The last segment of a path is its name.
            TokenTree::Ident(word) if depth == 0 && after_for => on = word.to_string(),
            TokenTree::Ident(word) if depth == 0 => of = word.to_string(),
            _ => {}
        }
        last = ' ';
    }
    Kind::Impl { of, on }
}

#[cfg(test)]
mod tests;
