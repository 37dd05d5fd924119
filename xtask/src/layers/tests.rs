//! Tests on small workspaces, in the output format of `cargo metadata`.

use super::*;
use serde_json::{Value, json};

const NO_RULES: Rules = Rules { forbidden: &[], examples_up: &[], no_std: &[] };

/// A member: its name, its layer and its dependencies as (name, kind).
type Given<'a> = (&'a str, Option<u64>, &'a [(&'a str, &'a str)]);

fn id(name: &str) -> String {
    format!("path+file:///w/{name}#0.1.0")
}

fn kind(kind: &str) -> Value {
    if kind == "normal" { Value::Null } else { json!(kind) }
}

fn package(name: &str, layer: Option<u64>, dependencies: &[(&str, &str)]) -> Value {
    json!({
        "name": name, "version": "0.1.0", "id": id(name), "edition": "2024",
        "manifest_path": format!("/w/{name}/Cargo.toml"),
        "metadata": layer.map(|layer| json!({ "peerweave": { "layer": layer } })),
        "features": {}, "source": null,
        "targets": [{
            "kind": ["lib"], "crate_types": ["lib"], "name": name, "edition": "2024",
            "src_path": format!("/w/{name}/src/lib.rs"), "required-features": [],
        }],
        "dependencies": dependencies.iter().map(|(to, used)| json!({
            "name": to, "req": "*", "kind": kind(used), "optional": false,
            "uses_default_features": true, "features": [], "target": null,
        })).collect::<Vec<_>>(),
    })
}

/// Creates a workspace of `members`; `foreign` are external crates. Every library has the source
/// `source`.
fn workspace(members: &[Given<'_>], foreign: &[Given<'_>], source: &str) -> Workspace {
    let all = || members.iter().chain(foreign);
    let metadata: Metadata = serde_json::from_value(json!({
        "version": 1, "workspace_root": "/w", "target_directory": "/w/target",
        "workspace_members": members.iter().map(|(name, ..)| id(name)).collect::<Vec<_>>(),
        "packages": all().map(|(name, layer, to)| package(name, *layer, to)).collect::<Vec<_>>(),
        "resolve": {
            "root": null,
            "nodes": all().map(|(name, _, dependencies)| json!({
                "id": id(name), "features": [],
                "dependencies": dependencies.iter().map(|(to, _)| id(to)).collect::<Vec<_>>(),
                "deps": dependencies.iter().map(|(to, used)| json!({
                    "name": to, "pkg": id(to),
                    "dep_kinds": [{ "kind": kind(used), "target": null }],
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        },
    }))
    .unwrap();
    Workspace::read(&metadata, |_| Ok::<_, std::io::Error>(source.to_owned())).unwrap()
}

fn faults(members: &[Given<'_>]) -> Vec<String> {
    let found = workspace(members, &[], "").faults(&NO_RULES);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn dependencies_on_crates_of_lower_layers_are_accepted() {
    let members: &[Given<'_>] = &[
        ("types", Some(0), &[]),
        ("core", Some(2), &[("types", "normal")]),
        ("top", Some(4), &[("core", "normal"), ("types", "build")]),
    ];
    assert_eq!(faults(members), [""; 0]);
}

#[test]
fn dependency_on_the_same_or_a_higher_layer_is_reported() {
    let members: &[Given<'_>] =
        &[("core", Some(2), &[("host", "normal")]), ("host", Some(3), &[("other", "build")]), ("other", Some(3), &[])];
    assert_eq!(
        faults(members),
        [
            "host (layer 3) depends on other (layer 3), expected a lower layer",
            "core (layer 2) depends on host (layer 3), expected a lower layer",
        ]
    );
}

#[test]
fn tests_may_use_crates_of_the_same_or_a_lower_layer() {
    let members: &[Given<'_>] = &[
        ("core", Some(2), &[("host", "dev")]),
        ("host", Some(3), &[("other", "dev"), ("host", "dev"), ("core", "dev")]),
        ("other", Some(3), &[]),
    ];
    assert_eq!(faults(members), ["tests of core (layer 2) depend on host (layer 3), expected the same layer or a lower layer"]);
}

#[test]
fn doc_examples_may_use_a_higher_layer_if_a_rule_allows_it() {
    let rules = Rules { forbidden: &[], examples_up: &[("core", "api")], no_std: &[] };
    let workspace = workspace(&[("core", Some(1), &[("api", "dev")]), ("api", Some(2), &[])], &[], "");
    assert_eq!(workspace.faults(&rules), []);
}

#[test]
fn crate_without_a_layer_is_reported() {
    let members: &[Given<'_>] = &[("core", Some(2), &[("new", "normal")]), ("new", None, &[])];
    assert_eq!(faults(members), ["new has no layer, expected `[package.metadata.peerweave] layer = N` in its manifest"]);
}

#[test]
fn forbidden_indirect_dependency_outside_tests_is_reported() {
    const RULES: Rules = Rules {
        forbidden: &[Forbidden { from: "core", to: &["host", "cuda*"], why: "it knows no backend" }],
        examples_up: &[],
        no_std: &[],
    };
    let members: &[Given<'_>] =
        &[("core", Some(2), &[("util", "normal"), ("mock", "dev")]), ("top", Some(4), &[("cudarc", "normal")])];
    let foreign: &[Given<'_>] = &[
        ("util", None, &[("cudarc", "normal")]),
        ("mock", None, &[("host", "normal")]),
        ("cudarc", None, &[]),
        ("host", None, &[]),
    ];
    let found = workspace(members, foreign, "").faults(&RULES);
    assert_eq!(found, [Fault::Reaches { from: "core", to: String::from("cudarc"), why: "it knows no backend" }]);
    assert_eq!(found[0].to_string(), "core depends on cudarc, directly or indirectly: it knows no backend");
}

#[test]
fn rule_about_a_missing_crate_is_reported() {
    let found = workspace(&[("a", Some(0), &[])], &[], "#![no_std]").faults(&RULES);
    let unknown = |name| Fault::UnknownCrate { name };
    assert_eq!(
        found,
        [
            unknown("peerweave-core"),
            unknown("peerweave-bootstrap"),
            unknown("peerweave-device"),
            unknown("peerweave-types"),
            unknown("peerweave-device"),
        ]
    );
}

#[test]
fn use_of_std_in_a_crate_listed_as_no_std_is_reported() {
    const RULES: Rules = Rules { forbidden: &[], examples_up: &[], no_std: &["device"] };
    let passes = |source: &str| workspace(&[("device", Some(1), &[])], &[], source).faults(&RULES).is_empty();
    assert!(passes("//! Kernels.\n#![no_std]\npub mod flag;"));
    assert!(passes("#![cfg_attr(not(any(test, loom)), no_std)]"));
    assert!(passes("#![cfg_attr(not(feature = \"std\"), no_std)]"));
    assert!(passes("#![no_std]\n#[cfg(test)]\nextern crate std;"));
    assert!(!passes(""));
    assert!(!passes("// #![no_std]"));
    assert!(!passes("//! `#![no_std]`"));
    assert!(!passes("#![cfg_attr(target_arch = \"nvptx64\", no_std)]"));
    assert!(!passes("#![no_std]\nextern crate std;"));
}

#[test]
fn layer_diagram_shows_layers_from_the_top() {
    let members: &[Given<'_>] =
        &[("a", Some(0), &[]), ("b", Some(1), &[("a", "normal")]), ("cc", Some(1), &[("a", "normal"), ("b", "dev")])];
    assert_eq!(workspace(members, &[], "").picture(), " 1  b  -> a\n    cc -> a (tests: b)\n 0  a\n");
}
