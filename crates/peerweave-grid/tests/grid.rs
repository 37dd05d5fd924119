//! Tests of runs of grids: indices, barriers, warp operations, shared memory, schedules, and
//! failures.

use peerweave_device::gpu;
use peerweave_grid::{GridError, Launch, Options, Shape, explore, run, run_together};
use peerweave_types::Dim3;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEEDS: u64 = 40;

fn go(seed: u64, grid: impl Into<Dim3>, block: impl Into<Dim3>, body: &dyn Fn()) -> Result<(), GridError> {
    run(&Launch::new("test", grid, block, body), &Options::default().seed(seed))
}

fn step() {
    gpu::executor().step();
}

#[test]
fn indices_of_a_3d_launch_cover_every_thread_once() {
    let seen = RefCell::new(BTreeSet::new());
    let key = |index: Dim3| (index.x, index.y, index.z);
    let body = || {
        assert_eq!((gpu::grid_dim(), gpu::block_dim()), (Dim3::from((3, 2, 2)), Dim3::from((5, 3, 2))));
        let new = seen.borrow_mut().insert((key(gpu::block_idx()), key(gpu::thread_idx())));
        assert!(new, "{:?} {:?} ran twice", gpu::block_idx(), gpu::thread_idx());
    };
    explore(SEEDS, |seed| {
        seen.borrow_mut().clear();
        go(seed, (3, 2, 2), (5, 3, 2), &body)?;
        assert_eq!(seen.borrow().len(), 12 * 30);
        Ok::<(), GridError>(())
    });
}

#[test]
fn device_functions_outside_kernels_see_a_grid_of_one_thread() {
    go(0, 1, 1, &|| ()).unwrap();
    assert_eq!((gpu::thread_idx(), gpu::block_dim(), gpu::grid_dim()), (Dim3::ZERO, Dim3::ONE, Dim3::ONE));
    gpu::sync_threads();
    assert!(gpu::sync_threads_or(true));
    assert_eq!(gpu::vote_ballot(1, true), 1);
    gpu::pause();
}

#[test]
fn barrier_orders_accesses_under_any_seed() {
    explore(SEEDS, |seed| {
        let arrived = AtomicU32::new(0);
        go(seed, 1, 100, &|| {
            for round in 1..=3 {
                arrived.fetch_add(1, Ordering::Relaxed);
                step();
                gpu::sync_threads();
                assert_eq!(arrived.load(Ordering::Relaxed), 100 * round);
                gpu::sync_threads();
            }
        })
    });
}

#[test]
fn logical_or_over_a_block_is_true_if_one_thread_passes_true() {
    explore(SEEDS, |seed| {
        go(seed, 2, 70, &|| {
            let me = gpu::thread_idx().x;
            assert!(gpu::sync_threads_or(me == 69));
            assert!(!gpu::sync_threads_or(false));
            assert!(gpu::sync_threads_or(me == 0));
        })
    });
}

#[test]
fn warp_operations_return_correct_values_under_any_seed() {
    explore(SEEDS, |seed| {
        // The second warp has 8 lanes.
        go(seed, 2, 40, &|| {
            let (lane, mask) = (gpu::lane(), gpu::warp_mask());
            let lanes = if gpu::warp() == 0 { 32 } else { 8 };
            assert_eq!(mask.count_ones(), lanes);
            let value = 100 * gpu::warp() + lane;
            assert_eq!(gpu::shuffle_idx(mask, value, 3), 100 * gpu::warp() + 3);
            assert_eq!(gpu::shuffle_xor(mask, value, 1), 100 * gpu::warp() + (lane ^ 1));
            assert_eq!(gpu::shuffle_up(mask, value, 1), if lane == 0 { value } else { value - 1 });
            assert_eq!(gpu::shuffle_down(mask, value, 1), if lane == lanes - 1 { value } else { value + 1 });
            assert_eq!(gpu::vote_ballot(mask, lane % 2 == 1), mask & 0xaaaa_aaaa);
            assert!(gpu::vote_any(mask, lane == 5));
            assert!(!gpu::vote_all(mask, lane == 5));
            gpu::sync_warp(mask);
        })
    });
}

