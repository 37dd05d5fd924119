//! Checks the rooms of each crate: the folders and files at the top of its `src`, and their
//! imports.
//!
//! The README of a crate has a table of its rooms, from the top down: a room's name, its content,
//! and the rooms that it uses. This check reads the imports and compares them with the table.
//!
//! Invariant: a room uses only rooms below it in the table. Tests, and code only for documentation,
//! are ignored.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::File;

/// A fault in the rooms of a crate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{directory}/src has folders; expected a table under `## Rooms` in {directory}/README.md")]
    NoTable { directory: String },
    #[error("{directory}/README.md lacks the room `{room}`; expected a row: | `{room}` | what is in it | {uses} |")]
    Unlisted { directory: String, room: String, uses: String },
    #[error("{directory}/README.md has the room `{room}`, which {directory}/src lacks")]
    Gone { directory: String, room: String },
    #[error("{directory}/README.md says that `{room}` uses {said}, expected {uses}")]
    Differs { directory: String, room: String, said: String, uses: String },
    #[error("{path}: `{from}` uses `{to}`, which is above it in {directory}/README.md")]
    Upward { directory: String, path: String, from: String, to: String },
}

/// The rooms of a crate in its sources.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rooms {
    /// By room: the rooms that it uses, each with a file that imports it.
    uses: BTreeMap<String, BTreeMap<String, String>>,
    has_folders: bool,
}

/// One row of a README's table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    room: String,
    uses: BTreeSet<String>,
}

/// Checks the rooms of the crates in these directories. Also returns the list of checked crates.
pub(crate) fn check(directories: &[String], files: &[File]) -> (String, Vec<Fault>) {
    let (mut drawn, mut faults) = (Vec::new(), Vec::new());
    for directory in directories {
        let rooms = Rooms::read(directory, files);
        let readme = files.iter().find(|file| file.path == format!("{directory}/README.md"));
        let table = readme.and_then(|file| table(&file.text));
        match table {
            Some(table) => {
                drawn.push(directory.rsplit('/').next().unwrap_or(directory).to_owned());
                compare(directory, &rooms, &table, &mut faults);
            }
            None if rooms.has_folders => faults.push(Fault::NoTable { directory: directory.clone() }),
            None => {}
        }
    }
    (format!("rooms checked: {}\n", drawn.join(", ")), faults)
}

fn compare(directory: &str, rooms: &Rooms, table: &[Row], faults: &mut Vec<Fault>) {
    let directory = || directory.to_owned();
    let order: BTreeMap<&str, usize> = table.iter().enumerate().map(|(at, row)| (row.room.as_str(), at)).collect();
    for row in table.iter().filter(|row| !rooms.uses.contains_key(&row.room)) {
        faults.push(Fault::Gone { directory: directory(), room: row.room.clone() });
    }
    for (room, used) in &rooms.uses {
        let uses: BTreeSet<String> = used.keys().cloned().collect();
        let Some(row) = table.iter().find(|row| row.room == *room) else {
            faults.push(Fault::Unlisted { directory: directory(), room: room.clone(), uses: shown(&uses) });
            continue;
        };
        if row.uses != uses {
            let (said, uses) = (shown(&row.uses), shown(&uses));
            faults.push(Fault::Differs { directory: directory(), room: room.clone(), said, uses });
        }
        for (to, path) in used {
            if order.get(to.as_str()).is_some_and(|to| *to < order[room.as_str()]) {
                let (from, to, path) = (room.clone(), to.clone(), path.clone());
                faults.push(Fault::Upward { directory: directory(), path, from, to });
            }
        }
    }
}

fn shown(rooms: &BTreeSet<String>) -> String {
    if rooms.is_empty() {
        return "nothing".to_owned();
    }
    rooms.iter().map(|room| format!("`{room}`")).collect::<Vec<_>>().join(" ")
}

