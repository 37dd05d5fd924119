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
fn correct_table_passes() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn use_of_a_room_above_is_found_with_its_file() {
    let sources =
        [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", ""), ("heap/list.rs", "use crate::ops::call;")];
    assert_eq!(
        faults(TABLE, &sources),
        [
            "c/README.md says that `heap` uses nothing, expected `ops`",
            "c/src/heap/list.rs: `heap` uses `ops`, which is above it in c/README.md",
        ]
    );
}

#[test]
fn every_form_of_import_is_found() {
    let named = |source: &str| {
        let mut names = BTreeSet::new();
        paths(&tokens(source), &["heap".to_owned(), "list".to_owned()], &mut names);
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(named("use crate::ops;"), "ops");
    assert_eq!(named("use crate::{ops::{call, other}, List};"), "List ops");
    assert_eq!(named("fn f() { let g = || crate::ops::call(crate::team::t()); }"), "ops team");
    assert_eq!(named("use super::super::ops::call;"), "ops");
    assert_eq!(named("use super::handle::Handle;"), "");
    assert_eq!(named("mod inner { use super::super::super::ops; }"), "ops");
    assert_eq!(named("use other::crate_of::ops; // crate::team"), "");
}

#[test]
fn tests_and_documentation_are_ignored() {
    let text =
        "#[cfg(test)]\nmod tests { use crate::ops::call; }\n#[cfg(doc)]\nuse crate::{ops};\nfn f() {}\n#[cfg(test)]\nmod other;";
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("heap/mod.rs", text), ("heap/tests.rs", "use crate::ops;")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn reexport_of_the_root_counts_as_its_room() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::List;"), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults(TABLE, &sources), [""; 0]);
}

#[test]
fn new_and_removed_rooms_are_found() {
    let sources = [ROOT, ("ops/mod.rs", "use crate::heap::Heap;"), ("team.rs", "use crate::heap::Heap;"), ("heap/mod.rs", "")];
    let row = "expected a row: | `team` | what is in it | `heap` |";
    assert_eq!(faults(TABLE, &sources), [format!("c/README.md lacks the room `team`; {row}")]);
    let sources = [ROOT, ("ops/mod.rs", "")];
    let gone = "c/README.md has the room `heap`, which c/src lacks";
    assert_eq!(faults(TABLE, &sources), [gone, "c/README.md says that `ops` uses `heap`, expected nothing"]);
}

#[test]
fn crate_with_folders_needs_a_table() {
    let sources = [ROOT, ("ops/mod.rs", ""), ("heap/mod.rs", "mod list;"), ("heap/list.rs", "")];
    assert_eq!(faults("# c\n", &sources), ["c/src has folders; expected a table under `## Rooms` in c/README.md"]);
    assert_eq!(faults("# c\n", &[ROOT, ("ops.rs", ""), ("heap.rs", "")]), [""; 0]);
}