#[test]
fn warp_operations_with_disjoint_masks_do_not_interfere() {
    explore(SEEDS, |seed| {
        go(seed, 1, 32, &|| {
            let half = if gpu::lane() < 16 { 0x0000_ffff } else { 0xffff_0000 };
            let rounds = if gpu::lane() < 16 { 5 } else { 2 };
            for round in 0..rounds {
                assert_eq!(gpu::vote_ballot(half, true), half);
                assert_eq!(gpu::shuffle_idx(half, gpu::lane() + round, 16 * (gpu::lane() / 16)), 16 * (gpu::lane() / 16) + round);
            }
        })
    });
}

#[test]
fn blocks_do_not_share_dynamic_shared_memory() {
    explore(SEEDS, |seed| {
        let body = || {
            let (at, bytes) = gpu::dynamic_shared();
            assert_eq!((bytes, at.addr() % 128), (64 * 4, 0));
            let words = at.cast::<u32>();
            let (me, block) = (gpu::thread_idx().x as usize, gpu::block_idx().x);
            // SAFETY: the memory has 64 words and belongs to this block. Each thread writes its own
            // word, and reads another word after the barrier.
            unsafe {
                words.add(me).write(1000 * block + me as u32);
                gpu::sync_threads();
                assert_eq!(words.add(63 - me).read(), 1000 * block + 63 - me as u32);
            }
        };
        run(&Launch::shaped("shared", Shape::new(4, 64).shared_bytes(256), &body), &Options::default().seed(seed))
    });
}

#[test]
fn blocks_do_not_share_static_shared_memory() {
    let places = RefCell::new(BTreeSet::new());
    let body = || {
        let one = gpu::executor().fixed_shared(1, 64, 64);
        let two = gpu::executor().fixed_shared(2, 64, 8);
        assert!(one.addr().is_multiple_of(64) && one != two);
        places.borrow_mut().extend([one.addr(), two.addr()]);
        gpu::sync_threads();
        assert_eq!(gpu::executor().fixed_shared(1, 64, 64), one);
    };
    run(&Launch::shaped("fixed", Shape::new(3, 8).cooperative(true), &body), &Options::default().seed(3)).unwrap();
    assert_eq!(places.borrow().len(), 6, "three blocks run at the same time, with two declarations each");
}

#[test]
fn uninitialised_shared_memory_differs_by_seed() {
    let first = |seed: u64| {
        let found = Cell::new(0);
        let body = || {
            // SAFETY: the memory has one byte and belongs to this block. The executor has filled
            // it.
            found.set(unsafe { gpu::dynamic_shared().0.read() });
        };
        run(&Launch::shaped("unwritten", Shape::new(1, 1).shared_bytes(1), &body), &Options::default().seed(seed)).unwrap();
        found.get()
    };
    assert!((0..20).map(first).collect::<BTreeSet<_>>().len() > 10);
}

#[test]
fn blocks_of_a_cooperative_grid_can_wait_for_each_other() {
    explore(SEEDS, |seed| {
        let arrived = AtomicU32::new(0);
        let body = || {
            if gpu::thread_idx().x == 0 {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < 20 {
                    gpu::pause();
                }
            }
            gpu::sync_threads();
        };
        run(&Launch::shaped("grid barrier", Shape::new(20, 256).cooperative(true), &body), &Options::default().seed(seed))
    });
}

#[test]
fn all_blocks_of_a_large_grid_run() {
    let threads = AtomicU64::new(0);
    let body = || {
        threads.fetch_add(1, Ordering::Relaxed);
        gpu::sync_threads();
    };
    go(5, 300, 128, &body).unwrap();
    assert_eq!(threads.into_inner(), 38_400);
}

