//! Checks the layers of the workspace: which crate may depend on which.
//!
//! This check does not read the sources of a crate, except to check that crates for kernels are
//! `no_std`.
//!
//! Invariant: each member declares its layer as `[package.metadata.peerweave] layer = N`. A normal
//! or build dependency between members points to a strictly lower layer, so there is no cycle and
//! crates of one layer do not depend on each other. A dev-dependency points to the same layer or a
//! lower layer, so that tests may combine two crates of one layer. A crate whose tests need a
//! higher layer could not be used alone, and its unit tests would link the crate twice. The only
//! exception: documentation examples of a crate that another crate re-exports may use that other
//! crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};
use proc_macro2::{TokenStream, TokenTree};

/// Rules in addition to the order of the layers.
pub(crate) struct Rules {
    forbidden: &'static [Forbidden],
    /// Pairs of a crate and a crate of a higher layer that the first crate's documentation examples
    /// use.
    examples_up: &'static [(&'static str, &'static str)],
    no_std: &'static [&'static str],
}

/// Crates that another crate must not depend on, even indirectly.
struct Forbidden {
    from: &'static str,
    /// Names of the forbidden crates; a name that ends with `*` is a prefix.
    to: &'static [&'static str],
    why: &'static str,
}

/// The rules of this workspace.
pub(crate) const RULES: Rules = Rules {
    forbidden: &[
        Forbidden {
            from: "peerweave-core",
            to: &[
                "peerweave-host",
                "peerweave-cuda",
                "peerweave-nccl",
                "peerweave-nvshmem",
                "peerweave-vmm",
                "peerweave-link",
                "peerweave-kernels",
                "cuda*",
            ],
            why: "the portable API must not depend on a backend",
        },
        Forbidden {
            from: "peerweave-bootstrap",
            to: &[
                "peerweave-cuda",
                "peerweave-nccl",
                "peerweave-nvshmem",
                "peerweave-vmm",
                "peerweave-link",
                "peerweave-kernels",
                "cuda*",
            ],
            why: "the rendezvous must work without CUDA",
        },
        Forbidden {
            from: "peerweave-device",
            to: &["peerweave-core", "peerweave-bootstrap", "peerweave-host"],
            why: "kernels must not need the host",
        },
    ],
    examples_up: &[("peerweave-core", "peerweave"), ("peerweave-host", "peerweave"), ("peerweave-moe", "peerweave")],
    no_std: &["peerweave-types", "peerweave-device"],
};

/// The members of the workspace, sorted by layer (the highest first) and by name.
#[derive(Debug)]
pub(crate) struct Workspace {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: String,
    layer: Option<u64>,
    /// Dependencies on other members in the manifest, for any feature or target.
    dependencies: BTreeSet<(String, Use)>,
    /// Names of all direct and indirect normal or build dependencies.
    reaches: BTreeSet<String>,
    /// Root file of the library, if any.
    library: Option<String>,
}

/// Kind of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Code,
    Tests,
}

/// A violation of the layers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{name} has no layer, expected `[package.metadata.peerweave] layer = N` in its manifest")]
    NoLayer { name: String },
    #[error("{from} (layer {from_layer}) depends on {to} (layer {to_layer}), expected a lower layer")]
    NotDown { from: String, from_layer: u64, to: String, to_layer: u64 },
    #[error("tests of {from} (layer {from_layer}) depend on {to} (layer {to_layer}), expected the same layer or a lower layer")]
    TestsUp { from: String, from_layer: u64, to: String, to_layer: u64 },
    #[error("{from} depends on {to}, directly or indirectly: {why}")]
    Reaches { from: &'static str, to: String, why: &'static str },
    #[error("a rule names {name}, which is not a member of the workspace; correct the name in xtask/src/layers/mod.rs")]
    UnknownCrate { name: &'static str },
    #[error("{name} must be no_std: {found}")]
    NeedsStd { name: &'static str, found: &'static str },
}

impl Workspace {
    /// Extracts the needed data from `metadata`. `read` returns the text of a source file.
    pub(crate) fn read<E>(metadata: &Metadata, read: impl Fn(&Utf8Path) -> Result<String, E>) -> Result<Self, E> {
        let packages = metadata.workspace_packages();
        let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
        let mut members = Vec::new();
        for package in &packages {
            let layer = &package.metadata["peerweave"]["layer"];
            let library = package
                .targets
                .iter()
                .find(|target| target.kind.contains(&TargetKind::Lib))
                .map(|target| read(&target.src_path))
                .transpose()?;
            members.push(Member {
                name: package.name.to_string(),
                layer: layer.as_u64(),
                dependencies: package
                    .dependencies
                    .iter()
                    .filter(|dependency| names.contains(dependency.name.as_str()))
                    .map(|dependency| (dependency.name.clone(), Use::of(dependency.kind)))
                    .collect(),
                reaches: reached(metadata, package),
                library,
            });
        }
        members.sort_by(|a, b| (b.layer, &a.name).cmp(&(a.layer, &b.name)));
        Ok(Self { members })
    }

