//! Checks the rooms of each crate. A room is a module at the top of `src`: a folder or a file.
//!
//! The README of a crate has a table of its rooms, from the top down: a room's name, its content,
//! and the rooms that it uses. This check reads the imports and compares them with the table. A
//! folder that contains rooms has a second table, under `Rooms of` and the name of the folder.
//!
//! Invariant: a room uses only rooms below it in the table. Tests and code that exists only for
//! documentation are ignored.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::File;

/// Maximum number of folders in a folder without a table of its own.
const FOLDERS: usize = 3;

/// A module that violates the table of modules in its crate's README.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{source_directory} has folders; expected a table under `{heading}` in {readme}")]
    NoTable { source_directory: String, heading: String, readme: String },
    #[error("{table} lacks the module `{room}`; expected a row: | `{room}` | what is in it | {uses} |")]
    Unlisted { table: String, room: String, uses: String },
    #[error("{table} has the module `{room}`, which {source_directory} lacks")]
    Gone { table: String, source_directory: String, room: String },
    #[error("{table} says that `{room}` uses {said}, expected {uses}")]
    Differs { table: String, room: String, said: String, uses: String },
    #[error("{path}: `{from}` uses `{to}`, expected only modules below `{from}` in {table}")]
    Upward { table: String, path: String, from: String, to: String },
}

/// The path of a module or an item, from the root of its crate.
type Path = Vec<String>;

/// The sources of a crate, without tests.
struct Sources<'a> {
    files: Vec<Source<'a>>,
}

/// One file of a crate.
struct Source<'a> {
    file: &'a File,
    modules: Path,
    tokens: Vec<TokenTree>,
}

/// For each module in a table, the modules that it uses, each with a file that contains the import.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// One row of a README's table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    room: String,
    uses: BTreeSet<String>,
}

/// Checks the module tables of the crates in these directories. Returns a line that names the
/// checked crates and folders, and the faults.
pub(crate) fn check(directories: &[String], files: &[File]) -> (String, Vec<Fault>) {
    let (mut drawn, mut faults) = (Vec::new(), Vec::new());
    for directory in directories {
        let sources = Sources::read(directory, files);
        let readme = format!("{directory}/README.md");
        let text = files.iter().find(|file| file.path == readme).map_or("", |file| file.text.as_str());
        let mut places = BTreeSet::from([(Path::new(), 0)]);
        places.extend(sources.folders_in(&[]).into_iter().map(|folder| (folder, FOLDERS)));
        places.extend(headings(text).filter_map(folder_of).map(|folder| (folder, FOLDERS)));
        for (folder, most) in places {
            let heading = heading_of(&folder);
            let source_directory = [vec![format!("{directory}/src")], folder.clone()].concat().join("/");
            match table(text, &heading) {
                Some(rows) => {
                    let name = directory.rsplit('/').next().unwrap_or(directory).to_owned();
                    drawn.push([vec![name], folder.clone()].concat().join("/"));
                    let table = if folder.is_empty() { readme.clone() } else { format!("{readme} (`{heading}`)") };
                    compare(&source_directory, &table, &sources.uses(&folder), &rows, &mut faults);
                }
                None if sources.folders_in(&folder).len() > most => {
                    let level = if folder.is_empty() { "##" } else { "###" };
                    let heading = format!("{level} {heading}");
                    faults.push(Fault::NoTable { source_directory, heading, readme: readme.clone() });
                }
                None => {}
            }
        }
    }
    (format!("rooms checked: {}\n", drawn.join(", ")), faults)
}

