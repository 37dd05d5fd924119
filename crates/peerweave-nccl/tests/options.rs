//! Tests that every option of a communicator and of a call reaches a library that supports the
//! option, and is an error with an older library.
//!
//! Unit tests check the layouts of the structs. The effects of options inside NCCL are not tested.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use peerweave_nccl::{
    CollConfig, Communicator, Config, CtaPolicy, GraphUsage, HostCftMode, Nccl, NcclError, NvlsHostMode, ReduceOp, Switch,
    VendorOption, VendorValue, Version,
};

/// Variable with the path of the fake's log.
const LOG: &str = "PEERWEAVE_FAKE_NCCL_LOG";

/// Returns, for each line of the fake's log that contains `part`, the text after `part`.
fn logged(part: &str) -> Vec<String> {
    let path = PathBuf::from(std::env::var_os(LOG).expect("the parent has set the variable"));
    let text = std::fs::read_to_string(path).expect("the fake's log can be read");
    text.lines().filter_map(|line| line.find(part).map(|at| line[at + part.len()..].to_owned())).collect()
}

/// Returns each option in a separate configuration, with the option's text in the fake's log, and
/// the version that introduced the option.
fn options() -> Vec<(Config, &'static str, &'static str)> {
    let new = Config::new;
    vec![
        (new().blocking(Switch::On), "blocking=1", "2.14.3"),
        (new().cga_cluster_size(2), "cgaClusterSize=2", "2.17.1"),
        (new().max_ctas(8), "maxCTAs=8", "2.17.1"),
        (new().net_name("Socket"), "netName=Socket", "2.17.1"),
        // SAFETY: no children are created.
        (unsafe { new().split_share(Switch::On) }, "splitShare=1", "2.18.1"),
        (new().traffic_class(3), "trafficClass=3", "2.26.2"),
        (new().name("layer 1"), "commName=layer 1", "2.27.3"),
        (new().collnet_enable(Switch::Off), "collnetEnable=0", "2.27.3"),
        (new().cta_policy(CtaPolicy::Efficiency), "CTAPolicy=1", "2.27.3"),
        // SAFETY: no children are created.
        (unsafe { new().shrink_share(Switch::On) }, "shrinkShare=1", "2.27.3"),
        (new().nvls_ctas(4), "nvlsCTAs=4", "2.27.3"),
        (new().cta_policy(CtaPolicy::Zero), "CTAPolicy=2", "2.28.3"),
        (new().channels_per_net_peer(2), "nChannelsPerNetPeer=2", "2.28.3"),
        (new().nvlink_centric_sched(Switch::On), "nvlinkCentricSched=1", "2.28.3"),
        (new().graph_usage(GraphUsage::Mixed), "graphUsageMode=2", "2.29.2"),
        (new().num_rma_ctx(2), "numRmaCtx=2", "2.29.2"),
        (new().max_p2p_peers(5), "maxP2pPeers=5", "2.30.3"),
        (new().graph_usage(GraphUsage::One).graph_stream_ordering(Switch::Off), "graphStreamOrdering=0", "2.30.7"),
        (new().launch_order_implicit(Switch::On), "launchOrderImplicit=1", "2.31.2"),
        (new().num_rma_sig(7), "numRmaSig=7", "2.31.2"),
        (new().rma_eager_init(Switch::On), "rmaEagerInit=1", "2.31.2"),
        (new().host_cft_mode(HostCftMode::Fallback), "hostCftMode=3", "2.31.2"),
        (new().nvls_host_mode(NvlsHostMode::DisableTransport), "nvlsHostMode=1", "2.32.3"),
    ]
}

#[test]
fn config_option_reaches_nccl_unless_nccl_is_too_old() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    for version in ["2.19.3", "2.26.5", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3"] {
        fakes_of(1, version).env(LOG, directory.path().join(version)).run(|| {
            let (nccl, contexts) = (Nccl::load().expect("the fake library is found"), contexts(1));
            for (config, shown, since) in options() {
                let made = Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_all(&contexts);
                let seen = logged(" config ");
                if nccl.version().at_least(since.parse().expect("the version is valid")) {
                    made.unwrap_or_else(|error| panic!("{shown}: {error}"));
                    assert!(seen.last().is_some_and(|seen| seen.contains(shown)), "{shown}: {seen:?}");
                } else {
                    let error = made.expect_err("the library lacks the option");
                    assert!(matches!(error, NcclError::Unsupported(_)), "{shown}: {error}");
                    assert!(!seen.iter().any(|seen| seen.contains(shown)), "{shown}: {seen:?}");
                }
            }
        });
    }
}

