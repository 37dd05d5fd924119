//! Injected faults, refused calls, and calls that end the process.

mod common;

use std::time::Duration;

use common::*;
use peerweave_fakes::{Fakes, Output, child};

/// Runs the body of a test in children. All children must fail, and at least one must print this
/// message.
fn all_abort(fakes: &Fakes, count: usize, scenario: &str, complaint: &str) -> Vec<Output> {
    let outputs = fakes.spawn_children(count, scenario);
    assert!(outputs.iter().any(|output| output.stderr.contains(complaint)), "no child printed {complaint:?}: {}", outputs[0]);
    assert!(outputs.iter().all(|output| !output.passed()), "a child passed, expected all to fail: {}", outputs[0]);
    outputs
}

macro_rules! aborts {
    ($($name:ident: $count:literal $complaint:literal, $fakes:expr, $body:expr;)*) => {$(
        #[test]
        fn $name() {
            match child() {
                Some(me) => {
                    let body: fn(&peerweave_fakes::Child) = $body;
                    body(&me);
                }
                None => {
                    all_abort(&$fakes, $count, stringify!($name), $complaint);
                }
            }
        }
    )*};
}

fn quick() -> Fakes {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_WAIT_MS", "5000").limit(Duration::from_secs(60))
}

fn by_network() -> Fakes {
    quick().env("NVSHMEM_DISABLE_P2P", "1")
}

