//! Faults that a test injects, versions that it emulates, and counters and logs that it reads.

mod common;

use std::time::{Duration, Instant};

use common::*;
use peerweave_fakes::child;

const I32: i32 = 2;

#[test]
fn injected_fault_makes_the_call_return_the_error_code() {
    fakes().env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllReduce:2=1,ncclGroupEnd:2=3,ncclCommInitAll:1=2").run(|| {
        use_device(0);
        let mut comm = 0;
        assert_eq!(ncclCommInitAll(&mut comm, 1, std::ptr::null()), 2);
        ok(ncclCommInitAll(&mut comm, 1, std::ptr::null()));
        let (stream, data) = (stream(), buffer(&[1]));
        let reduce = || ncclAllReduce(data, data, 1, I32, 0, comm, stream);
        assert_eq!((reduce(), reduce(), reduce()), (0, 1, 0));
        for code in [0, 3, 0] {
            ok(ncclGroupStart());
            ok(reduce());
            assert_eq!(ncclGroupEnd(), code);
        }
        ok(ncclCommDestroy(comm));
    });
}

#[test]
fn fault_of_one_rank_does_not_affect_other_ranks() {
    fakes().env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllReduce@1:1=5").run(|| {
        ranks(2, |rank, comm, stream| {
            let data = buffer(&[1]);
            assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), if rank == 1 { 5 } else { 0 });
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(cuStreamQuery(stream) == 0, rank == 1);
            ok(ncclCommAbort(comm));
        });
    });
}

#[test]
fn abort_ends_a_stuck_operation() {
    fakes().env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:2").run(|| {
        ranks(1, |_, comm, stream| {
            let data = buffer(&[1]);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            std::thread::sleep(Duration::from_millis(50));
            assert_ne!(cuStreamQuery(stream), 0);
            ok(ncclCommAbort(comm));
            assert_eq!(cuStreamSynchronize(stream), 0);
        });
    });
}

#[test]
fn asynchronous_error_is_reported_until_the_abort() {
    fakes().env("PEERWEAVE_FAKE_NCCL_ASYNC_ERROR", "ncclAllReduce:1=6").run(|| {
        ranks(1, |_, comm, stream| {
            let data = buffer(&[1]);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            eventually(|| async_state(comm) == 6);
            assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 6);
            assert_eq!(ncclCommDestroy(comm), 6);
            ok(ncclCommAbort(comm));
            assert_eq!(cuStreamSynchronize(stream), 0);
        });
    });
}

#[test]
fn slow_operation_delays_the_stream() {
    fakes().env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclAllReduce=100").run(|| {
        ranks(1, |_, comm, stream| {
            let (data, begin) = (buffer(&[1]), Instant::now());
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert!(begin.elapsed() >= Duration::from_millis(100));
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn communicator_counts_as_busy_until_a_slow_call_returns() {
    fakes().env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommMemStats=3000").run(|| {
        ranks(1, |_, comm, _| {
            let begin = Instant::now();
            let asking = std::thread::spawn(move || {
                let mut value = 0;
                ncclCommMemStats(comm, 3, &mut value)
            });
            eventually(|| count("busy") == 1);
            ok(asking.join().expect("the thread does not panic"));
            assert!(begin.elapsed() >= Duration::from_millis(100));
            assert_eq!(count("busy"), 0);
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn initialisation_stays_in_progress_if_one_rank_is_stuck() {
    fakes().env("PEERWEAVE_FAKE_NCCL_INIT_STUCK", "1").run(|| {
        let mut id = UniqueId([0; 128]);
        ok(ncclGetUniqueId(&mut id));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    use_device(rank);
                    let mut comm = 0;
                    assert_eq!(ncclCommInitRankConfig(&mut comm, 2, id, rank, &Config::non_blocking()), 7);
                    std::thread::sleep(Duration::from_millis(100));
                    assert_eq!(async_state(comm), 7);
                    ok(ncclCommAbort(comm));
                });
            }
        });
    });
}

fn register(comm: Handle) -> Handle {
    let (mut memory, mut window) = (0, 1);
    ok(ncclMemAlloc(&mut memory, 4096));
    ok(ncclCommWindowRegister(comm, memory, 4096, &mut window, 1));
    window
}

#[test]
fn successful_registration_can_return_a_null_window() {
    fakes().env("PEERWEAVE_FAKE_NCCL_NULL_WINDOW", "1").run(|| ranks(1, |_, comm, _| assert_eq!(register(comm), 0)));
}

#[test]
fn multimem_setting_enables_multicast_addresses() {
    fakes().env("PEERWEAVE_FAKE_NCCL_MULTIMEM", "1").run(|| {
        ranks(1, |_, comm, _| {
            let mut pointer = 0;
            ok(ncclGetLsaMultimemDevicePointer(register(comm), 16, &mut pointer));
            assert_ne!(pointer, 0);
        });
    });
}

#[test]
fn collectives_in_noop_mode_are_counted_but_move_no_data() {
    fakes().env("PEERWEAVE_FAKE_NCCL_NOOP", "1").run(|| {
        ranks(2, |rank, comm, stream| {
            let data = buffer(&[rank]);
            for _ in 0..100 {
                ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            }
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<i32>(data, 1), [rank]);
            ok(ncclCommDestroy(comm));
        });
        assert_eq!(count("collectives"), 200);
    });
}

