//! Splits the PTX of a crate into parts, which the driver compiles separately.
//!
//! The driver compiles about half a megabyte of PTX per second, and an application uses few kernels
//! of a large crate. So a part normally has one kernel, with the functions and variables that this
//! kernel uses.
//!
//! Each module has its own copy of its variables. Invariant: kernels that use the same variable are
//! in the same part. Constants that the compiler generated are copied into each part instead.

use std::collections::HashMap;

/// A PTX text that is divided into parts. Each part can be compiled as a module.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// The whole PTX text, divided into pieces. A piece is a function, a variable, or a line that
    /// applies to the whole text.
    pieces: Vec<Piece<'a>>,
    /// For the name of each function and variable, the indices of its pieces in `pieces`. A
    /// function that is both declared and defined has several pieces.
    named: HashMap<&'a str, Vec<usize>>,
    /// For each part, the kernels of the part, as indices in `pieces`. The driver compiles each
    /// part as one module. The list is empty if the part was joined with another part, which then
    /// has all kernels of both parts.
    parts: Vec<Vec<usize>>,
    /// For each kernel's name, the index of the part that contains the kernel.
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
    /// A line that applies to the whole text, such as the directive `.version`.
    Whole,
    /// A kernel: a function with `.entry`.
    Entry,
    /// A function that is not a kernel, or its declaration.
    Function,
    /// A variable of the module. Kernels may write the variable.
    Variable,
    /// A constant, or a variable in the shared memory of a block. Each part of the PTX text may
    /// have its own copy.
    Constant,
}

/// Prefixes of the names that rustc and LLVM give to generated constants, such as the lookup tables
/// of `match` expressions.
const CONSTANTS: [&str; 4] = ["anon_$_", "alloc_", "__unnamed_", "switch_$_table"];

impl<'a> Parts<'a> {
    /// Splits a PTX text into parts, which the driver compiles as separate modules. Kernels that
    /// use the same variable are in the same part.
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

    /// Merges parts of the PTX text: if kernels of several parts use the same variable, these parts
    /// become one part. The kernels then share one copy of the variable.
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

    /// Returns, for each element of `pieces`, whether a module with certain kernels must contain
    /// this piece. `entries` contains the indices of these kernels in `pieces`. The module must
    /// contain the pieces that the kernels use, directly or through other pieces, and the lines
    /// that apply to the whole text.
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

    /// Returns the number of parts, including empty parts. A part is empty if it was joined with
    /// another part, which then has all kernels of both.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the index of the part that contains a kernel. Returns `None` if the text has no
    /// kernel with this name.
    pub(crate) fn of(&self, kernel: &str) -> Option<usize> {
        self.kernels.get(kernel).copied()
    }

    /// Returns the name of each kernel, with the index of the part that contains the kernel. The
    /// driver compiles each part as one module. The order of the kernels is unspecified.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&'a str, usize)> {
        self.kernels.iter().map(|(name, part)| (*name, *part))
    }

    /// Returns the PTX of the part with index `part`, as a text that can be compiled alone.
    pub(crate) fn text(&self, part: usize) -> String {
        let reached = self.reached(&self.parts[part]);
        self.pieces.iter().zip(reached).filter(|(_, is_reached)| *is_reached).map(|(piece, _)| piece.text).collect()
    }
}

/// Splits a PTX text into pieces: functions, variables, and lines that apply to the whole text.
/// Omits comments between pieces.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let line = &rest[..end_of_line(rest, 0)];
        let (kind, name) = classify(line);
        let last = match kind {
            Kind::Variable | Kind::Constant => rest.find(';').unwrap_or(rest.len()),
            // A function ends with its closing brace. A declaration ends with a semicolon.
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

/// Returns the offset after the line that contains offset `at`, including the line break.
fn end_of_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

/// Returns the end of the block whose opening brace is at offset `open`: the offset of the matching
/// closing brace.
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

/// Returns the kind and the name of the piece of PTX that begins with `line`.
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

/// Returns a line of PTX without its `//` comment and without surrounding white space.
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
    fn ptx_of_one_kernel_has_only_the_code_that_the_kernel_uses() {
        let comment = "\n//\n\t// .globl\tf\n";
        let text = [HEAD, EXTERN, comment, DECLARED, TABLE, COUNT, F, G, A, A_B, C].concat();
        let parts = Parts::new(&text);
        assert_eq!(parts.text(parts.of("a").expect("the kernel has a part")), [HEAD, EXTERN, DECLARED, TABLE, F, G, A].concat());
        assert_eq!(parts.of("b"), None);
    }

    #[test]
    fn kernels_that_use_the_same_variable_are_in_one_ptx_part() {
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
    fn splitting_ptx_separates_kernels_of_one_line_each() {
        let (first, second) = (".visible .entry x() { ret; }\n", ".entry y() { ret; }\n");
        let text = [HEAD, first, second].concat();
        let parts = Parts::new(&text);
        assert_eq!(parts.text(parts.of("y").expect("the kernel has a part")), [HEAD, second].concat());
    }
}