    /// Returns all violations of the order of the layers or of `rules`.
    pub(crate) fn faults(&self, rules: &Rules) -> Vec<Fault> {
        let mut faults = Vec::new();
        let layers: BTreeMap<&str, Option<u64>> =
            self.members.iter().map(|member| (member.name.as_str(), member.layer)).collect();
        for member in &self.members {
            let Some(from_layer) = member.layer else {
                faults.push(Fault::NoLayer { name: member.name.clone() });
                continue;
            };
            for (to, used) in &member.dependencies {
                // A member without a layer is reported separately.
                let Some(to_layer) = layers[to.as_str()] else {
                    continue;
                };
                let (from, to) = (member.name.clone(), to.clone());
                match used {
                    Use::Code if to_layer >= from_layer => faults.push(Fault::NotDown { from, from_layer, to, to_layer }),
                    Use::Tests if rules.examples_up.contains(&(&from, &to)) => {}
                    Use::Tests if to_layer > from_layer => faults.push(Fault::TestsUp { from, from_layer, to, to_layer }),
                    _ => {}
                }
            }
        }
        for rule in rules.forbidden {
            let Some(member) = self.member(rule.from) else {
                faults.push(Fault::UnknownCrate { name: rule.from });
                continue;
            };
            for to in &member.reaches {
                if rule.to.iter().any(|pattern| matches(pattern, to)) {
                    faults.push(Fault::Reaches { from: rule.from, to: to.clone(), why: rule.why });
                }
            }
        }
        for &name in rules.no_std {
            match self.member(name).map(|member| &member.library) {
                None => faults.push(Fault::UnknownCrate { name }),
                Some(None) => faults.push(Fault::NeedsStd { name, found: "the crate has no library" }),
                Some(Some(source)) => {
                    if let Some(found) = needs_std(source) {
                        faults.push(Fault::NeedsStd { name, found });
                    }
                }
            }
        }
        faults
    }

    /// Returns the layers as text, from the top, each crate with the members that it uses.
    pub(crate) fn picture(&self) -> String {
        let width = self.members.iter().map(|member| member.name.len()).max();
        let width = width.unwrap_or(0);
        let mut picture = String::new();
        let mut last = None;
        for member in &self.members {
            let layer = member.layer.map_or(String::from("?"), |layer| layer.to_string());
            let shown = if last == Some(member.layer) { "" } else { &layer };
            last = Some(member.layer);
            let names = |wanted: Use| -> Vec<&str> {
                let named = member.dependencies.iter();
                named.filter(|(_, used)| *used == wanted).map(|(name, _)| name.as_str()).collect()
            };
            let (code, tests) = (names(Use::Code), names(Use::Tests));
            let _ = write!(picture, "{shown:>2}  {:width$}", member.name);
            if !code.is_empty() {
                let _ = write!(picture, " -> {}", code.join(", "));
            }
            if !tests.is_empty() {
                let _ = write!(picture, " (tests: {})", tests.join(", "));
            }
            picture.truncate(picture.trim_end().len());
            picture.push('\n');
        }
        picture
    }

    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

impl Use {
    fn of(kind: DependencyKind) -> Self {
        match kind {
            DependencyKind::Development => Self::Tests,
            _ => Self::Code,
        }
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// Returns the names of the packages reached from `package` through normal or build dependencies.
fn reached(metadata: &Metadata, package: &Package) -> BTreeSet<String> {
    let nodes: BTreeMap<_, _> = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes).map(|node| (&node.id, node)).collect();
    let mut reached = BTreeSet::new();
    let mut waiting = vec![&package.id];
    while let Some(node) = waiting.pop().and_then(|id| nodes.get(id)) {
        for dependency in &node.deps {
            let used = |kind: &cargo_metadata::DepKindInfo| kind.kind != DependencyKind::Development;
            if dependency.dep_kinds.iter().any(used) && reached.insert(&dependency.pkg) {
                waiting.push(&dependency.pkg);
            }
        }
    }
    reached.into_iter().map(|id| metadata[id].name.to_string()).collect()
}

/// Returns the reason why the crate with this root file needs `std`; `None` if the crate is
/// `no_std`.
///
/// `std` is allowed only for tests, for a model checker, or under a feature of that name.
fn needs_std(source: &str) -> Option<&'static str> {
    let Ok(tokens) = source.parse::<TokenStream>() else {
        return Some("the library could not be parsed as Rust");
    };
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut declared = false;
    for (index, token) in tokens.iter().enumerate() {
        let before = |back: usize| index.checked_sub(back).map(|at| tokens[at].to_string());
        let inner = before(1).as_deref() == Some("!") && before(2).as_deref() == Some("#");
        if let (true, TokenTree::Group(group)) = (inner, token) {
            declared |= declares_no_std(group.stream());
        }
        let imported = token.to_string() == "std" && before(1).as_deref() == Some("crate");
        let conditional = before(3).is_some_and(|attribute| attribute.starts_with("[cfg"));
        if imported && !conditional {
            return Some("the library has an unconditional `extern crate std`");
        }
    }
    (!declared).then_some("the library has no `#![no_std]` that only test, loom, miri, doc or feature = \"std\" disables")
}

fn declares_no_std(attribute: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(name)] => name == "no_std",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "cfg_attr" => {
            let text = group.stream().to_string().replace(' ', "");
            let Some(condition) = text.strip_suffix(",no_std") else {
                return false;
            };
            condition
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| !word.is_empty())
                .all(|word| ["not", "any", "all", "test", "loom", "miri", "doc", "feature", "std"].contains(&word))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
