//! Finds the kernels and the undefined functions in a PTX text. Also corrects directives in the PTX
//! that the compiler has generated.

/// Returns the names of the kernels that a PTX text defines, in the order in which they appear.
///
/// ```
/// let text = ".visible .entry ring(\n.param .u64 ring_param_0\n)\n{\n}\n";
/// assert_eq!(peerweave_build::entries(text), ["ring"]);
/// ```
pub fn entries(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| name_after(line, ".entry")).collect()
}

/// Returns the names of the functions that a PTX text declares but does not define.
///
/// ```
/// let text = ".extern .func  (.param .b32 r) missing\n(\n)\n;\n.func own(\n)\n{\n}\n";
/// assert_eq!(peerweave_build::undefined(text), ["missing"]);
/// ```
pub fn undefined(text: &str) -> Vec<&str> {
    let declared = text.lines().filter(|line| line.trim_start().starts_with(".extern .func"));
    declared.filter_map(|line| name_after(line, ".func")).collect()
}

/// The text with which a comment in the compiler's PTX begins. `#[kernel(max_threads = N)]`
/// generates this comment, which states the maximum number of threads in a block of the kernel.
/// [`finish`] reads and removes the comment.
const BOUND: &str = "// peerweave.max_threads ";

/// Completes the PTX that the compiler wrote. Adds the directive `.maxntid` to each kernel entry
/// that requests a limit of threads per block. The assembler then limits registers accordingly.
/// Removes `.visible` from functions that are not entries. The assembler can then inline these
/// functions or limit their registers.
pub(crate) fn finish(text: &str) -> String {
    let asked: Vec<(&str, &str)> = text.lines().filter_map(|line| line.trim().strip_prefix(BOUND)?.split_once(' ')).collect();
    let mut bound = None;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if let Some(name) = name_after(line, ".entry") {
            bound = asked.iter().find(|(asking, _)| *asking == name).map(|(_, threads)| threads);
        }
        if line.trim().starts_with(BOUND) {
            continue;
        }
        out.push_str(match line.strip_prefix(".visible ") {
            Some(function) if function.starts_with(".func") => function,
            _ => line,
        });
        out.push('\n');
        // The closing parenthesis of the parameters is on a separate line before the body.
        if line.trim() == ")"
            && let Some(threads) = bound.take()
        {
            out.push_str(&format!(".maxntid {threads}, 1, 1\n"));
        }
    }
    out
}

/// Returns the name that a line of PTX declares with `keyword`. The name follows the keyword and
/// the return type. Returns `None` if the line declares nothing with `keyword`.
fn name_after<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let line = line.trim();
    if line.starts_with("//") {
        return None;
    }
    let (before, after) = line.split_once(keyword)?;
    if !before.split_whitespace().all(|word| word.starts_with('.')) {
        return None;
    }
    let after = after.trim_start();
    let after = if after.starts_with('(') { after.split_once(')')?.1.trim_start() } else { after };
    let end = after.find(|c: char| !(c.is_alphanumeric() || "_$%".contains(c))).unwrap_or(after.len());
    (end > 0).then(|| &after[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_of_a_kernel_with_a_thread_limit_contains_maxntid() {
        let text = "// peerweave.max_threads ring 256\n.visible .entry other(\n)\n{\n}\n.visible .entry ring(\n\t.param .u64 x\n)\n{\n}\n";
        let bounded = ".visible .entry other(\n)\n{\n}\n.visible .entry ring(\n\t.param .u64 x\n)\n.maxntid 256, 1, 1\n{\n}\n";
        assert_eq!(finish(text), bounded);
        assert_eq!(finish(".visible .func  (.param .b32 r) x(\n)\n"), ".func  (.param .b32 r) x(\n)\n");
    }

    #[test]
    fn kernel_entries_and_undefined_functions_are_found() {
        let text = "\t// .globl\tring\n.visible .entry ring(\n)\n.weak .entry two(\n.extern .func _ZN4core9panicking()\n;\n\
                    .visible .func  (.param .b32 func_retval0) helper(\n.extern .shared .align 16 .b8 x[];\n\tcall.uni _ZN4core9panicking;\n";
        assert_eq!(entries(text), ["ring", "two"]);
        assert_eq!(undefined(text), ["_ZN4core9panicking"]);
    }
}