/// Returns the rows of the first table under a heading `Rooms`.
fn table(readme: &str) -> Option<Vec<Row>> {
    let is_heading = |line: &&str| line.starts_with('#') && line.trim_start_matches('#').trim() == "Rooms";
    let rest = readme.lines().skip_while(|line| !is_heading(line)).skip(1).take_while(|line| !line.starts_with('#'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        let (room, uses) = (names(cells.first()?).pop()?, names(cells.last()?).into_iter().collect());
        Some(Row { room, uses })
    };
    let rows: Vec<Row> = rest.filter(|line| line.trim_start().starts_with('|')).filter_map(row).collect();
    (!rows.is_empty()).then_some(rows)
}

impl Rooms {
    fn read(directory: &str, files: &[File]) -> Self {
        let prefix = format!("{directory}/src/");
        let sources: Vec<(&File, Vec<String>)> = files
            .iter()
            .filter_map(|file| Some((file, modules(file.path.strip_prefix(&prefix)?.strip_suffix(".rs")?))))
            .filter(|(_, modules)| !modules.iter().any(|module| module == "tests" || module == "main"))
            .collect();
        let mut rooms = Self::default();
        for (_, modules) in &sources {
            if let Some(room) = modules.first() {
                rooms.uses.entry(room.clone()).or_default();
                rooms.has_folders |= modules.len() > 1;
            }
        }
        let root = sources.iter().find(|(_, modules)| modules.is_empty());
        let reexports = root.map(|(file, _)| reexports(&tokens(&file.text))).unwrap_or_default();
        for (file, modules) in &sources {
            let Some(room) = modules.first() else { continue };
            let mut names = BTreeSet::new();
            paths(&tokens(&file.text), modules, &mut names);
            for name in names {
                let to = if rooms.uses.contains_key(&name) { Some(&name) } else { reexports.get(&name) };
                if let Some(to) = to.filter(|to| *to != room && rooms.uses.contains_key(*to)) {
                    let to = to.clone();
                    rooms.uses.entry(room.clone()).or_default().entry(to).or_insert_with(|| file.path.clone());
                }
            }
        }
        rooms
    }
}

/// Returns the module path of a file, from the root of its crate.
fn modules(path: &str) -> Vec<String> {
    let mut modules: Vec<String> = path.split('/').map(str::to_owned).collect();
    if modules.last().is_some_and(|last| ["mod", "lib"].contains(&last.as_str())) {
        modules.pop();
    }
    modules
}

fn tokens(text: &str) -> Vec<TokenTree> {
    text.parse::<TokenStream>().map(|stream| stream.into_iter().collect()).unwrap_or_default()
}

/// Collects the names that follow `crate::`, or as many `super::` as lead to the root.
fn paths(tokens: &[TokenTree], modules: &[String], names: &mut BTreeSet<String>) {
    let mut at = 0;
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.to_string() == text);
    while at < tokens.len() {
        if is(at, "#") && tokens.get(at + 1).is_some_and(is_left_out) {
            at = end_of_item(tokens, at + 2);
            continue;
        }
        if is(at, "mod") && matches!(tokens.get(at + 2), Some(TokenTree::Group(_))) {
            let inside: Vec<String> = modules.iter().cloned().chain([tokens[at + 1].to_string()]).collect();
            if let TokenTree::Group(group) = &tokens[at + 2] {
                paths(&group.stream().into_iter().collect::<Vec<_>>(), &inside, names);
            }
            at += 3;
            continue;
        }
        let mut up = match tokens[at].to_string().as_str() {
            "crate" => modules.len(),
            "super" => 1,
            _ => 0,
        };
        let starts = (up > 0 || is(at, "crate")) && is(at + 1, ":") && is(at + 2, ":") && !is(at.wrapping_sub(1), ":");
        if starts {
            at += 3;
            while is(at, "super") && is(at + 1, ":") {
                (up, at) = (up + 1, at + 3);
            }
            if up >= modules.len() {
                first_names(tokens.get(at), names);
            }
        }
        if let Some(TokenTree::Group(group)) = tokens.get(at) {
            paths(&group.stream().into_iter().collect::<Vec<_>>(), modules, names);
        }
        at += 1;
    }
}

/// Collects the name, or the first name of each path in braces.
fn first_names(token: Option<&TokenTree>, names: &mut BTreeSet<String>) {
    match token {
        Some(TokenTree::Ident(name)) => {
            names.insert(name.to_string());
        }
        Some(TokenTree::Group(group)) => {
            let inside: Vec<TokenTree> = group.stream().into_iter().collect();
            for part in inside.split(|token| token.to_string() == ",") {
                first_names(part.first(), names);
            }
        }
        _ => {}
    }
}

/// Returns whether an attribute excludes its item from normal builds.
fn is_left_out(attribute: &TokenTree) -> bool {
    let text = attribute.to_string().replace([' ', '\n'], "");
    ["[cfg(test", "[cfg(all(test", "[cfg(doc", "[cfg(all(loom,test"].iter().any(|start| text.starts_with(start))
}

/// Returns the end of the item that begins here: after its last braces, or its semicolon.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == proc_macro2::Delimiter::Brace,
        token => token.to_string() == ";",
    };
    // The braces of a `use` are followed by its semicolon.
    match tokens[from..].iter().position(ends).map(|at| from + at) {
        Some(at) if tokens.get(at + 1).is_some_and(|next| next.to_string() == ";") => at + 2,
        Some(at) => at + 1,
        None => tokens.len(),
    }
}

/// Returns, by name, the module from which the root re-exports it.
fn reexports(tokens: &[TokenTree]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.to_string() == "use"
            && let Some(TokenTree::Ident(module)) = tokens.get(at + 1)
        {
            let end = end_of_item(tokens, at + 1);
            let mut names = BTreeSet::new();
            all_names(&tokens[at + 2..end], &mut names);
            found.extend(names.into_iter().map(|name| (name, module.to_string())));
        }
    }
    found
}

fn all_names(tokens: &[TokenTree], names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => drop(names.insert(name.to_string())),
            TokenTree::Group(group) => all_names(&group.stream().into_iter().collect::<Vec<_>>(), names),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