#[test]
fn grids_on_one_host_thread_can_wait_for_each_other() {
    explore(SEEDS, |seed| {
        let flags = [const { AtomicU32::new(0) }; 3];
        let bodies: Vec<_> = (0..3)
            .map(|pe| {
                let flags = &flags;
                move || {
                    // The grid has more blocks than run at the same time. Only the last block of
                    // each grid sets its flag and waits.
                    if gpu::block_idx().x == 99 {
                        flags[pe].store(1, Ordering::Release);
                        while flags[(pe + 1) % 3].load(Ordering::Acquire) == 0 {
                            gpu::pause();
                        }
                    }
                }
            })
            .collect();
        let launches: Vec<_> = bodies.iter().map(|body| Launch::new("pe", 100, 32, body)).collect();
        run_together(&launches, &Options::default().seed(seed))
    });
}

#[test]
fn grids_on_two_host_threads_can_wait_for_each_other() {
    let flags = [const { AtomicU32::new(0) }; 2];
    std::thread::scope(|scope| {
        for pe in 0..2 {
            let flags = &flags;
            scope.spawn(move || {
                for round in 1..=20 {
                    let body = || {
                        if gpu::thread_idx().x == 0 {
                            flags[pe].store(round, Ordering::Release);
                            while flags[1 - pe].load(Ordering::Acquire) < round {
                                gpu::pause();
                            }
                        }
                        gpu::sync_threads();
                    };
                    go(u64::from(round), 2, 64, &body).unwrap();
                }
            });
        }
    });
}

#[test]
fn race_between_threads_is_found_under_some_seed() {
    // The counter is read and then written. If threads switch between the read and the write, a
    // count is lost.
    let lost = |seed: u64| {
        let counter = AtomicU32::new(0);
        go(seed, 1, 8, &|| {
            let before = counter.load(Ordering::Relaxed);
            step();
            counter.store(before + 1, Ordering::Relaxed);
        })
        .unwrap();
        counter.into_inner() < 8
    };
    let found = (0..SEEDS).filter(|&seed| lost(seed)).count();
    assert!(found >= 10, "the race occurred under {found} of {SEEDS} seeds, expected at least 10");
    assert_eq!(found, (0..SEEDS).filter(|&seed| lost(seed)).count(), "the second run with each seed had a different result");
}

#[test]
fn same_seed_repeats_every_switch_between_threads() {
    let order = |seed: u64| {
        let order = RefCell::new(Vec::new());
        go(seed, 3, 33, &|| {
            for _ in 0..5 {
                order.borrow_mut().push((gpu::block_idx().x, gpu::thread_idx().x));
                step();
            }
            gpu::sync_threads();
        })
        .unwrap();
        order.into_inner()
    };
    for seed in 0..SEEDS {
        assert_eq!(order(seed), order(seed));
    }
    assert_ne!(order(1), order(2));
}

#[test]
fn error_of_a_panic_names_the_block_and_the_thread() {
    let unwound = AtomicU32::new(0);
    struct Count<'a>(&'a AtomicU32);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let error = go(4, (2, 3), (8, 8), &|| {
        let _count = Count(&unwound);
        if gpu::block_idx() == (Dim3 { x: 1, y: 2, z: 0 }) && gpu::thread_idx() == (Dim3 { x: 3, y: 7, z: 0 }) {
            panic!("no {}", 42);
        }
        gpu::sync_threads();
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "test: block (1, 2, 0) thread (3, 7, 0) panicked: no 42 (seed 4)");
    assert!(unwound.into_inner() > 0, "the frames of waiting threads were not unwound");
}

#[test]
fn trap_ends_the_grid_and_the_error_names_the_thread() {
    let error = go(0, 1, 4, &|| {
        if gpu::thread_idx().x == 2 {
            gpu::trap();
        }
    })
    .unwrap_err();
    assert_eq!(error.thread().unwrap().thread.x, 2);
    assert!(error.to_string().contains("trap"), "{error}");
}

#[test]
fn barrier_that_some_threads_do_not_reach_is_an_error() {
    explore(SEEDS, |seed| {
        let error = go(seed, 2, 64, &|| {
            if gpu::thread_idx().x < 63 {
                gpu::sync_threads();
            }
        })
        .unwrap_err();
        assert!(matches!(error, GridError::Divergent { .. }), "{error}");
        assert!(error.to_string().contains("sync_threads"), "{error}");
        Ok::<(), GridError>(())
    });
}

