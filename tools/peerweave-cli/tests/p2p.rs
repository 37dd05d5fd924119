//! Tests `peerweave bench p2p` and the GPUs that `peerweave info` lists, with the fake driver and
//! without any driver.
#![cfg(target_os = "linux")]

use std::process::{Command, Output};

use peerweave_fakes::Fakes;

fn peerweave(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peerweave")).args(arguments).output().expect("the command was built with this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn missing_driver_is_an_error_that_lists_the_paths_tried() {
    Fakes::new().run(|| {
        let output = peerweave(&["bench", "p2p"]);
        assert_eq!(output.status.code(), Some(3));
        let errors = text(&output.stderr);
        assert!(errors.contains("CUDA's driver was not found") && errors.contains("libcuda.so.1"), "{errors}");
        let info = peerweave(&["info"]);
        assert!(info.status.success());
        assert!(text(&info.stdout).contains("GPUs\n  none  CUDA's driver was not found\n"), "{}", text(&info.stdout));
    });
}

#[test]
fn single_gpu_is_refused() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "1").run(|| {
        let output = peerweave(&["bench", "p2p"]);
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(text(&output.stderr), "peerweave bench p2p: the number of GPUs of this machine is 1, expected at least 2\n");
    });
}

#[test]
fn p2p_output_names_measurements_that_are_missing() {
    let place = tempfile::tempdir().expect("a temporary directory is created");
    let (json, plot) = (place.path().join("p2p.json"), place.path().join("p2p.svg"));
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "3");
    fakes.env("P2P_JSON", json.as_os_str()).env("P2P_PLOT", plot.as_os_str()).run(|| {
        let path = |name| std::env::var(name).expect("the variable is set above");
        let (json, plot) = (path("P2P_JSON"), path("P2P_PLOT"));
        let output = peerweave(&["bench", "p2p", "--bytes", "2M", "--iters", "2", "-J", &json, "--plot", &plot]);
        let table = text(&output.stdout);
        assert!(output.status.success(), "{table}{}", text(&output.stderr));
        for part in ["copy engine, one direction (GB/s)", "both directions at once", "all at once", "wrong words: 0"] {
            assert!(table.contains(part), "{part} is not in\n{table}");
        }
        assert!(table.contains("stores, loads and latency were not measured: "), "{table}");
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).expect("the file was written")).expect("the text is JSON");
        let rows = document["tables"][0]["rows"].as_array().expect("rows");
        assert!(
            rows.len() == 3 && rows[0][0].is_null() && rows[0][2].as_f64().expect("the bandwidth is a number") > 0.0,
            "{rows:?}"
        );
        let picture = std::fs::read_to_string(&plot).expect("the plot was written");
        assert!(picture.starts_with("<svg ") && picture.contains("copy engine, one direction (GB/s)"));
    });
}

#[test]
fn exit_code_is_1_if_the_transport_loses_data() {
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2").env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1");
    fakes.run(|| {
        let output = peerweave(&["bench-p2p", "--bytes", "2M", "--iters", "1"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    });
}

#[test]
fn info_shows_peer_access_between_gpus() {
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2").env("PEERWEAVE_FAKE_CUDA_NO_PEER", "1-0");
    fakes.run(|| {
        let info = text(&peerweave(&["info"]).stdout);
        assert!(info.contains("from 0 to    -  a0"), "{info}");
        assert!(info.contains("from 1 to   no   -"), "{info}");
        let json: serde_json::Value = serde_json::from_slice(&peerweave(&["info", "--json"]).stdout).expect("the text is JSON");
        assert_eq!(json["peers"]["pairs"][1][0]["access"], false);
    });
}

#[test]
fn pair_without_access_is_named_and_other_pairs_are_measured() {
    let fakes = Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "3").env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1");
    fakes.run(|| {
        let place = tempfile::tempdir().expect("a temporary directory is created");
        let json = place.path().join("p2p.json");
        let path = json.to_str().expect("text");
        let output = peerweave(&["bench", "p2p", "--bytes", "2M", "--iters", "1", "-J", path]);
        let table = text(&output.stdout);
        assert!(output.status.success(), "{table}{}", text(&output.stderr));
        for part in [
            "GPU 0 to GPU 1 was not measured: peer access",
            "transfers from every GPU to the next, all at once, were not measured",
            "wrong words: 0",
        ] {
            assert!(table.contains(part), "{part} is not in\n{table}");
        }
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).expect("the file was written")).expect("the text is JSON");
        let rows = &document["tables"][0]["rows"];
        assert!(rows[0][1].is_null() && rows[0][2].as_f64().is_some() && rows[1][2].as_f64().is_some(), "{rows}");
    });
}

#[test]
fn very_long_wait_option_does_not_overflow_the_deadline() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2").run(|| {
        let output = peerweave(&["bench", "p2p", "--bytes", "2M", "--iters", "1", "--wait", "4000000000000000h"]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    });
}
