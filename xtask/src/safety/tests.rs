//! Tests on small sources, each with its expected faults.

use super::*;

fn faults(source: &str) -> Vec<(usize, Lacks)> {
    let mut report = Report::default();
    report.add("a", "src/a.rs", source);
    let found = report.faults().iter();
    found.map(|fault| (fault.line, fault.lacks)).collect()
}

#[test]
fn unsafe_block_with_a_safety_comment_above_is_accepted() {
    assert_eq!(
        faults(
            "fn f(p: *const u8) -> u8 {
    // SAFETY: the caller gave a pointer to one byte,
    // which lives as long as the call.
    unsafe { *p }
}"
        ),
        []
    );
}

#[test]
fn unsafe_block_without_a_safety_comment_is_reported() {
    assert_eq!(faults("fn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}"), [(2, Lacks::Argument)]);
    assert_eq!(faults("// SAFETY: for something else.\n\nfn f() {\n    unsafe { g() }\n}"), [(4, Lacks::Argument)]);
    assert_eq!(faults("fn f() {\n    // SAFETY: checked by g.\n    g();\n    unsafe { h() }\n}"), [(4, Lacks::Argument)]);
    assert_eq!(faults("fn f() {\n    // SAFETY:\n    unsafe { h() }\n}"), [(3, Lacks::Words)]);
}

#[test]
fn safety_comment_above_a_statement_or_match_arm_is_accepted() {
    let source = "fn f() {
    // SAFETY: g has no contract on Tuesdays.
    #[allow(unused)]
    let x = call(
        1,
        unsafe { g() },
    );
    match x {
        0 => {}
        // SAFETY: x was seen to be one.
        1 => unsafe { h() },
        2 =>
        // SAFETY: x was seen to be two.
        unsafe { h() },
        _ => unsafe { h() },
    }
}";
    assert_eq!(faults(source), [(15, Lacks::Argument)]);
}

#[test]
fn safety_comment_does_not_apply_to_the_next_statement() {
    let source = "fn f() {
    if a {
        // SAFETY: a holds here.
        unsafe { g() }
    }
    unsafe { h() }
}";
    assert_eq!(faults(source), [(6, Lacks::Argument)]);
}

#[test]
fn unsafe_code_under_cfg_or_in_a_macro_is_checked() {
    assert_eq!(faults("#[cfg(loom)]\nfn f() {\n    unsafe { g() }\n}"), [(3, Lacks::Argument)]);
    assert_eq!(faults("macro_rules! m {\n    ($x:expr) => {\n        unsafe { $x }\n    };\n}"), [(3, Lacks::Argument)]);
}

#[test]
fn text_that_looks_like_unsafe_code_is_not_counted() {
    let source = "//! unsafe { }
#[unsafe(no_mangle)]
pub extern \"C\" fn f() {}
/// unsafe impl Send for X {}
const TEXT: &str = \"unsafe { }\";
// unsafe { }
pub type F = unsafe fn();
unsafe extern \"C\" { safe fn g(); }
unsafe trait T {}
";
    assert_eq!(faults(source), []);
    let mut report = Report::default();
    report.add("a", "src/a.rs", source);
    assert!(report.table().contains("a           0      0    0  0/0"), "{}", report.table());
}

#[test]
fn unsafe_impl_without_a_safety_comment_is_reported() {
    assert_eq!(faults("unsafe impl Zeroable for X {}"), [(1, Lacks::Argument)]);
    assert_eq!(faults("/// SAFETY: of no use here.\nunsafe impl Zeroable for X {}"), [(2, Lacks::Argument)]);
    assert_eq!(faults("// SAFETY: all bits of a u8 are valid.\nunsafe impl Zeroable for X {}"), []);
}

#[test]
fn incomplete_safety_comment_of_unsafe_impl_send_is_reported() {
    let item = |argument: &str| format!("// SAFETY: {argument}\nunsafe impl<T: Send> Send for a::X<T> {{}}");
    assert_eq!(faults(&item("it is fine.")), [(2, Lacks::Shared)]);
    assert_eq!(faults(&item("shared: the mapping.")), [(2, Lacks::Synchronised)]);
    assert_eq!(faults(&item("shared: the mapping, synchronised by its lock.")), [(2, Lacks::Test)]);
    assert_eq!(faults(&item("shared: the mapping, synchronised by its lock; test `two_threads_write`.")), []);
    assert_eq!(faults(&item("shared: nothing that changes; test `two_threads_read`.")), []);
}

#[test]
fn safety_comment_that_refers_to_another_type_is_reported() {
    let source = "// SAFETY: shared: the mapping, synchronised by its lock; test `two_threads_write`.
unsafe impl Send for X {}
// SAFETY: as for Send.
unsafe impl Sync for X {}
// SAFETY: as above.
unsafe impl Sync for Y {}
";
    assert_eq!(faults(source), [(6, Lacks::Shared)]);
}

#[test]
fn file_that_cannot_be_parsed_as_rust_is_reported() {
    assert_eq!(faults("fn f( {"), [(1, Lacks::Rust)]);
}

#[test]
fn missing_safety_comment_message_names_file_line_and_item() {
    let mut report = Report::default();
    report.add("a", "src/a.rs", "\nunsafe impl Sync for X {}");
    assert_eq!(report.faults()[0].to_string(), "src/a.rs:2: unsafe impl Sync for X: no `// SAFETY:` comment directly above");
}

#[test]
fn unsafe_function_without_a_safety_section_is_reported() {
    let lacks = |source: &str| {
        let found = faults(source);
        assert!(found.iter().all(|(_, lacks)| *lacks == Lacks::Contract), "{found:?}");
        found.iter().map(|(line, _)| *line).collect::<Vec<_>>()
    };
    assert_eq!(lacks("unsafe fn f() {}"), [1]);
    assert_eq!(lacks("/// Reads.\npub(crate) unsafe extern \"C\" fn f() {}"), [2]);
    assert_eq!(lacks("/// Reads.\n///\n/// # Safety\n/// # Panics\n/// At full moon.\nunsafe fn f() {}"), [6]);
    assert!(lacks("/// Reads.\n///\n/// # Safety\n/// `p` is valid.\n#[inline]\nunsafe fn f() {}").is_empty());
    assert!(lacks("#[inline]\n/// # Safety\n/// As [`g`].\npub unsafe fn f() {}").is_empty());
    assert_eq!(lacks("/// # Safety\n/// `p` is valid.\nunsafe fn f() {}\nunsafe fn g() {}"), [4]);
    assert_eq!(lacks("macro_rules! m {\n    ($name:ident) => {\n        unsafe fn $name() {}\n    };\n}"), [3]);
    assert!(lacks("fn f(g: unsafe fn(), h: unsafe extern \"C\" fn(u8)) {}").is_empty());
}

#[test]
fn unsafe_method_of_a_trait_impl_needs_no_safety_section() {
    let source = "impl<T> a::Read for X<T>
where
    T: Copy,
{
    unsafe fn read() {}
}
impl<T> X<T> {
    unsafe fn read() {}
}
trait Read {
    unsafe fn read();
}
fn f() -> impl for<'a> Fn(&'a u8) {
    unsafe fn g() {}
}
";
    let lines: Vec<usize> = faults(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [8, 11, 14]);
}