aborts! {
    error_names_pes_that_allocate_different_sizes: 2 "PE 0 is in nvshmem_malloc[100, 0", quick(), |me| {
        init(me);
        nvshmem_malloc([100, 200][me.rank]);
    };
    error_names_pes_in_different_collectives: 2 "nvshmem_barrier_all", quick(), |me| {
        init(me);
        if me.rank == 0 { nvshmem_barrier_all() } else { nvshmem_sync_all() }
    };
    put_outside_allocated_memory_ends_the_process: 1 "are not allocated symmetric memory", quick(), |me| {
        init(me);
        let memory = symmetric(&[0_i32; 4]);
        nvshmem_int32_put(memory, plain(&[0_i32; 8]), 300, 0);
    };
    stream_put_into_freed_memory_ends_the_process: 1 "nvshmemx_int32_put_on_stream: 16 bytes", quick(), |me| {
        let stream = init(me);
        let (memory, word) = (symmetric(&[0_i32; 4]), symmetric(&[0_u64]));
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        nvshmemx_int32_put_on_stream(memory, plain(&[0_i32; 4]), 4, 0, stream);
        nvshmem_free(memory);
        let other = common::stream();
        nvshmemx_signal_op_on_stream(word, 1, 9, 0, other);
        finish(stream);
    };
    second_free_of_memory_ends_the_process: 1 "nvshmem_free: nothing is allocated at", quick(), |me| {
        init(me);
        let memory = symmetric(&[0_i32; 4]);
        nvshmem_free(memory);
        nvshmem_free(memory);
    };
    use_of_a_destroyed_team_ends_the_process: 1 "nvshmem_team_n_pes: team 8 was destroyed", quick(), |me| {
        init(me);
        let mut team = -1;
        assert_eq!(nvshmem_team_split_strided(0, 0, 1, 1, std::ptr::null(), 0, &mut team), 0);
        nvshmem_team_destroy(team);
        nvshmem_team_n_pes(team);
    };
    call_after_finalize_ends_the_process: 1 "nvshmem_malloc was called after nvshmemx_hostlib_finalize", quick(), |me| {
        init(me);
        nvshmemx_hostlib_finalize();
        nvshmem_malloc(8);
    };
    call_before_initialisation_ends_the_process: 1 "nvshmem_barrier_all was called before NVSHMEM was initialised", quick(), |_| nvshmem_barrier_all();
    stream_work_that_outlives_the_job_ends_the_process: 1 "after nvshmemx_hostlib_finalize", quick(), |me| {
        let stream = init(me);
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        nvshmemx_hostlib_finalize();
        finish(stream);
    };
    unordered_collectives_of_a_team_end_the_process: 1
    "nvshmemx_barrier_on_stream began before the last collective of team 0 was complete", quick(), |me| {
        let (one, other) = (init(me), stream());
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, one);
        assert_eq!(nvshmemx_barrier_on_stream(0, one), 0);
        assert_eq!(nvshmemx_barrier_on_stream(0, other), 0);
        finish(other);
    };
    host_collective_during_a_stream_collective_is_fatal: 1
    "nvshmem_barrier began before the last collective of team 0 was complete", quick(), |me| {
        let stream = init(me);
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        assert_eq!(nvshmemx_barrier_on_stream(0, stream), 0);
        nvshmem_barrier(0);
    };
    allocation_during_a_collective_ends_the_process: 1
    "nvshmem_malloc was called while a collective of team 0 was pending", quick(), |me| {
        let stream = init(me);
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        assert_eq!(nvshmemx_barrier_on_stream(0, stream), 0);
        nvshmem_malloc(8);
    };
    split_during_a_collective_ends_the_process: 1
    "nvshmem_team_split_strided was called while a collective of team 1 was pending", quick(), |me| {
        let stream = init(me);
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        assert_eq!(nvshmemx_barrier_on_stream(1, stream), 0);
        nvshmem_team_split_strided(1, 0, 1, 1, std::ptr::null(), 0, &mut -1);
    };
    put_to_a_missing_pe_ends_the_process: 1 "PE 1 does not exist in a job of 1 PEs", quick(), |me| {
        init(me);
        let memory = symmetric(&[0_i32; 4]);
        nvshmem_int32_put(memory, memory, 1, 1);
    };
    collective_without_one_pe_ends_at_the_time_limit: 2 "waited 5s for PE 1 of team 0 in nvshmem_barrier_all", quick(), |me| {
        init(me);
        if me.rank == 0 {
            nvshmem_barrier_all();
        } else {
            std::thread::sleep(Duration::from_secs(15));
            panic!("PE 0 has ended at its time limit");
        }
    };
    initialisation_without_one_pe_ends_at_the_time_limit: 1 "for PE 1 to initialise NVSHMEM", quick(), |me| {
        use_device(0);
        let id = shared_id(me, "id");
        let mut attr = attr(2);
        assert_eq!(nvshmemx_set_attr_uniqueid_args(0, 2, &id, &mut attr), 0);
        nvshmemx_hostlib_init_attr(8, &mut attr);
    };
    injected_abort_ends_the_process: 1 "nvshmem_barrier_all: an injected end of the process",
    quick().env("PEERWEAVE_FAKE_NVSHMEM_ABORT", "nvshmem_barrier_all:2"), |me| {
        init(me);
        nvshmem_barrier_all();
        nvshmem_barrier_all();
    };
    failed_growth_unmaps_the_heap_and_ends_the_process: 1 "do not fit into the symmetric heap (the heap grows by", quick(), |me| {
        init(me);
        nvshmem_malloc(9 << 20);
    };
    failed_symmetric_registration_unmaps_the_heap: 1 "and the heap is unmapped", quick(), |me| {
        init(me);
        nvshmemx_buffer_register_symmetric(plain(&[0_u8; 64]), 64, 0);
    };
    captured_quiet_with_pending_nbi_ends_the_process: 1 "nvshmemx_quiet_on_stream: a graph would wait for an uncaptured stream", quick(), |me| {
        let stream = init(me);
        let memory = symmetric(&[0_i32; 8]);
        nvshmemx_int32_put_nbi_on_stream(memory, memory + 16, 4, 0, stream);
        let other = common::stream();
        assert_eq!(cuStreamBeginCapture_v2(other, 2), 0);
        nvshmemx_quiet_on_stream(other);
    };
    network_put_from_unregistered_memory_ends_the_process: 2 "are not registered with the network", by_network(), |me| {
        init(me);
        let (memory, source) = (symmetric(&[0_i32; 4]), plain(&[1_i32; 4]));
        assert_eq!(nvshmemx_buffer_register(source, 16), 0);
        nvshmem_int32_put(memory, source, 4, 1 - me.rank as i32);
        assert_eq!(nvshmemx_buffer_unregister(source), 0);
        nvshmem_int32_put(memory, source, 4, 1 - me.rank as i32);
    };
    strided_network_put_ends_the_process: 2 "nvshmem_int32_iput: not implemented for PE", by_network(), |me| {
        init(me);
        let memory = symmetric(&[0_i32; 4]);
        nvshmem_int32_iput(memory, memory, 1, 1, 2, 1 - me.rank as i32);
    };
    call_after_a_failed_start_ends_the_process: 1 "nvshmem initialization failed, exiting",
    quick().env("NVSHMEM_MAX_TEAMS", "many"), |me| {
        use_device(0);
        let id = shared_id(me, "id");
        assert_eq!((init_with(me, &id, 2), nvshmemx_init_status()), (0, 1));
        nvshmem_malloc(8);
    };
    predefined_teams_share_their_counters: 1 "began before the last collective of team 2 was complete", quick(), |me| {
        let stream = init(me);
        let word = symmetric(&[0_u64]);
        nvshmemx_signal_wait_until_on_stream(word, 0, 1, stream);
        assert_eq!(nvshmemx_barrier_on_stream(0, stream), 0);
        let other = common::stream();
        assert_eq!(nvshmemx_barrier_on_stream(2, other), 0);
        finish(other);
    };
    second_id_request_after_a_failure_ends_the_process: 1 "the plug-in was released",
    quick().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_get_uniqueid:1"), |_| {
        let mut id = UniqueId { version: (1 << 16) + 128, internal: [0; 124] };
        assert_ne!(nvshmemx_get_uniqueid(&mut id), 0);
        nvshmemx_get_uniqueid(&mut id);
    };
    misspelled_setting_ends_the_process: 1 "PEERWEAVE_FAKE_NVSHMEM_FAIL=nvshmem_mallok:1 is invalid",
    quick().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmem_mallok:1"), |me| { init(me); };
}