#[test]
fn non_blocking_calls_in_noop_mode_return_in_progress() {
    fakes().env("PEERWEAVE_FAKE_NCCL_NOOP", "1").run(|| {
        use_device(0);
        let (mut id, mut comm, stream, data) = (UniqueId([0; 128]), 0, stream(), buffer(&[5]));
        ok(ncclGetUniqueId(&mut id));
        assert_eq!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &Config::non_blocking()), 7);
        assert_eq!(settled(comm), 0);
        assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 7);
        assert_eq!(settled(comm), 0);
        assert_eq!(ncclSend(data, 1, I32, 0, comm, stream), 7);
        assert_eq!(settled(comm), 0);
        ok(ncclGroupStart());
        ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
        ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
        assert_eq!(ncclGroupEnd(), 7, "the group is in progress until its thread has ended");
        assert_eq!(settled(comm), 0);
        assert_eq!((read::<i32>(data, 1), count("collectives")), (vec![5], 4));
        ok(ncclCommDestroy(comm));
    });
}

#[test]
fn newest_fake_nccl_lacks_only_two_gin_functions() {
    fakes().run(|| {
        let names = include_str!("../since.txt").lines().filter(|line| !line.starts_with('#'));
        let missing: Vec<_> = names.filter_map(|line| line.split(' ').next()).filter(|name| !has(name)).collect();
        assert_eq!(missing, ["ncclGinInboxA2ACreateRequirement", "ncclGinOutboxCreateRequirement"]);
    });
}

#[test]
fn old_nccl_version_lacks_newer_functions() {
    fakes_of(21805).run(|| {
        let mut version = 0;
        ok(ncclGetVersion(&mut version));
        assert_eq!(version, 21805);
        assert!(has("ncclCommSplit") && has("ncclAllReduce") && has("peerweave_fake_nccl_count"));
        for newer in ["ncclMemAlloc", "ncclCommWindowRegister", "ncclAlltoAll", "ncclGather", "ncclParamGetI8", "ncclCommShrink"]
        {
            assert!(!has(newer), "version 2.18.5 has {newer}, expected no such function");
        }
        ranks(1, |_, comm, stream| {
            let data = buffer(&[1_u8]);
            assert_eq!(ncclAllReduce(data, data, 1, 10, 0, comm, stream), 4, "versions before 2.24 lack 8-bit floats");
            ok(ncclAllReduce(data, data, 1, 1, 0, comm, stream));
            ok(ncclCommDestroy(comm));
        });
    });
}

/// Creates a communicator with a configuration that sets three fields, and returns the values that
/// the library read.
fn taken(version: i32, header_version: u32, size: usize) -> String {
    let place = std::env::temp_dir().join(format!("peerweave-config-{}-{version}-{header_version}-{size}", std::process::id()));
    let scenario = "config_fields_unknown_to_the_caller_or_nccl_are_unset";
    let output = fakes_of(version)
        .env("PEERWEAVE_FAKE_NCCL_LOG", place.as_os_str())
        .env("HEADER", header_version.to_string())
        .env("SIZE", size.to_string())
        .run_child(scenario);
    assert!(output.passed(), "{output}");
    let log = std::fs::read_to_string(&place).expect("the log can be read");
    let _ = std::fs::remove_file(&place);
    let line = log.lines().find(|line| line.contains(" config ")).expect("the log has a line with the configuration");
    line.split_once(" config ").expect("the line has a configuration").1.to_owned()
}