fn compare(source_directory: &str, name: &str, rooms: &Uses, rows: &[Row], faults: &mut Vec<Fault>) {
    let table = || name.to_owned();
    let order: BTreeMap<&str, usize> = rows.iter().enumerate().map(|(at, row)| (row.room.as_str(), at)).collect();
    for row in rows.iter().filter(|row| !rooms.contains_key(&row.room)) {
        let source_directory = source_directory.to_owned();
        faults.push(Fault::Gone { table: table(), source_directory, room: row.room.clone() });
    }
    for (room, used) in rooms {
        let uses: BTreeSet<String> = used.keys().cloned().collect();
        let Some(row) = rows.iter().find(|row| row.room == *room) else {
            faults.push(Fault::Unlisted { table: table(), room: room.clone(), uses: shown(&uses) });
            continue;
        };
        if row.uses != uses {
            let (said, uses) = (shown(&row.uses), shown(&uses));
            faults.push(Fault::Differs { table: table(), room: room.clone(), said, uses });
        }
        for (to, path) in used {
            if order.get(to.as_str()).is_some_and(|to| *to < order[room.as_str()]) {
                let (from, to, path) = (room.clone(), to.clone(), path.clone());
                faults.push(Fault::Upward { table: table(), path, from, to });
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

/// Returns the texts of the headings.
fn headings(readme: &str) -> impl Iterator<Item = &str> {
    readme.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim())
}

/// Returns the heading of the table of a folder. An empty path is the root of the crate.
fn heading_of(folder: &[String]) -> String {
    if folder.is_empty() { "Rooms".to_owned() } else { format!("Rooms of {}", folder.join("/")) }
}

/// Returns the folder whose table has this heading.
fn folder_of(heading: &str) -> Option<Path> {
    heading.strip_prefix("Rooms of ").map(|folder| folder.split('/').map(str::to_owned).collect())
}

/// Returns the rows of the first table under a heading.
fn table(readme: &str, heading: &str) -> Option<Vec<Row>> {
    let is_heading = |line: &&str| headings(line).next() == Some(heading);
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

impl<'a> Sources<'a> {
    fn read(directory: &str, files: &'a [File]) -> Self {
        let prefix = format!("{directory}/src/");
        let files = files
            .iter()
            .filter_map(|file| Some((file, modules(file.path.strip_prefix(&prefix)?.strip_suffix(".rs")?))))
            .filter(|(_, modules)| !modules.iter().any(|module| module == "tests" || module == "main"))
            .map(|(file, modules)| Source { file, modules, tokens: tokens(&file.text) });
        Self { files: files.collect() }
    }

    /// Returns the files in a folder, each with the module at the top of the folder that contains
    /// the file, and the file's path within that module.
    fn inside(&self, folder: &[String]) -> impl Iterator<Item = (&Source<'a>, &String, &[String])> {
        self.files.iter().filter_map(move |source| {
            let (room, rest) = source.modules.strip_prefix(folder)?.split_first()?;
            Some((source, room, rest))
        })
    }

    /// Returns the folders at the top of a folder.
    fn folders_in(&self, folder: &[String]) -> BTreeSet<Path> {
        let files = self.inside(folder).filter(|(_, _, rest)| !rest.is_empty());
        files.map(|(_, room, _)| folder.iter().chain([room]).cloned().collect()).collect()
    }

    /// Returns the imports among the modules of a folder.
    fn uses(&self, folder: &[String]) -> Uses {
        let mut uses: Uses = self.inside(folder).map(|(_, room, _)| (room.clone(), BTreeMap::new())).collect();
        for (source, room, _) in self.inside(folder) {
            let mut found = BTreeSet::new();
            paths(&source.tokens, &source.modules, &mut found);
            for path in found {
                let path = self.resolved(path, folder.len());
                let to = path.strip_prefix(folder).and_then(<[String]>::first);
                if let Some(to) = to.filter(|to| *to != room && uses.contains_key(*to)) {
                    let used = uses.entry(room.clone()).or_default();
                    used.entry(to.clone()).or_insert_with(|| source.file.path.clone());
                }
            }
        }
        uses
    }

    /// Resolves re-exports in a path, up to index `depth`: if a module re-exports a name of the
    /// path, the module that defines the name is inserted.
    fn resolved(&self, mut path: Path, depth: usize) -> Path {
        for at in 0..=depth {
            let Some(name) = path.get(at) else { break };
            let is_module = self.files.iter().any(|source| source.modules.starts_with(&path[..=at]));
            let parent = self.files.iter().find(|source| source.modules == path[..at]);
            if let (false, Some(parent)) = (is_module, parent)
                && let Some(module) = reexports(&parent.tokens).remove(name)
            {
                path.insert(at, module);
            }
        }
        path
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

/// Collects the paths that start with `crate::` or `super::`, from the root of the crate.
fn paths(tokens: &[TokenTree], modules: &[String], found: &mut BTreeSet<Path>) {
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
                paths(&group.stream().into_iter().collect::<Vec<_>>(), &inside, found);
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
            let parent = &modules[..modules.len().saturating_sub(up)];
            paths_in_tree(&tokens[at.min(tokens.len())..], parent, found);
        }
        if let Some(TokenTree::Group(group)) = tokens.get(at) {
            paths(&group.stream().into_iter().collect::<Vec<_>>(), modules, found);
        }
        at += 1;
    }
}

/// Collects the path at the start of `tokens`, including each path in braces.
fn paths_in_tree(tokens: &[TokenTree], parent: &[String], found: &mut BTreeSet<Path>) {
    match tokens.first() {
        Some(TokenTree::Ident(name)) => {
            let path: Path = parent.iter().cloned().chain([name.to_string()]).collect();
            let goes_on = tokens.get(1..3).is_some_and(|next| next.iter().all(|token| token.to_string() == ":"));
            if goes_on {
                paths_in_tree(&tokens[3..], &path, found);
            }
            found.insert(path);
        }
        Some(TokenTree::Group(group)) => {
            let inside: Vec<TokenTree> = group.stream().into_iter().collect();
            for part in inside.split(|token| token.to_string() == ",") {
                paths_in_tree(part, parent, found);
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

/// Returns the end of the item that begins at `from`: the index after its last braces or its
/// semicolon.
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

/// Returns the names that a file imports by `use`, each with the first module of its path.
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