#[test]
fn injected_faults_make_nvshmem_calls_fail() {
    let order = "nvshmem_malloc:2,nvshmem_barrier@0:1=4,nvshmem_team_split_strided=2,nvshmem_int32_put:1";
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", order).run_many(2, |me| {
        init(&me);
        let memory = symmetric(&[0_i32]);
        assert_eq!(nvshmem_malloc(8), 0);
        assert_ne!(nvshmem_malloc(8), 0);
        if me.rank == 0 {
            assert_eq!(nvshmem_barrier(0), 4);
        }
        assert_eq!(nvshmem_barrier(0), 0);
        let mut team = -1;
        assert_eq!(nvshmem_team_split_strided(0, 0, 1, 2, std::ptr::null(), 0, &mut team), 2);
        let source = plain(&[1_i32]);
        nvshmem_int32_put(memory, source, 1, me.rank as i32);
        assert_eq!(read::<i32>(memory, 1), [0], "a call that fails without a code has no effect");
        nvshmem_int32_put(memory, source, 1, me.rank as i32);
        assert_eq!(read::<i32>(memory, 1), [1]);
    });
}

#[test]
fn injected_fault_fails_the_initialisation() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_hostlib_init_attr@1:1=5").run_many(2, |me| {
        use_device(me.rank as i32);
        let id = shared_id(&me, "id");
        if me.rank == 1 {
            assert_eq!(init_with(&me, &id, 2), 5);
        }
        assert_eq!(init_with(&me, &id, 2), 0);
    });
}

