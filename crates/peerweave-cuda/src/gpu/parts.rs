//! Splits the PTX of a crate of kernels into parts that are compiled separately.
//!
//! The driver compiles about half a megabyte of PTX per second, and a program uses few kernels of a
//! large crate. So each part has one kernel, with the functions and variables that this kernel
//! reaches.
//!
//! Each module has its own copy of its variables. Invariant: kernels that use the same variable are
//! in the same part. Constants that the compiler generated are copied into each part instead.

use std::collections::HashMap;

/// The parts of a PTX text.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// The text in pieces: lines that apply to the whole text, functions, variables.
    pieces: Vec<Piece<'a>>,
    /// Indices of the pieces with a name. A name has several pieces if a function is declared and
    /// defined.
    named: HashMap<&'a str, Vec<usize>>,
    /// The kernels of each part, as indices of pieces. Empty for a part that was joined to another
    /// part.
    parts: Vec<Vec<usize>>,
    /// The part of each kernel.
    kernels: HashMap<&'a str, usize>,
}

#[derive(Debug)]
struct Piece<'a> {
    text: &'a str,
    kind: Kind,
    name: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A line that applies to the whole text, such as the version.
    Whole,
    /// A kernel.
    Entry,
    /// A function that is not a kernel, or its declaration.
    Function,
    /// A variable that belongs to a module and may be written.
    Variable,
    /// A constant, or memory that belongs to a block.
    Constant,
}

/// Prefixes of the names that compilers generate for constants: rustc's allocations, and tables of
/// LLVM.
const CONSTANTS: [&str; 4] = ["anon_$_", "alloc_", "__unnamed_", "switch_$_table"];

impl<'a> Parts<'a> {
    /// Splits a PTX text.
    pub(crate) fn new(text: &'a str) -> Self {
        let pieces = pieces(text);
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.kind != Kind::Whole) {
            named.entry(piece.name).or_default().push(at);
        }
        let entries = (0..pieces.len()).filter(|at| pieces[*at].kind == Kind::Entry);
        let parts: Vec<Vec<usize>> = entries.map(|at| vec![at]).collect();
        let kernels = parts.iter().enumerate().map(|(part, entries)| (pieces[entries[0]].name, part)).collect();
        let mut all = Self { pieces, named, parts, kernels };
        if all.pieces.iter().any(|piece| piece.kind == Kind::Variable) {
            all.join();
        }
        all
    }

    /// Joins the parts that reach the same variable.
    fn join(&mut self) {
        let mut part_of: HashMap<usize, usize> = HashMap::new();
        for part in 0..self.parts.len() {
            let reached = self.reached(&self.parts[part]);
            let is_variable = |at: &usize| reached[*at] && self.pieces[*at].kind == Kind::Variable;
            for variable in (0..reached.len()).filter(is_variable).collect::<Vec<_>>() {
                let earlier = part_of.insert(variable, part).filter(|earlier| *earlier != part);
                let Some(earlier) = earlier else { continue };
                let moved = std::mem::take(&mut self.parts[earlier]);
                self.parts[part].extend(moved);
                part_of.values_mut().chain(self.kernels.values_mut()).filter(|of| **of == earlier).for_each(|of| *of = part);
            }
        }
    }

    /// Returns for each piece whether a part with these kernels contains the piece.
    fn reached(&self, entries: &[usize]) -> Vec<bool> {
        let mut reached: Vec<bool> = self.pieces.iter().map(|piece| piece.kind == Kind::Whole).collect();
        let mut open = entries.to_vec();
        while let Some(next) = open.pop() {
            if !std::mem::replace(&mut reached[next], true) {
                let words = self.pieces[next].text.lines().flat_map(|line| code(line).split(|letter| !is_name(letter)));
                open.extend(words.filter_map(|word| self.named.get(word)).flatten());
            }
        }
        reached
    }

    /// Returns the number of parts, including parts that are empty because they were joined to
    /// other parts.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the part that contains a kernel.
    pub(crate) fn of(&self, kernel: &str) -> Option<usize> {
        self.kernels.get(kernel).copied()
    }

    /// Returns the kernels, each with its part, in no particular order.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&'a str, usize)> {
        self.kernels.iter().map(|(name, part)| (*name, *part))
    }

    /// Returns the PTX of a part.
    pub(crate) fn text(&self, part: usize) -> String {
        let reached = self.reached(&self.parts[part]);
        self.pieces.iter().zip(reached).filter(|(_, is_reached)| *is_reached).map(|(piece, _)| piece.text).collect()
    }
}

/// Splits a text into pieces. Omits comments between pieces.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let line = &rest[..end_of_line(rest, 0)];
        let (kind, name) = classify(line);
        let last = match kind {
            Kind::Variable | Kind::Constant => rest.find(';').unwrap_or(rest.len()),
            // A function ends with its closing brace, a declaration with a semicolon.
            Kind::Entry | Kind::Function => match (rest.find('{'), rest.find(';').unwrap_or(rest.len())) {
                (Some(open), end) if open < end => end_of_block(rest, open),
                (_, end) => end,
            },
            Kind::Whole if code(line).contains('{') => end_of_block(rest, line.find('{').unwrap_or(0)),
            Kind::Whole => 0,
        };
        let (piece, remaining) = rest.split_at(end_of_line(rest, last));
        if !code(line).is_empty() {
            pieces.push(Piece { text: piece, kind, name });
        }
        rest = remaining;
    }
    pieces
}