#[test]
fn config_fields_unknown_to_the_caller_or_nccl_are_unset() {
    if child().is_some() {
        let number = |name: &str| std::env::var(name).expect(name).parse::<u32>().expect(name);
        let mut config = Config::new();
        (config.version, config.size) = (number("HEADER"), number("SIZE") as usize);
        config.first[3] = 8; // maxCTAs
        config.traffic_class = 3;
        config.rest[4] = 2; // nChannelsPerNetPeer
        let mut id = UniqueId([0; 128]);
        let mut comm = 0;
        ok(ncclGetUniqueId(&mut id));
        use_device(0);
        ok(ncclCommInitRankConfig(&mut comm, 1, id, 0, &config));
        ok(ncclCommDestroy(comm));
        config.magic = 1;
        assert_eq!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &config), 4);
        config.magic = 0xcafe_beef;
        config.first[2] = 9; // minCTAs above maxCTAs
        assert_eq!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &config), 4);
        return;
    }
    assert_eq!(taken(23203, 23203, 120), "maxCTAs=8 trafficClass=3 nChannelsPerNetPeer=2");
    assert_eq!(taken(23203, 22602, 120), "maxCTAs=8 trafficClass=3", "fields newer than the caller's version are unset");
    assert_eq!(taken(23203, 23203, 48), "maxCTAs=8 trafficClass=3", "fields beyond the end of the caller's struct are unset");
    assert_eq!(taken(21805, 23203, 120), "maxCTAs=8", "fields that an older library lacks are unset");
}

#[test]
fn log_contains_every_nccl_call_with_arguments() {
    const ME: &str = "log_contains_every_nccl_call_with_arguments";
    if child().is_some() {
        ranks(1, |_, comm, stream| {
            let data = buffer(&[1]);
            ok(ncclAllReduce(data, data, 1, I32, 3, comm, stream));
            ncclBroadcast(data, data, 1, I32, 9, comm, stream);
            ok(ncclCommDestroy(comm));
        });
        return;
    }
    let path = std::env::temp_dir().join(format!("peerweave-log-{}", std::process::id()));
    let output = fakes().env("PEERWEAVE_FAKE_NCCL_LOG", path.as_os_str()).run_child(ME);
    assert!(output.passed(), "{output}");
    let log = std::fs::read_to_string(&path).expect("the log can be read");
    let _ = std::fs::remove_file(&path);
    let has = |parts: &[&str]| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["ncclAllReduce(sendbuff=0x", "count=1, datatype=2, op=3, comm=0x", ") = 0"]), "{log}");
    assert!(has(&["ncclBroadcast(", "root=9", ") = 4"]), "{log}");
    assert!(has(&["ncclCommInitRank(", "nranks=1", "rank=0) = 0"]), "{log}");
}

#[test]
fn all_reduce_config_with_invalid_fields_is_refused() {
    fakes().run(|| {
        ranks(1, |_, comm, stream| {
            let (data, mut event) = (buffer(&[1]), 0);
            assert_eq!(cuEventCreate(&mut event, 2), 0);
            let unset = 0x8000_0000_8000_0000;
            let mut config = [72, 0xcafe_beef | 23203 << 32, 0, unset, unset, 0, 0x8000_0000_0000_0001, 0, event as u64];
            let reduce = |config: &[u64; 9]| ncclAllReduceConfig(data, data, 1, I32, 0, comm, stream, config.as_ptr().cast());
            ok(reduce(&config));
            assert_eq!((cuEventSynchronize(event), cuStreamSynchronize(stream)), (0, 0));
            let algorithm = c"nonsense";
            config[5] = algorithm.as_ptr() as u64;
            assert_eq!(reduce(&config), 5);
            config[5] = 0;
            config[3] = 0x8000_0000_8000_0000 - (0x8000_0000 - 5); // minCTAs 5
            config[3] = (config[3] & 0xffff_ffff) | 2 << 32; // maxCTAs 2
            assert_eq!(reduce(&config), 4);
            config[1] = 0;
            assert_eq!(reduce(&config), 4);
            ok(ncclCommDestroy(comm));
        });
    });
}