#[test]
fn injected_fault_makes_an_operation_stuck_or_slow() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_STUCK", "nvshmemx_barrier_on_stream:2").run_many(1, |me| {
        let stream = init(&me);
        assert_eq!(nvshmemx_barrier_on_stream(0, stream), 0);
        finish(stream);
        assert_eq!(nvshmemx_barrier_on_stream(0, stream), 0);
        std::thread::sleep(Duration::from_millis(100));
        assert_ne!(cuStreamQuery(stream), 0);
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=200").run_many(1, |me| {
        init(&me);
        let start = std::time::Instant::now();
        assert_ne!(nvshmem_malloc(8), 0);
        assert!(start.elapsed() >= Duration::from_millis(200));
    });
    let stuck = Fakes::new().cuda().nvshmem().limit(Duration::from_secs(1));
    if child().is_none() {
        let stuck = stuck.env("PEERWEAVE_FAKE_NVSHMEM_STUCK", "nvshmemx_hostlib_init_attr");
        let outputs = stuck.spawn_children(1, "injected_fault_blocks_the_initialisation");
        assert!(outputs[0].timed_out, "the child ended, expected a child that hangs: {}", outputs[0]);
    }
}

#[test]
fn injected_fault_blocks_the_initialisation() {
    if let Some(me) = child() {
        init(&me);
    }
}

#[test]
fn global_exit_ends_all_pes_with_the_given_status() {
    if let Some(me) = child() {
        init(&me);
        if me.rank == 0 {
            nvshmem_barrier_all()
        } else {
            nvshmem_global_exit(3)
        }
        return;
    }
    let outputs = fakes().spawn_children(2, "global_exit_ends_all_pes_with_the_given_status");
    assert!(outputs.iter().all(|output| output.status.code() == Some(3)), "{}", outputs[0]);
}

#[test]
fn two_pes_on_one_gpu_are_refused_unless_a_setting_allows_it() {
    fakes().run_many(2, |me| {
        use_device(3);
        let id = shared_id(&me, "id");
        assert_eq!((init_with(&me, &id, 2), nvshmemx_init_status()), (0, 1), "as in NVSHMEM, only the bootstrap succeeds");
        assert_eq!((nvshmem_my_pe(), nvshmem_n_pes()), (me.rank as i32, 2));
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SHARE_GPU", "1").run_many(2, |me| {
        use_device(3);
        let id = shared_id(&me, "id");
        assert_eq!((init_with(&me, &id, 2), nvshmemx_init_status()), (0, 3));
    });
}

#[test]
fn nvshmem_accepts_struct_layout_2_since_version_3_6_5() {
    fakes_of("3.4.5").run_many(1, |me| {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        nvshmemx_vendor_get_version_info(&mut major, &mut minor, &mut patch);
        assert_eq!((major, minor, patch, name().as_str()), (3, 4, 5, "NVSHMEM v3.4.5"));
        assert!(!has("nvshmemx_flush") && !has("nvshmemx_qp_create") && has("nvshmemx_buffer_register_symmetric"));
        use_device(0);
        let id = shared_id(&me, "id");
        assert_eq!(init_with(&me, &id, 2), 1, "NVSHMEM 3.4.5 refuses layout 2 of the structs");
        assert_eq!(init_with(&me, &id, 1), 0);
    });
    fakes_of("3.6.5").run_many(1, |me| {
        assert!(!has("nvshmemx_flush") && has("nvshmemx_qp_create"));
        let id = shared_id(&me, "id");
        let mut attr = attr(2);
        assert_eq!(nvshmemx_set_attr_uniqueid_args(0, 1, &id, &mut attr), 0);
        attr.device = 2;
        assert_eq!(nvshmemx_hostlib_init_attr(8, &mut attr), 0);
        let mut wrong = id;
        wrong.version = 0;
        attr.id = &wrong;
        nvshmemx_hostlib_finalize();
        assert_eq!(nvshmemx_hostlib_init_attr(8, &mut attr), 1);
        wrong = UniqueId { version: id.version, internal: [1; 124] };
        attr.id = &wrong;
        assert_eq!(nvshmemx_hostlib_init_attr(8, &mut attr), 1, "the id was not created by nvshmemx_get_uniqueid");
    });
}

