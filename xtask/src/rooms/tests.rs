//! Tests on small crates, given as files and their text.

use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

/// Returns the faults of a crate `c` with these files, whose README has this table.
fn faults(table: &str, sources: &[(&str, &str)]) -> Vec<String> {
    let mut files: Vec<File> = sources.iter().map(|(path, text)| file(&format!("c/src/{path}"), text)).collect();
    files.push(file("c/README.md", table));
    let (_, faults) = check(&["c".to_owned()], &files);
    faults.iter().map(ToString::to_string).collect()
}

const TABLE: &str =
    "# c\n\n## Rooms\n\n| room | what | uses |\n|---|---|---|\n| `ops` | calls | `heap` |\n| `heap` | memory | nothing |\n";
const ROOT: (&str, &str) = ("lib.rs", "mod heap;\nmod ops;\npub use heap::list::List;\n");

#[test]
fn correct_module_table_in_the_readme_is_accepted() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn import_from_a_higher_row_of_the_module_table_is_reported() {
    let sources =
        [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", ""), ("heap/list.rs", "use crate::ops::call;")];
    assert_eq!(
        faults(TABLE, &sources),
        [
            "c/README.md says that `heap` uses nothing, expected `ops`",
            "c/src/heap/list.rs: `heap` uses `ops`, expected only modules below `heap` in c/README.md",
        ]
    );
}

#[test]
fn every_form_of_rust_import_is_found() {
    let named = |source: &str| {
        let mut found = BTreeSet::new();
        paths(&tokens(source), &["heap".to_owned(), "list".to_owned()], &mut found);
        let whole = |path: &&Path| !found.iter().any(|longer| longer.len() > path.len() && longer.starts_with(path));
        found.iter().filter(whole).map(|path| path.join("/")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(named("use crate::ops;"), "ops");
    assert_eq!(named("use crate::{ops::{call, other}, List};"), "List ops/call ops/other");
    assert_eq!(named("fn f() { let g = || crate::ops::call(crate::team::t()); }"), "ops/call team/t");
    assert_eq!(named("use super::super::ops::call;"), "ops/call");
    assert_eq!(named("use super::handle::Handle;"), "heap/handle/Handle");
    assert_eq!(named("mod inner { use super::super::super::ops; }"), "ops");
    assert_eq!(named("use other::crate_of::ops; // crate::team"), "");
}

#[test]
fn imports_in_tests_and_documentation_are_ignored() {
    let text =
        "#[cfg(test)]\nmod tests { use crate::ops::call; }\n#[cfg(doc)]\nuse crate::{ops};\nfn f() {}\n#[cfg(test)]\nmod other;";
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", text), ("heap/tests.rs", "use crate::ops;")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn import_of_a_reexport_counts_as_use_of_the_defining_module() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::List;"), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn readme_table_that_differs_from_the_modules_is_reported() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("team.rs", "use crate::heap::Heap;"), ("heap/mod.rs", "")];
    let row = "expected a row: | `team` | what is in it | `heap` |";
    assert_eq!(faults(TABLE, &sources), [format!("c/README.md lacks the module `team`; {row}")]);
    let sources = [ROOT, ("ops/mod.rs", "")];
    let gone = "c/README.md has the module `heap`, which c/src lacks";
    assert_eq!(faults(TABLE, &sources), [gone, "c/README.md says that `ops` uses `heap`, expected nothing"]);
}

#[test]
fn crate_with_folders_needs_a_module_table_in_the_readme() {
    let sources = [ROOT, ("ops/mod.rs", ""), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults("# c\n", &sources), ["c/src has folders; expected a table under `## Rooms` in c/README.md"]);
    assert_eq!(faults("# c\n", &[ROOT, ("ops.rs", ""), ("heap.rs", "")]), [""; 0]);
}

/// A table for the module `ops`, which contains the modules `call` and, below it in the table,
/// `queue`.
const NESTED: &str =
    "\n### Rooms of ops\n\n| room | what | uses |\n|---|---|---|\n| `call` | calls | `queue` |\n| `queue` | memory | nothing |\n";

#[test]
fn imports_that_contradict_the_table_of_a_folder_are_reported() {
    let sources = |call: &'static str, queue: &'static str| {
        let heap = [ROOT, ("heap/mod.rs", "mod list;"), ("heap/list.rs", ""), ("ops/mod.rs", "mod call;\npub use queue::Queue;")];
        heap.into_iter().chain([("ops/call.rs", call), ("ops/queue/mod.rs", queue)]).collect::<Vec<_>>()
    };
    let table = format!("{TABLE}{NESTED}");
    for call in ["use super::queue::Queue;", "use crate::ops::queue::Queue;", "use super::Queue;", "use crate::ops::{Queue};"] {
        let call = format!("use crate::heap::Heap; {call}").leak();
        assert_eq!(faults(&table, &sources(call, "use crate::heap::Heap;")), [""; 0]);
    }
    assert_eq!(
        faults(&table, &sources("use crate::heap::Heap;", "use super::super::ops::call::call;")),
        [
            "c/README.md (`Rooms of ops`) says that `call` uses `queue`, expected nothing",
            "c/README.md (`Rooms of ops`) says that `queue` uses nothing, expected `call`",
            "c/src/ops/queue/mod.rs: `queue` uses `call`, expected only modules below `queue` in c/README.md (`Rooms of ops`)",
        ]
    );
}

#[test]
fn folder_with_more_than_3_folders_needs_a_table_in_the_readme() {
    let sources = |last: &'static str| {
        let files = ["ops/a/mod.rs", "ops/a/b.rs", "ops/c/d.rs", "ops/e/f.rs", last].map(|path| (path, ""));
        files.into_iter().chain([ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap.rs", "")]).collect::<Vec<_>>()
    };
    assert_eq!(faults(TABLE, &sources("ops/g.rs")), [""; 0]);
    let expected = "c/src/ops has folders; expected a table under `### Rooms of ops` in c/README.md";
    assert_eq!(faults(TABLE, &sources("ops/g/h.rs")), [expected]);
}