#[test]
fn barrier_is_an_error_while_lanes_wait_in_a_warp_operation() {
    explore(SEEDS, |seed| {
        let error = go(seed, 1, 32, &|| {
            if gpu::lane() == 7 {
                gpu::sync_threads();
            } else {
                gpu::sync_warp(gpu::FULL_WARP);
            }
        })
        .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("wait for each other") && text.contains("1 waiting in sync_threads"), "{text}");
        Ok::<(), GridError>(())
    });
}

#[test]
fn different_masks_in_a_warp_operation_are_an_error() {
    for seed in 0..SEEDS {
        let error = go(seed, 1, 32, &|| {
            gpu::sync_warp(if gpu::lane() == 0 { 0x3 } else { gpu::FULL_WARP });
        })
        .unwrap_err();
        assert!(error.to_string().contains("mask"), "{error}");
        let error = go(seed, 1, 32, &|| gpu::sync_warp(0x3)).unwrap_err();
        assert!(error.to_string().contains("the thread's own lane"), "{error}");
    }
}

#[test]
fn endless_wait_ends_at_the_deadline() {
    let dropped = AtomicBool::new(false);
    struct Say<'a>(&'a AtomicBool);
    impl Drop for Say<'_> {
        fn drop(&mut self) {
            // A destructor that waits must not prevent the end of the run.
            gpu::pause();
            gpu::sync_threads();
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let body = || {
        let _say = Say(&dropped);
        if gpu::thread_idx().x == 0 {
            loop {
                gpu::pause();
            }
        }
        gpu::sync_threads();
    };
    let started = Instant::now();
    let options = Options::default().deadline(Duration::from_millis(100));
    let error = run(&Launch::new("forever", 2, 4, &body), &options).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20));
    let text = error.to_string();
    assert!(text.contains("forever: timed out") && text.contains("3 waiting in sync_threads"), "{text}");
    assert!(dropped.into_inner());
}

#[test]
fn endless_loop_with_memory_accesses_ends_at_the_deadline() {
    let body = || {
        loop {
            step();
        }
    };
    let options = Options::default().deadline(Duration::from_millis(100)).seed(9);
    let error = run(&Launch::new("busy", 1, 4, &body), &options).unwrap_err();
    assert!(matches!(error, GridError::Deadline { .. }), "{error}");
}

#[test]
fn on_idle_is_called_when_every_thread_waits() {
    let flag = AtomicBool::new(false);
    let on_idle = || flag.store(true, Ordering::Release);
    let body = || {
        while !flag.load(Ordering::Acquire) {
            gpu::pause();
        }
    };
    run(&Launch::new("idle", 4, 32, &body), &Options::default().on_idle(&on_idle)).unwrap();
}

#[test]
fn invalid_launch_shapes_are_refused() {
    let refused = |grid: (u32, u32, u32), block: (u32, u32, u32)| {
        go(0, grid, block, &|| panic!("a thread of a refused grid ran")).unwrap_err().to_string()
    };
    assert!(refused((0, 1, 1), (1, 1, 1)).starts_with("test: the grid is (0, 1, 1), expected from (1, 1, 1) to"));
    assert!(refused((1, 65536, 1), (1, 1, 1)).contains("the grid is (1, 65536, 1)"));
    assert!(refused((1, 1, 1), (1025, 1, 1)).contains("the block is (1025, 1, 1)"));
    assert!(refused((1, 1, 1), (32, 33, 1)).contains("at most 1024 threads"));
    assert!(refused((1, 1, 1), (1, 1, 65)).contains("the block is (1, 1, 65)"));
    let body = || panic!("a thread of a refused grid ran");
    let launch = Launch::shaped("test", Shape::new(1, 1).shared_bytes(1 << 20), &body);
    let error = run(&launch, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("dynamic shared memory is 1048576"), "{error}");
    let error = run(&Launch::shaped("test", Shape::new(17, 1024).cooperative(true), &body), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("17408 threads, expected at most 16384 threads"), "{error}");
}

#[test]
fn running_a_grid_inside_a_kernel_is_refused() {
    let error = go(0, 1, 1, &|| go(0, 1, 1, &|| ()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("from inside a"), "{error}");
}