/// Returns the offset of the end of the line that contains offset `at`, including its line break.
fn end_of_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

/// Returns the offset of the brace that closes the brace at `open`.
fn end_of_block(text: &str, open: usize) -> usize {
    let (mut at, mut depth) = (open, 0);
    // A search for one character is fast even in builds without optimisation.
    while let Some(closing) = text[at..].find('}') {
        depth += text[at..at + closing].matches('{').count();
        at += closing;
        depth = depth.saturating_sub(1);
        if depth == 0 {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// Returns the kind of the piece that begins with a line, and its name.
fn classify(line: &str) -> (Kind, &str) {
    let line = code(line);
    let words = |rest: &'_ str| rest.split_whitespace().all(|word| word.starts_with('.'));
    let declared =
        |keyword: &str| line.split_once(keyword).filter(|(before, _)| words(before)).map(|(_, after)| after.trim_start());
    if let Some(after) = declared(".entry ") {
        return (Kind::Entry, first_name(after));
    }
    if let Some(after) = declared(".func ") {
        // The returned value precedes the name.
        let after = if after.starts_with('(') { after.split_once(')').map_or("", |(_, after)| after) } else { after };
        return (Kind::Function, first_name(after.trim_start()));
    }
    for (keyword, kind) in [(".global ", Kind::Variable), (".const ", Kind::Constant), (".shared ", Kind::Constant)] {
        if declared(keyword).is_some() {
            let end = line.find(['=', '[', ';']).unwrap_or(line.len());
            let name = line[..end].split_whitespace().next_back().unwrap_or_default();
            let is_constant = CONSTANTS.iter().any(|start| name.starts_with(start));
            return (if is_constant { Kind::Constant } else { kind }, name);
        }
    }
    (Kind::Whole, "")
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '$'
}

fn first_name(text: &str) -> &str {
    text.split(|letter: char| !is_name(letter)).next().unwrap_or_default()
}

/// Returns a line without its comment.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.4\n.target sm_90\n";
    const EXTERN: &str = ".extern .func  (.param .b32 r) net\n(\n\t.param .b64 a\n)\n;\n";
    const DECLARED: &str = ".func  (.param .b32 r) g\n(\n)\n;\n";
    const TABLE: &str = ".global .align 8 .b8 anon_$_97ba_$_0[2] = {1, 0};\n";
    const COUNT: &str = ".visible .global .align 4 .u32 COUNT = 0;\n";
    const F: &str = ".func f(\n)\n{\n\t{ // callseq 0, 0\n\tcall.uni (r), g, ();\n\t} // callseq 0\n}\n";
    const G: &str = ".func  (.param .b32 r) g(\n)\n{\n\tcall.uni (r), net, (a);\n}\n";
    const A: &str = ".visible .entry a(\n\t.param .b64 a_param_0\n)\n.maxntid 32, 1, 1\n{\n{ .reg .b128 q; call.uni f; }\n\tmov.u64 x, anon_$_97ba_$_0;\n}\n";
    const A_B: &str = ".visible .entry a_b(\n)\n{\n\tld x, [COUNT];\n\tmov.u64 x, anon_$_97ba_$_0;\n}\n";
    const C: &str = ".visible .entry c(\n)\n{\n\tst [COUNT+0], x; // f\n}\n";

    #[test]
    fn ptx_part_has_one_kernel_and_the_functions_that_it_uses() {
        let comment = "\n//\n\t// .globl\tf\n";
        let text = [HEAD, EXTERN, comment, DECLARED, TABLE, COUNT, F, G, A, A_B, C].concat();
        let parts = Parts::new(&text);
        assert_eq!(parts.text(parts.of("a").expect("the kernel has a part")), [HEAD, EXTERN, DECLARED, TABLE, F, G, A].concat());
        assert_eq!(parts.of("b"), None);
    }

    #[test]
    fn kernels_that_use_the_same_variable_are_in_one_part() {
        let text = [HEAD, TABLE, COUNT, A_B, F, A, G, C].concat();
        let parts = Parts::new(&text);
        assert_eq!(parts.of("a_b"), parts.of("c"));
        assert_eq!(parts.text(parts.of("c").expect("the kernel has a part")), [HEAD, TABLE, COUNT, A_B, C].concat());
        assert_eq!(parts.text(parts.of("a").expect("the kernel has a part")), [HEAD, TABLE, F, A, G].concat());
        let mut kernels: Vec<_> = parts.kernels().map(|(name, _)| name).collect();
        kernels.sort_unstable();
        assert_eq!(kernels, ["a", "a_b", "c"]);
    }

    #[test]
    fn kernels_written_in_one_line_are_in_separate_parts() {
        let (first, second) = (".visible .entry x() { ret; }\n", ".entry y() { ret; }\n");
        let text = [HEAD, first, second].concat();
        let parts = Parts::new(&text);
        assert_eq!(parts.text(parts.of("y").expect("the kernel has a part")), [HEAD, second].concat());
    }
}
