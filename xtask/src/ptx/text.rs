//! Parses PTX text: entries, basic blocks, instructions.

/// Removes the hashes `Cs…_` from function names. The hashes depend on flags and paths and differ
/// from build to build.
pub(super) fn without_hashes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("Cs") {
        let (before, after) = rest.split_at(at + 2);
        out += before;
        let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len());
        // A hash is long and ends with an underscore.
        rest = if end >= 8 && after[end..].starts_with('_') { &after[end..] } else { after };
    }
    out + rest
}

/// Returns the body of an entry; `None` if there is no such entry.
pub(super) fn body<'a>(text: &'a str, entry: &str) -> Option<&'a str> {
    let declared = text.find(&format!(".entry {entry}("))?;
    let start = declared + text[declared..].find("\n{")?;
    let end = start + text[start..].find("\n}")?;
    Some(&text[start..end])
}

/// Returns the instructions of a text, without predicates, braces of inline assembly and labels.
pub(super) fn instructions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.trim().trim_start_matches('{').split(';')).filter_map(|statement| {
        let statement = statement.trim();
        let statement = if statement.starts_with('@') { statement.split_once(char::is_whitespace)?.1.trim() } else { statement };
        let is_instruction = statement.starts_with(|c: char| c.is_ascii_lowercase());
        is_instruction.then_some(statement)
    })
}

/// Returns the operation of an instruction: everything before the operands.
pub(super) fn operation(instruction: &str) -> &str {
    instruction.split_whitespace().next().unwrap_or_default()
}

/// Returns the parts of a body between labels, from the first label on.
pub(super) fn blocks(body: &str) -> Vec<&str> {
    let labels: Vec<usize> = body.match_indices("\n$L").map(|(at, _)| at + 1).chain([body.len()]).collect();
    labels.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect()
}

/// Returns the basic blocks of a body that branch back to their own label.
pub(super) fn own_loops(body: &str) -> Vec<&str> {
    let mut loops = Vec::new();
    for block in blocks(body) {
        let Some((label, inner)) = block.split_once(':') else { continue };
        if inner.lines().any(|line| line.contains("bra") && line.trim_end().ends_with(&format!("{label};"))) {
            loops.push(block);
        }
    }
    loops
}

/// Returns atomic instructions that do not state semantics and scope.
pub(super) fn unscoped_atomics(text: &str) -> Vec<String> {
    instructions(text)
        .map(operation)
        .filter(|operation| {
            let Some(rest) = operation.strip_prefix("atom.").or_else(|| operation.strip_prefix("red.")) else { return false };
            let mut parts = rest.split('.');
            let semantics = parts.next().is_some_and(|part| ["relaxed", "acquire", "release", "acq_rel"].contains(&part));
            let scope = parts.next().is_some_and(|part| ["cta", "gpu", "sys"].contains(&part));
            !(semantics && scope)
        })
        .map(|operation| format!("`{operation}` does not state semantics and scope"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".visible .entry a(\n\t.param .u64 p\n)\n{\n\tmov.u32 %r1, 0;\n$L__BB0_1:\n\t// begin inline asm\n\
                        \t{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%rd1]; }\n\t@%p1 bra \t$L__BB0_1;\n$L__BB0_2:\n\tret;\n\n}\n";

    #[test]
    fn crate_hashes_are_removed_from_symbol_names() {
        assert_eq!(without_hashes("_RNvCs6Jg8P0bNFE6_16peerweave_device Csx"), "_RNvCs_16peerweave_device Csx");
    }

    #[test]
    fn loops_and_instructions_of_a_ptx_kernel_are_found() {
        let body = body(TEXT, "a").unwrap();
        let found: Vec<_> = instructions(body).map(operation).collect();
        assert_eq!(found, ["mov.u32", "ld.relaxed.sys.global.b128", "bra", "ret"]);
        let loops = own_loops(body);
        assert_eq!(loops.len(), 1);
        assert!(loops[0].starts_with("$L__BB0_1:"));
    }

    #[test]
    fn ptx_atomics_without_scope_or_semantics_are_reported() {
        let text = "\tatom.global.add.u64 %rd1, [%rd2], 1;\n\tatom.acq_rel.sys.global.add.u64 %rd1, [%rd2], 1;\n\
                    \tred.relaxed.gpu.global.add.u32 [%rd2], 1;\n\tatom.acq_rel.global.add.u32 %r1, [%rd2], 1;\n";
        assert_eq!(unscoped_atomics(text).len(), 2);
    }
}