#[test]
fn fake_nvshmem_starts_from_pmi_variables_but_not_from_mpi_comm() {
    fakes().run_many(1, |_| {
        use_device(0);
        let mut attr = attr(2);
        let communicator = 1_usize;
        assert_eq!(nvshmemx_set_attr_mpi_comm_args(std::ptr::from_ref(&communicator).addr(), &mut attr), 0);
        assert_eq!(nvshmemx_hostlib_init_attr(2, &mut attr), 3);
        assert_eq!(nvshmemx_hostlib_init_attr(0, &mut attr), 7, "no launcher started the process");
    });
    let place = std::env::temp_dir().join(format!("peerweave-fake-nvshmem-{}", std::process::id()));
    if child().is_none() {
        std::fs::create_dir(&place).expect("a temporary directory can be created");
    }
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", &place).env("PMI_RANK", "0").env("PMI_SIZE", "1").run_many(1, |_| {
        use_device(0);
        assert_eq!(nvshmemx_hostlib_init_attr(0, &mut attr(2)), 0);
        assert_eq!((nvshmem_my_pe(), nvshmem_n_pes()), (0, 1));
    });
    if child().is_none() {
        std::fs::remove_dir_all(&place).expect("the directory exists");
    }
}

#[test]
fn unknown_module_and_repeated_region_stop_return_errors() {
    fakes().run_many(1, |me| {
        init(&me);
        assert_eq!(nvshmemx_cumodule_init(0x1000), 7, "the driver does not know the module");
        assert_eq!((nvshmemx_cumodule_finalize(0x1000), count("modules")), (1, 0));
        let (mut region, mut active) = (0, -1);
        assert_eq!(nvshmemx_region_start(&mut region, [0_u8; 64].as_ptr().cast()), 0);
        assert_eq!((nvshmemx_region_is_active(0, &mut active), active), (0, 1));
        assert_eq!((nvshmemx_region_stop(region), nvshmemx_region_stop(region)), (0, 1));
        assert_eq!((nvshmemx_region_is_active(0, &mut active), active), (0, 0));
        let mut pairs = std::ptr::null_mut();
        assert_eq!(nvshmemx_qp_create(2, &mut pairs), 0);
        // SAFETY: two queue pairs were created.
        assert_eq!(unsafe { std::slice::from_raw_parts(pairs, 2) }, [2, 3]);
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").run_many(1, |me| {
        init(&me);
        assert_eq!((nvshmemx_cumodule_init(0x1000), count("modules")), (0, 1));
        assert_eq!((nvshmemx_cumodule_finalize(0x1000), count("modules")), (0, 0));
    });
}

#[test]
fn nvshmem_calls_are_logged_with_arguments() {
    let log = std::env::temp_dir().join(format!("peerweave-fake-nvshmem-log-{}", std::process::id()));
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_LOG", &log).run_many(1, |me| {
        init(&me);
        nvshmem_malloc(24);
        nvshmem_barrier(0);
        nvshmemx_hostlib_finalize();
    });
    if child().is_none() {
        let text = std::fs::read_to_string(&log).expect("the log can be read");
        assert!(text.contains("nvshmem_malloc(bytes=24) = 0x"), "{text}");
        assert!(text.contains("nvshmem_barrier(team=0) = 0\n") && text.contains("nvshmemx_hostlib_finalize() = ()"), "{text}");
        std::fs::remove_file(&log).expect("the log exists");
    }
}

#[test]
fn multicast_setting_enables_multicast_pointers() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").run_many(1, |me| {
        init(&me);
        let memory = symmetric(&[0_i32; 1000]);
        let first = nvshmemx_mc_ptr(0, memory);
        assert_ne!(first, 0);
        assert_eq!((nvshmemx_mc_ptr(0, memory + 400) - first, nvshmem_team_n_pes(6)), (400, 1));
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").env("NVSHMEM_DISABLE_NVLS", "1").run_many(1, |me| {
        init(&me);
        assert_eq!(nvshmemx_mc_ptr(0, symmetric(&[0_i32])), 0);
    });
}

#[test]
fn malloc_returns_null_only_on_the_pe_with_a_full_heap() {
    fakes().env("NVSHMEM_DISABLE_CUDA_VMM", "1").env("PEERWEAVE_FAKE_NVSHMEM_FULL", "nvshmem_malloc@1:1").run_many(2, |me| {
        init(&me);
        assert_eq!(nvshmem_malloc(64) == 0, me.rank == 1);
    });
}