#[test]
fn options_apply_to_a_communicator_and_to_its_children() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    fakes(1).env(LOG, directory.path().join("log")).run(|| {
        // SAFETY: the children share no resources.
        let all = unsafe { Config::new().split_share(Switch::Off) }
            .blocking(Switch::Off)
            .cga_cluster_size(1)
            .min_ctas(1)
            .max_ctas(8)
            .name("all")
            .num_rma_ctx(2);
        let made = Communicator::builder()
            .nccl(Nccl::load().expect("the fake library is found"))
            .config(all.clone())
            .deadline(DEADLINE)
            .init_all(&contexts(1));
        let comm = made.expect("all options are supported").remove(0);
        let expected = "blocking=0 cgaClusterSize=1 minCTAs=1 maxCTAs=8 splitShare=0 commName=all numRmaCtx=2";
        assert_eq!(logged(" config "), [expected]);
        let child = Communicator::split_all(&[(&comm, Some(0), 0)], Some(&Config::new().max_ctas(4).name("half")));
        assert_eq!(child.expect("the split succeeds")[0].as_ref().and_then(|child| child.name().name.as_deref()), Some("half"));
        assert_eq!(logged(" config ")[1], "blocking=0 maxCTAs=4 commName=half");
    });
}

/// Returns the options of a call, with their texts in the fake's log.
fn call_options() -> Vec<(CollConfig, &'static str)> {
    let new = CollConfig::new;
    vec![
        (new(), "userProfilerTag=0 event=false ext=false"),
        (new().min_ctas(2).max_ctas(4), "minCTAs=2 maxCTAs=4 userProfilerTag=0 event=false ext=false"),
        (new().nvls_ctas(3), "nvlsCTAs=3 userProfilerTag=0 event=false ext=false"),
        (new().cga_cluster_size(8), "cgaClusterSize=8 userProfilerTag=0 event=false ext=false"),
        (new().cta_policy(CtaPolicy::Zero), "CTAPolicy=2 userProfilerTag=0 event=false ext=false"),
        (new().algorithms("ring"), "algSelection=ring forceAlgSelection=1 userProfilerTag=0 event=false ext=false"),
        (
            new().algorithms("none such").force_algorithms(Switch::Off),
            "algSelection=none such forceAlgSelection=0 userProfilerTag=0 event=false ext=false",
        ),
        (new().profiler_tag(42), "userProfilerTag=42 event=false ext=false"),
        (
            new().vendor_option(VendorOption { vendor: 7, option: 1, value: VendorValue::Number(1) }),
            "userProfilerTag=0 event=false ext=true",
        ),
    ]
}

#[test]
fn options_of_a_call_are_passed_to_nccl() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    fakes(1).env(LOG, directory.path().join("log")).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[2.0]);
        for (config, shown) in call_options() {
            comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect(shown);
            assert_eq!(logged("collective config ").last().map(String::as_str), Some(shown));
        }
        comm.wait(&stream, DEADLINE).expect("the work completes");
        let forced = CollConfig::new().algorithms("none such");
        let error = comm
            .with(&forced)
            .all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)
            .expect_err("the algorithm is unavailable");
        assert_eq!(error.code().map(|code| code.get()), Some(5), "{error}");
    });
}

#[test]
fn launch_completion_event_requires_nccl_2_32() {
    fakes_of(1, "2.31.2").run(|| {
        let (comm, stream) = alone();
        let event = Arc::new(comm.context().new_event(None).expect("an event is created"));
        let config = CollConfig::new().launch_completion_event(event);
        let error = comm.with(&config).all_reduce_in_place(&stream, &mut floats(&stream, &[1.0]), ReduceOp::Sum);
        assert!(matches!(error, Err(NcclError::Unsupported(error)) if error.since == Some(Version::new(2, 32, 0))));
    });
}
